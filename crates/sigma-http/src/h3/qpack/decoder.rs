//! Decoding of field sections, with the dynamic table that the peer's encoder fills.

use super::fixed;
use super::strings::{self, Decoded as Strings, Sent};
use crate::HeaderId;
use crate::field_coding::table::{self, Table, TableField};
use crate::field_coding::{HpackError, integer};
use crate::h3::error::{Broken, ErrorCode};
use crate::pseudo_fields::{Field, is_sound};

/// The factor of the table's capacity up to which a piece of an instruction is kept: the Huffman code makes a string
/// at most four times as long.
const PIECE_FACTOR: usize = 4;

/// Room for the lengths of an instruction.
const PIECE_SPARE_BYTES: usize = 64;

/// Cached facts about a field in the table.
#[derive(Debug, Clone, Copy)]
struct Note {
    id: HeaderId,
    sound: bool,
    /// The name has upper case: no message may have the field.
    is_upper: bool,
}

/// The result for a field section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// Its fields were taken.
    Whole,
    /// It needs this number of inserted entries.
    Waits(u64),
}

/// The counted work of instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Instructions {
    /// Entries that were inserted.
    pub inserted: u64,
    /// Instructions that inserted no new field.
    pub others: u64,
}

/// Decodes the field sections of one connection.
#[derive(Debug)]
pub struct Decoder {
    /// The announced capacity.
    announced: u32,
    table: Table<Note>,
    /// Entries ever inserted.
    inserted: u64,
    /// An incomplete instruction.
    piece: Vec<u8>,
    strings: Strings,
}

const fn failed(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::QPACK_DECOMPRESSION_FAILED, reason)
}

const fn bad_instruction(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::QPACK_ENCODER_STREAM_ERROR, reason)
}

/// The prefix of a field section (RFC 9204 §4.5.1).
struct Prefix {
    /// Entries that it needs.
    required: u64,
    base: u64,
}

impl Decoder {
    /// Creates a decoder that announces a dynamic table of this capacity. The table begins with a capacity of zero.
    pub fn new(announced: u32) -> Decoder {
        Decoder {
            announced,
            table: Table::new(0),
            inserted: 0,
            piece: Vec::new(),
            strings: Strings::default(),
        }
    }

    /// Returns the entries ever inserted.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Returns the memory of the table and of an incomplete instruction, at most.
    pub fn memory(&self) -> usize {
        self.table.limit() as usize + self.piece.capacity()
    }

    /// Follows the instructions of the peer's encoder; the rest of an incomplete one waits for the next call.
    ///
    /// # Errors
    /// Returns an error if an instruction cannot be followed; it ends the connection.
    pub fn instruct(&mut self, bytes: &[u8]) -> Result<Instructions, Broken> {
        let mut done = Instructions::default();
        let mut strings = std::mem::take(&mut self.strings);
        if self.piece.is_empty() {
            let left = self.follow_all(bytes, &mut strings, &mut done)?;
            self.piece.extend_from_slice(&bytes[bytes.len() - left..]);
        } else {
            let mut piece = std::mem::take(&mut self.piece);
            piece.extend_from_slice(bytes);
            let left = self.follow_all(&piece, &mut strings, &mut done)?;
            piece.drain(..piece.len() - left);
            self.piece = piece;
        }
        strings.trim();
        self.strings = strings;
        if self.piece.len() > self.announced as usize * PIECE_FACTOR + PIECE_SPARE_BYTES {
            return Err(bad_instruction("an instruction for an entry that does not fit the table"));
        }
        if self.piece.is_empty() {
            self.piece = Vec::new();
        }
        Ok(done)
    }

    /// Follows whole instructions; returns the number of bytes after them.
    fn follow_all(
        &mut self,
        bytes: &[u8],
        strings: &mut Strings,
        done: &mut Instructions,
    ) -> Result<usize, Broken> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut after = rest;
            match Instruction::take(&mut after) {
                Ok(instruction) => {
                    match instruction {
                        Instruction::Named { .. } | Instruction::Literal { .. } => done.inserted += 1,
                        Instruction::Duplicate(_) | Instruction::Capacity(_) => done.others += 1,
                    }
                    self.follow(instruction, strings)?;
                }
                Err(HpackError::Truncated) => break,
                Err(_) => return Err(bad_instruction("an integer of a QPACK instruction is too large")),
            }
            rest = after;
        }
        Ok(rest.len())
    }

    fn follow(&mut self, instruction: Instruction<'_>, strings: &mut Strings) -> Result<(), Broken> {
        let undecodable = |_| bad_instruction("a string of a QPACK instruction has invalid Huffman coding");
        match instruction {
            Instruction::Capacity(bytes) if bytes > self.announced => {
                Err(bad_instruction("the table's capacity is set above the announced maximum"))
            }
            Instruction::Capacity(bytes) => {
                self.table.set_limit(bytes);
                Ok(())
            }
            Instruction::Named { is_static: true, index, value } => {
                let fixed =
                    fixed::field(index).ok_or(bad_instruction("an invalid index of the static table"))?;
                let text = strings.text(value, 0).map_err(undecodable)?;
                self.insert(fixed.name, strings.bytes(&text), fixed.id, false)
            }
            Instruction::Named { is_static: false, index, value } => {
                let TableField { name, note, .. } = self.recent(index)?;
                // The new entry may evict the entry with its name: so the name is copied first.
                let name = name.to_vec();
                let text = strings.text(value, 0).map_err(undecodable)?;
                self.insert(&name, strings.bytes(&text), note.id, note.is_upper)
            }
            Instruction::Literal { name, value } => {
                let name = strings.text(name, 0).map_err(undecodable)?;
                let value = strings.text(value, name.end()).map_err(undecodable)?;
                let name = strings.bytes(&name);
                let is_upper = name.iter().any(u8::is_ascii_uppercase);
                self.insert(name, strings.bytes(&value), HeaderId::of(name), is_upper)
            }
            Instruction::Duplicate(index) => {
                let TableField { name, value, note } = self.recent(index)?;
                let (name, value) = (name.to_vec(), value.to_vec());
                self.insert(&name, &value, note.id, note.is_upper)
            }
        }
    }

    /// Returns the entry with an index relative to the last one.
    fn recent(&self, index: usize) -> Result<TableField<'_, Note>, Broken> {
        self.table.get(index).ok_or(bad_instruction("an index is not in the dynamic table"))
    }

    fn insert(&mut self, name: &[u8], value: &[u8], id: HeaderId, is_upper: bool) -> Result<(), Broken> {
        if table::size(name, value) > self.table.limit() as usize {
            return Err(bad_instruction("an entry is larger than the table"));
        }
        let sound = !is_upper && is_sound(name, value);
        self.table.add(name, value, Note { id, sound, is_upper });
        self.inserted += 1;
        Ok(())
    }

    /// Decodes one whole field section; calls `field` for each field in order. A section that needs entries which
    /// have not arrived calls it for no field.
    ///
    /// # Errors
    /// Returns an error if the section breaks the rules; it ends the connection.
    pub fn decode(&mut self, section: &[u8], field: impl FnMut(Field<'_>)) -> Result<Decoded, Broken> {
        let mut rest = section;
        let prefix = self.prefix(&mut rest)?;
        if prefix.required > self.inserted {
            return Ok(Decoded::Waits(prefix.required));
        }
        let mut strings = std::mem::take(&mut self.strings);
        self.lines(rest, &prefix, &mut strings, field)?;
        strings.trim();
        self.strings = strings;
        Ok(Decoded::Whole)
    }

    /// Returns the entries that a section needs.
    ///
    /// # Errors
    /// Returns an error as [`Decoder::decode`].
    pub fn required(&self, section: &[u8]) -> Result<u64, Broken> {
        self.prefix(&mut &*section).map(|prefix| prefix.required)
    }

    /// RFC 9204 §4.5.1
    fn prefix(&self, rest: &mut &[u8]) -> Result<Prefix, Broken> {
        const CUT: Broken = failed("the prefix of a field section is invalid");
        let encoded = u64::from(integer::take(rest, 8).map_err(|_| CUT)?);
        let is_negative = rest.first().is_some_and(|first| first & 0x80 != 0);
        let delta = u64::from(integer::take(rest, 7).map_err(|_| CUT)?);
        let required = self.insert_count(encoded)?;
        let base = match is_negative {
            false => Some(required + delta),
            true => required.checked_sub(delta + 1),
        };
        Ok(Prefix { required, base: base.ok_or(failed("the base of a field section is negative"))? })
    }

    /// RFC 9204 §4.5.1.1
    fn insert_count(&self, encoded: u64) -> Result<u64, Broken> {
        const IMPOSSIBLE: Broken = failed("the insert count of a field section is impossible");
        if encoded == 0 {
            return Ok(0);
        }
        let entries = u64::from(self.announced) / table::OVERHEAD as u64;
        let range = 2 * entries;
        if encoded > range {
            return Err(IMPOSSIBLE);
        }
        let most = self.inserted + entries;
        let wrapped = most / range * range;
        let count = wrapped + encoded - 1;
        let count = match count > most {
            true => count.checked_sub(range).ok_or(IMPOSSIBLE)?,
            false => count,
        };
        if count == 0 { Err(IMPOSSIBLE) } else { Ok(count) }
    }

    /// Decodes the field lines (RFC 9204 §4.5.2 to §4.5.6).
    fn lines(
        &self,
        mut rest: &[u8],
        prefix: &Prefix,
        strings: &mut Strings,
        mut field: impl FnMut(Field<'_>),
    ) -> Result<(), Broken> {
        let cut = |_| failed("a field section ends within a field, or a number is too large");
        let undecodable = |_| failed("a string of a field section has invalid Huffman coding");
        while let Some(&first) = rest.first() {
            let named = match first.leading_zeros() {
                // 1Txxxxxx: an indexed field.
                0 => {
                    let index = integer::take(&mut rest, 6).map_err(cut)?;
                    field(self.find(prefix, first & 0x40 != 0, index)?);
                    continue;
                }
                // 01NTxxxx: an indexed name.
                1 => {
                    let index = integer::take(&mut rest, 4).map_err(cut)?;
                    Some(self.find(prefix, first & 0x10 != 0, index)?)
                }
                // 001NHxxx: a literal name.
                2 => None,
                // 0001xxxx: an indexed field after the base.
                3 => {
                    let index = integer::take(&mut rest, 4).map_err(cut)?;
                    field(self.find_after(prefix, index)?);
                    continue;
                }
                // 0000Nxxx: an indexed name after the base.
                _ => {
                    let index = integer::take(&mut rest, 3).map_err(cut)?;
                    Some(self.find_after(prefix, index)?)
                }
            };
            if let Some(named) = named {
                let value = strings::take(&mut rest, 7).map_err(cut)?;
                let text = strings.text(value, 0).map_err(undecodable)?;
                let value = strings.bytes(&text);
                field(Field { value, sound: false, ..named });
                continue;
            }
            let name = strings::take(&mut rest, 3).map_err(cut)?;
            let value = strings::take(&mut rest, 7).map_err(cut)?;
            let name = strings.text(name, 0).map_err(undecodable)?;
            let value = strings.text(value, name.end()).map_err(undecodable)?;
            field(Field::new(strings.bytes(&name), strings.bytes(&value)));
        }
        Ok(())
    }

    /// Returns the field of an index in the static table, or before the base.
    fn find(&self, prefix: &Prefix, is_static: bool, index: u32) -> Result<Field<'_>, Broken> {
        if is_static {
            let fixed = fixed::field(index as usize).ok_or(failed("an invalid index of the static table"))?;
            return Ok(Field { id: fixed.id, name: fixed.name, value: fixed.value, sound: true });
        }
        let position = prefix.base.checked_sub(u64::from(index) + 1);
        self.entry(prefix, position.ok_or(failed("an index below the first entry"))?)
    }

    fn find_after(&self, prefix: &Prefix, index: u32) -> Result<Field<'_>, Broken> {
        self.entry(prefix, prefix.base + u64::from(index))
    }

    /// Returns the entry with this position among all ever inserted.
    fn entry(&self, prefix: &Prefix, position: u64) -> Result<Field<'_>, Broken> {
        if position >= prefix.required {
            return Err(failed("a reference beyond the insert count"));
        }
        // The section does not wait: the entry was inserted, and may be evicted.
        let age = self.inserted.checked_sub(position + 1).and_then(|age| usize::try_from(age).ok());
        let entry = age.and_then(|age| self.table.get(age));
        let TableField { name, value, note } = entry.ok_or(failed("a reference to an evicted entry"))?;
        // An empty name is invalid in every message.
        let name = if note.is_upper { b"" } else { name };
        Ok(Field { id: note.id, name, value, sound: note.sound })
    }
}

/// An instruction of an encoder (RFC 9204 §4.3).
enum Instruction<'a> {
    Capacity(u32),
    Named { is_static: bool, index: usize, value: Sent<'a> },
    Literal { name: Sent<'a>, value: Sent<'a> },
    Duplicate(usize),
}

impl<'a> Instruction<'a> {
    /// Takes the next whole instruction.
    fn take(rest: &mut &'a [u8]) -> Result<Instruction<'a>, HpackError> {
        let first = *rest.first().ok_or(HpackError::Truncated)?;
        Ok(match first.leading_zeros() {
            // 1Txxxxxx
            0 => {
                let index = integer::take(rest, 6)? as usize;
                Instruction::Named { is_static: first & 0x40 != 0, index, value: strings::take(rest, 7)? }
            }
            // 01Hxxxxx
            1 => Instruction::Literal { name: strings::take(rest, 5)?, value: strings::take(rest, 7)? },
            // 001xxxxx
            2 => Instruction::Capacity(integer::take(rest, 5)?),
            // 000xxxxx
            _ => Instruction::Duplicate(integer::take(rest, 5)? as usize),
        })
    }
}
