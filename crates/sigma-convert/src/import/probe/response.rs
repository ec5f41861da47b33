//! Responses of HTTP/1, as a comparison of two servers needs them.

/// Maximum size of a response in bytes.
pub const MOST_BYTES: usize = 4 << 20;

/// A response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Response {
    /// The status; None if the connection ended without a response.
    pub status: Option<u16>,
    /// Fields in their order, with names in lower case.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// Parses everything that came on a connection. Interim responses are skipped.
    #[must_use]
    pub fn parse(bytes: &[u8], is_head: bool) -> Response {
        let mut rest = bytes;
        loop {
            let Some((answer, after)) = head(rest) else { return Response::default() };
            if answer.status.is_some_and(|status| (100..200).contains(&status) && status != 101) {
                rest = after;
                continue;
            }
            let body = if is_head { Vec::new() } else { answer.body_of(after) };
            return Response { body, ..answer };
        }
    }

    /// Returns whether the bytes are a whole response, so that no more has to be read.
    #[must_use]
    pub fn is_whole(bytes: &[u8], is_head: bool) -> bool {
        let mut rest = bytes;
        loop {
            let Some((answer, after)) = head(rest) else { return false };
            let status = answer.status.unwrap_or(0);
            if (100..200).contains(&status) && status != 101 {
                rest = after;
                continue;
            }
            if is_head || matches!(status, 101 | 204 | 304) {
                return true;
            }
            if answer.is_chunked() {
                return dechunked(after).1;
            }
            return answer.length().is_some_and(|length| after.len() >= length);
        }
    }

    /// Returns the values of a field, joined.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<String> {
        let values: Vec<&str> =
            self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    fn is_chunked(&self) -> bool {
        self.field("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked"))
    }

    fn length(&self) -> Option<usize> {
        self.field("content-length")?.parse().ok()
    }

    fn body_of(&self, bytes: &[u8]) -> Vec<u8> {
        match (self.is_chunked(), self.length()) {
            (true, _) => dechunked(bytes).0,
            (false, Some(length)) => bytes[..length.min(bytes.len())].to_vec(),
            (false, None) => bytes.to_vec(),
        }
    }
}

/// Parses a head and returns the bytes after it.
fn head(bytes: &[u8]) -> Option<(Response, &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&bytes[..end]);
    let mut lines = text.split("\r\n");
    let first = lines.next()?;
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|word| word.parse().ok());
    let fields = lines.filter_map(|line| line.split_once(':'));
    let fields =
        fields.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned())).collect();
    Some((Response { status, fields, body: Vec::new() }, &bytes[end + 4..]))
}

/// Returns the content of chunks, and whether the last one is there.
fn dechunked(bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    let mut rest = bytes;
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else { return (out, false) };
        let size = String::from_utf8_lossy(&rest[..end]);
        let size = size.split(';').next().unwrap_or_default().trim();
        let Ok(size) = usize::from_str_radix(size, 16) else { return (out, true) };
        rest = &rest[end + 2..];
        if size == 0 {
            return (out, true);
        }
        let Some(data) = rest.get(..size) else {
            out.extend_from_slice(rest);
            return (out, false);
        };
        out.extend_from_slice(data);
        let Some(after) = rest.get(size + 2..) else { return (out, false) };
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_parsed() {
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let answer = Response::parse(text, false);
        assert_eq!((answer.status, answer.body.as_slice()), (Some(200), &b"abc"[..]));
        assert_eq!(answer.field("a").as_deref(), Some("1"));
        assert!(Response::is_whole(text, false));
        assert!(!Response::is_whole(&text[..text.len() - 8], false));
        assert!(Response::is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", false));
        assert!(!Response::is_whole(b"HTTP/1.1 200 OK\r\n\r\nab", false));
        for text in [&b""[..], b"x", b"HTTP/1.1 200", b"\r\n\r\n"] {
            assert_eq!(Response::parse(text, false).status, None);
        }
    }
}
