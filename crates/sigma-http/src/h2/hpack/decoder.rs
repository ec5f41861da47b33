//! Decoding of field blocks.

use std::ops::Range;

use super::fixed;
use crate::HeaderId;
use crate::field_coding::table::{Table, TableField};
use crate::field_coding::{HpackError, huffman, integer};
use crate::pseudo_fields::{Field, is_sound};

/// The initial size of every table (RFC 9113 §6.5.2).
const FIRST_TABLE_BYTES: u32 = 4096;
/// The initial memory for decoded strings.
const LEAST_DECODED_BYTES: usize = 256;
/// The memory for decoded strings that is kept between blocks; a block with longer ones frees the rest.
const KEPT_DECODED_BYTES: usize = 2048;

/// Cached facts about a field in the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Note {
    id: HeaderId,
    sound: bool,
}

/// Decodes the blocks of one connection, in the order of their arrival.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// The largest size that the peer may choose.
    announced: u32,
    table: Table<Note>,
    /// The decoded strings of one field: a name, then a value.
    decoded: Vec<u8>,
}

/// The position of a field's text.
enum Text<'a> {
    Plain(&'a [u8]),
    Decoded(Range<usize>),
}

impl Text<'_> {
    fn plain<'a>(&'a self, decoded: &'a [u8]) -> &'a [u8] {
        match self {
            Text::Plain(text) => text,
            Text::Decoded(range) => &decoded[range.clone()],
        }
    }

    /// Returns the end of the used memory for decoded strings.
    fn decoded(&self) -> usize {
        match self {
            Text::Plain(_) => 0,
            Text::Decoded(range) => range.end,
        }
    }
}

impl Decoder {
    /// Creates a decoder. `table_bytes` is the announced SETTINGS_HEADER_TABLE_SIZE (4096 by default).
    ///
    /// The table begins with 4096 bytes in any case: the peer may not have read the setting, and announces a change
    /// of size in a block.
    pub fn new(table_bytes: u32) -> Decoder {
        Decoder { announced: table_bytes, table: Table::new(FIRST_TABLE_BYTES), decoded: Vec::new() }
    }

    /// Decodes one whole block; calls `field` for each field in order. The table is updated even if the callback
    /// ignores a field.
    ///
    /// Returns an error if the block breaks the rules; later blocks cannot be decoded then.
    pub fn decode(&mut self, block: &[u8], mut field: impl FnMut(Field<'_>)) -> Result<(), HpackError> {
        let mut rest = block;
        let mut begun = false;
        while let Some(first) = rest.first() {
            match first.leading_zeros() {
                // 1xxxxxxx: an indexed field.
                0 => {
                    let index = integer::take(&mut rest, 7)?;
                    field(find(&self.table, index)?);
                }
                // 01xxxxxx: a literal that is added to the table.
                1 => self.literal(&mut rest, 6, true, &mut field)?,
                // 001xxxxx: a size update.
                2 => {
                    self.resize(integer::take(&mut rest, 5)?, begun)?;
                    continue;
                }
                // 000xxxxx: a literal that is not added, or never may be, which makes no difference here.
                _ => self.literal(&mut rest, 4, false, &mut field)?,
            }
            begun = true;
        }
        if self.decoded.len() > KEPT_DECODED_BYTES {
            self.decoded.truncate(KEPT_DECODED_BYTES);
            self.decoded.shrink_to_fit();
        }
        Ok(())
    }

    fn resize(&mut self, bytes: u32, begun: bool) -> Result<(), HpackError> {
        if begun {
            return Err(HpackError::LateSize);
        }
        if bytes > self.announced {
            return Err(HpackError::LargeSize);
        }
        self.table.set_limit(bytes);
        Ok(())
    }

    /// Decodes a literal whose index has `bits` of the first byte; adds it to the table if `add`.
    fn literal(
        &mut self,
        rest: &mut &[u8],
        bits: u32,
        add: bool,
        field: &mut impl FnMut(Field<'_>),
    ) -> Result<(), HpackError> {
        let index = integer::take(rest, bits)?;
        if index != 0 {
            return self.named(index, rest, add, field);
        }
        let name = self.text(rest, 0)?;
        let value = self.text(rest, name.decoded())?;
        let (name, value) = (name.plain(&self.decoded), value.plain(&self.decoded));
        let id = HeaderId::of(name);
        let sound = add && is_sound(name, value);
        field(Field { id, name, value, sound });
        if add {
            self.table.add(name, value, Note { id, sound });
        }
        Ok(())
    }

    /// Decodes the value of a literal with an indexed name.
    fn named(
        &mut self,
        index: u32,
        rest: &mut &[u8],
        add: bool,
        field: &mut impl FnMut(Field<'_>),
    ) -> Result<(), HpackError> {
        let text = self.text(rest, 0)?;
        let value = text.plain(&self.decoded);
        let named = find(&self.table, index)?;
        let sound = add && is_sound(named.name, value);
        field(Field { value, sound, ..named });
        if !add {
            return Ok(());
        }
        let note = Note { id: named.id, sound };
        if let Some(fixed) = fixed::field(index as usize) {
            self.table.add(fixed.name, value, note);
            return Ok(());
        }
        // The new entry may evict the entry with its name: so the name is copied first.
        let (start, end) = (text.decoded(), text.decoded() + named.name.len());
        grow(&mut self.decoded, end);
        self.decoded[start..end].copy_from_slice(named.name);
        self.table.add(&self.decoded[start..end], text.plain(&self.decoded), note);
        Ok(())
    }

    /// Decodes a string (RFC 7541 §5.2); a Huffman-coded one goes to `at` in the decode memory.
    fn text<'a>(&mut self, rest: &mut &'a [u8], at: usize) -> Result<Text<'a>, HpackError> {
        let coded = rest.first().is_some_and(|first| first & 0x80 != 0);
        let length = integer::take(rest, 7)? as usize;
        let (text, after) = rest.split_at_checked(length).ok_or(HpackError::Truncated)?;
        *rest = after;
        if !coded {
            return Ok(Text::Plain(text));
        }
        grow(&mut self.decoded, at + huffman::longest(length));
        let length = huffman::decode(text, &mut self.decoded[at..])?;
        Ok(Text::Decoded(at..at + length))
    }
}

/// Returns the field of an index, in the static or the dynamic table (RFC 7541 §2.3.3).
fn find(table: &Table<Note>, index: u32) -> Result<Field<'_>, HpackError> {
    let index = index as usize;
    if let Some(fixed) = fixed::field(index) {
        return Ok(Field { id: fixed.id, name: fixed.name, value: fixed.value, sound: true });
    }
    let age = index.checked_sub(fixed::COUNT + 1).ok_or(HpackError::Index)?;
    let TableField { name, value, note } = table.get(age).ok_or(HpackError::Index)?;
    let Note { id, sound } = note;
    Ok(Field { id, name, value, sound })
}

fn grow(decoded: &mut Vec<u8>, needed: usize) {
    if decoded.len() < needed {
        decoded.resize(needed.next_power_of_two().max(LEAST_DECODED_BYTES), 0);
    }
}

#[cfg(test)]
impl Decoder {
    pub(super) fn table(&self) -> &Table<Note> {
        &self.table
    }

    /// Returns the memory for decoded strings.
    pub(super) fn decoded_bytes(&self) -> usize {
        self.decoded.capacity()
    }
}
