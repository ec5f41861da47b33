//! HTTP/2 (RFC 9113): both sides, and their common code.
//!
//! The codec is [`sigma_http::h2`]; this module connects it to sockets, tasks and timers.
//!
//! | file | role |
//! |---|---|
//! | `mux` | one connection: its codec, its transport, and its waiting tasks |
//! | `shared` | one connection to a node, shared by exchanges |
//! | `client` | one exchange on it |
//! | `session` | one connection of a client |
//! | `server` | one exchange on it |

mod client;
mod mux;
mod server;
mod session;
mod shared;

pub use client::ClientStream;
pub use server::{Incoming, ServerStream};
pub use session::{Session, SessionLimits};
pub use shared::{Reused, SharedConnection, SharedLimits};
pub use sigma_http::h2::{FloodLimits, FlowWindows, GLITCHES, Glitch};
