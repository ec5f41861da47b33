//! The files of a disk cache as a whole: none panics, and a response that is found is the one that was kept.
//!
//! Changes of four bytes each: a file, a change, and where.

#![no_main]

#[path = "../../crates/sigma-cache/tests/cache_folder/body.rs"]
mod body;
#[path = "../../crates/sigma-cache/tests/disk/mod.rs"]
mod disk;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| body::cache_folder(input));
