//! The memory that bytes pass through, owned and recycled by their thread.
//!
//! A buffer belongs to an exchange only while bytes are in flight: it is taken for a read, filled,
//! written out, and goes back to its thread's free list on drop. An idle connection holds none.
//!
//! This is the ground floor, because a socket fills the same pieces that a codec reads and another
//! socket writes. Nothing here knows where bytes come from or what they mean.

pub mod chunk;
pub mod held;
pub mod small;

pub use chunk::Chunk;
