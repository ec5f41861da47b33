//! Parts that HTTP/2 and HTTP/3 share: both have many messages on one connection.
//!
//! | file | role |
//! |---|---|
//! | `budget` | the cost budget for useless frames |
//! | `fields` | decoded fields to heads |
//! | `heads` | heads in recycled memory |
//! | `priority` | priorities of RFC 9218 |

pub(crate) mod budget;
pub(crate) mod fields;
pub(crate) mod heads;
pub(crate) mod priority;

pub use budget::{FloodLimits, GLITCHES, Glitch};
pub use fields::RequestLine;
pub use heads::{recycle_request, recycle_response};
pub use priority::Priority;
