//! Contexts of traces in header fields: what is read is written so that it reads the same, and what is passed on is
//! within its bounds.
//!
//! Values, with line feeds between them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::trace_headers(input));
