//! Contexts of traces in header fields: a parsed one reads the same after writing, and passed-on fields are
//! within the bounds.
//!
//! Values, with line feeds between them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_plugins::fuzzing::trace_headers(input));
