//! Documents around a signed element, and within: only the signed user logs in.
//!
//! A zero byte and pieces of documents, or the number of a place and its text.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::saml_signed(input));
