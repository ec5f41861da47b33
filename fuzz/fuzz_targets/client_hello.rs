//! The records that a client begins with: none panics, and their fingerprint (JA4) does not depend on how the message
//! is cut into records.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_net::tls::fuzzing::client_hello(input));
