//! What a disk gives back: none panics, and what is read is what was written.
//!
//! The head of an answer; or a byte 255 and a file.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_cache::fuzzing::cache_file(input));
