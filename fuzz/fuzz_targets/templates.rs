//! Templates of body-transformer against bodies: none panics, each ends within its limits.
//!
//! A form, a template, a zero byte, a body.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::templates(input));
