//! A second HTTP/1 parser, written from RFC 9112 to be obviously right rather than fast.
//!
//! It shares no code with `sigma-http`, so a mistake has to be made twice to stay hidden. Where the RFC leaves a
//! choice it takes the one that `sigma-http` documents: nothing ambiguous is repaired.

/// The result of a reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// A whole head and its length in bytes.
    Whole(T, usize),
    /// No empty line yet.
    Incomplete,
    Refused,
}

/// Name and value of a field, the value without surrounding white space.
pub type Field = (Vec<u8>, Vec<u8>);

#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub method: Vec<u8>,
    pub minor: u8,
    pub fields: Vec<Field>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub minor: u8,
    pub reason: Vec<u8>,
    pub fields: Vec<Field>,
}

/// Where a message ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Length {
    Absent,
    Chunked,
    Bytes(u64),
}

/// Reads a request head (RFC 9112 §2, §3, §5); one empty line before it is skipped (§2.2).
pub fn request(bytes: &[u8]) -> Reading<Request> {
    let skipped = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    match lines(&bytes[skipped..]) {
        Reading::Whole(lines, length) => {
            request_of(&lines).map_or(Reading::Refused, |request| Reading::Whole(request, skipped + length))
        }
        Reading::Incomplete => Reading::Incomplete,
        Reading::Refused => Reading::Refused,
    }
}

/// Reads a response head (RFC 9112 §4, §5).
pub fn response(bytes: &[u8]) -> Reading<Response> {
    match lines(bytes) {
        Reading::Whole(lines, length) => {
            response_of(&lines).map_or(Reading::Refused, |response| Reading::Whole(response, length))
        }
        Reading::Incomplete => Reading::Incomplete,
        Reading::Refused => Reading::Refused,
    }
}

/// How the body is framed (RFC 9112 §6), refusing what two recipients could read differently.
pub fn length(minor: u8, fields: &[Field]) -> Option<Length> {
    let of = |name: &str| -> Vec<&[u8]> {
        let named = fields.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|(_, value)| value.as_slice()).collect()
    };
    match (of("transfer-encoding").as_slice(), of("content-length").as_slice()) {
        ([], []) => Some(Length::Absent),
        ([], [text]) => {
            let plain = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
            let number = String::from_utf8_lossy(text).parse().ok();
            plain.then_some(number?).map(Length::Bytes)
        }
        ([coding], []) if minor == 1 && coding.eq_ignore_ascii_case(b"chunked") => Some(Length::Chunked),
        _ => None,
    }
}

/// The lines of a head, the first line first, and the length up to and with the empty line.
fn lines(bytes: &[u8]) -> Reading<Vec<&[u8]>> {
    let mut lines = Vec::new();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let Some(line) = rest[..end].strip_suffix(b"\r") else { return Reading::Refused };
        rest = &rest[end + 1..];
        // The first line is a start line however short it is.
        if line.is_empty() && !lines.is_empty() {
            return Reading::Whole(lines, bytes.len() - rest.len());
        }
        lines.push(line);
    }
    Reading::Incomplete
}

fn request_of(lines: &[&[u8]]) -> Option<Request> {
    let (first, rest) = lines.split_first()?;
    let parts: Vec<&[u8]> = first.split(|&byte| byte == b' ').collect();
    let &[method, target, version] = parts.as_slice() else { return None };
    let minor = minor(version)?;
    let fields = fields(rest)?;
    if !token(method) || !target_of(method, target) {
        return None;
    }
    let hosts: Vec<_> = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"host")).collect();
    let host_fits = match hosts.as_slice() {
        [] => minor == 0,
        [(_, value)] => authority(value),
        _ => false,
    };
    host_fits.then(|| Request { method: method.to_vec(), minor, fields })
}

fn response_of(lines: &[&[u8]]) -> Option<Response> {
    let (first, rest) = lines.split_first()?;
    let (version, after) = first.split_at_checked(8)?;
    let (code, after) = after.strip_prefix(b" ")?.split_at_checked(3)?;
    if !code.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let status = String::from_utf8_lossy(code).parse().ok().filter(|&code| code >= 100)?;
    // Servers in the field leave the space out together with an empty reason.
    let reason = if after.is_empty() { after } else { after.strip_prefix(b" ")? };
    let response =
        Response { status, minor: minor(version)?, reason: reason.to_vec(), fields: fields(rest)? };
    text(reason).then_some(response)
}

fn minor(version: &[u8]) -> Option<u8> {
    match version {
        b"HTTP/1.0" => Some(0),
        b"HTTP/1.1" => Some(1),
        _ => None,
    }
}

fn fields(lines: &[&[u8]]) -> Option<Vec<Field>> {
    let field = |line: &&[u8]| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        // A folded line begins with white space, which no token contains.
        (token(name) && text(value)).then(|| (name.to_vec(), trimmed(value).to_vec()))
    };
    lines.iter().map(field).collect()
}

/// Only space and tab are optional white space (RFC 9110 §5.6.3).
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn token(bytes: &[u8]) -> bool {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(part)
}

fn text(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f))
}

/// The four forms of RFC 9112 §3.2; more characters than RFC 3986 has are let pass, as clients send them.
fn target_of(method: &[u8], target: &[u8]) -> bool {
    if target.is_empty() || !target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#') {
        return false;
    }
    if method == b"CONNECT" {
        return authority(target);
    }
    let lower = target.to_ascii_lowercase();
    let absolute = [b"http://".as_slice(), b"https://"].into_iter().find(|scheme| lower.starts_with(scheme));
    match absolute {
        Some(scheme) => {
            authority(target[scheme.len()..].split(|byte| b"/?".contains(byte)).next().unwrap_or_default())
        }
        None => target[0] == b'/' || (target == b"*" && method == b"OPTIONS"),
    }
}

/// `host [":" port]` (RFC 3986 §3.2.2, without userinfo); the host is never empty.
fn authority(bytes: &[u8]) -> bool {
    let number = |port: &[u8]| port.iter().fold(0u32, |number, digit| number * 10 + u32::from(digit - b'0'));
    let port_fits = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit) && number(port) <= 65_535;
    if let Some(rest) = bytes.strip_prefix(b"[") {
        let mut halves = rest.splitn(2, |&byte| byte == b']');
        let (Some(inside), Some(after)) = (halves.next(), halves.next()) else { return false };
        let address =
            !inside.is_empty() && inside.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
        return address && (after.is_empty() || after.strip_prefix(b":").is_some_and(port_fits));
    }
    let mut halves = bytes.splitn(2, |&byte| byte == b':');
    let host = halves.next().unwrap_or_default();
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(byte);
    !host.is_empty() && host.iter().all(name) && halves.next().is_none_or(port_fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let check = |text: &str, accepted: bool| {
            assert_eq!(matches!(request(text.as_bytes()), Reading::Whole(..)), accepted, "{text:?}");
        };
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true);
        check("\r\nGET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", true);
        check("GET / HTTP/1.0\r\n\r\n", true);
        check("GET / HTTP/1.1\r\n\r\n", false);
        check("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", false);
        check("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", false);
        check("GET / HTTP/1.1\nHost: a\n\n", false);
        check("GET * HTTP/1.1\r\nHost: a\r\n\r\n", false);
    }

    #[test]
    fn lengths() {
        let check = |fields: &[(&str, &str)], expected: Option<Length>| {
            let fields: Vec<Field> =
                fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            assert_eq!(length(1, &fields), expected, "{fields:?}");
        };
        check(&[], Some(Length::Absent));
        check(&[("Content-Length", "7")], Some(Length::Bytes(7)));
        check(&[("content-length", "+7")], None);
        check(&[("Content-Length", "7"), ("Transfer-Encoding", "chunked")], None);
        check(&[("Transfer-Encoding", "Chunked")], Some(Length::Chunked));
        check(&[("Transfer-Encoding", "gzip, chunked")], None);
    }
}
