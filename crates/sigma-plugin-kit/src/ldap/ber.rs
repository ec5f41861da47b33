//! Basic encoding rules (X.690), as LDAP restricts them (RFC 4511 §5.1): definite lengths only.

/// Tags of the types that LDAP uses.
pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTETS: u8 = 0x04;
pub(super) const ENUMERATED: u8 = 0x0a;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// Writes an element: its tag, length and contents.
pub(super) fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = contents.len();
    let mut out = vec![tag];
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        out.push(0x80 | (bytes.len() - zeros) as u8);
        out.extend_from_slice(&bytes[zeros..]);
    }
    out.extend_from_slice(contents);
    out
}

/// Writes a number that is not negative, as INTEGER or ENUMERATED.
pub(super) fn number(tag: u8, value: u32) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(3);
    let digits = &bytes[zeros..];
    // A first bit that is set would make it negative.
    let sign: &[u8] = if digits[0] & 0x80 == 0 { &[] } else { &[0] };
    element(tag, &[sign, digits].concat())
}

/// Reads the header of an element: its tag, the length of the header, and the length of the contents. None if there
/// are too few bytes.
///
/// # Errors
/// Returns an error if no element begins like this, or if it is longer than `limit`.
pub(super) fn header(bytes: &[u8], limit: usize) -> Result<Option<(u8, usize, usize)>, &'static str> {
    let (Some(&tag), Some(&first)) = (bytes.first(), bytes.get(1)) else { return Ok(None) };
    let (size, length) = match first {
        0..=0x7f => (2, usize::from(first)),
        0x81..=0x84 => {
            let size = 2 + usize::from(first & 0x7f);
            let Some(digits) = bytes.get(2..size) else { return Ok(None) };
            (size, digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)))
        }
        _ => return Err("a length is indefinite or too large"),
    };
    if length > limit { Err("a message is too long") } else { Ok(Some((tag, size, length))) }
}

/// Reads the first element: its tag, its contents, and the rest. None without a complete one.
pub(super) fn first(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, size, length) = header(bytes, bytes.len()).ok()??;
    let (contents, rest) = bytes[size..].split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// Returns the contents of the first element, if it is of this type, and the rest.
pub(super) fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, contents, rest) = first(bytes)?;
    (found == tag).then_some((contents, rest))
}

/// Returns the value of a number's contents. None if it is negative or too large.
pub(super) fn value(contents: &[u8]) -> Option<u32> {
    if contents.is_empty() || contents.len() > 5 || contents[0] & 0x80 != 0 {
        return None;
    }
    let value = contents.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    u32::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_written_and_read() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x1_0000] {
            let contents = vec![7; length];
            let bytes = element(OCTETS, &contents);
            assert_eq!(first(&bytes), Some((OCTETS, &contents[..], &[][..])), "{length}");
            for end in 0..bytes.len().min(8) {
                assert_eq!(first(&bytes[..end]), None, "{length} {end}");
            }
        }
        for number_ in [0, 1, 0x7f, 0x80, 0xff, 0x8000, u32::MAX] {
            let bytes = number(INTEGER, number_);
            let (contents, _) = expect(&bytes, INTEGER).unwrap();
            assert_eq!(value(contents), Some(number_));
        }
        assert_eq!(
            (value(&[]), value(&[0x80]), value(&[1, 0, 0, 0, 0]), value(&[0; 6])),
            (None, None, None, None)
        );
    }

    #[test]
    fn lengths_are_not_believed() {
        let check = |bytes: &[u8], expected| assert_eq!(header(bytes, 1000), expected, "{bytes:?}");
        check(&[], Ok(None));
        check(&[0x30], Ok(None));
        check(&[0x30, 0x82, 1], Ok(None));
        check(&[0x30, 5], Ok(Some((0x30, 2, 5))));
        check(&[0x30, 0x84, 0, 0, 3, 0xe8], Ok(Some((0x30, 6, 1000))));
        check(&[0x30, 0x84, 0, 0, 3, 0xe9], Err("a message is too long"));
        check(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], Err("a message is too long"));
        check(&[0x30, 0x80], Err("a length is indefinite or too large"));
        check(&[0x30, 0x88], Err("a length is indefinite or too large"));
    }
}
