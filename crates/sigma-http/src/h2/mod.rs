//! HTTP/2 (RFC 9113) as a pure state machine, for both roles.
//!
//! Bytes of the peer go in and streams with heads and frames come out, and vice versa. Messages have the same types
//! as in every other version: fields go from the wire into [`crate::Headers`] and back, without another map.
//!
//! | file | role |
//! |---|---|
//! | `connection` | one connection: its settings, and its streams for exchanges |
//! | `receive` | incoming heads, bodies and control frames |
//! | `reading` | the read position in the peer's bytes |
//! | `send` | outgoing frames and their order |
//! | `output` | the output queue and its turns |
//! | `stream` | the streams of a connection |
//! | `accounts` | memory accounts of a connection |
//! | `stalled` | unread streams on a shared connection |
//! | `frame` | encoding of frames |
//! | `hpack` | encoding of fields (RFC 7541) |
//!
//! `crate::multiplex` has the parts that HTTP/3 shares.

mod accounts;
mod connection;
pub mod frame;
pub mod hpack;
mod output;
mod reading;
mod receive;
mod send;
mod stalled;
mod state;
mod stream;

pub use crate::multiplex::{
    FloodLimits, GLITCHES, Glitch, Priority, RequestLine, recycle_request, recycle_response,
};
pub use accounts::REVOKED;
pub use connection::{Arrival, Codec, Config, FlowWindows, Incoming, Role};
pub use frame::ErrorCode;
pub use output::SLICES_MAX;
pub use stream::{Fate, StreamKey};

#[cfg(test)]
mod tests;
