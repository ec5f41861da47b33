//! Integers that share their first byte with flags (RFC 7541 §5.1).

use super::error::HpackError;

/// Most bytes behind the first: what 32 bits need.
const MORE: u32 = 5;

/// Takes an integer whose first byte has `bits` of it.
///
/// Returns an error if the bytes end within it, or if it has more than 32 bits or needless zeros
/// beyond five bytes.
pub(super) fn take(rest: &mut &[u8], bits: u32) -> Result<u32, HpackError> {
    let (&first, mut tail) = rest.split_first().ok_or(HpackError::Truncated)?;
    let most = (1 << bits) - 1;
    let mut value = u64::from(first & most);
    if first & most == most {
        for step in 0.. {
            if step == MORE {
                return Err(HpackError::Integer);
            }
            let (&byte, after) = tail.split_first().ok_or(HpackError::Truncated)?;
            tail = after;
            value += u64::from(byte & 0x7f) << (7 * step);
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = tail;
    u32::try_from(value).map_err(|_| HpackError::Integer)
}

/// Writes an integer behind `flags`, which leave `bits` of the first byte to it.
pub(super) fn put(flags: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let most = (1 << bits) - 1;
    if value < most {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | most as u8);
    let mut left = value - most;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Bytes that [`put`] writes.
pub(super) fn length(bits: u32, value: usize) -> usize {
    let most = (1 << bits) - 1;
    match value.checked_sub(most) {
        None => 1,
        Some(left) => 2 + (usize::BITS - left.leading_zeros()).saturating_sub(1) as usize / 7,
    }
}
