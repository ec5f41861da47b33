//! The response head in the form of CGI (RFC 3875 §6).

use crate::h1::bytes::{is_token, is_value};
use crate::h1::{HeadLimits, ParseError};
use crate::{BodyLength, HeaderId, Method, ResponseHead, Version};

use ParseError::Invalid;

/// Returns the end of the head at the start of `text`, including its empty line; None if it is incomplete. The search
/// continues at `from`, where the last one ended.
pub fn head_end(text: &[u8], from: usize) -> Option<usize> {
    // The end of the last line may already be there.
    let mut at = from.saturating_sub(2);
    loop {
        at += memchr::memchr(b'\n', &text[at..])? + 1;
        match &text[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
}

/// Parses the head `text`, including its empty line, into `head`, and returns the length of the body. Lines may end
/// in LF alone, as most applications write them.
///
/// The status comes from `Status`; without it, it is 302 with a `Location`, otherwise 200. A `Location` with only a
/// path is forwarded too, and the gateway does not resolve it (RFC 3875 §6.2.2): the client comes back with it,
/// through routes and rules. Connection fields are omitted, as an application has no connection.
///
/// # Errors
/// Returns an error if the head must not be forwarded or exceeds `limits`.
pub fn parse_head(
    text: &[u8],
    limits: &HeadLimits,
    head: &mut ResponseHead,
) -> Result<BodyLength, ParseError> {
    if text.len() > limits.head_bytes {
        return Err(ParseError::HeadTooLarge);
    }
    head.clear();
    head.version = Version::Http11;
    let (mut status, mut length, mut count) = (None, None, 0);
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        count += 1;
        if count > limits.fields {
            return Err(ParseError::HeadTooLarge);
        }
        let (name, value) = field(line)?;
        if name.eq_ignore_ascii_case(b"status") {
            if status.replace(status_code(value)?).is_some() {
                return Err(Invalid("the FastCGI response has more than one Status"));
            }
            continue;
        }
        let id = HeaderId::of(name);
        if id == HeaderId::ContentLength && length.replace(decimal(value)?).is_some() {
            return Err(Invalid("the FastCGI response has more than one Content-Length"));
        }
        head.headers.append_known(id, name, value);
    }
    if count == 0 {
        return Err(Invalid("the FastCGI response has no header field"));
    }
    head.headers.remove_hop_by_hop();
    let redirects = head.headers.has(HeaderId::Location);
    head.status = status.unwrap_or(if redirects { 302 } else { 200 });
    Ok(length.map_or(BodyLength::Streamed, BodyLength::Known))
}

/// Returns the body length after a head with this declared length, in a response to `method`.
pub fn body_length(declared: BodyLength, status: u16, method: Method) -> BodyLength {
    if method == Method::Head || matches!(status, 204 | 304) { BodyLength::None } else { declared }
}

fn field(line: &[u8]) -> Result<(&[u8], &[u8]), ParseError> {
    let colon =
        memchr::memchr(b':', line).ok_or(Invalid("a header line of the FastCGI response has no colon"))?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if !is_token(name) {
        return Err(Invalid("a header field of the FastCGI response has an invalid name"));
    }
    if !is_value(value) {
        return Err(Invalid("a header field of the FastCGI response has an invalid value"));
    }
    Ok((name, value))
}

/// Parses three digits, and an optional reason. Only final statuses are valid: the request did not ask for another
/// protocol.
fn status_code(value: &[u8]) -> Result<u16, ParseError> {
    let (digits, reason) = value.split_at(value.len().min(3));
    let code = decimal(digits).ok().filter(|code| (200..=999).contains(code));
    match code {
        Some(code) if reason.is_empty() || reason[0] == b' ' => Ok(code as u16),
        _ => Err(Invalid("the FastCGI response has an invalid Status")),
    }
}

fn decimal(text: &[u8]) -> Result<u64, ParseError> {
    let wrong = Invalid("Content-Length is not a plain decimal number");
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(wrong);
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::Tolerance;

    const LIMITS: HeadLimits =
        HeadLimits { line_bytes: 100, head_bytes: 200, fields: 3, tolerance: Tolerance::NONE };

    #[test]
    fn heads() {
        let check = |text: &str, expected: (u16, BodyLength, &str)| {
            assert_eq!(head_end(text.as_bytes(), 0), Some(text.len()), "{text:?}");
            let mut head = ResponseHead::default();
            let length = parse_head(text.as_bytes(), &LIMITS, &mut head).expect(text);
            let mut fields = Vec::new();
            head.headers.write_to(&mut fields);
            assert_eq!((head.status, length, &*String::from_utf8_lossy(&fields)), expected, "{text:?}");
        };
        let streamed = BodyLength::Streamed;
        check("Content-type: a/b\n\n", (200, streamed, "Content-type: a/b\r\n"));
        check("A:b \r\nC: \r\n\r\n", (200, streamed, "A: b\r\nC: \r\n"));
        check("Status: 404 Not Found\r\nA: b\n\r\n", (404, streamed, "A: b\r\n"));
        check("status:201\n\n", (201, streamed, ""));
        check("Location: /a\n\n", (302, streamed, "Location: /a\r\n"));
        check("Location: http://b/\nStatus: 301\n\n", (301, streamed, "Location: http://b/\r\n"));
        check("Content-Length: 5\n\n", (200, BodyLength::Known(5), "Content-Length: 5\r\n"));
        let of_connection = "Connection: x-a\nX-A: 1\nTransfer-Encoding: chunked\n\n";
        check(of_connection, (200, streamed, ""));
    }

    #[test]
    fn invalid_heads_are_rejected() {
        let check = |text: &str, expected: ParseError| {
            let found = parse_head(text.as_bytes(), &LIMITS, &mut ResponseHead::default());
            assert_eq!(found, Err(expected), "{text:?}");
        };
        let status = Invalid("the FastCGI response has an invalid Status");
        for code in ["", "20", "2000", "100 Continue", "101", "2x0", "+20", "200x"] {
            check(&format!("Status: {code}\n\n"), status);
        }
        check("Status: 200\nStatus: 200\n\n", Invalid("the FastCGI response has more than one Status"));
        let twice = "Content-Length: 1\nContent-Length: 1\n\n";
        check(twice, Invalid("the FastCGI response has more than one Content-Length"));
        for length in ["", "-1", "1, 1", "99999999999999999999"] {
            let wrong = Invalid("Content-Length is not a plain decimal number");
            check(&format!("Content-Length: {length}\n\n"), wrong);
        }
        check("HTTP/1.1 200 OK\n\n", Invalid("a header line of the FastCGI response has no colon"));
        check("<html>\n\n", Invalid("a header line of the FastCGI response has no colon"));
        check("A b: c\n\n", Invalid("a header field of the FastCGI response has an invalid name"));
        check(" A: c\n\n", Invalid("a header field of the FastCGI response has an invalid name"));
        check("A: b\rC: d\n\n", Invalid("a header field of the FastCGI response has an invalid value"));
        check("A: b\0\n\n", Invalid("a header field of the FastCGI response has an invalid value"));
        check("\n", Invalid("the FastCGI response has no header field"));
        check("A: 1\nB: 2\nC: 3\nD: 4\n\n", ParseError::HeadTooLarge);
        check(&format!("A: {}\n\n", "x".repeat(200)), ParseError::HeadTooLarge);
    }

    #[test]
    fn the_end_is_found_in_any_pieces() {
        for text in ["A: b\n\n", "A: b\r\n\r\n", "A: b\n\r\n", "A: b\r\nC: d\n\n"] {
            let (whole, text) = ([text, "body\n\n"].concat().into_bytes(), text.len());
            let mut from = 0;
            for end in 0..=whole.len() {
                let found = head_end(&whole[..end], from);
                assert_eq!(found, (end >= text).then_some(text), "{whole:?} {end}");
                if found.is_none() {
                    from = end;
                }
            }
        }
    }

    #[test]
    fn bodies() {
        let known = BodyLength::Known(5);
        assert_eq!(body_length(known, 200, Method::Get), known);
        assert_eq!(body_length(known, 200, Method::Head), BodyLength::None);
        assert_eq!(body_length(known, 204, Method::Get), BodyLength::None);
        assert_eq!(body_length(BodyLength::Streamed, 304, Method::Get), BodyLength::None);
    }
}
