//! Structured fields, and HTTP message signatures in them: none panics, what is read is written so that it reads the
//! same, and a value that is signed is one line.
//!
//! Two fields, with a zero byte between them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::structured_fields(input));
