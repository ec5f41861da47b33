//! JSON Web Tokens, signed or encrypted, and sets of keys: none panics, and no other key verifies a
//! signature.
//!
//! A token, and behind a zero byte the keys of its issuer.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::tokens(input));
