//! Frames of a WebSocket: read the same in any pieces, as a second reader reads them, and followed by a
//! relay.
//!
//! The longest message, the length of pieces, and a client's bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| sigma_http::websocket::fuzzing::websocket(input));
