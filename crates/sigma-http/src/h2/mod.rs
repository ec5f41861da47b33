//! HTTP/2 (RFC 9113) as a pure state machine, for both roles.
//!
//! Bytes of the peer go in, streams with heads and frames come out, and the other way round. The messages are
//! those of every other version: fields go from the wire into [`crate::Headers`] and back with no other map in
//! between.
//!
//! | file | role |
//! |---|---|
//! | `connection` | one connection: what it is held to, its streams as exchanges use them |
//! | `receive` | what comes in: heads, bodies, and frames that carry neither |
//! | `reading` | how far the peer's bytes have been read |
//! | `send` | what leaves, and in which order |
//! | `output` | bytes on their way out, and whose turn it is |
//! | `stream` | the streams of a connection |
//! | `accounts` | what a connection holds of the memory for clients |
//! | `fields` | from decoded fields to heads |
//! | `heads` | heads on recycled memory |
//! | `budget` | what a peer may cost without getting anything done |
//! | `stalled` | streams that are not read, on a connection that others share |
//! | `priority` | priorities of RFC 9218 |
//! | `frame` | frames as bytes |
//! | `hpack` | fields as bytes (RFC 7541) |

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
