//! What answers and requests say of keeping: none panics, what is forbidden is not kept, and what is kept fits its request.
//!
//! A byte for the status, fields of an answer, a zero byte, fields of a request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_cache::fuzzing::cache_fields(input));
