//! Values of `Authorization` for digest-auth and hmac-auth: none panics, and a response reads the same after writing.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::authorization(input));
