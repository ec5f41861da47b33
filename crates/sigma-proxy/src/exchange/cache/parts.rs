//! Several parts of a stored response in one body.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, ready};

use sigma_http::Chunk;
use sigma_http::range::ByteRange;
use sigma_plugin::BodySource;

/// Parts of a body, each with its own head: `multipart/byteranges` (RFC 9110 §14.6).
pub(super) struct Parts {
    parts: VecDeque<Part>,
}

enum Part {
    Text(Vec<u8>),
    Bytes(Box<dyn BodySource>),
}

/// Merges overlapping ranges (RFC 9110 §14.2). If none overlap, they keep the requested order.
pub(super) fn coalesced(ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    let mut sorted = ranges.clone();
    sorted.sort_by_key(|range| (range.start, range.end));
    let mut apart: Vec<ByteRange> = Vec::new();
    for range in sorted {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    if apart.len() == ranges.len() { ranges } else { apart }
}

impl Parts {
    /// Returns the parts of `whole` bytes from `read`, with the media type `media_type` if it is known, and their
    /// total size with heads.
    pub(super) fn of(
        whole: u64,
        read: &dyn Fn(ByteRange) -> Box<dyn BodySource>,
        ranges: &[ByteRange],
        media_type: Option<&[u8]>,
        boundary: &str,
    ) -> (Parts, u64) {
        let (mut parts, mut length, mut before) = (VecDeque::new(), 0, "");
        let mut text = |parts: &mut VecDeque<Part>, text: Vec<u8>| {
            length += text.len() as u64;
            parts.push_back(Part::Text(text));
        };
        for range in ranges {
            let mut head = format!("{before}--{boundary}\r\n").into_bytes();
            if let Some(media_type) = media_type {
                head.extend_from_slice(&[b"Content-Type: ", media_type, b"\r\n"].concat());
            }
            let content_range = range.content_range(whole);
            head.extend_from_slice(format!("Content-Range: {content_range}\r\n\r\n").as_bytes());
            text(&mut parts, head);
            parts.push_back(Part::Bytes(read(*range)));
            before = "\r\n";
        }
        text(&mut parts, format!("\r\n--{boundary}--\r\n").into_bytes());
        let bytes: u64 = ranges.iter().map(|range| range.length()).sum();
        (Parts { parts }, length + bytes)
    }
}

impl BodySource for Parts {
    fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            match self.parts.front_mut() {
                None => return Poll::Ready(Ok(None)),
                Some(Part::Text(text)) => {
                    let chunk = Chunk::copy_of(text);
                    self.parts.pop_front();
                    return Poll::Ready(Ok(Some(chunk)));
                }
                Some(Part::Bytes(reader)) => match ready!(reader.poll_piece(task))? {
                    Some(piece) => return Poll::Ready(Ok(Some(piece))),
                    None => drop(self.parts.pop_front()),
                },
            }
        }
    }
}

/// Returns a random boundary, which a body does not contain.
pub(super) fn boundary() -> String {
    use std::hash::{BuildHasher, RandomState};
    let part = |n: u8| RandomState::new().hash_one(n);
    format!("sigma-{:016x}{:016x}", part(0), part(1))
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use sigma_cache::Body;

    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn overlapping_ranges_become_one() {
        let check = |ranges: &[(u64, u64)], expected: &[(u64, u64)]| {
            let all = |ranges: &[(u64, u64)]| ranges.iter().map(|(start, end)| range(*start, *end)).collect();
            let expected: Vec<ByteRange> = all(expected);
            assert_eq!(coalesced(all(ranges)), expected, "{ranges:?}");
        };
        check(&[(8, 9), (0, 1)], &[(8, 9), (0, 1)]);
        check(&[(8, 9), (0, 1), (1, 2)], &[(0, 2), (8, 9)]);
        check(&[(0, 9), (2, 3), (4, 5)], &[(0, 9)]);
        check(&[(0, 1), (2, 3)], &[(0, 1), (2, 3)]);
    }

    #[test]
    fn parts_have_heads() {
        let body = Body::of(b"0123456789");
        let read =
            |range: ByteRange| -> Box<dyn BodySource> { Box::new(body.read(range.start, range.length())) };
        let check = |media_type: Option<&[u8]>, expected: &str| {
            let (mut parts, length) = Parts::of(10, &read, &[range(1, 2), range(8, 9)], media_type, "B");
            let (mut all, mut task) = (Vec::new(), Context::from_waker(Waker::noop()));
            while let Poll::Ready(Ok(Some(piece))) = parts.poll_piece(&mut task) {
                all.extend_from_slice(&piece);
            }
            assert_eq!(String::from_utf8(all).unwrap(), expected);
            assert_eq!(length, expected.len() as u64);
        };
        check(
            Some(b"a/b"),
            "--B\r\nContent-Type: a/b\r\nContent-Range: bytes 1-2/10\r\n\r\n12\r\n--B\r\nContent-Type: a/b\r\n\
             Content-Range: bytes 8-9/10\r\n\r\n89\r\n--B--\r\n",
        );
        check(
            None,
            "--B\r\nContent-Range: bytes 1-2/10\r\n\r\n12\r\n--B\r\nContent-Range: bytes 8-9/10\r\n\r\n89\r\n\
             --B--\r\n",
        );
    }
}
