//! Cache directives of responses and requests: none panics, forbidden responses are not stored, and stored ones fit
//! their requests.
//!
//! A byte for the status, fields of a response, a zero byte, fields of a request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_cache::fuzzing::cache_fields(input));
