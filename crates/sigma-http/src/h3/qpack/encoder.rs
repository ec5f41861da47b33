//! Encoding of field sections.
//!
//! A section refers to the static table, and to entries of the dynamic table that the peer has acknowledged: it never
//! waits at the peer. The table learns as in HPACK: a field enters it the second time. An entry stays while a section
//! that refers to it is not acknowledged.
//!
//! Strings are Huffman-coded at the start of a connection only, as in HPACK: to save a byte costs more instructions
//! than the rest of the encoding.

use super::fixed::{self, TableMatch};
use crate::HeaderId;
use crate::field_coding::integer::{self, IntegerPrefix};
use crate::field_coding::memory::{self, Memory, mix, sample};
use crate::field_coding::table::{self, Table, TableField};
use crate::field_coding::{HpackError, huffman};
use crate::h3::error::{Broken, ErrorCode};

/// The number of string bytes that are Huffman-coded on a connection: about its first ten heads.
const CODED_BYTES: u32 = 4096;

/// The largest used part of the peer's table.
const TABLE_BYTES_MAX: u64 = 4096;

/// Sections that refer to the table and are not acknowledged. A peer that acknowledges nothing gets no further ones.
const OUTSTANDING_MAX: usize = 128;

/// A shorter cookie could be guessed from sizes (RFC 9204 §7.1.3).
const GUESSABLE_COOKIE: usize = 20;

const INDEXED_STATIC: IntegerPrefix = IntegerPrefix { flags: 0xc0, bits: 6 };
const INDEXED_DYNAMIC: IntegerPrefix = IntegerPrefix { flags: 0x80, bits: 6 };
const NAMED_STATIC: IntegerPrefix = IntegerPrefix { flags: 0x50, bits: 4 };
const NAMED_DYNAMIC: IntegerPrefix = IntegerPrefix { flags: 0x40, bits: 4 };
const LITERAL: IntegerPrefix = IntegerPrefix { flags: 0x20, bits: 3 };
/// The flag of a value that no intermediary may put into a table.
const NEVER_NAMED: u8 = 0x20;
const NEVER_LITERAL: u8 = 0x10;

const INSERT_NAMED_STATIC: IntegerPrefix = IntegerPrefix { flags: 0xc0, bits: 6 };
const INSERT_LITERAL: IntegerPrefix = IntegerPrefix { flags: 0x40, bits: 5 };
const CAPACITY: IntegerPrefix = IntegerPrefix { flags: 0x20, bits: 5 };
const VALUE: IntegerPrefix = IntegerPrefix { flags: 0, bits: 7 };

/// An integer of an instruction has at most this number of bytes.
const PIECE_MAX: usize = 8;

/// Encodes the field sections of one connection.
#[derive(Debug)]
pub struct Encoder {
    /// Bytes of strings that may still be Huffman-coded.
    coded: u32,
    /// An incomplete instruction of the peer's decoder.
    piece: Vec<u8>,
    /// The instructions for the peer's decoder.
    pub instructions: Vec<u8>,
    dynamic: Option<Box<Dynamic>>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { coded: CODED_BYTES, piece: Vec::new(), instructions: Vec::new(), dynamic: None }
    }
}

/// A section that refers to the table.
#[derive(Debug, Clone, Copy)]
struct Section {
    stream: u64,
    /// Entries that it needs.
    required: u64,
    /// The first entry that it refers to.
    first: u64,
}

/// The dynamic table of the peer.
#[derive(Debug)]
struct Dynamic {
    table: Table<()>,
    memory: Memory,
    /// The number of entries that the announced capacity has room for.
    entries_max: u64,
    /// Entries ever inserted.
    inserted: u64,
    /// Entries that the peer has acknowledged.
    known: u64,
    outstanding: Vec<Section>,
    /// The acknowledged entries at the start of the section that is written.
    base: u64,
    /// The references of the section that is written.
    section: Section,
    may_refer: bool,
    may_insert: bool,
}

impl Dynamic {
    /// Refers to the entry of this age, if the peer has it.
    fn refer(&mut self, age: usize) -> Option<usize> {
        let at = self.inserted - 1 - age as u64;
        if !self.may_refer || at >= self.base {
            return None;
        }
        self.section.required = self.section.required.max(at + 1);
        self.section.first = self.section.first.min(at);
        Some((self.base - 1 - at) as usize)
    }

    /// Returns true if a field of this size may enter: the entries that leave for it are acknowledged, and no section
    /// on its way refers to them.
    fn may_enter(&self, size: usize) -> bool {
        if !self.may_insert || size > self.table.limit() as usize / 2 {
            return false;
        }
        let leaving = self.table.leaving_for(size) as u64;
        let end = self.inserted - self.table.len() as u64 + leaving;
        let sections = self.outstanding.iter().chain([&self.section]);
        leaving == 0 || (end <= self.known && sections.into_iter().all(|section| end <= section.first))
    }

    fn insert(&mut self, name: &[u8], value: &[u8], hashes: [u32; 2], has_static_name: bool) {
        self.table.add(name, value, ());
        self.inserted += 1;
        self.memory.count_added();
        self.memory.register(hashes[1]);
        if !has_static_name {
            self.memory.register(hashes[0]);
        }
    }
}

const fn bad_instruction(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::QPACK_DECODER_STREAM_ERROR, reason)
}

impl Encoder {
    /// Uses a dynamic table: the peer has announced this capacity.
    pub fn set_table(&mut self, announced: u64) {
        let bytes = announced.min(TABLE_BYTES_MAX);
        let entries_max = announced / table::OVERHEAD as u64;
        if bytes < 2 * table::OVERHEAD as u64 || self.dynamic.is_some() {
            return;
        }
        integer::put(CAPACITY.flags, CAPACITY.bits, bytes as usize, &mut self.instructions);
        self.dynamic = Some(Box::new(Dynamic {
            table: Table::new(bytes as u32),
            memory: Memory::default(),
            entries_max,
            inserted: 0,
            known: 0,
            outstanding: Vec::new(),
            base: 0,
            section: Section { stream: 0, required: 0, first: u64::MAX },
            may_refer: false,
            may_insert: false,
        }));
    }

    /// Returns the memory of the table.
    pub fn memory(&self) -> usize {
        self.dynamic.as_ref().map_or(0, |dynamic| dynamic.table.limit() as usize + size_of::<Dynamic>())
    }

    /// Starts a section on a stream. `may_insert` is false while the peer takes no instructions.
    pub fn begin(&mut self, stream: u64, may_insert: bool) {
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.memory.begin();
            dynamic.base = dynamic.known;
            dynamic.section = Section { stream, required: 0, first: u64::MAX };
            dynamic.may_refer = dynamic.outstanding.len() < OUTSTANDING_MAX;
            dynamic.may_insert = may_insert && dynamic.may_refer;
        }
    }

    /// Ends a section: writes its prefix, which comes before its fields.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        let Some(dynamic) = self.dynamic.as_mut().filter(|dynamic| dynamic.section.required > 0) else {
            out.extend_from_slice(&[0, 0]);
            return;
        };
        let section = dynamic.section;
        let encoded = section.required % (2 * dynamic.entries_max) + 1;
        integer::put(0, 8, encoded as usize, out);
        integer::put(0, 7, (dynamic.base - section.required) as usize, out);
        dynamic.outstanding.push(section);
    }

    /// Writes a field. `name` may have any case and is written in lower case. `id` is `HeaderId::of(name)`.
    pub fn encode(&mut self, id: HeaderId, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let (index, is_whole) = match fixed::find(name, value) {
            TableMatch::Field(index) => (Some(index), true),
            TableMatch::Name(index) => (Some(index), false),
            TableMatch::Nothing => (None, false),
        };
        if is_secret(id, name, value) {
            self.literal(index, NEVER_NAMED, NEVER_LITERAL, name, out);
            self.string::<false>(VALUE, value, out);
            return;
        }
        if is_whole {
            integer::put(INDEXED_STATIC.flags, INDEXED_STATIC.bits, index.unwrap_or_default(), out);
            return;
        }
        if !self.put_known(index, name, value, out) {
            self.literal(index, 0, 0, name, out);
            self.string::<false>(VALUE, value, out);
        }
    }

    /// Writes a field by the dynamic table, or lets it enter. Returns true if it was written.
    fn put_known(&mut self, index: Option<usize>, name: &[u8], value: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(dynamic) = &mut self.dynamic else { return false };
        let is_named = |field: TableField<'_, ()>| field.name.eq_ignore_ascii_case(name);
        let is = |field: TableField<'_, ()>| field.value == value && is_named(field);
        let name_hash = match index {
            Some(index) => mix(index as u32, 0),
            None => memory::hash_of_name(name),
        };
        let hash = mix(name_hash, sample(value, 0));
        let found = match dynamic.memory.guess(&dynamic.table, is) {
            None => {
                let found = dynamic.memory.find(hash, &dynamic.table, is);
                found.inspect(|age| dynamic.memory.follow(*age))
            }
            found => found,
        };
        if let Some(age) = found {
            let Some(relative) = dynamic.refer(age) else { return false };
            integer::put(INDEXED_DYNAMIC.flags, INDEXED_DYNAMIC.bits, relative, out);
            return true;
        }
        let is_again = dynamic.memory.notice(hash) | (index.is_none() && dynamic.memory.notice(name_hash));
        let mut named = None;
        if index.is_none() {
            let age = dynamic.memory.find(name_hash, &dynamic.table, is_named);
            named = age.and_then(|age| dynamic.refer(age));
        }
        if is_again && dynamic.may_enter(table::size(name, value)) {
            dynamic.insert(name, value, [name_hash, hash], index.is_some());
            self.put_insert(index, name, value);
        }
        let Some(relative) = named else { return false };
        integer::put(NAMED_DYNAMIC.flags, NAMED_DYNAMIC.bits, relative, out);
        self.string::<false>(VALUE, value, out);
        true
    }

    /// Writes the instruction for a new entry.
    fn put_insert(&mut self, index: Option<usize>, name: &[u8], value: &[u8]) {
        let mut out = std::mem::take(&mut self.instructions);
        match index {
            Some(index) => integer::put(INSERT_NAMED_STATIC.flags, INSERT_NAMED_STATIC.bits, index, &mut out),
            None => self.string::<true>(INSERT_LITERAL, name, &mut out),
        }
        self.string::<false>(VALUE, value, &mut out);
        self.instructions = out;
    }

    /// Writes the name of a literal; its value follows.
    fn literal(&mut self, index: Option<usize>, named: u8, unnamed: u8, name: &[u8], out: &mut Vec<u8>) {
        match index {
            Some(index) => integer::put(NAMED_STATIC.flags | named, NAMED_STATIC.bits, index, out),
            None => {
                let prefix = IntegerPrefix { flags: LITERAL.flags | unnamed, ..LITERAL };
                self.string::<true>(prefix, name, out);
            }
        }
    }

    /// Writes `:status`.
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        let digit = |place: u16| b'0' + (status / place % 10) as u8;
        self.encode(HeaderId::Other, b":status", &[digit(100), digit(10), digit(1)], out);
    }

    /// Writes a string after flags.
    fn string<const LOWER: bool>(&mut self, prefix: IntegerPrefix, text: &[u8], out: &mut Vec<u8>) {
        if self.coded > 0 {
            self.coded = self.coded.saturating_sub(text.len() as u32);
            huffman::put_after::<LOWER>(prefix.flags, prefix.bits, text, out);
            return;
        }
        integer::put(prefix.flags, prefix.bits, text.len(), out);
        let start = out.len();
        out.extend_from_slice(text);
        if LOWER {
            out[start..].make_ascii_lowercase();
        }
    }

    /// Follows the instructions of the peer's decoder (RFC 9204 §4.4).
    ///
    /// # Errors
    /// Returns an error if an instruction cannot be followed; it ends the connection.
    pub fn instruct(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        for byte in bytes {
            self.piece.push(*byte);
            let first = self.piece[0];
            let bits = if first & 0x80 != 0 { 7 } else { 6 };
            match integer::take(&mut self.piece.as_slice(), bits) {
                Ok(number) => {
                    self.piece.clear();
                    self.follow(first, number.into())?;
                }
                Err(HpackError::Truncated) if self.piece.len() < PIECE_MAX => {}
                Err(_) => return Err(bad_instruction("an integer of a QPACK instruction is too large")),
            }
        }
        Ok(())
    }

    fn follow(&mut self, first: u8, number: u64) -> Result<(), Broken> {
        const UNKNOWN: Broken = bad_instruction("an acknowledged section refers to no entries");
        const UNSENT: Broken = bad_instruction("an acknowledged entry was not inserted");
        match (first >> 6, self.dynamic.as_deref_mut()) {
            // 01xxxxxx: Stream Cancellation.
            (1, None) => {}
            (1, Some(dynamic)) => dynamic.outstanding.retain(|section| section.stream != number),
            // 00xxxxxx: Insert Count Increment.
            (0, Some(dynamic)) if number > 0 && number <= dynamic.inserted - dynamic.known => {
                dynamic.known += number;
            }
            (0, _) => return Err(UNSENT),
            // 1xxxxxxx: Section Acknowledgment.
            (_, None) => return Err(UNKNOWN),
            (_, Some(dynamic)) => {
                let at = dynamic.outstanding.iter().position(|section| section.stream == number);
                let section = dynamic.outstanding.remove(at.ok_or(UNKNOWN)?);
                dynamic.known = dynamic.known.max(section.required);
            }
        }
        Ok(())
    }
}

/// Returns true if an attacker must not learn the value from the size of a section.
fn is_secret(id: HeaderId, name: &[u8], value: &[u8]) -> bool {
    match id {
        HeaderId::Authorization | HeaderId::ProxyAuthorization => true,
        HeaderId::Cookie => value.len() < GUESSABLE_COOKIE,
        HeaderId::Other => name.eq_ignore_ascii_case(b"set-cookie"),
        _ => false,
    }
}
