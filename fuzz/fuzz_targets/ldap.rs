//! Messages of a directory: none panics, and nothing that a client says is more than a value in what is asked.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::ldap(input));
