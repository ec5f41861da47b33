//! FlatBuffers, as far as the protocol of runners needs them: tables of numbers, texts, bytes, other tables and lists
//! of tables.
//!
//! A table is a list of numbered fields. Its positions are offsets within one buffer, which a peer may choose at will:
//! [`read`] checks every one of them, and a message has a fixed depth, so reading takes neither recursion nor memory.

pub(crate) mod read;
pub(crate) mod write;

#[cfg(test)]
mod tests;
