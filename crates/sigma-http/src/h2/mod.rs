//! HTTP/2 on the wire (RFC 9113).
//!
//! | file | role |
//! |---|---|
//! | `hpack` | field blocks to fields and back (RFC 7541) |

pub mod hpack;
