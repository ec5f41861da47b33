//! Certificates: none panics, and what is shown of one stays within a line.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_net::tls::fuzzing::certificate(input));
