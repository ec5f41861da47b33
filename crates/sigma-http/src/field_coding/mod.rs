//! Parts that HPACK (RFC 7541) and QPACK (RFC 9204) share.
//!
//! | file | role |
//! |---|---|
//! | `integer` | numbers that begin within a byte |
//! | `huffman` | the code of RFC 7541, appendix B |
//! | `table` | the dynamic table of either side |
//! | `memory` | the places of fields in an encoder's table |
//! | `error` | the errors of all of them |

mod error;
pub(crate) mod huffman;
pub(crate) mod integer;
pub(crate) mod memory;
pub(crate) mod table;

pub use error::HpackError;
