//! QPACK: the compression of field sections (RFC 9204).
//!
//! | file | role |
//! |---|---|
//! | `fixed` | the static table |
//! | `strings` | strings of field sections and instructions |
//! | `decoder` | field sections to fields, and the instructions of the peer's encoder |
//! | `encoder` | fields to field sections, and the instructions of the peer's decoder |
//!
//! The peer's encoder changes this side's table by instructions on its own stream. A field section names the number of
//! entries that it needs; it waits until they have arrived. Both the waiting sections and the table are limited by
//! this side's settings.

mod decoder;
mod encoder;
mod fixed;
mod strings;
#[cfg(test)]
mod tests;

pub use decoder::{Decoded, Decoder};
pub use encoder::Encoder;
