//! Message heads, the common form for every protocol version.

use std::ops::Range;

use crate::swar::find_near;
use crate::{HeaderId, Headers, Method};

/// The version of a message, as far as it matters beyond the codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
    /// HTTP/2
    Http2,
    /// HTTP/3
    Http3,
}

impl Version {
    /// Returns the text of `$server_protocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }
}

/// The form of a request target (RFC 9112 §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TargetForm {
    /// `/path?query`
    #[default]
    Origin,
    /// `http://host/path?query`
    Absolute,
    /// `*`, with OPTIONS only
    Asterisk,
    /// `host:port`, with CONNECT only
    Authority,
}

/// A request head.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    /// The method; its token is [`RequestHead::method_token`].
    pub method: Method,
    /// The version of the message.
    pub version: Version,
    /// The form of the target.
    pub form: TargetForm,
    /// The fields; their arena also holds the request line.
    pub headers: Headers,
    pub(crate) method_range: Range<u32>,
    /// The client's method, if [`RequestHead::set_method`] replaced it.
    replaced: Option<Method>,
    pub(crate) target: Range<u32>,
    /// The client's target, if [`RequestHead::canonicalize`] replaced it.
    sent_target: Option<Range<u32>>,
    pub(crate) authority: Range<u32>,
}

impl RequestHead {
    /// Resets it, keeping its memory.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.method = Method::Get;
        self.method_range = 0..0;
        self.replaced = None;
        self.target = 0..0;
        self.sent_target = None;
        self.authority = 0..0;
        self.form = TargetForm::Origin;
    }

    pub(crate) fn slice(&self, range: &Range<u32>) -> &[u8] {
        &self.headers.arena()[range.start as usize..range.end as usize]
    }

    /// Returns the method as it was sent.
    pub fn method_token(&self) -> &[u8] {
        self.slice(&self.method_range)
    }

    /// Replaces the method. `token` must be a token (RFC 9110 §9.1).
    pub fn set_method(&mut self, token: &str) {
        self.replaced.get_or_insert(self.method);
        self.method = Method::parse(token.as_bytes());
        self.method_range = self.headers.keep(token.as_bytes());
    }

    /// Returns the client's method, replaced or not.
    pub fn client_method(&self) -> Method {
        self.replaced.unwrap_or(self.method)
    }

    /// Returns path and query as they were sent, in origin form for every form of the target (`/` for an absolute
    /// target without a path, `*` for the asterisk form).
    pub fn path_and_query(&self) -> &[u8] {
        let target = self.slice(&self.target);
        if target.is_empty() { b"/" } else { target }
    }

    /// Replaces path and query. They must not have a byte that ends a request line.
    pub fn set_path_and_query(&mut self, target: &[u8]) {
        self.target = self.headers.keep(target);
    }

    /// Replaces path and query by another spelling of the same target. It must not have a byte that ends a request
    /// line.
    pub fn canonicalize(&mut self, target: &[u8]) {
        let sent = self.target.clone();
        self.sent_target.get_or_insert(sent);
        self.set_path_and_query(target);
    }

    /// Returns path and query in the client's own spelling, for signatures over them.
    pub fn sent_path_and_query(&self) -> &[u8] {
        match &self.sent_target {
            Some(sent) if !sent.is_empty() => self.slice(sent),
            Some(_) => b"/",
            None => self.path_and_query(),
        }
    }

    /// Returns the path as it was sent, without the query.
    pub fn raw_path(&self) -> &[u8] {
        let target = self.path_and_query();
        find_near(b'?', target, 0).map_or(target, |at| &target[..at])
    }

    /// Returns the query without its `?`, if there is one.
    pub fn query(&self) -> Option<&[u8]> {
        let target = self.path_and_query();
        find_near(b'?', target, 0).map(|at| &target[at + 1..])
    }

    /// Returns host and port of the request: the target's authority, else the Host field (RFC 9112 §3.3). Empty for
    /// an HTTP/1.0 request without them.
    pub fn authority(&self) -> &[u8] {
        let from_target = self.slice(&self.authority);
        if from_target.is_empty() { self.headers.get(HeaderId::Host).unwrap_or(b"") } else { from_target }
    }

    /// Sets the field `id` to [`RequestHead::authority`]. Without an authority the field is removed.
    pub fn tell_authority(&mut self, id: HeaderId) {
        let value = match self.authority.is_empty() {
            true => self.headers.place_of(HeaderId::Host),
            false => Some(self.authority.clone()),
        };
        self.headers.remove(id);
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.headers.add_again(id, value);
        }
    }

    /// Returns the authority of an absolute target, which replaces the Host field.
    pub fn target_authority(&self) -> Option<&[u8]> {
        let authority = self.slice(&self.authority);
        (!authority.is_empty()).then_some(authority)
    }
}

/// The limit of interim responses to one request; a server that sends more is broken or hostile.
pub const INTERIM_MAX: u8 = 32;

/// A response head.
#[derive(Debug, Clone, Default)]
pub struct ResponseHead {
    /// The status code, 100 to 999.
    pub status: u16,
    /// The version of the message.
    pub version: Version,
    /// The fields; their arena may also hold the status line.
    pub headers: Headers,
    pub(crate) reason: Range<u32>,
}

impl ResponseHead {
    /// Resets it, keeping its memory.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.status = 0;
        self.reason = 0..0;
    }

    /// Returns the reason phrase as it was sent; it may be empty.
    pub fn reason(&self) -> &[u8] {
        &self.headers.arena()[self.reason.start as usize..self.reason.end as usize]
    }

    /// Makes it a response of the gateway itself.
    pub fn start(&mut self, status: u16) {
        self.clear();
        self.status = status;
    }

    /// Returns true for an interim response (1xx).
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status)
    }
}

/// Returns the reason phrase of a status code, as IANA registers it.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::{HeadLimits, parse_request};

    #[test]
    fn another_field_can_carry_the_authority() {
        let limits =
            HeadLimits { line_bytes: 99, head_bytes: 999, fields: 9, tolerance: crate::h1::Tolerance::NONE };
        let check = |line: &str, expected: Option<&[u8]>| {
            let mut head = RequestHead::default();
            let wire = format!("{line}\r\nX-Forwarded-Host: forged\r\n\r\n");
            parse_request(wire.as_bytes(), &limits, &mut head).unwrap();
            head.tell_authority(HeaderId::XForwardedHost);
            assert_eq!(head.headers.get(HeaderId::XForwardedHost), expected, "{line}");
            assert_eq!(
                head.headers.get_all(HeaderId::XForwardedHost).count(),
                usize::from(expected.is_some())
            );
        };
        check("GET / HTTP/1.1\r\nHost: a:1", Some(b"a:1"));
        check("GET http://b/ HTTP/1.1\r\nHost: a", Some(b"b"));
        check("GET / HTTP/1.0", None);
    }

    #[test]
    fn a_replaced_method_leaves_target_and_fields() {
        let limits = HeadLimits {
            line_bytes: 1024,
            head_bytes: 1024,
            fields: 10,
            tolerance: crate::h1::Tolerance::NONE,
        };
        let mut head = RequestHead::default();
        parse_request(b"GET /p?q HTTP/1.1\r\nHost: x\r\n\r\n", &limits, &mut head).unwrap();
        head.set_method("MKCOL");
        head.headers.append("A", b"1");
        assert_eq!((head.method, head.client_method()), (Method::Other, Method::Get));
        assert_eq!((head.method_token(), head.path_and_query()), (&b"MKCOL"[..], &b"/p?q"[..]));
        let mut fields = Vec::new();
        head.headers.write_to(&mut fields);
        assert_eq!(fields, b"Host: x\r\nA: 1\r\n");
    }
}
