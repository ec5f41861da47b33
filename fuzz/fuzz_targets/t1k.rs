//! Responses of a detector that speaks T1K: none panics, and only a whole one decides.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::t1k(input));
