//! Requests that oas-validator looks at: none panics, and the same one has the same problems.
//!
//! Lines with path, query, fields and `Content-Type`, and the body.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::oas_validator(input));
