//! HTTP/2 (RFC 9113): the client's side of it, and what both sides of the gateway share.
//!
//! | file | role |
//! |---|---|
//! | `trunk` | one connection to a node, and the streams it has room for |
//! | `stream` | one exchange on it |
//! | `body` | bodies and windows, for both sides |
//! | `fields` | fields, for both sides |
//! | `wire` | the bytes under the codec, watched; for both sides |

pub mod body;
pub mod fields;
mod stream;
mod trunk;
pub mod wire;

pub use stream::ClientStream;
pub use trunk::{Reused, Trunk, TrunkLimits};
