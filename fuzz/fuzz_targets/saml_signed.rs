//! Documents around what a provider has signed, and within: nobody else has logged in than who is signed.
//!
//! A zero byte and pieces of documents, or the number of a place and its text.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::saml_signed(input));
