//! Messages of SAML: none panics, and nobody has logged in of whom the provider does not say so.
//!
//! A document, or the query of a redirect or a form that brings one.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::saml(input));
