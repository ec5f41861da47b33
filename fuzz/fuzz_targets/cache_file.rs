//! Bytes from a disk: none panics, and read data equals written data.
//!
//! The head of a response; or a byte 255 and a file.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_cache::fuzzing::cache_file(input));
