//! HTTP/3 (RFC 9114): both sides, and their common code.
//!
//! The codec is [`sigma_http::h3`], the transport is [`sigma_net::quic`]; this module connects them to tasks and
//! timers. QUIC has the windows of streams: an exchange reads and writes its own stream, and a body that it does not
//! read stays with the peer. The session has the rest: control streams, heads of requests, limits and the end.
//!
//! | file | role |
//! |---|---|
//! | `common` | one connection from the view of its streams |
//! | `control` | the unidirectional streams of both sides |
//! | `datagrams` | datagrams of QUIC as capsules of a tunnel |
//! | `body` | one message of the peer on its stream |
//! | `sending` | one message for the peer on its stream |
//! | `session` | one connection of a client |
//! | `pending` | a request before its head is complete |
//! | `server` | one exchange on it |
//! | `shared` | one connection to a node, shared by exchanges |
//! | `client` | one exchange on it |

mod body;
mod client;
mod common;
mod control;
mod datagrams;
mod pending;
mod sending;
mod server;
mod session;
mod shared;

pub use client::ClientStream;
pub use server::{Incoming, ServerStream};
pub use session::{Session, SessionLimits};
pub use shared::{SharedConnection, SharedLimits};
pub use sigma_http::h3::{FloodLimits, GLITCHES, Glitch};
