//! Messages as the strict readers return them.

use anyhow::{Result, bail, ensure};

/// The way the end of a body was known (RFC 9112 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The end of the connection.
    UntilClose,
}

/// A start line and its fields. Bytes above 127 are kept as the characters of the same number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// Request or status line without its end.
    pub line: String,
    /// Fields in the order received, names as received.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// Parses a head that ends with an empty line, strictly.
    pub fn parse(bytes: &[u8]) -> Result<Head> {
        let text: String = bytes.iter().map(|&b| b as char).collect();
        let Some(text) = text.strip_suffix("\r\n\r\n") else { bail!("head does not end: {text:?}") };
        let mut lines = text.split("\r\n");
        // `split` yields at least one piece.
        let line = lines.next().unwrap_or_default().to_string();
        ensure!(!line.is_empty(), "empty start line");
        ensure!(!line.contains(['\r', '\n', '\0']), "control byte in the start line {line:?}");
        let fields = lines.map(parse_field).collect::<Result<_>>()?;
        Ok(Head { line, fields })
    }

    /// Returns all values of a field.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// Returns the value of a field; the first of several.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// Returns the status of a response; an error if the status line does not follow RFC 9112 §4 exactly.
    pub fn status(&self) -> Result<u16> {
        let b = self.line.as_bytes();
        let fits = b.len() >= 13
            && b.starts_with(b"HTTP/1.")
            && (b[7] == b'0' || b[7] == b'1')
            && b[8] == b' '
            && b[9..12].iter().all(u8::is_ascii_digit)
            && b[12] == b' ';
        ensure!(fits, "status line {:?} is malformed", self.line);
        Ok(self.line[9..12].parse()?)
    }

    /// Returns the method and target of a request.
    pub fn request_line(&self) -> Result<(&str, &str)> {
        let parts: Vec<&str> = self.line.split(' ').collect();
        match parts[..] {
            [method, target, "HTTP/1.1" | "HTTP/1.0"] if !method.is_empty() && !target.is_empty() => {
                Ok((method, target))
            }
            _ => bail!("request line {:?} is malformed", self.line),
        }
    }

    /// Returns the framing that `Transfer-Encoding` and `Content-Length` announce; `None` without either. Both at
    /// once, several, or an odd value is an error.
    pub fn framing(&self) -> Result<Option<Framing>> {
        let lengths: Vec<&str> = self.all("content-length").collect();
        let codings: Vec<&str> = self.all("transfer-encoding").collect();
        match (&lengths[..], &codings[..]) {
            ([], []) => Ok(None),
            ([], ["chunked"]) => Ok(Some(Framing::Chunked)),
            ([n], []) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(Some(Framing::Length(n.parse()?)))
            }
            _ => bail!("ambiguous framing: Content-Length {lengths:?}, Transfer-Encoding {codings:?}"),
        }
    }
}

pub(crate) fn parse_field(line: &str) -> Result<(String, String)> {
    let Some((name, value)) = line.split_once(':') else { bail!("field {line:?} has no colon") };
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    ensure!(!name.is_empty() && name.chars().all(token), "field name {name:?} is not a token");
    ensure!(value.chars().all(|c| c == '\t' || !c.is_ascii_control()), "control byte in {line:?}");
    Ok((name.to_string(), value.trim_matches([' ', '\t']).to_string()))
}

/// A message with its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Start line and fields.
    pub head: Head,
    /// The framing of the body.
    pub framing: Framing,
    /// The body with its framing removed.
    pub body: Vec<u8>,
    /// Trailer fields.
    pub trailers: Vec<(String, String)>,
}

impl Message {
    /// Returns the status of a response; 0 if the line is malformed.
    pub fn status(&self) -> u16 {
        self.head.status().unwrap_or(0)
    }

    /// Returns the body as text, invalid bytes replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_slice(&self.body)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        fn check(text: &str, good: bool) {
            let result = Head::parse(text.as_bytes()).and_then(|h| h.framing().map(|_| h));
            assert_eq!(result.is_ok(), good, "{text:?}: {result:?}");
        }
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true);
        check("GET / HTTP/1.1\r\n\r\n", true);
        check("GET / HTTP/1.1\r\nHost : a\r\n\r\n", false);
        check("GET / HTTP/1.1\nHost: a\r\n\r\n", false);
        check("GET / HTTP/1.1\r\nA: a\r\n b\r\n\r\n", false);
        check("GET / HTTP/1.1\r\nA: a\0\r\n\r\n", false);
        check("A B C\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", false);
        check("A B C\r\nContent-Length: +1\r\n\r\n", false);
        check("A B C\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", false);
    }

    #[test]
    fn status_lines() {
        fn check(line: &str, status: Option<u16>) {
            let head = Head { line: line.into(), fields: Vec::new() };
            assert_eq!(head.status().ok(), status, "{line:?}");
        }
        check("HTTP/1.1 200 OK", Some(200));
        check("HTTP/1.0 404 ", Some(404));
        check("HTTP/1.1 200", None);
        check("HTTP/2 200 OK", None);
        check("http/1.1 200 OK", None);
    }
}
