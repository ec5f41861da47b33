//! Integers that share their first byte with flags (RFC 7541 §5.1).

use super::error::HpackError;

/// The limit of bytes after the first: the need of 32 bits.
const MORE: u32 = 5;

/// The first byte of an integer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IntegerPrefix {
    /// The flags before the integer.
    pub(crate) flags: u8,
    /// The bits that the flags leave to the integer.
    pub(crate) bits: u32,
}

/// Decodes an integer that has `bits` of the first byte.
///
/// Returns an error if it is truncated, exceeds 32 bits, or has needless zeros beyond five bytes.
#[inline]
pub(crate) fn take(rest: &mut &[u8], bits: u32) -> Result<u32, HpackError> {
    let (&first, tail) = rest.split_first().ok_or(HpackError::Truncated)?;
    *rest = tail;
    let most = u8::MAX >> (8 - bits);
    if first & most < most { Ok((first & most).into()) } else { take_more(rest, most) }
}

/// Decodes the bytes after the first, which is `most`.
#[inline(never)]
fn take_more(rest: &mut &[u8], most: u8) -> Result<u32, HpackError> {
    let mut value = u64::from(most);
    for step in 0..MORE {
        let (&byte, tail) = rest.split_first().ok_or(HpackError::Truncated)?;
        *rest = tail;
        value += u64::from(byte & 0x7f) << (7 * step);
        if byte & 0x80 == 0 {
            return u32::try_from(value).map_err(|_| HpackError::Integer);
        }
    }
    Err(HpackError::Integer)
}

/// Writes an integer after `flags`, which leave it `bits` of the first byte.
#[inline]
pub(crate) fn put(flags: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let most = (1 << bits) - 1;
    if value < most { out.push(flags | value as u8) } else { put_more(flags | most as u8, value - most, out) }
}

#[inline(never)]
fn put_more(first: u8, mut left: usize, out: &mut Vec<u8>) {
    out.push(first);
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Returns the number of bytes that [`put`] writes.
pub(crate) fn length(bits: u32, value: usize) -> usize {
    let most = (1 << bits) - 1;
    match value.checked_sub(most) {
        None => 1,
        Some(left) => 2 + (usize::BITS - left.leading_zeros()).saturating_sub(1) as usize / 7,
    }
}
