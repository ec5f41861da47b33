//! Messages and their JSON, as grpc-transcode has them: neither panics, and what both have made of each other stays.
//!
//! A byte that says which of them it is, and the rest.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::grpc_transcode(input));
