//! HPACK: the compression of field blocks (RFC 7541).
//!
//! | file | role |
//! |---|---|
//! | `fixed` | the static table, and names as numbers |
//! | `decoder` | blocks to fields |
//! | `encoder` | fields to blocks |
//!
//! One side's encoder and the other side's decoder have the same dynamic table and change it in the same order. So
//! every block must be decoded, and an error ends the connection. A connection without fields has no memory here.

mod decoder;
mod encoder;
mod fixed;
#[cfg(test)]
mod tests;

pub use crate::field_coding::HpackError;
pub use crate::pseudo_fields::Field;
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use fixed::Pseudo;
