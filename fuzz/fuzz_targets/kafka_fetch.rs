//! Responses of brokers to a fetch: none panics, and records come in order and within their room.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::kafka_fetch(input));
