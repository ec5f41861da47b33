//! HTTP/1 on the wire (RFC 9112), strictly.
//!
//! | file | role |
//! |---|---|
//! | `bytes` | which bytes may stand where |
//! | `parse` | bytes to heads |
//! | `tolerance` | what is taken beyond the strict grammar where a setting says so |
//! | `framing` | where a message ends |
//! | `chunked` | the chunked coding, in place |
//! | `body` | bytes to frames |
//! | `output` | frames to bytes |
//! | `encode` | heads to bytes |
//!
//! An ambiguous message is refused rather than repaired: two parsers that repair differently are
//! how requests are smuggled.

pub mod body;
pub mod bytes;
pub mod chunked;
pub mod encode;
pub mod framing;
pub mod output;
pub mod parse;
pub mod tolerance;

pub use body::BodyReader;
pub use chunked::{ChunkedDecoder, Decoded};
pub use framing::{connection_persists, frame_request, frame_response, request_body, response_body};
pub use output::{Framing, Output};
pub use parse::{HeadLimits, HeadScanner, ParseError, parse_request, parse_response};
pub use tolerance::Tolerance;
