//! Fields of a request body, by its type: none panics, and the same body has the same.
//!
//! The type, a zero byte, the body.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::body_fields(input));
