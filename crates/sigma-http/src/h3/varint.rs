//! Variable-length integers of QUIC (RFC 9000 §16).

/// The largest value.
pub const MAX: u64 = (1 << 62) - 1;

/// The most bytes of an integer.
pub const BYTES_MAX: usize = 8;

/// Reads an integer at the start of `bytes`; returns it and its length. None if it is incomplete.
#[inline]
pub fn take(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let mut value = u64::from(first & 0x3f);
    for byte in bytes.get(1..length)? {
        value = value << 8 | u64::from(*byte);
    }
    Some((value, length))
}

/// Reads a payload that is exactly one integer.
pub fn only(bytes: &[u8]) -> Option<u64> {
    take(bytes).filter(|(_, length)| *length == bytes.len()).map(|(value, _)| value)
}

/// Writes an integer in its shortest form. Larger values than [`MAX`] are cut.
#[inline]
pub fn put(value: u64, out: &mut Vec<u8>) {
    let value = value & MAX;
    let eight = value.to_be_bytes();
    match value {
        0..0x40 => out.push(eight[7]),
        0x40..0x4000 => out.extend_from_slice(&[0x40 | eight[6], eight[7]]),
        0x4000..0x4000_0000 => {
            out.push(0x80 | eight[4]);
            out.extend_from_slice(&eight[5..]);
        }
        _ => {
            out.push(0xc0 | eight[0]);
            out.extend_from_slice(&eight[1..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 9000, appendix A.1.
    #[test]
    fn the_examples_of_the_standard() {
        let long: &[u8] = &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c];
        assert_eq!(take(long), Some((151_288_809_941_952_652, 8)));
        assert_eq!(take(&[0x9d, 0x7f, 0x3e, 0x7d, 1]), Some((494_878_333, 4)));
        assert_eq!(take(&[0x7b, 0xbd]), Some((15_293, 2)));
        assert_eq!(take(&[0x25]), Some((37, 1)));
        assert_eq!(take(&[0x40, 0x25]), Some((37, 2)));
        assert_eq!((take(&[]), take(&[0x40]), take(&long[..7])), (None, None, None));
        assert_eq!((only(&[0x40, 0x25]), only(&[0x25, 0]), only(&[])), (Some(37), None, None));
    }

    #[test]
    fn written_integers_are_read() {
        let values = [0, 1, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX];
        for (value, length) in values.into_iter().zip([1, 1, 1, 2, 2, 4, 4, 8, 8]) {
            let mut out = Vec::new();
            put(value, &mut out);
            assert_eq!((out.len(), take(&out)), (length, Some((value, length))));
        }
    }
}
