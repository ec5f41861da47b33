//! Messages of a directory: none panics, and a client's text is never more than a value in a request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::ldap(input));
