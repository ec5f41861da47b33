//! Cache directives of answers and requests: none panics, forbidden answers are not stored, and stored ones
//! fit their requests.
//!
//! A byte for the status, fields of an answer, a zero byte, fields of a request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_cache::fuzzing::cache_fields(input));
