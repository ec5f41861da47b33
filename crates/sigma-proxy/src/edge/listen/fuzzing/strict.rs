//! A second reader of requests in HTTP/1 (RFC 9112), as strict as a node may be: where the text leaves a choice, it refuses.

/// A request as its recipient understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    method: String,
    /// Path and query.
    target: String,
    host: String,
    body: Vec<u8>,
}

impl Request {
    /// Whether a node may get this request as `other`. A request without a host (HTTP/1.0) gets the node's.
    pub(super) fn is_forwarded_as(&self, other: &Request) -> bool {
        let host = if self.host.is_empty() { &other.host } else { &self.host };
        (&self.method, &self.target, host, &self.body)
            == (&other.method, &other.target, &other.host, &other.body)
    }
}

/// A head, and how its connection continues.
struct Head {
    request: Request,
    framing: Framing,
    is_last: bool,
    expects: bool,
    length: usize,
}

enum Framing {
    Length(usize),
    Chunked,
}

type Result<T> = std::result::Result<T, &'static str>;

/// The requests of a connection, up to one that is broken, not whole, or the last.
pub(super) fn all(mut bytes: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    loop {
        // Empty lines before a request are skipped (RFC 9112 §2.2).
        while let Some(rest) = bytes.strip_prefix(b"\r\n") {
            bytes = rest;
        }
        let Ok(Some((request, length))) = read(bytes) else { return requests };
        requests.push(request);
        if head(bytes).is_ok_and(|head| head.is_none_or(|head| head.is_last)) {
            return requests;
        }
        bytes = &bytes[length..];
    }
}

/// The first request, and its length; None if it is not whole.
pub(super) fn read(bytes: &[u8]) -> Result<Option<(Request, usize)>> {
    let Some(Head { mut request, framing, length, .. }) = head(bytes)? else { return Ok(None) };
    let rest = &bytes[length..];
    let body = match framing {
        Framing::Length(length) => rest.get(..length).map(|body| (body.to_vec(), length)),
        Framing::Chunked => chunked(rest)?,
    };
    let Some((body, taken)) = body else { return Ok(None) };
    request.body = body;
    Ok(Some((request, length + taken)))
}

/// Whether the sender waits for a 100 before it sends the body.
pub(super) fn waits(bytes: &[u8]) -> bool {
    matches!(head(bytes), Ok(Some(Head { expects: true, .. })))
}

/// A line and the bytes behind it; None if its end is missing.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], &[u8])>> {
    let Some(at) = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else { return Ok(None) };
    match bytes[at..] {
        [b'\r', b'\n', ..] => Ok(Some((&bytes[..at], &bytes[at + 2..]))),
        [b'\r'] => Ok(None),
        _ => Err("a line ends without CR LF"),
    }
}

fn is_name(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_part)
}

fn head(bytes: &[u8]) -> Result<Option<Head>> {
    let Some((first, mut rest)) = line(bytes)? else { return Ok(None) };
    let [method, target, version] = first.split(|byte| *byte == b' ').collect::<Vec<_>>()[..] else {
        return Err("a request line has three parts");
    };
    let is_new = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err("the version is 1.0 or 1.1"),
    };
    if !is_name(method) || target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err("the method is a token, and the target is printed");
    }
    let mut fields: Vec<(String, &[u8])> = Vec::new();
    loop {
        let Some((field, next)) = line(rest)? else { return Ok(None) };
        rest = next;
        if field.is_empty() {
            break;
        }
        fields.push(field_of(field)?);
    }
    let (target, authority) = target_of(target)?;
    let framing = framing(&fields)?;
    let of =
        |name: &'static str| fields.iter().filter(move |(known, _)| known == name).map(|(_, value)| *value);
    let has = |name, wanted: &str| {
        of(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|item| item.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    let hosts: Vec<&[u8]> = of("host").collect();
    if hosts.len() > 1 || (is_new && hosts.is_empty()) {
        return Err("a request has one Host");
    }
    let host = authority.unwrap_or_else(|| text(hosts.first().copied().unwrap_or_default()));
    let request = Request { method: text(method), target, host, body: Vec::new() };
    let is_last = has("connection", "close") || (!is_new && !has("connection", "keep-alive"));
    let expects = is_new && has("expect", "100-continue");
    Ok(Some(Head { request, framing, is_last, expects, length: bytes.len() - rest.len() }))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A name in lower case, and a value.
fn field_of(line: &[u8]) -> Result<(String, &[u8])> {
    let at = line.iter().position(|byte| *byte == b':').ok_or("a field has a colon")?;
    let (name, value) = (&line[..at], &line[at + 1..]);
    if !is_name(name) {
        return Err("the name of a field is a token");
    }
    if value.iter().any(|byte| *byte < b' ' && *byte != b'\t' || *byte == 0x7f) {
        return Err("the value of a field has no control characters");
    }
    Ok((text(name).to_ascii_lowercase(), value.trim_ascii()))
}

/// Path and query, and the authority of an absolute form.
fn target_of(target: &[u8]) -> Result<(String, Option<String>)> {
    let target = text(target);
    if target.starts_with('/') || target == "*" {
        return Ok((target, None));
    }
    let lower = target.to_ascii_lowercase();
    let scheme = ["http://", "https://"].into_iter().find(|scheme| lower.starts_with(scheme));
    let rest = &target[scheme.ok_or("the target has a form that is known")?.len()..];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((path, Some(authority.to_owned())))
}

fn framing(fields: &[(String, &[u8])]) -> Result<Framing> {
    let mut framing = None;
    for (name, value) in fields {
        let found = match name.as_str() {
            "content-length" => {
                let digits =
                    str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                Framing::Length(digits.and_then(|text| text.parse().ok()).ok_or("a length is a number")?)
            }
            "transfer-encoding" if value.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            "transfer-encoding" => return Err("the coding of a transfer is chunked"),
            _ => continue,
        };
        if framing.replace(found).is_some() {
            return Err("a message has one length");
        }
    }
    Ok(framing.unwrap_or(Framing::Length(0)))
}

/// The body in chunks, and its length with the chunks.
fn chunked(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
    let (mut body, mut rest) = (Vec::new(), bytes);
    loop {
        let Some((size, next)) = line(rest)? else { return Ok(None) };
        let digits = size.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = size[digits..].trim_ascii_start();
        if digits == 0 || digits > 15 || !(extension.is_empty() || extension.starts_with(b";")) {
            return Err("a chunk begins with its size");
        }
        let size = usize::from_str_radix(&text(&size[..digits]), 16).map_err(|_| "a size is a number")?;
        rest = next;
        if size == 0 {
            break;
        }
        let Some((chunk, next)) = rest.split_at_checked(size) else { return Ok(None) };
        body.extend_from_slice(chunk);
        rest = match next {
            [b'\r', b'\n', next @ ..] => next,
            [] | [b'\r'] => return Ok(None),
            _ => return Err("a chunk ends with CR LF"),
        };
    }
    loop {
        let Some((field, next)) = line(rest)? else { return Ok(None) };
        rest = next;
        if field.is_empty() {
            return Ok(Some((body, bytes.len() - rest.len())));
        }
        field_of(field)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_refused() {
        let check = |text: &str, expected: std::result::Result<Option<&[u8]>, ()>| {
            let read = read(text.replace('\n', "\r\n").as_bytes());
            let body = read.map(|found| found.map(|(request, _)| request.body)).map_err(drop);
            assert_eq!(body, expected.map(|body| body.map(<[u8]>::to_vec)), "{text}");
        };
        check("GET / HTTP/1.1\nHost: a\n\n", Ok(Some(b"")));
        check("GET / HTTP/1.1\nHost: a\nContent-Length: 2\n\nab", Ok(Some(b"ab")));
        check("GET / HTTP/1.1\nHost: a\nContent-Length: 3\n\nab", Ok(None));
        check("GET / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n1\na\n0\nx: y\n\n", Ok(Some(b"a")));
        for refused in [
            "GET  / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\n\n",
            "GET / HTTP/1.1\nHost: a\nHost: a\n\n",
            "GET / HTTP/1.1\nHost : a\n\n",
            "GET / HTTP/1.1\nHost: a\n folded\n\n",
            "GET / HTTP/1.1\nHost: a\nContent-Length: +1\n\na",
            "GET / HTTP/1.1\nHost: a\nContent-Length: 1\nTransfer-Encoding: chunked\n\n0\n\n",
            "GET / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n1 a\n0\n\n",
        ] {
            check(refused, Err(()));
        }
        assert!(read(b"GET / HTTP/1.1\nHost: a\n\n").is_err());
    }
}
