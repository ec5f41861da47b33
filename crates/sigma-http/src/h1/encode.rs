//! Heads to bytes.

use super::Framing;
use super::framing::frame_request;
use crate::head::reason_phrase;
use crate::{BodyLength, Headers, RequestHead, ResponseHead};

/// Writes a request head whole. `rewritten` is what the upstream is asked for in place of the
/// head's own target. The fields that frame the message are made from `length` and `upgrade`, the
/// protocol that is asked for; what the head says of them is not believed.
pub fn request_head(
    head: &mut RequestHead,
    rewritten: Option<&[u8]>,
    length: BodyLength,
    upgrade: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    frame_request(&mut head.headers, length);
    out.extend_from_slice(head.method_token());
    out.push(b' ');
    out.extend_from_slice(rewritten.unwrap_or_else(|| head.path_and_query()));
    out.extend_from_slice(b" HTTP/1.1\r\n");
    head.headers.write_to(out);
    if Framing::from(length) == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if let Some(protocol) = upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\nUpgrade: ");
        out.extend_from_slice(protocol);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the status line and the fields of a head that [`super::frame_response`] has framed; the
/// caller adds its own fields and the empty line.
pub fn response_head(head: &ResponseHead, out: &mut Vec<u8>) {
    if head.status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        let digits = [head.status / 100, head.status / 10 % 10, head.status % 10].map(|d| b'0' + d as u8);
        out.extend_from_slice(&digits);
        out.push(b' ');
        match head.reason() {
            b"" => out.extend_from_slice(reason_phrase(head.status).as_bytes()),
            reason => out.extend_from_slice(reason),
        }
        out.extend_from_slice(b"\r\n");
    }
    head.headers.write_to(out);
}

/// Writes the line before a chunk of `len` bytes.
pub fn chunk_size(len: usize, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for i in (0..digits).rev() {
        out.push(DIGITS[len >> (i * 4) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk with trailers, if any.
pub fn last_chunk(trailers: Option<&Headers>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        trailers.write_to(out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends `n` in decimal.
pub fn decimal(n: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}
