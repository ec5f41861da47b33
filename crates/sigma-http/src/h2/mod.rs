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
//! | `fields` | decoded fields to heads |
//! | `heads` | heads in recycled memory |
//! | `budget` | the cost budget for useless frames |
//! | `stalled` | unread streams on a shared connection |
//! | `priority` | priorities of RFC 9218 |
//! | `frame` | encoding of frames |
//! | `hpack` | encoding of fields (RFC 7541) |

mod accounts;
mod budget;
mod connection;
mod fields;
pub mod frame;
mod heads;
pub mod hpack;
mod output;
mod priority;
mod reading;
mod receive;
mod send;
mod stalled;
mod stream;

pub use accounts::REVOKED;
pub use budget::{FloodLimits, GLITCHES, Glitch};
pub use connection::{Arrival, Codec, Config, Incoming, Role};
pub use frame::ErrorCode;
pub use heads::{recycle_request, recycle_response};
pub use output::SLICES_MAX;
pub use priority::Priority;
pub use send::RequestLine;
pub use stream::{Fate, StreamKey};

#[cfg(test)]
mod tests;
