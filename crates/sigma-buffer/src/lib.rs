//! Memory for bytes in transit, owned and recycled by its thread.
//!
//! A buffer belongs to an exchange only while bytes are in flight: it is taken for a read, filled, written out, and
//! goes back to its thread's free list on drop. An idle connection holds none.
//!
//! This is the lowest crate, because a socket fills the same pieces that a codec parses and another socket writes. It
//! does not know the origin or meaning of bytes.

pub mod chunk;
pub mod held;
pub mod small;

pub use chunk::Chunk;
