//! HTTP/3 (RFC 9114) as a pure state machine, for both roles.
//!
//! QUIC has the streams, their windows and their order of bytes. So this code has a part for the connection and one
//! for each message: bytes of a stream go in and events come out, and vice versa.
//!
//! | file | role |
//! |---|---|
//! | `connection` | one connection: its unidirectional streams, budget and graceful end |
//! | `control` | the peer's control stream |
//! | `peer` | the state of that stream |
//! | `settings` | SETTINGS frames |
//! | `message` | messages on request streams |
//! | `send` | outgoing frames of messages |
//! | `frame` | encoding of frames, and their numbers |
//! | `varint` | integers of QUIC |
//! | `error` | errors of streams and connections |
//! | `qpack` | encoding of fields (RFC 9204) |
//!
//! `crate::multiplex` has the parts that HTTP/2 shares.

mod connection;
mod control;
mod error;
pub mod frame;
mod message;
mod peer;
pub mod qpack;
mod send;
mod settings;
#[cfg(test)]
mod tests;
pub mod varint;

pub use crate::multiplex::{
    FloodLimits, GLITCHES, Glitch, Priority, RequestLine, recycle_request, recycle_response,
};
pub use connection::{Codec, Config, Outputs, Role, UniStream};
pub use error::{Broken, ErrorCode, Scope};
pub use message::{Event, Message, Request};
pub use send::{data_header, send_order};
pub use settings::PeerSettings;
