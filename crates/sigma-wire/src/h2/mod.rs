//! HTTP/2 (RFC 9113): both sides of it, and what they share.
//!
//! | file | role |
//! |---|---|
//! | `shared` | one connection to a node, and the exchanges it has room for |
//! | `client` | one exchange on it |
//! | `session` | one connection of a client |
//! | `server` | one exchange on it |
//! | `body` | bodies and windows, for both sides |
//! | `fields` | fields, for both sides |
//! | `wire` | the bytes under the codec, watched; for both sides |

mod body;
mod client;
mod fields;
mod server;
mod session;
mod shared;
mod wire;

pub use client::ClientStream;
pub use server::ServerStream;
pub use session::{Incoming, Session, SessionLimits};
pub use shared::{Reused, SharedConnection, SharedLimits};
pub use wire::FloodLimits;
