//! Certificates: none panics, and shown fields of one stay within a line.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_net::tls::fuzzing::certificate(input));
