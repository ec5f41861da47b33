//! Responses in slices: parts of one size, stored separately, with a table of the slices that belong together.
//!
//! The keys of slices contain the id of their table. A slice without a table is never found: to purge the table
//! purges all of its slices.

use sigma_http::range::{ByteRange, content_range};
use sigma_http::{BodyLength, Headers, ResponseHead};

use crate::body::Body;
use crate::stored::Stored;

/// The separator after the key of a response in the keys of its slices. No part of a key has the length that it
/// spells, so that no key of a response equals one of a slice.
const END: [u8; 8] = [0xff; 8];

/// The identity of one version of a representation, so that slices of two versions are never combined (RFC 9110
/// §15.3.7.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The total length.
    pub total: u64,
    tag: Option<Box<[u8]>>,
    modified: Option<Box<[u8]>>,
    coding: Option<Box<[u8]>>,
}

impl Version {
    /// Returns the version of a response with these fields and this total length. Returns None without a unique
    /// validator: a weak tag, or neither a tag nor a date.
    pub fn of(headers: &Headers, total: u64) -> Option<Version> {
        let value = |name: &[u8]| headers.find(name).map(Box::from);
        let (tag, modified): (Option<Box<[u8]>>, _) = (value(b"ETag"), value(b"Last-Modified"));
        let is_strong = match &tag {
            Some(tag) => tag.starts_with(b"\""),
            None => modified.is_some(),
        };
        is_strong.then(|| Version { total, tag, modified, coding: value(b"Content-Encoding") })
    }

    /// Returns the version of a response that has exactly the slice of this number and size. Returns None for any
    /// other part.
    pub fn of_slice(
        head: &ResponseHead,
        length: BodyLength,
        number: u64,
        slice_bytes: u64,
    ) -> Option<Version> {
        let (range, total) = declared_range(head)?;
        let is_right = slice(number, slice_bytes, total)? == (range.start, range.length())
            && length == BodyLength::Known(range.length());
        if is_right { Version::of(&head.headers, total) } else { None }
    }

    /// Returns the version of a slice that is stored, or arriving; None if its number is different.
    pub fn of_kept(stored: &Stored, number: u64, slice_bytes: u64) -> Option<Version> {
        let (range, total) = content_range(stored.headers.find(b"Content-Range")?)?;
        let is_right = slice(number, slice_bytes, total)? == (range.start, range.length())
            && stored.body.length() == range.length();
        if is_right { Version::of(&stored.headers, total) } else { None }
    }
}

/// Returns true if a partial response has the whole representation.
pub fn is_all(head: &ResponseHead, length: BodyLength) -> bool {
    declared_range(head)
        .is_some_and(|(range, total)| range.length() == total && length == BodyLength::Known(total))
}

/// Returns the declared part of a response; None if it is not declared exactly once.
fn declared_range(head: &ResponseHead) -> Option<(ByteRange, u64)> {
    let mut said = head.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"content-range"));
    content_range(said.next()?.1).filter(|_| said.next().is_none())
}

/// Returns position and length of a slice; None if it is beyond the end.
pub fn slice(number: u64, slice_bytes: u64, total: u64) -> Option<(u64, u64)> {
    let start = number.checked_mul(slice_bytes).filter(|start| *start < total)?;
    Some((start, slice_bytes.min(total - start)))
}

/// The common properties of the slices of one response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceTable {
    /// The id in the keys of its slices.
    pub id: u64,
    /// The size of each slice.
    pub slice_bytes: u64,
    /// The version of the representation.
    pub version: Version,
}

impl SliceTable {
    /// Reads a table that [`SliceTable::stored`] has made.
    pub fn of(stored: &Stored) -> Option<SliceTable> {
        let Body::Whole(pieces) = &stored.body else { return None };
        let bytes: &[u8] = pieces.first()?;
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (id, slice_bytes, total) = (number(0)?, number(8)?, number(16)?);
        let is_right = bytes.len() == 24 && slice_bytes > 0;
        let version = Version::of(&stored.headers, total).filter(|_| is_right)?;
        Some(SliceTable { id, slice_bytes, version })
    }

    /// Returns the table in stored form; it is found and purged like the response of one of its slices.
    pub fn stored(&self, slice: &Stored) -> Stored {
        let numbers = [self.id, self.slice_bytes, self.version.total].map(u64::to_le_bytes).concat();
        let mut stored = slice.with_body(Body::of(&numbers));
        stored.headers.remove_name(b"Content-Range");
        stored.mark = None;
        stored
    }
}

/// Returns the key of the table of a response.
pub fn table_key(key: &[u8]) -> Vec<u8> {
    [b"table", &END[..], key].concat()
}

/// Returns the key of a slice.
pub fn slice_key(key: &[u8], id: u64, number: u64) -> Vec<u8> {
    [b"slice", &id.to_le_bytes()[..], &number.to_le_bytes(), &END, key].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::tests::{headers, stored};

    const TAG: (&str, &str) = ("ETag", "\"a\"");

    #[test]
    fn versions_are_distinct() {
        let of = |fields: &[(&str, &str)]| Version::of(&headers(fields), 10);
        let date = ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(of(&[TAG]).is_some() && of(&[date]).is_some());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("ETag", "W/\"a\""), date]), None);
        assert_eq!(of(&[TAG]), of(&[TAG]));
        for other in [&[("ETag", "\"b\"")][..], &[TAG, date], &[date], &[TAG, ("Content-Encoding", "gzip")]] {
            assert_ne!(of(&[TAG]), of(other), "{other:?}");
        }
        assert_ne!(of(&[TAG]), Version::of(&headers(&[TAG]), 11));
    }

    #[test]
    fn a_response_has_the_requested_slice() {
        let check = |said: &[&str], length: BodyLength, number: u64, expected: Option<u64>| {
            let mut head = ResponseHead::default();
            head.start(206);
            head.headers = headers(&[TAG]);
            said.iter().for_each(|said| head.headers.append("content-range", said.as_bytes()));
            let total = Version::of_slice(&head, length, number, 4).map(|version| version.total);
            assert_eq!(total, expected, "{said:?} {length:?} {number}");
        };
        check(&["bytes 0-3/10"], BodyLength::Known(4), 0, Some(10));
        check(&["bytes 4-7/10"], BodyLength::Known(4), 1, Some(10));
        check(&["bytes 8-9/10"], BodyLength::Known(2), 2, Some(10));
        check(&["bytes 0-1/2"], BodyLength::Known(2), 0, Some(2));
        // Less, more, another one, none, or unknown.
        check(&["bytes 0-2/10"], BodyLength::Known(3), 0, None);
        check(&["bytes 0-4/10"], BodyLength::Known(5), 0, None);
        check(&["bytes 0-3/10"], BodyLength::Known(4), 1, None);
        check(&["bytes 8-9/10"], BodyLength::Known(4), 2, None);
        check(&["bytes 0-3/10"], BodyLength::Streamed, 0, None);
        check(&["bytes 0-3/*"], BodyLength::Known(4), 0, None);
        check(&["bytes 0-3/10", "bytes 0-3/10"], BodyLength::Known(4), 0, None);
        check(&[], BodyLength::Known(4), 0, None);
        check(&["bytes 0-3/10"], BodyLength::Known(4), u64::MAX, None);
    }

    #[test]
    fn a_part_may_be_the_whole() {
        for (said, length, expected) in [
            ("bytes 0-3/4", 4, true),
            ("bytes 0-3/5", 4, false),
            ("bytes 0-3/4", 3, false),
            ("bytes 1-3/4", 3, false),
        ] {
            let mut head = ResponseHead::default();
            head.headers = headers(&[("Content-Range", said)]);
            assert_eq!(is_all(&head, BodyLength::Known(length)), expected, "{said} {length}");
        }
    }

    #[test]
    fn a_table_survives_storing() {
        let slice = stored(&[TAG, ("Content-Range", "bytes 0-3/10"), ("Cache-Tag", "t")], &[]).unwrap();
        let version = Version::of_kept(&slice, 0, 4).unwrap();
        assert_eq!(Version::of_kept(&slice, 1, 4), None);
        let table = SliceTable { id: 7, slice_bytes: 4, version };
        let kept = table.stored(&slice);
        assert_eq!(SliceTable::of(&kept), Some(table));
        assert!(kept.label == slice.label && kept.headers.find(b"Content-Range").is_none());
        // Invalid tables.
        assert_eq!(SliceTable::of(&slice), None);
    }

    #[test]
    fn keys_are_unique() {
        let keys = [
            b"k".to_vec(),
            table_key(b"k"),
            slice_key(b"k", 0, 0),
            slice_key(b"k", 1, 0),
            slice_key(b"k", 0, 1),
            slice_key(b"kk", 0, 0),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other != key));
            // Orders for the end of a key include slices.
            assert!(key.ends_with(b"k"));
        }
    }
}
