//! What can be wrong with a block.

use std::fmt;

/// Why a block cannot be decoded. All of them are COMPRESSION_ERROR (RFC 9113 §4.3): the two tables
/// are no longer known to be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer has more than 32 bits or more bytes than one of 32 bits needs.
    Integer,
    /// An index is zero or beyond both tables.
    Index,
    /// A string is not of the Huffman code, names its end, or is padded with anything but less
    /// than eight ones.
    Huffman,
    /// A size of the table that follows a field.
    LateSize,
    /// A size of the table that is greater than what was announced.
    LargeSize,
}

impl fmt::Display for HpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HpackError::Truncated => "the field block ends within a field",
            HpackError::Integer => "an integer of the field block is too large",
            HpackError::Index => "an index of the field block is in no table",
            HpackError::Huffman => "a string of the field block breaks the Huffman code",
            HpackError::LateSize => "the table's size changes behind the start of the field block",
            HpackError::LargeSize => "the table's size is set above what was announced",
        })
    }
}

impl std::error::Error for HpackError {}
