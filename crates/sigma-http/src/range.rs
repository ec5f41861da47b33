//! The field `Range` (RFC 9110 §14).

use crate::header::list_items;

/// Ranges of one request. More are hardly ever meant well: the whole representation answers them.
const MAX_RANGES: usize = 32;

/// Bytes of a representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first.
    pub start: u64,
    /// The last one.
    pub end: u64,
}

impl ByteRange {
    /// How many they are.
    pub fn length(self) -> u64 {
        self.end - self.start + 1
    }

    /// The value of `Content-Range`, where the whole has `size` bytes.
    pub fn content_range(self, size: u64) -> String {
        format!("bytes {}-{}/{size}", self.start, self.end)
    }
}

/// What an answer has, by its `Content-Range`: these bytes of so many (RFC 9110 §14.4). None if it is anything else,
/// a total that nobody knows (`*`) included.
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

/// What is asked for of a representation.
#[derive(Debug, PartialEq, Eq)]
pub enum Ranges {
    /// No ranges, or none that have to be served.
    Whole,
    /// One range.
    One(ByteRange),
    /// Several, which do not have more bytes together than the whole.
    Many(Vec<ByteRange>),
    /// Not one of them is within it.
    Unsatisfiable,
}

impl Ranges {
    /// Reads the field's value for a representation of `size` bytes.
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
        // Ranges that overlap would have us send more than there is (RFC 9110 §17.15).
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

/// None if it is no range at all, Some(None) if it is not within it.
fn parse_one(item: &[u8], size: u64) -> Option<Option<ByteRange>> {
    let (first, last) = std::str::from_utf8(item).ok()?.split_once('-')?;
    let number = |digits: &str| match digits.is_empty() || digits.bytes().any(|b| !b.is_ascii_digit()) {
        true => None,
        // A number that is too large lies beyond every end.
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
    fn what_an_answer_has_is_read() {
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
    fn ranges_are_read() {
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
