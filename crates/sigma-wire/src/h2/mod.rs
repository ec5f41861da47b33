//! HTTP/2 (RFC 9113): both sides of it, and what they share.
//!
//! The codec is [`sigma_http::h2`]; here it meets sockets, tasks and times.
//!
//! | file | role |
//! |---|---|
//! | `mux` | one connection: its codec, its transport, and who waits for what |
//! | `shared` | one connection to a node, and the exchanges it has room for |
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
pub use sigma_http::h2::{FloodLimits, GLITCHES, Glitch};
