//! HPACK: the compression of field blocks (RFC 7541).
//!
//! | file | role |
//! |---|---|
//! | `integer` | numbers that begin within a byte |
//! | `huffman` | the code of appendix B |
//! | `fixed` | the static table, and names as numbers |
//! | `table` | the dynamic table |
//! | `decoder` | blocks to fields |
//! | `encoder` | fields to blocks |
//!
//! One side's encoder and the other side's decoder hold the same dynamic table and change it in the
//! same order, so every block has to pass through, and no error can be repaired: it ends the
//! connection. A connection that has sent or received no field holds no memory here.

mod decoder;
mod encoder;
mod error;
mod fixed;
mod huffman;
mod integer;
mod table;
#[cfg(test)]
mod tests;

pub use crate::pseudo_fields::Field;
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::HpackError;
pub use fixed::Pseudo;
