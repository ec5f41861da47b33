//! Queries of GraphQL: each has a cost or none, in linear time, whatever schema a server tells.
//!
//! A body, a zero byte, a response with a schema.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::graphql(input));
