//! Whole exchanges: nodes get the requests that a second, strict reader finds in the client's bytes.
//!
//! A client's bytes on one connection.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_proxy::fuzzing::exchange(input));
