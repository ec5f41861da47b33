//! Messages of a runner of plugins: none panics, and the lengths of their parts are limited.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::runner_messages(input));
