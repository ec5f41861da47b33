//! Byte searches on eight bytes at a time, in one register (SWAR).
//!
//! Fields of heads are short: the setup of a vectorised search costs more than the search itself.

const EACH: u64 = 0x0101_0101_0101_0101;
const LOW_BITS: u64 = 0x7f * EACH;
const HIGH_BIT: u64 = 0x80 * EACH;

/// Up to this length a search here is cheaper than a vectorised one.
const NEAR_BYTES: usize = 64;

/// Returns the eight bytes at `at`, the first of them lowest.
#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

/// Returns the high bit of each byte that is `byte`.
#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    let differing = word ^ (u64::from(byte) * EACH);
    // Each byte adds up separately: no sum exceeds eight bits.
    !(((differing & LOW_BITS) + LOW_BITS) | differing) & HIGH_BIT
}

/// Returns the high bit of each byte that is below `limit`, at most 0x80, or is 0x7f.
#[inline]
fn below_or_del(word: u64, limit: u8) -> u64 {
    let low = word & LOW_BITS;
    let del = low + EACH;
    let from_limit = low + u64::from(0x80 - limit) * EACH;
    (del | !from_limit) & !word & HIGH_BIT
}

#[inline]
fn first_of(marks: u64) -> usize {
    marks.trailing_zeros() as usize / 8
}

/// Returns true if a field value must not contain the byte (RFC 9110 §5.5).
#[inline]
pub(crate) fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// Returns the position of the first control byte from `from` on, tabs aside; the length of `bytes` without one.
#[inline]
pub(crate) fn find_control(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(word) = word(bytes, at) {
        let controls = below_or_del(word, b' ');
        if controls == 0 {
            at += 8;
            continue;
        }
        at += first_of(controls);
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    while at < bytes.len() && !is_control(bytes[at]) {
        at += 1;
    }
    at
}

/// Returns the position of the first `wanted` from `from` on; fast if it is near.
#[inline]
pub(crate) fn find_near(wanted: u8, bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(word) = word(bytes, at)
        && at < from + NEAR_BYTES
    {
        let found = equal(word, wanted);
        if found != 0 {
            return Some(at + first_of(found));
        }
        at += 8;
    }
    if bytes.len() - at < 8 {
        return bytes[at..].iter().position(|byte| *byte == wanted).map(|i| at + i);
    }
    memchr::memchr(wanted, &bytes[at..]).map(|i| at + i)
}

/// Returns true if all bytes are visible ASCII other than `#`.
#[inline]
pub(crate) fn is_visible_without_hash(bytes: &[u8]) -> bool {
    let refused = |word: u64| below_or_del(word, b'!') | equal(word, b'#') | (word & HIGH_BIT);
    let Some(last) = bytes.last_chunk() else {
        return bytes.iter().all(|byte| matches!(byte, b'!'..=b'~') && *byte != b'#');
    };
    // The last eight may be checked twice.
    let mut seen = refused(u64::from_le_bytes(*last));
    let mut at = 0;
    while let Some(word) = word(bytes, at) {
        seen |= refused(word);
        at += 8;
    }
    seen == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte at every position of a text, between bytes with neighbouring values.
    #[test]
    fn bytes_are_found_at_every_position() {
        for len in (1..20).chain([70, 90]) {
            let places = (0..len).filter(|at| len < 20 || at % 9 == 0);
            for (at, byte) in places.flat_map(|at| (0..=255u8).map(move |byte| (at, byte))) {
                for around in [b'a', b'\t', 0x80, 0xff, b'~', byte.wrapping_sub(1), byte.wrapping_add(1)] {
                    let mut text = vec![around; len];
                    text[at] = byte;
                    let control = text.iter().position(|b| is_control(*b)).unwrap_or(len);
                    assert_eq!(find_control(&text, 0), control, "{text:?}");
                    assert_eq!(find_control(&text, len), len);
                    let near = text.iter().position(|b| *b == byte);
                    assert_eq!(find_near(byte, &text, 0), near, "{text:?}");
                    let visible = text.iter().all(|b| (0x21..0x7f).contains(b) && *b != b'#');
                    assert_eq!(is_visible_without_hash(&text), visible, "{text:?}");
                }
            }
        }
    }
}
