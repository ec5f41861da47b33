//! Errors of field blocks.

use std::fmt;

/// The reason why a block cannot be decoded. All of them are COMPRESSION_ERROR (RFC 9113 §4.3): the two tables may
/// differ from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer exceeds 32 bits, or the bytes that 32 bits need.
    Integer,
    /// An index is zero or beyond both tables.
    Index,
    /// A string has an invalid Huffman code, the end symbol, or an invalid padding.
    Huffman,
    /// A size update after a field.
    LateSize,
    /// A size update above the announced size.
    LargeSize,
}

impl fmt::Display for HpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HpackError::Truncated => "the field block ends within a field",
            HpackError::Integer => "an integer of the field block is too large",
            HpackError::Index => "an index of the field block is invalid",
            HpackError::Huffman => "a string of the field block has invalid Huffman coding",
            HpackError::LateSize => "the table size changes after the start of the field block",
            HpackError::LargeSize => "the table's size is set above the announced maximum",
        })
    }
}

impl std::error::Error for HpackError {}
