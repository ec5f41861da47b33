//! HTTP/2 (RFC 9113): both sides of it, and what they share.
//!
//! | file | role |
//! |---|---|
//! | `shared` | one connection to a node, and the exchanges it has room for |
//! | `client` | one exchange on it |
//! | `body` | bodies and windows, for both sides |
//! | `fields` | fields, for both sides |
//! | `wire` | the bytes under the codec, watched; for both sides |

pub mod body;
mod client;
pub mod fields;
mod shared;
pub mod wire;

pub use client::ClientStream;
pub use shared::{Reused, SharedConnection, SharedLimits};
