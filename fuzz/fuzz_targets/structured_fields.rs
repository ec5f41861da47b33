//! Structured fields, and HTTP message signatures in them: none panics, a parsed field reads the same after
//! writing, and a value that is signed is one line.
//!
//! Two fields, with a zero byte between them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::structured_fields(input));
