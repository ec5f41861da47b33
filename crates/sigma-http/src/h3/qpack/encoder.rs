//! Encoding of field sections.
//!
//! Sections refer to the static table alone, so the peer never waits for one. Strings are Huffman-coded at the start
//! of a connection only, as in HPACK: to save a byte costs more instructions than the rest of the encoding.

use super::fixed::{self, Found};
use crate::HeaderId;
use crate::field_coding::{HpackError, huffman, integer};
use crate::h3::error::{Broken, ErrorCode};

/// The number of string bytes that are Huffman-coded on a connection: about its first ten heads.
const CODED_BYTES: u32 = 4096;

/// A shorter cookie could be guessed from sizes (RFC 9204 §7.1.3).
const GUESSABLE_COOKIE: usize = 20;

const INDEXED_STATIC: (u8, u32) = (0xc0, 6);
const NAMED_STATIC: (u8, u32) = (0x50, 4);
const LITERAL: (u8, u32) = (0x20, 3);
/// The flag of a value that no intermediary may put into a table.
const NEVER_NAMED: u8 = 0x20;
const NEVER_LITERAL: u8 = 0x10;

/// An integer of an instruction has at most this number of bytes.
const PIECE_MAX: usize = 8;

/// Encodes the field sections of one connection.
#[derive(Debug)]
pub struct Encoder {
    /// Bytes of strings that may still be Huffman-coded.
    coded: u32,
    /// An incomplete instruction of the peer's decoder.
    piece: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { coded: CODED_BYTES, piece: Vec::new() }
    }
}

const fn bad_instruction(reason: &'static str) -> Broken {
    Broken::connection(ErrorCode::QPACK_DECODER_STREAM_ERROR, reason)
}

impl Encoder {
    /// Starts a section: writes its prefix.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0, 0]);
    }

    /// Writes a field. `name` may have any case and is written in lower case. `id` is `HeaderId::of(name)`.
    pub fn encode(&mut self, id: HeaderId, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let found = fixed::find(name, value);
        let secret = is_secret(id, name, value);
        let index = match found {
            Found::Field(index) if !secret => {
                integer::put(INDEXED_STATIC.0, INDEXED_STATIC.1, index, out);
                return;
            }
            Found::Field(index) | Found::Name(index) => Some(index),
            Found::Nothing => None,
        };
        match index {
            Some(index) => {
                let never = if secret { NEVER_NAMED } else { 0 };
                integer::put(NAMED_STATIC.0 | never, NAMED_STATIC.1, index, out);
            }
            None => {
                let never = if secret { NEVER_LITERAL } else { 0 };
                self.string::<true>((LITERAL.0 | never, LITERAL.1), name, out);
            }
        }
        self.string::<false>((0, 7), value, out);
    }

    /// Writes `:status`.
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        let digit = |place: u16| b'0' + (status / place % 10) as u8;
        self.encode(HeaderId::Other, b":status", &[digit(100), digit(10), digit(1)], out);
    }

    /// Writes a string after flags.
    fn string<const LOWER: bool>(&mut self, flags: (u8, u32), text: &[u8], out: &mut Vec<u8>) {
        if self.coded > 0 {
            self.coded = self.coded.saturating_sub(text.len() as u32);
            huffman::put_after::<LOWER>(flags.0, flags.1, text, out);
            return;
        }
        integer::put(flags.0, flags.1, text.len(), out);
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
        let mut bytes = bytes;
        while let Some((first, after)) = bytes.split_first() {
            self.piece.push(*first);
            bytes = after;
            let first = self.piece[0];
            let bits = if first & 0x80 != 0 { 7 } else { 6 };
            match integer::take(&mut self.piece.as_slice(), bits) {
                Ok(_) => self.piece.clear(),
                Err(HpackError::Truncated) if self.piece.len() < PIECE_MAX => continue,
                Err(_) => return Err(bad_instruction("a number of an instruction is too large")),
            }
            match first >> 6 {
                // No section refers to the dynamic table, and no entry was inserted.
                0 => return Err(bad_instruction("an entry is acknowledged that was not inserted")),
                2 | 3 => return Err(bad_instruction("a section is acknowledged that needs no entries")),
                // A stream was cancelled.
                _ => {}
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
