//! Bodies in the forms that body-transformer reads: none panics, and none becomes more values than it may.
//!
//! A byte that says the form, and the body.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::body_formats(input));
