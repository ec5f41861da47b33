//! Heads with pseudo-fields, as HTTP/2 and HTTP/3 send them.
//!
//! RFC 9113 §8 is enforced here for both directions: its results can be written as HTTP/1 without further checks.

use crate::h1::bytes::{is_authority, is_target, is_token, is_value};
use crate::h1::{HeadLimits, ParseError};
use crate::{HeaderId, Headers, Method, RequestHead, ResponseHead, TargetForm, Version};

use ParseError::Invalid;

/// The pseudo-fields of a request (RFC 9113 §8.3.1, RFC 8441 §4).
#[derive(Debug, Clone, Copy, Default)]
pub struct PseudoFields<'p> {
    /// `:method`
    pub method: &'p [u8],
    /// `:authority`
    pub authority: Option<&'p [u8]>,
    /// `:path`
    pub path: Option<&'p [u8]>,
    /// `:protocol` of an extended CONNECT
    pub protocol: Option<&'p [u8]>,
}

/// A received field.
#[derive(Debug, Clone, Copy)]
pub struct Field<'f> {
    /// [`HeaderId::of`] the name; [`HeaderId::Other`] for pseudo-fields.
    pub id: HeaderId,
    /// The received name: the caller rejects upper case.
    pub name: &'f [u8],
    /// The received value.
    pub value: &'f [u8],
    /// [`is_sound`] was checked already: tables check once.
    pub sound: bool,
}

impl<'f> Field<'f> {
    /// Returns a field without known facts.
    pub fn new(name: &'f [u8], value: &'f [u8]) -> Field<'f> {
        Field { id: HeaderId::of(name), name, value, sound: false }
    }
}

/// Returns true if name and value have only allowed bytes (RFC 9113 §8.2.1).
pub fn is_sound(name: &[u8], value: &[u8]) -> bool {
    check_bytes(name, value).is_ok()
}

/// A head under construction: its fields come one by one.
#[derive(Debug)]
pub struct Assembly {
    budget: Budget,
    cookies: u32,
    has_authority: bool,
    is_tunnel: bool,
}

impl RequestHead {
    /// Makes this the head of a request with pseudo-fields. Names and values of the fields come in the received
    /// order.
    ///
    /// `:authority` becomes the Host field, cookie crumbs become one field. An extended CONNECT becomes the GET with
    /// the same upgrade in HTTP/1.1 (RFC 8441 §5), so that later code has one kind of upgrade.
    ///
    /// # Errors
    /// Returns an error if the head must not be forwarded or exceeds `limits`.
    pub fn assemble<'f>(
        &mut self,
        version: Version,
        pseudo: &PseudoFields<'_>,
        mut fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        limits: &HeadLimits,
    ) -> Result<(), ParseError> {
        let mut assembly = self.begin_assembly(version, pseudo, limits)?;
        fields.try_for_each(|(name, value)| self.add_field(&mut assembly, &Field::new(name, value)))?;
        self.end_assembly(&assembly)
    }

    /// The first step of [`RequestHead::assemble`], for callers that get fields one by one.
    ///
    /// # Errors
    /// Returns an error in the same cases.
    pub fn begin_assembly(
        &mut self,
        version: Version,
        pseudo: &PseudoFields<'_>,
        limits: &HeadLimits,
    ) -> Result<Assembly, ParseError> {
        self.clear();
        self.version = version;
        self.assemble_line(pseudo, limits)?;
        if let Some(authority) = pseudo.authority {
            if !is_authority(authority) {
                return Err(Invalid("the :authority is invalid"));
            }
            self.headers.add(HeaderId::Host, authority);
        }
        let mut budget = Budget::new(limits, self.headers.arena().len());
        // `:authority` becomes a Host field.
        budget.fields = budget.fields.saturating_sub(usize::from(pseudo.authority.is_some()));
        let (has_authority, is_tunnel) = (pseudo.authority.is_some(), pseudo.protocol.is_some());
        Ok(Assembly { budget, cookies: 0, has_authority, is_tunnel })
    }

    /// Adds the next field.
    ///
    /// # Errors
    /// Returns an error if the field must not be forwarded or exceeds a limit.
    pub fn add_field(&mut self, assembly: &mut Assembly, field: &Field<'_>) -> Result<(), ParseError> {
        let Field { id, name, value, .. } = *field;
        assembly.budget.spend(name, value)?;
        check_field(field)?;
        match id {
            HeaderId::Te if value != b"trailers" => {
                return Err(Invalid("TE is not trailers"));
            }
            HeaderId::Host if assembly.has_authority => {
                let host = self.headers.get(HeaderId::Host).unwrap_or_default();
                if !host.eq_ignore_ascii_case(value) {
                    return Err(Invalid("Host and :authority differ"));
                }
                return Ok(());
            }
            // The stream is a tunnel: the length would announce a body that never comes. In HTTP/1 the next request
            // would be read as that body.
            HeaderId::ContentLength if assembly.is_tunnel => {
                return Err(Invalid("an extended CONNECT has a Content-Length"));
            }
            HeaderId::Cookie => assembly.cookies += 1,
            _ => {}
        }
        self.headers.append_sound(id, name, value);
        Ok(())
    }

    /// Ends the head: there are no more fields.
    ///
    /// # Errors
    /// Returns an error if the head must not be forwarded.
    pub fn end_assembly(&mut self, assembly: &Assembly) -> Result<(), ParseError> {
        if assembly.cookies > 1 {
            self.headers.join_cookies();
        }
        if !assembly.is_tunnel && self.form == TargetForm::Authority {
            return Ok(());
        }
        self.check_one_host()
    }

    /// Adds method and target; the fields follow.
    fn assemble_line(&mut self, pseudo: &PseudoFields<'_>, limits: &HeadLimits) -> Result<(), ParseError> {
        if !is_token(pseudo.method) {
            return Err(Invalid("the :method is not a token"));
        }
        let connect = pseudo.method == b"CONNECT";
        let mended = pseudo.path.and_then(|path| limits.tolerance.mended_target(path));
        let (method, target): (&[u8], &[u8]) = match (pseudo.protocol, pseudo.path) {
            (Some(_), _) if !connect => return Err(Invalid(":protocol without CONNECT")),
            (Some(protocol), Some(path)) => {
                if !is_token(protocol) {
                    return Err(Invalid("the :protocol is not a token"));
                }
                (b"GET", path)
            }
            (None, Some(path)) if !connect => (pseudo.method, mended.as_deref().unwrap_or(path)),
            (None, None) if connect => (pseudo.method, pseudo.authority.unwrap_or_default()),
            (None, Some(_)) => return Err(Invalid("CONNECT with a :path")),
            _ => return Err(Invalid(":path is missing")),
        };
        if method.len() + target.len() + " HTTP/1.1".len() >= limits.line_bytes {
            return Err(ParseError::LineTooLong);
        }
        self.method = Method::parse(method);
        self.form = match target {
            _ if self.method == Method::Connect => TargetForm::Authority,
            b"*" if self.method == Method::Options => TargetForm::Asterisk,
            [b'/', ..] => TargetForm::Origin,
            _ => return Err(Invalid("the :path does not start with a slash")),
        };
        if self.form == TargetForm::Authority && !is_authority(target) {
            return Err(Invalid("the target of CONNECT is not host:port"));
        }
        if !is_target(target) {
            return Err(Invalid("the :path contains a forbidden byte"));
        }
        self.headers.load_parts(&[method, b" ", target, b"\r\n"]);
        let at = method.len() as u32 + 1;
        self.method_range = 0..method.len() as u32;
        self.target = at..at + target.len() as u32;
        if let Some(protocol) = pseudo.protocol {
            self.headers.add(HeaderId::Connection, b"upgrade");
            self.headers.add(HeaderId::Upgrade, protocol);
        }
        Ok(())
    }

    fn check_one_host(&self) -> Result<(), ParseError> {
        let mut hosts = self.headers.get_all(HeaderId::Host);
        match (hosts.next(), hosts.next()) {
            (None, _) => Err(Invalid(":authority and Host are missing")),
            (Some(_), Some(_)) => Err(Invalid("more than one Host field")),
            (Some(host), None) if is_authority(host) => Ok(()),
            (Some(_), None) => Err(Invalid("the Host field is invalid")),
        }
    }
}

impl ResponseHead {
    /// Makes this the head of a response with a pseudo-field; see [`RequestHead::assemble`].
    ///
    /// # Errors
    /// Returns an error if the head must not be forwarded or exceeds `limits`.
    pub fn assemble<'f>(
        &mut self,
        version: Version,
        status: u16,
        mut fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        limits: &HeadLimits,
    ) -> Result<(), ParseError> {
        let mut assembly = self.begin_assembly(version, status, limits)?;
        fields
            .try_for_each(|(name, value)| self.headers.add_assembled(&mut assembly, &Field::new(name, value)))
    }

    /// The first step of [`ResponseHead::assemble`]; [`Headers::add_assembled`] takes the fields.
    ///
    /// # Errors
    /// Returns an error in the same cases.
    pub fn begin_assembly(
        &mut self,
        version: Version,
        status: u16,
        limits: &HeadLimits,
    ) -> Result<Assembly, ParseError> {
        self.start(status);
        self.version = version;
        if !(100..=999).contains(&status) || status == 101 {
            return Err(Invalid("the :status is invalid"));
        }
        Ok(Assembly::of_fields(limits))
    }
}

impl Assembly {
    /// Returns an assembly of a message without request pseudo-fields.
    pub fn of_fields(limits: &HeadLimits) -> Assembly {
        Assembly { budget: Budget::new(limits, 0), cookies: 0, has_authority: false, is_tunnel: false }
    }
}

impl Headers {
    /// Returns the trailer fields of an assembled message.
    ///
    /// # Errors
    /// Returns an error if the fields must not be forwarded or exceed `limits`.
    pub fn assemble_trailers<'f>(
        mut fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        limits: &HeadLimits,
    ) -> Result<Headers, ParseError> {
        let (mut headers, mut assembly) = (Headers::default(), Assembly::of_fields(limits));
        fields
            .try_for_each(|(name, value)| headers.add_assembled(&mut assembly, &Field::new(name, value)))?;
        headers.check_trailers()?;
        Ok(headers)
    }

    /// Adds the next field of a response, or of trailers.
    ///
    /// # Errors
    /// Returns an error if the field must not be forwarded or exceeds a limit.
    pub fn add_assembled(&mut self, assembly: &mut Assembly, field: &Field<'_>) -> Result<(), ParseError> {
        assembly.budget.spend(field.name, field.value)?;
        check_field(field)?;
        self.append_sound(field.id, field.name, field.value);
        Ok(())
    }

    /// Checks that trailers do not affect framing, routing and the connection, which the head has set (RFC 9110
    /// §6.5.1).
    pub(crate) fn check_trailers(&self) -> Result<(), ParseError> {
        if self.has_any(&OF_THE_HEAD) {
            return Err(Invalid("a trailer field that belongs in the header"));
        }
        Ok(())
    }
}

/// Names that are not allowed in trailers.
const OF_THE_HEAD: [HeaderId; 11] = [
    HeaderId::ContentLength,
    HeaderId::TransferEncoding,
    HeaderId::Host,
    HeaderId::Connection,
    HeaderId::KeepAlive,
    HeaderId::ProxyConnection,
    HeaderId::Te,
    HeaderId::Trailer,
    HeaderId::Upgrade,
    HeaderId::ProxyAuthorization,
    HeaderId::Expect,
];

/// The remaining limits of a head.
#[derive(Debug)]
struct Budget {
    bytes: usize,
    fields: usize,
}

impl Budget {
    fn new(limits: &HeadLimits, used: usize) -> Budget {
        Budget { bytes: limits.head_bytes.saturating_sub(used), fields: limits.fields }
    }

    fn spend(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        let bytes = name.len() + value.len() + ": \r\n".len();
        match (self.bytes.checked_sub(bytes), self.fields.checked_sub(1)) {
            (Some(bytes), Some(fields)) => (self.bytes, self.fields) = (bytes, fields),
            _ => return Err(ParseError::HeadTooLarge),
        }
        Ok(())
    }
}

/// RFC 9113 §8.2.1 and §8.2.2
fn check_field(field: &Field<'_>) -> Result<(), ParseError> {
    if !field.sound {
        check_bytes(field.name, field.value)?;
    }
    match field.id {
        HeaderId::Connection
        | HeaderId::KeepAlive
        | HeaderId::ProxyConnection
        | HeaderId::TransferEncoding
        | HeaderId::Upgrade => Err(Invalid("a connection-specific field in HTTP/2 or HTTP/3")),
        _ => Ok(()),
    }
}

/// RFC 9113 §8.2.1
fn check_bytes(name: &[u8], value: &[u8]) -> Result<(), ParseError> {
    if !is_token(name) || name.iter().any(u8::is_ascii_uppercase) || name.len() > usize::from(u16::MAX) {
        return Err(Invalid("a field name is not a lower-case token"));
    }
    let space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if !is_value(value) || space(value.first()) || space(value.last()) {
        return Err(Invalid("a field value contains a control byte or white space around it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits =
        HeadLimits { line_bytes: 64, head_bytes: 256, fields: 4, tolerance: crate::h1::Tolerance::NONE };

    /// `line` is `method authority path protocol`, `-` for a missing part; the result is the head in HTTP/1.
    fn check(line: &str, fields: &[(&str, &str)], expected: Result<&str, &str>) {
        let words: Vec<Option<&[u8]>> =
            line.split(' ').map(|word| (word != "-").then_some(word.as_bytes())).collect();
        let pseudo = PseudoFields {
            method: words[0].unwrap_or_default(),
            authority: words[1],
            path: words[2],
            protocol: words[3],
        };
        let fields = fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
        let mut head = RequestHead::default();
        let got = head.assemble(Version::Http2, &pseudo, fields, &LIMITS).map(|()| {
            let mut out = Vec::new();
            out.extend_from_slice(
                &[head.method_token(), b" ", head.path_and_query(), b" HTTP/1.1\r\n"].concat(),
            );
            head.headers.write_to(&mut out);
            String::from_utf8_lossy(&out).into_owned()
        });
        match (got, expected) {
            (Ok(text), Ok(wanted)) => {
                assert_eq!(text.trim_end().split("\r\n").collect::<Vec<_>>().join("|"), wanted, "{line}");
            }
            (Err(error), Err(part)) => assert!(format!("{error:?}").contains(part), "{line}: {error:?}"),
            (got, wanted) => panic!("{line}: {got:?}, not {wanted:?}"),
        }
    }

    #[test]
    fn valid_heads_are_accepted() {
        check("GET a.example /x?y -", &[], Ok("GET /x?y HTTP/1.1|Host: a.example"));
        check("GET - / -", &[("host", "h:1")], Ok("GET / HTTP/1.1|host: h:1"));
        check("GET h / -", &[("host", "H"), ("a", "b")], Ok("GET / HTTP/1.1|Host: h|a: b"));
        check("OPTIONS h * -", &[], Ok("OPTIONS * HTTP/1.1|Host: h"));
        check("BREW h / -", &[("te", "trailers")], Ok("BREW / HTTP/1.1|Host: h|te: trailers"));
        check("GET h / -", &[("e", ""), ("n", "J\u{fc}")], Ok("GET / HTTP/1.1|Host: h|e: |n: J\u{fc}"));
        check(
            "GET h / -",
            &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")],
            Ok("GET / HTTP/1.1|Host: h|x: y|Cookie: a=1; b=2"),
        );
        check(
            "GET h / -",
            &[("cookie", ""), ("cookie", "a=1"), ("cookie", "")],
            Ok("GET / HTTP/1.1|Host: h|Cookie: a=1"),
        );
        check("GET h / -", &[("cookie", ""), ("cookie", "")], Ok("GET / HTTP/1.1|Host: h|Cookie:"));
        check("CONNECT h:443 - -", &[], Ok("CONNECT h:443 HTTP/1.1|Host: h:443"));
        check(
            "CONNECT h /chat websocket",
            &[("sec-websocket-version", "13")],
            Ok("GET /chat HTTP/1.1|Connection: upgrade|Upgrade: websocket|Host: h|sec-websocket-version: 13"),
        );
    }

    #[test]
    fn invalid_heads_are_rejected() {
        for (pseudo, part) in [
            ("G@T h / -", ":method"),
            ("GET h - -", ":path is missing"),
            ("GET h x -", "slash"),
            ("GET h * -", "slash"),
            ("GET h /a#b -", "forbidden"),
            ("GET h /\u{fc} -", "forbidden"),
            ("GET u@h / -", ":authority"),
            ("GET - / -", ":authority and Host are missing"),
            ("CONNECT h:1 / -", "CONNECT with"),
            ("CONNECT - - -", "host:port"),
            ("GET h / websocket", "without CONNECT"),
            ("CONNECT h / web/socket", "not a token"),
            ("CONNECT h - websocket", ":path is missing"),
            ("GET h /0123456789012345678901234567890123456789012345678901234567890 -", "LineTooLong"),
        ] {
            check(pseudo, &[], Err(part));
        }
        for (name, value, part) in [
            ("Upper", "1", "lower-case"),
            ("", "1", "lower-case"),
            (":path", "/", "lower-case"),
            ("a b", "1", "lower-case"),
            ("a", "b\r\nc: d", "control byte"),
            ("a", "b\0", "control byte"),
            ("a", " b", "white space"),
            ("a", "b\t", "white space"),
            ("connection", "close", "connection-specific field"),
            ("keep-alive", "5", "connection-specific field"),
            ("proxy-connection", "x", "connection-specific field"),
            ("transfer-encoding", "chunked", "connection-specific field"),
            ("upgrade", "h2c", "connection-specific field"),
            ("te", "gzip", "TE is"),
            ("host", "other", "differ"),
            ("a", &"x".repeat(300), "HeadTooLarge"),
        ] {
            check("GET h / -", &[(name, value)], Err(part));
        }
        check("GET - / -", &[("host", "a"), ("host", "a")], Err("more than one"));
        check("GET - / -", &[("host", "a b")], Err("Host field is invalid"));
        check("GET h / -", &[("a", "1"); 3], Ok("GET / HTTP/1.1|Host: h|a: 1|a: 1|a: 1"));
        check("GET h / -", &[("a", "1"); 4], Err("HeadTooLarge"));
    }

    #[test]
    fn responses_and_trailers() {
        let fields = |name: &'static str| [(name.as_bytes(), &b"1"[..])].into_iter();
        let mut head = ResponseHead::default();
        assert!(head.assemble(Version::Http2, 200, fields("a"), &LIMITS).is_ok());
        assert_eq!((head.status, head.headers.find(b"a")), (200, Some(&b"1"[..])));
        assert!(head.assemble(Version::Http2, 101, fields("a"), &LIMITS).is_err());
        assert!(head.assemble(Version::Http2, 200, fields("upgrade"), &LIMITS).is_err());
        assert!(Headers::assemble_trailers(fields("grpc-status"), &LIMITS).is_ok());
        for name in ["content-length", "host", "te", "transfer-encoding", "A"] {
            assert!(Headers::assemble_trailers(fields(name), &LIMITS).is_err(), "{name}");
        }
    }
}
