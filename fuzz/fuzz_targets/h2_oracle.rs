//! HTTP/2 compared with the `h2` crate: both understand a client's frames, right or wrong, the same.
//!
//! The input chooses the client's frames and how the server behaves; `sigma-http/tests/h2_oracle` makes a
//! conversation of it, and runs the same comparison on fixed seeds.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/sigma-http/tests/h2_oracle/oracle/mod.rs"]
mod oracle;

fuzz_target!(|data: &[u8]| {
    if let Err(difference) = oracle::compare(data) {
        panic!("{difference}");
    }
});
