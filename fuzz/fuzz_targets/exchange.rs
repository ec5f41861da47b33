//! Whole exchanges: nodes get what a second, strict reader finds in what the client sent.
//!
//! What a client sends on one connection.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_proxy::fuzzing::exchange(input));
