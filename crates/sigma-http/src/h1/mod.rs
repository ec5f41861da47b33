//! HTTP/1 on the wire (RFC 9112), parsed strictly.
//!
//! | file | role |
//! |---|---|
//! | `bytes` | allowed bytes in each part |
//! | `parse` | parsing of heads |
//! | `tolerance` | deviations from the strict grammar that a setting allows |
//! | `framing` | the end of a message |
//! | `chunked` | the chunked coding, in place |
//! | `body` | frames from bytes |
//! | `output` | bytes from frames |
//! | `encode` | encoding of heads |
//!
//! An ambiguous message is rejected instead of repaired: request smuggling needs two parsers that repair differently.

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
pub use framing::{
    connection_persists, frame_request, frame_response, request_body, response_body, response_persists,
};
pub use output::{Framing, Output};
pub use parse::{HeadLimits, HeadScanner, ParseError, parse_known, parse_request, parse_response};
pub use tolerance::Tolerance;
