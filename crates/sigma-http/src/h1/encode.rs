//! Encoding of heads.

use super::Framing;
use super::framing::frame_request;
use crate::head::reason_phrase;
use crate::{BodyLength, Headers, RequestHead, ResponseHead};

/// Writes a whole request head. `rewritten` replaces the head's own target. The framing fields are made from `length`
/// and `upgrade`, the requested protocol; framing fields of the head are ignored.
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
        self::upgrade(protocol, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the status line and the fields of a head after [`super::frame_response`]; the caller adds its own fields
/// and the empty line.
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

/// Writes the fields that request, confirm or offer an upgrade to `protocol`.
pub fn upgrade(protocol: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"Connection: upgrade\r\nUpgrade: ");
    out.extend_from_slice(protocol);
    out.extend_from_slice(b"\r\n");
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::h1::{HeadLimits, connection_persists, frame_response, parse_request, parse_response};
    use crate::h1::{request_body, response_body};
    use crate::{HeaderId, Method};

    const LIMITS: HeadLimits = HeadLimits {
        line_bytes: 1024,
        head_bytes: 16 * 1024,
        fields: 64,
        tolerance: crate::h1::Tolerance::NONE,
    };

    fn fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
        const NAMES: [&str; 7] =
            ["Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Keep-Alive", "X-A"];
        const VALUES: [&str; 10] =
            ["0", "7", "007", "7, 7", "chunked", "close", "X-A, Host", "h2c", "", "gzip, chunked"];
        proptest::collection::vec(
            (proptest::sample::select(&NAMES[..]), proptest::sample::select(&VALUES[..])),
            0..8,
        )
    }

    fn lengths() -> impl Strategy<Value = BodyLength> {
        prop_oneof![
            Just(BodyLength::None),
            (0..9u64).prop_map(BodyLength::Known),
            Just(BodyLength::Streamed),
            Just(BodyLength::UntilClose),
        ]
    }

    fn add(headers: &mut Headers, fields: &[(&str, &str)]) {
        fields.iter().for_each(|(name, value)| headers.append(name, value.as_bytes()));
    }

    proptest! {
        /// With any fields in a head, a reader of the output finds the declared body.
        #[test]
        fn requests_declare_their_body(fields in fields(), length in lengths(), upgrades: bool) {
            let mut head = RequestHead::default();
            parse_request(b"POST /a HTTP/1.1\r\nHost: h\r\n\r\n", &LIMITS, &mut head).expect("a head");
            add(&mut head.headers, &fields);
            let upgrade = upgrades.then_some(&b"websocket"[..]);
            let mut wire = Vec::new();
            request_head(&mut head, None, length, upgrade, &mut wire);
            let mut again = RequestHead::default();
            let read = parse_request(&wire, &LIMITS, &mut again).expect("a valid head");
            prop_assert_eq!(read, Some(wire.len()));
            let expected = if length == BodyLength::UntilClose { BodyLength::Streamed } else { length };
            prop_assert_eq!(request_body(&again), Ok(expected));
            prop_assert!(connection_persists(again.version, &again.headers));
            prop_assert_eq!(again.headers.get(HeaderId::Upgrade), upgrade);
        }

        /// As for requests; a response without a body has no fields that declare one.
        #[test]
        fn answers_declare_their_body(
            fields in fields(), length in lengths(), to_head: bool,
            status in proptest::sample::select(&[103u16, 200, 204, 206, 304, 404, 500][..]),
        ) {
            let mut head = ResponseHead::default();
            head.start(status);
            add(&mut head.headers, &fields);
            let follows = frame_response(&mut head, length, to_head);
            let mut wire = Vec::new();
            response_head(&head, &mut wire);
            if matches!(follows, BodyLength::Streamed | BodyLength::UntilClose) {
                wire.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
            wire.extend_from_slice(b"\r\n");
            let mut again = ResponseHead::default();
            let read = parse_response(&wire, &LIMITS, &mut again).expect("a valid head");
            prop_assert_eq!(read, Some(wire.len()));
            let method = if to_head { Method::Head } else { Method::Get };
            let expected = match follows {
                BodyLength::UntilClose => BodyLength::Streamed,
                BodyLength::None if !to_head && status >= 200 && !matches!(status, 204 | 304) => BodyLength::Known(0),
                follows => follows,
            };
            prop_assert_eq!(response_body(&again, method), Ok(expected));
            prop_assert!(connection_persists(again.version, &again.headers));
        }
    }
}
