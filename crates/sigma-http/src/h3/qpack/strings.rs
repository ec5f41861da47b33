//! Strings of field sections and instructions (RFC 9204 §4.1.2).

use std::ops::Range;

use crate::field_coding::{HpackError, huffman, integer};

/// The initial memory for decoded strings.
const LEAST_DECODED_BYTES: usize = 256;

/// The memory for decoded strings that is kept between sections.
const KEPT_DECODED_BYTES: usize = 2048;

/// A string as it was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent<'a> {
    bytes: &'a [u8],
    is_coded: bool,
}

/// Takes a string whose length has `bits` of the first byte, after a flag for the Huffman code.
pub(super) fn take<'a>(rest: &mut &'a [u8], bits: u32) -> Result<Sent<'a>, HpackError> {
    let is_coded = rest.first().is_some_and(|first| first & (1 << bits) != 0);
    let length = integer::take(rest, bits)? as usize;
    let (bytes, after) = rest.split_at_checked(length).ok_or(HpackError::Truncated)?;
    *rest = after;
    Ok(Sent { bytes, is_coded })
}

/// The position of a string's text.
pub(super) enum Text<'a> {
    Plain(&'a [u8]),
    Decoded(Range<usize>),
}

/// Memory for the decoded strings of one field: a name, then a value.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoded(Vec<u8>);

impl Decoded {
    /// Decodes a string; its text is stored from `at` on if it is coded.
    pub(super) fn text<'a>(&mut self, sent: Sent<'a>, at: usize) -> Result<Text<'a>, HpackError> {
        if !sent.is_coded {
            return Ok(Text::Plain(sent.bytes));
        }
        let needed = at + huffman::longest(sent.bytes.len());
        if self.0.len() < needed {
            self.0.resize(needed.next_power_of_two().max(LEAST_DECODED_BYTES), 0);
        }
        let length = huffman::decode(sent.bytes, &mut self.0[at..])?;
        Ok(Text::Decoded(at..at + length))
    }

    /// Returns the bytes of a text.
    pub(super) fn bytes<'a>(&'a self, text: &'a Text<'a>) -> &'a [u8] {
        match text {
            Text::Plain(bytes) => bytes,
            Text::Decoded(range) => &self.0[range.clone()],
        }
    }

    /// Frees the memory of unusually long strings.
    pub(super) fn trim(&mut self) {
        if self.0.len() > KEPT_DECODED_BYTES {
            self.0.truncate(KEPT_DECODED_BYTES);
            self.0.shrink_to_fit();
        }
    }
}

impl Text<'_> {
    /// Returns the end of the used memory for decoded strings.
    pub(super) fn end(&self) -> usize {
        match self {
            Text::Plain(_) => 0,
            Text::Decoded(range) => range.end,
        }
    }
}
