//! Messages of SAML: none panics, and a user logs in only if the provider says so.
//!
//! A document, or the query of a redirect or a form that brings one.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::saml(input));
