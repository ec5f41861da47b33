//! Encoding of field blocks.
//!
//! The dynamic table learns: a field enters it the second time. So a field that differs each time never enters, and
//! one that repeats costs a byte from the third time on. A name that is in no table enters with its field when it is
//! seen again, and is an index afterwards.
//!
//! Strings are Huffman-coded where that is shorter, but only the first ones of a connection. To save a byte costs
//! more instructions than the rest of the encoding. So it is only done at the start of a connection, while its heads
//! still cross in a round trip or two. On a long connection the table saves bytes at a lower cost.

use super::fixed::{self, Key, Pseudo};
use crate::HeaderId;
use crate::field_coding::huffman;
use crate::field_coding::integer::{self, IntegerPrefix};
use crate::field_coding::memory::{self, Memory, mix, sample};
use crate::field_coding::table::{self, Table, TableField};

/// The initial size of every table (RFC 9113 §6.5.2).
const FIRST_TABLE_BYTES: u32 = 4096;
/// The largest used part of a table: positions are found by 16 bits.
const MOST_TABLE_BYTES: u32 = 1 << 16;
/// The number of string bytes that are Huffman-coded on a connection: about its first ten heads.
const CODED_BYTES: u32 = 4096;
/// A shorter cookie could be guessed from sizes (RFC 7541 §7.1.3).
const GUESSABLE_COOKIE: usize = 20;

const INDEXED: IntegerPrefix = IntegerPrefix { flags: 0x80, bits: 7 };
const ADDED: IntegerPrefix = IntegerPrefix { flags: 0x40, bits: 6 };
const SIZE: IntegerPrefix = IntegerPrefix { flags: 0x20, bits: 5 };
const NEVER_INDEXED: IntegerPrefix = IntegerPrefix { flags: 0x10, bits: 4 };
const NOT_INDEXED: IntegerPrefix = IntegerPrefix { flags: 0x00, bits: 4 };

/// Encodes the blocks of one connection, in the order of sending.
#[derive(Debug, Clone)]
pub struct Encoder {
    /// The largest size that this side uses.
    own: u32,
    /// The table's next size, and the smallest one since the last block.
    resize: Option<(u32, u32)>,
    /// Bytes of strings that may still be Huffman-coded.
    coded: u32,
    table: Table<Key>,
    /// Allocated with the first field that is not in the static table.
    memory: Option<Box<Memory>>,
}

impl Encoder {
    /// Creates an encoder. `table_bytes` is the largest used part of the peer's table, at most 64 KiB.
    pub fn new(table_bytes: u32) -> Encoder {
        let own = table_bytes.min(MOST_TABLE_BYTES);
        let table = Table::new(FIRST_TABLE_BYTES);
        let mut encoder = Encoder { own, resize: None, coded: CODED_BYTES, table, memory: None };
        encoder.set_peer_table_bytes(FIRST_TABLE_BYTES);
        encoder
    }

    /// Handles a new SETTINGS_HEADER_TABLE_SIZE of the peer; the next block announces it (RFC 7541 §4.2, both the
    /// smallest and the last size).
    pub fn set_peer_table_bytes(&mut self, bytes: u32) {
        let last = bytes.min(self.own);
        let (smallest, before) = self.resize.unwrap_or((self.table.limit(), self.table.limit()));
        if last != before || self.resize.is_some() {
            self.resize = Some((smallest.min(last), last));
        }
    }

    /// Starts a block: writes pending table size updates.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(memory) = &mut self.memory {
            memory.begin();
        }
        let Some((smallest, last)) = self.resize.take() else { return };
        for size in [smallest, last] {
            if size != self.table.limit() {
                self.table.set_limit(size);
                integer::put(SIZE.flags, SIZE.bits, size as usize, out);
            }
        }
    }

    /// Writes a field. `name` may have any case and is written in lower case. `id` is `HeaderId::of(name)`, a hint
    /// for the static table.
    pub fn encode(&mut self, id: HeaderId, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let key = Key::of(id, name);
        if is_secret(key, value) {
            literal(NEVER_INDEXED, key.index(), name, value, &mut self.coded, out);
            return;
        }
        if key == Key::ACCEPT_ENCODING && value == b"gzip, deflate" {
            out.push(INDEXED.flags | key.index() as u8);
            return;
        }
        self.field(key, name, value, out);
    }

    /// Writes `:status`.
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        let known = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digit = |place: u16| b'0' + (status / place % 10) as u8;
                self.field(Key::STATUS, b":status", &[digit(100), digit(10), digit(1)], out);
                return;
            }
        };
        out.push(INDEXED.flags | known);
    }

    /// Writes a pseudo-field of a request.
    pub fn pseudo(&mut self, name: Pseudo, value: &[u8], out: &mut Vec<u8>) {
        let (key, text): (Key, &[u8]) = match name {
            Pseudo::Method => (Key::METHOD, b":method"),
            Pseudo::Scheme => (Key::SCHEME, b":scheme"),
            Pseudo::Authority => (Key::AUTHORITY, b":authority"),
            Pseudo::Path => (Key::PATH, b":path"),
            Pseudo::Protocol => (Key::PROTOCOL, b":protocol"),
        };
        let known = match (name, value) {
            (Pseudo::Method, b"GET") => 2,
            (Pseudo::Method, b"POST") => 3,
            (Pseudo::Path, b"/") => 4,
            (Pseudo::Path, b"/index.html") => 5,
            (Pseudo::Scheme, b"http") => 6,
            (Pseudo::Scheme, b"https") => 7,
            _ => {
                self.field(key, text, value, out);
                return;
            }
        };
        out.push(INDEXED.flags | known);
    }

    /// Writes a field that is not in the static table.
    #[inline]
    fn field(&mut self, key: Key, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        if let Some(memory) = &mut self.memory
            && let Some(age) = memory.guess(&self.table, |field| FieldQuery { key, name, value }.is(field))
        {
            integer::put(INDEXED.flags, INDEXED.bits, fixed::COUNT + 1 + age, out);
        } else {
            self.look_up(key, name, value, out);
        }
    }

    /// Writes a field that does not follow the previous one in the table.
    #[inline(never)]
    fn look_up(&mut self, key: Key, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        // A field of half the table would evict too much.
        if table::size(name, value) > self.table.limit() as usize / 2 {
            literal(NOT_INDEXED, key.index(), name, value, &mut self.coded, out);
            return;
        }
        let memory = self.memory.get_or_insert_default();
        let wanted = FieldQuery { key, name, value };
        let name_hash = hash_of_name(key, name);
        let hash = mix(name_hash, sample(value, 0));
        if let Some(age) = memory.find(hash, &self.table, |field| wanted.is(field)) {
            memory.follow(age);
            integer::put(INDEXED.flags, INDEXED.bits, fixed::COUNT + 1 + age, out);
            return;
        }
        let mut index = key.index();
        if index == 0 {
            let age = memory.find(name_hash, &self.table, |field| wanted.is_named(field));
            index = age.map_or(0, |age| fixed::COUNT + 1 + age);
        }
        let again = memory.notice(hash) | (index == 0 && memory.notice(name_hash));
        let kind = if again { ADDED } else { NOT_INDEXED };
        literal(kind, index, name, value, &mut self.coded, out);
        if again && self.table.add(name, value, key) {
            memory.count_added();
            memory.register(hash);
            if key.index() == 0 {
                memory.register(name_hash);
            }
        }
    }
}

/// A field to find in the table.
struct FieldQuery<'a> {
    key: Key,
    name: &'a [u8],
    value: &'a [u8],
}

impl FieldQuery<'_> {
    fn is(&self, field: TableField<'_, Key>) -> bool {
        field.note == self.key && field.value == self.value && self.is_named(field)
    }

    fn is_named(&self, field: TableField<'_, Key>) -> bool {
        let TableField { name, note: key, .. } = field;
        // The table has names in lower case, as most fields do.
        key == self.key && (key != Key::OTHER || name == self.name || name.eq_ignore_ascii_case(self.name))
    }
}

/// Returns true if an attacker must not learn the value from the size of a block.
fn is_secret(key: Key, value: &[u8]) -> bool {
    match key {
        Key::AUTHORIZATION | Key::PROXY_AUTHORIZATION | Key::SET_COOKIE => true,
        Key::COOKIE => value.len() < GUESSABLE_COOKIE,
        _ => false,
    }
}

/// Writes a literal (RFC 7541 §6.2), including its name if it has no index. `coded` is the number of bytes that may
/// still be Huffman-coded.
fn literal(kind: IntegerPrefix, index: usize, name: &[u8], value: &[u8], coded: &mut u32, out: &mut Vec<u8>) {
    integer::put(kind.flags, kind.bits, index, out);
    if index == 0 {
        string::<true>(name, coded, out);
    }
    string::<false>(value, coded, out);
}

/// Writes a string; `LOWER` converts it to lower case.
#[inline]
fn string<const LOWER: bool>(text: &[u8], coded: &mut u32, out: &mut Vec<u8>) {
    if *coded > 0 {
        *coded = coded.saturating_sub(text.len() as u32);
        huffman::put::<LOWER>(text, out);
        return;
    }
    integer::put(0, 7, text.len(), out);
    let start = out.len();
    out.extend_from_slice(text);
    if LOWER {
        out[start..].make_ascii_lowercase();
    }
}

/// Hashes a name, in any case.
fn hash_of_name(key: Key, name: &[u8]) -> u32 {
    match key {
        Key::OTHER => memory::hash_of_name(name),
        _ => mix(key.number().into(), 0),
    }
}

#[cfg(test)]
impl Encoder {
    pub(super) fn table(&self) -> &Table<Key> {
        &self.table
    }
}
