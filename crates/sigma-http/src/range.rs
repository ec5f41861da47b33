//! The field `Range` (RFC 9110 §14).

use crate::header::list_items;

/// The limit of ranges in one request. A request with more gets the whole representation.
const MAX_RANGES: usize = 32;

/// Bytes of a representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

impl ByteRange {
    /// Returns the number of bytes.
    pub fn length(self) -> u64 {
        self.end - self.start + 1
    }

    /// Returns the value of `Content-Range` for a representation of `size` bytes.
    pub fn content_range(self, size: u64) -> String {
        format!("bytes {}-{}/{size}", self.start, self.end)
    }
}

/// Parses `Content-Range` of a response: the bytes, and the total size (RFC 9110 §14.4). Returns None for any other
/// form, including an unknown total (`*`).
pub fn content_range(value: &[u8]) -> Option<(ByteRange, u64)> {
    let value = std::str::from_utf8(value).ok()?;
    let (unit, rest) = value.split_once(' ')?;
    let (range, total) = rest.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if is_number { digits.parse::<u64>().ok() } else { None }
    };
    let (start, end, total) = (number(start)?, number(end)?, number(total)?);
    let is_right = unit.eq_ignore_ascii_case("bytes") && start <= end && end < total;
    is_right.then_some((ByteRange { start, end }, total))
}

/// The requested part of a representation.
#[derive(Debug, PartialEq, Eq)]
pub enum Ranges {
    /// No ranges, or none that must be served
    Whole,
    /// One range
    One(ByteRange),
    /// Several ranges with at most as many bytes as the whole
    Many(Vec<ByteRange>),
    /// No range within the representation
    Unsatisfiable,
}

impl Ranges {
    /// Parses the field's value for a representation of `size` bytes.
    pub fn parse(value: &[u8], size: u64) -> Ranges {
        let Some(at) = value.iter().position(|b| *b == b'=') else { return Ranges::Whole };
        if !value[..at].trim_ascii().eq_ignore_ascii_case(b"bytes") {
            return Ranges::Whole;
        }
        let (mut ranges, mut count) = (Vec::new(), 0);
        for item in list_items(&value[at + 1..]) {
            count += 1;
            match parse_one(item, size) {
                Some(Some(range)) => ranges.push(range),
                Some(None) => {}
                None => return Ranges::Whole,
            }
        }
        // Overlapping ranges would make us send more than the whole (RFC 9110 §17.15).
        let total = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.length()));
        match (count, &ranges[..]) {
            (0, _) => Ranges::Whole,
            (_, []) => Ranges::Unsatisfiable,
            (_, [one]) => Ranges::One(*one),
            _ if count > MAX_RANGES || total.is_none_or(|total| total > size) => Ranges::Whole,
            _ => Ranges::Many(ranges),
        }
    }
}

/// Returns None if it is not a range, Some(None) if it is outside the representation.
fn parse_one(item: &[u8], size: u64) -> Option<Option<ByteRange>> {
    let (first, last) = std::str::from_utf8(item).ok()?.split_once('-')?;
    let number = |digits: &str| match digits.is_empty() || digits.bytes().any(|b| !b.is_ascii_digit()) {
        true => None,
        // A number that is too large is beyond every end.
        false => Some(digits.parse().unwrap_or(u64::MAX)),
    };
    if first.is_empty() {
        let suffix = number(last)?.min(size);
        return Some((suffix > 0).then(|| ByteRange { start: size - suffix, end: size - 1 }));
    }
    let start = number(first)?;
    let end = if last.is_empty() { u64::MAX } else { number(last)? };
    if end < start {
        return None;
    }
    Some((start < size).then(|| ByteRange { start, end: end.min(size - 1) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_parsed() {
        let check = |value: &str, expected: Option<(u64, u64, u64)>| {
            let expected = expected.map(|(start, end, total)| (ByteRange { start, end }, total));
            assert_eq!(content_range(value.as_bytes()), expected, "{value}");
        };
        check("bytes 0-4/10", Some((0, 4, 10)));
        check("BYTES 9-9/10", Some((9, 9, 10)));
        check("bytes 0-18446744073709551613/18446744073709551614", Some((0, u64::MAX - 2, u64::MAX - 1)));
        for wrong in [
            "",
            "bytes",
            "bytes 0-4",
            "bytes 0-4/*",
            "bytes */10",
            "bytes 4-3/10",
            "bytes 0-10/10",
            "bytes=0-4/10",
            "lines 0-4/10",
            "bytes 0-4/10, 5-6/10",
            "bytes +0-4/10",
            "bytes 0-4/ 10",
            "bytes  0-4/10",
            "bytes 0-4/99999999999999999999",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn ranges_are_parsed() {
        let range = |start, end| ByteRange { start, end };
        let check = |value: &str, size: u64, expected: Ranges| {
            assert_eq!(Ranges::parse(value.as_bytes(), size), expected, "{value}");
        };
        check("bytes=0-4", 10, Ranges::One(range(0, 4)));
        check("Bytes = 0-0", 10, Ranges::One(range(0, 0)));
        check("bytes=5-", 10, Ranges::One(range(5, 9)));
        check("bytes=-3", 10, Ranges::One(range(7, 9)));
        check("bytes=-30", 10, Ranges::One(range(0, 9)));
        check("bytes=8-99999999999999999999999", 10, Ranges::One(range(8, 9)));
        check("bytes=0-1, 4-5,,8-", 10, Ranges::Many(vec![range(0, 1), range(4, 5), range(8, 9)]));
        check("bytes=0-1,20-", 10, Ranges::One(range(0, 1)));
        check("bytes=10-", 10, Ranges::Unsatisfiable);
        check("bytes=99999999999999999999999-", 10, Ranges::Unsatisfiable);
        check("bytes=-0", 10, Ranges::Unsatisfiable);
        check("bytes=0-", 0, Ranges::Unsatisfiable);
        for whole in
            ["", "bytes", "bytes=", "bytes=a-b", "bytes=1", "bytes=3-2", "lines=0-1", "bytes=+1-2", "bytes=-"]
        {
            check(whole, 10, Ranges::Whole);
        }
        check("bytes=0-9,0-9", 10, Ranges::Whole);
        check(&format!("bytes={}", "0-0,".repeat(33)), 100, Ranges::Whole);
    }
}
