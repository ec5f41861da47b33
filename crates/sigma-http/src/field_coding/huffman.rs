//! The Huffman code of strings (RFC 7541 §5.2 and appendix B).
//!
//! The code is canonical: the code lengths determine the codes, in the order of length and then of symbol. All tables
//! are built from them at compile time.

use super::error::HpackError;
use super::integer;

/// The code length of each byte, and last of the end symbol, which is never part of a string.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5,
    6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23,
    23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26,
    27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25,
    25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// The longest code.
const LONGEST: usize = 30;
/// Codes up to this length need one look-up; they cover usual text.
const SHORT: u32 = 8;

/// A byte's code, in the low bits, and its length.
#[derive(Clone, Copy)]
struct Code {
    bits: u32,
    length: u32,
}

/// The result for eight leading bits: a symbol and its code length; no length if the code is longer.
#[derive(Clone, Copy)]
struct Short {
    symbol: u8,
    length: u8,
}

/// All codes of one length.
#[derive(Clone, Copy)]
struct Row {
    /// The first longer code, shifted to the left of 32 bits.
    end: u32,
    /// The position in [`ORDER`] of the row's first symbol, minus its code.
    offset: i32,
}

/// Symbols in the order of their codes.
static ORDER: [u16; 257] = order();
static CODES: [Code; 257] = codes();
static SHORTS: [Short; 256] = shorts();
static ROWS: [Row; LONGEST + 1] = rows();

const fn order() -> [u16; 257] {
    let mut order = [0; 257];
    let (mut length, mut filled) = (0, 0);
    while length <= LONGEST {
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                order[filled] = symbol as u16;
                filled += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    order
}

const fn codes() -> [Code; 257] {
    let order = order();
    let mut codes = [Code { bits: 0, length: 0 }; 257];
    let (mut at, mut next, mut before) = (0, 0u32, LENGTHS[order[0] as usize]);
    while at < order.len() {
        let symbol = order[at] as usize;
        next <<= LENGTHS[symbol] - before;
        before = LENGTHS[symbol];
        codes[symbol] = Code { bits: next, length: before as u32 };
        next += 1;
        at += 1;
    }
    codes
}

const fn shorts() -> [Short; 256] {
    let codes = codes();
    let mut shorts = [Short { symbol: 0, length: 0 }; 256];
    let mut symbol = 0;
    while symbol < 256 {
        let Code { bits, length } = codes[symbol];
        if length <= SHORT {
            let mut at = bits << (SHORT - length);
            let end = (bits + 1) << (SHORT - length);
            while at < end {
                shorts[at as usize] = Short { symbol: symbol as u8, length: length as u8 };
                at += 1;
            }
        }
        symbol += 1;
    }
    shorts
}

const fn rows() -> [Row; LONGEST + 1] {
    let (order, codes) = (order(), codes());
    let mut rows = [Row { end: 0, offset: 0 }; LONGEST + 1];
    let (mut at, mut length) = (0, 1);
    while length <= LONGEST {
        rows[length].end = rows[length - 1].end;
        if at < order.len() && LENGTHS[order[at] as usize] as usize == length {
            rows[length].offset = at as i32 - codes[order[at] as usize].bits as i32;
            while at < order.len() && LENGTHS[order[at] as usize] as usize == length {
                // The last code is all ones, and its successor does not fit 32 bits.
                let after = (codes[order[at] as usize].bits as u64 + 1) << (32 - length);
                rows[length].end = if after > u32::MAX as u64 { u32::MAX } else { after as u32 };
                at += 1;
            }
        }
        length += 1;
    }
    rows
}

/// Returns the largest decoded size of `coded` bytes: each code has at least five bits.
pub(crate) fn longest(coded: usize) -> usize {
    coded * 8 / 5
}

/// Decodes a string into the start of `out`, which has room for [`longest`]; returns its length.
///
/// Returns an error for the end symbol, and for a padding of eight or more bits or with a zero.
pub(crate) fn decode(coded: &[u8], out: &mut [u8]) -> Result<usize, HpackError> {
    let mut window = Window { bits: 0, length: 0, rest: coded };
    let mut filled = 0;
    loop {
        window.fill();
        while window.length >= SHORT {
            let short = SHORTS[(window.bits >> (64 - SHORT)) as usize];
            let (symbol, length) = if short.length != 0 {
                (short.symbol, u32::from(short.length))
            } else if window.length < LONGEST as u32 && !window.rest.is_empty() {
                break;
            } else {
                let (symbol, length) = window.long()?;
                (u8::try_from(symbol).map_err(|_| HpackError::Huffman)?, length)
            };
            *out.get_mut(filled).ok_or(HpackError::Huffman)? = symbol;
            filled += 1;
            window.skip(length);
        }
        if window.rest.is_empty() {
            break;
        }
    }
    // Less than a byte is left: more symbols, then ones.
    while window.length > 0 {
        let short = SHORTS[(window.bits >> (64 - SHORT)) as usize];
        if short.length == 0 || u32::from(short.length) > window.length {
            break;
        }
        *out.get_mut(filled).ok_or(HpackError::Huffman)? = short.symbol;
        filled += 1;
        window.skip(u32::from(short.length));
    }
    let ones = (window.bits | u64::MAX.checked_shr(window.length).unwrap_or(0)) == u64::MAX;
    if ones { Ok(filled) } else { Err(HpackError::Huffman) }
}

/// The next bits of a string, shifted to the left.
struct Window<'a> {
    bits: u64,
    /// The number of valid bits in `bits`. Bits after them are zero or the start of `rest`.
    length: u32,
    rest: &'a [u8],
}

impl Window<'_> {
    /// Takes whole bytes until it has more than 56 bits or no byte is left.
    fn fill(&mut self) {
        if let Some(eight) = self.rest.first_chunk() {
            self.bits |= u64::from_be_bytes(*eight) >> self.length;
            // As many bytes as fit; the extra bits of the next byte come again.
            self.rest = &self.rest[((63 - self.length) / 8) as usize..];
            self.length |= 56;
            return;
        }
        while self.length <= 56 {
            let Some((&byte, rest)) = self.rest.split_first() else { return };
            self.bits |= u64::from(byte) << (56 - self.length);
            self.length += 8;
            self.rest = rest;
        }
    }

    fn skip(&mut self, bits: u32) {
        self.bits <<= bits;
        self.length -= bits;
    }

    /// Returns the symbol of a code that is longer than [`SHORT`], and its length.
    #[cold]
    fn long(&self) -> Result<(u16, u32), HpackError> {
        let next = (self.bits >> 32) as u32;
        for length in SHORT + 1..=LONGEST as u32 {
            let row = &ROWS[length as usize];
            if next < row.end || length == LONGEST as u32 {
                let code = (next >> (32 - length)) as i32;
                let symbol = *ORDER.get((code + row.offset) as usize).ok_or(HpackError::Huffman)?;
                // The code needs more bits than are left: a padding that is too long, or has a zero.
                return if length <= self.length { Ok((symbol, length)) } else { Err(HpackError::Huffman) };
            }
        }
        Err(HpackError::Huffman)
    }
}

/// Writes a string literal: its length and the string, Huffman-coded if that is shorter. `LOWER` converts it to lower
/// case.
pub(crate) fn put<const LOWER: bool>(text: &[u8], out: &mut Vec<u8>) {
    put_after::<LOWER>(0, 7, text, out);
}

/// As [`put`], after `flags`, which leave the length `bits` of the first byte. The bit above them marks the code.
pub(crate) fn put_after<const LOWER: bool>(flags: u8, bits: u32, text: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    integer::put(flags, bits, text.len(), out);
    let body = out.len();
    out.resize(body + text.len(), 0);
    let Some(length) = encode::<LOWER>(text, &mut out[body..]) else {
        out[body..].copy_from_slice(text);
        if LOWER {
            out[body..].make_ascii_lowercase();
        }
        return;
    };
    out.truncate(body + length);
    // The length of a shorter string may need fewer bytes.
    let needed = start + integer::length(bits, length);
    if needed < body {
        out.copy_within(body.., needed);
        out.truncate(needed + length);
    }
    put_length(flags | 1 << bits, bits, length, &mut out[start..]);
}

/// Writes the length of a coded string over the start of `out`.
fn put_length(flags: u8, bits: u32, length: usize, out: &mut [u8]) {
    let most = (1 << bits) - 1;
    if length < most {
        out[0] = flags | length as u8;
        return;
    }
    out[0] = flags | most as u8;
    let (mut left, mut at) = (length - most, 1);
    while left >= 0x80 {
        out[at] = left as u8 | 0x80;
        left >>= 7;
        at += 1;
    }
    out[at] = left as u8;
}

/// Encodes `text` into `out`, which has its length; `None` once it cannot be shorter.
fn encode<const LOWER: bool>(text: &[u8], out: &mut [u8]) -> Option<usize> {
    let (mut bits, mut pending, mut at) = (0u64, 0u32, 0usize);
    for &byte in text {
        let byte = if LOWER { byte.to_ascii_lowercase() } else { byte };
        let code = CODES[usize::from(byte)];
        bits = bits << code.length | u64::from(code.bits);
        pending += code.length;
        if pending >= 32 {
            pending -= 32;
            let four = out.get_mut(at..at + 4)?;
            four.copy_from_slice(&((bits >> pending) as u32).to_be_bytes());
            at += 4;
        }
    }
    let rest = pending.div_ceil(8) as usize;
    if at + rest >= out.len() {
        return None;
    }
    let last = (bits << 32 | u64::from(u32::MAX)) >> pending;
    out[at..at + rest].copy_from_slice(&(last as u32).to_be_bytes()[..rest]);
    Some(at + rest)
}

#[cfg(test)]
#[path = "huffman_tests.rs"]
mod tests;
