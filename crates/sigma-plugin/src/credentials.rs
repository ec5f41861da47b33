//! Credentials in requests, which logs and traces hide.

use std::borrow::Cow;

use sigma_http::header::is_same_variable;
use sigma_http::{HeaderId, RequestHead};
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::Context;
use crate::variables::{pairs, percent_decoded};

pub use sigma_schema::confidential::MASK;

/// A message part that holds a credential, read or set by a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A field of the request or the response
    Field(Box<str>),
    /// A query argument
    Argument(Box<str>),
}

impl Credential {
    /// Returns a credential in a field.
    pub fn field(name: impl Into<Box<str>>) -> Credential {
        Credential::Field(name.into())
    }

    /// Returns a credential in a query argument.
    pub fn argument(name: impl Into<Box<str>>) -> Credential {
        Credential::Argument(name.into())
    }
}

/// The credentials of one or more plugins. They do not include cookies and the fields of [`is_credential`], which are
/// always hidden.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    fields: Box<[Box<str>]>,
    arguments: Box<[Box<str>]>,
}

/// Returns true if fields of this name are credentials for every plugin.
pub fn is_credential(name: &[u8]) -> bool {
    matches!(HeaderId::of(name), HeaderId::Authorization | HeaderId::ProxyAuthorization | HeaderId::Cookie)
        || is_same_variable(name, b"set-cookie")
        || is_same_variable(name, b"proxy-authorization")
        || is_same_variable(name, b"authorization")
}

impl Credentials {
    /// Returns a set of credentials.
    pub fn new(credentials: impl IntoIterator<Item = Credential>) -> Credentials {
        let (mut fields, mut arguments) = (Vec::new(), Vec::new());
        for credential in credentials {
            let (list, name) = match credential {
                Credential::Field(name) => (&mut fields, name),
                Credential::Argument(name) => (&mut arguments, name),
            };
            if !name.is_empty() && !list.contains(&name) {
                list.push(name);
            }
        }
        Credentials { fields: fields.into(), arguments: arguments.into() }
    }

    /// Returns true if there are no credentials.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.arguments.is_empty()
    }

    /// Returns an iterator over the credentials.
    pub fn iter(&self) -> impl Iterator<Item = Credential> {
        let fields = self.fields.iter().cloned().map(Credential::Field);
        fields.chain(self.arguments.iter().cloned().map(Credential::Argument))
    }

    /// Returns true if the client has sent one of them, even if a plugin has removed it since.
    pub fn were_sent(&self, head: &RequestHead) -> bool {
        let sent = |name: &str| head.headers.was_received(name.as_bytes());
        let mut arguments = pairs(head.query().unwrap_or_default());
        self.fields.iter().any(|name| sent(name) || sent(&name.replace('_', "-")))
            || !self.arguments.is_empty() && arguments.any(|(name, _)| self.has_argument(&name))
    }

    fn has_field(&self, name: &[u8]) -> bool {
        self.fields.iter().any(|field| is_same_variable(field.as_bytes(), name))
    }

    fn has_argument(&self, name: &[u8]) -> bool {
        self.arguments.iter().any(|argument| argument.as_bytes() == name)
    }
}

/// Hides the credentials of one exchange.
#[derive(Debug, Clone, Copy)]
pub struct Masks<'c>(&'c [std::sync::Arc<Credentials>]);

impl<'c> Masks<'c> {
    /// Returns the masks for the plugins of an exchange. They are known at its end; see [`Context::credentials`].
    pub fn of(ctx: &'c Context) -> Masks<'c> {
        Masks(&ctx.credentials)
    }

    /// Returns the masks for these credentials.
    pub fn new(credentials: &'c [std::sync::Arc<Credentials>]) -> Masks<'c> {
        Masks(credentials)
    }

    /// Returns true if a field of this name is hidden.
    pub fn hides_field(&self, name: &[u8]) -> bool {
        is_credential(name) || self.0.iter().any(|credentials| credentials.has_field(name))
    }

    /// Returns true if an argument of this name, decoded, is hidden.
    pub fn hides_argument(&self, name: &[u8]) -> bool {
        self.0.iter().any(|credentials| credentials.has_argument(name))
    }

    /// Masks the value of a field.
    pub fn field<'v>(&self, name: &[u8], value: &'v [u8]) -> Cow<'v, [u8]> {
        if self.hides_field(name) {
            return Cow::Borrowed(MASK.as_bytes());
        }
        // The URL of the previous page may contain a credential.
        if name.eq_ignore_ascii_case(b"referer") { self.target(value) } else { Cow::Borrowed(value) }
    }

    /// Masks a path with its query, or a URL.
    pub fn target<'t>(&self, target: &'t [u8]) -> Cow<'t, [u8]> {
        let Some(at) = target.iter().position(|byte| *byte == b'?') else { return Cow::Borrowed(target) };
        match self.query(&target[at + 1..]) {
            Cow::Borrowed(_) => Cow::Borrowed(target),
            Cow::Owned(query) => Cow::Owned([&target[..=at], &query].concat()),
        }
    }

    /// Masks a query.
    pub fn query<'q>(&self, query: &'q [u8]) -> Cow<'q, [u8]> {
        let is_empty = self.0.iter().all(|credentials| credentials.arguments.is_empty());
        if is_empty || !query.split(is_separator).any(|pair| self.hides_pair(pair)) {
            return Cow::Borrowed(query);
        }
        let mut out = Vec::with_capacity(query.len());
        for (at, pair) in query.split(is_separator).enumerate() {
            if at > 0 {
                out.push(b'&');
            }
            if self.hides_pair(pair) {
                let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
                out.extend_from_slice(&pair[..end]);
                out.push(b'=');
                out.extend_from_slice(MASK.as_bytes());
            } else {
                out.extend_from_slice(pair);
            }
        }
        Cow::Owned(out)
    }

    /// Returns true if the value of a query pair is a credential.
    fn hides_pair(&self, pair: &[u8]) -> bool {
        let at = pair.iter().position(|byte| *byte == b'=');
        at.is_some_and(|at| self.hides_argument(&percent_decoded(&pair[..at])))
    }
}

fn is_separator(byte: &u8) -> bool {
    matches!(byte, b'&' | b'#')
}

/// The variables of an exchange as logs and traces show them.
#[derive(Debug)]
pub struct Masked<'c>(pub &'c Context);

impl Masked<'_> {
    /// Masks the credentials in the value of a variable.
    fn masked<'v>(&self, name: &str, value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        let masks = Masks::of(self.0);
        let shown = |value: &[u8]| Cow::Owned(value.to_vec());
        let hidden = || Cow::Borrowed(MASK.as_bytes());
        let of_field = ["sent_http_", "upstream_http_", "http_"].into_iter();
        if let Some(field) = of_field.filter_map(|prefix| name.strip_prefix(prefix)).next() {
            return match masks.hides_field(field.as_bytes()) {
                true => hidden(),
                false if field == "referer" => shown(&masks.target(&value)),
                false => value,
            };
        }
        match name {
            "args" | "query_string" => shown(&masks.query(&value)),
            "request_uri" | "real_request_uri" | "upstream_uri" | "request" | "request_line" => {
                shown(&masks_of_line(masks, &value))
            }
            name if name.starts_with("cookie_") => hidden(),
            name => match name.strip_prefix("arg_") {
                Some(argument) if masks.hides_argument(argument.as_bytes()) => hidden(),
                _ => value,
            },
        }
    }
}

/// Masks a request line, or a target alone.
fn masks_of_line(masks: Masks<'_>, line: &[u8]) -> Vec<u8> {
    // In a request line the version follows the last space; a target has no space.
    let end = line.iter().rposition(|byte| *byte == b' ').unwrap_or(line.len());
    [&masks.target(&line[..end])[..], &line[end..]].concat()
}

impl Variables for Masked<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        match self.0.get(name)? {
            VarValue::Text(value) => Some(VarValue::Text(self.masked(&name.to_string(), value))),
            other => Some(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn ctx() -> Context {
        let credentials =
            [Credential::field("apikey"), Credential::argument("apikey"), Credential::field("X_Token")];
        let mut ctx = Context::default();
        ctx.credentials.push(Arc::new(Credentials::new(credentials)));
        ctx
    }

    #[test]
    fn arguments_that_are_credentials_are_masked() {
        let ctx = ctx();
        let check = |query: &str, expected: &str| {
            let masks = Masks::of(&ctx);
            assert_eq!(String::from_utf8_lossy(&masks.query(query.as_bytes())), expected);
            let (target, expected) = (format!("/a?{query}"), format!("/a?{expected}"));
            assert_eq!(String::from_utf8_lossy(&masks.target(target.as_bytes())), expected);
        };
        check("apikey=secret", "apikey=***");
        check("a=1&apikey=secret&apikey=&b", "a=1&apikey=***&apikey=***&b");
        check("%61pikey=secret", "%61pikey=***");
        check("apikey", "apikey");
        check("xapikey=1&apikeys=2", "xapikey=1&apikeys=2");
        assert_eq!(Masks::new(&[]).query(b"apikey=secret"), &b"apikey=secret"[..]);
    }

    #[test]
    fn fields_that_are_credentials_are_masked() {
        let ctx = ctx();
        let masks = Masks::of(&ctx);
        for name in ["Authorization", "proxy_authorization", "cookie", "Set-Cookie", "ApiKey", "x-token"] {
            assert_eq!(masks.field(name.as_bytes(), b"secret"), &b"***"[..], "{name}");
        }
        assert_eq!(masks.field(b"Host", b"secret"), &b"secret"[..]);
        let referer = masks.field(b"Referer", b"https://h/?apikey=secret").into_owned();
        assert_eq!(referer, b"https://h/?apikey=***");
    }

    #[test]
    fn credentials_of_the_client_are_found_after_they_were_removed() {
        let limits = sigma_http::h1::HeadLimits {
            line_bytes: 1 << 10,
            head_bytes: 1 << 12,
            fields: 10,
            tolerance: sigma_http::h1::Tolerance::NONE,
        };
        let check = |line: &str, field: &str, expected: bool| {
            let mut ctx = ctx();
            let head = format!("GET {line} HTTP/1.1\r\nHost: h\r\n{field}\r\n");
            sigma_http::h1::parse_request(head.as_bytes(), &limits, &mut ctx.request).unwrap();
            ctx.request.headers.mark_received();
            ctx.request.headers.remove_name(b"apikey");
            ctx.request.headers.append("X-Token", b"of the gateway");
            assert_eq!(ctx.credentials[0].were_sent(&ctx.request), expected, "{line} {field}");
        };
        check("/", "", false);
        check("/?key=1", "Key: 1\r\n", false);
        check("/?b&%61pikey=1", "", true);
        check("/", "ApiKey: 1\r\n", true);
        check("/", "x-token: 1\r\n", true);
    }

    #[test]
    fn variables_are_masked() {
        let mut ctx = ctx();
        let head =
            b"GET /a?apikey=secret&b=1 HTTP/1.1\r\nHost: h\r\nApikey: secret\r\nCookie: a=secret\r\n\r\n";
        let limits = sigma_http::h1::HeadLimits {
            line_bytes: 1 << 10,
            head_bytes: 1 << 12,
            fields: 10,
            tolerance: sigma_http::h1::Tolerance::NONE,
        };
        sigma_http::h1::parse_request(head, &limits, &mut ctx.request).unwrap();
        ctx.uri = b"/a".to_vec();
        let get = |name: &str| match Masked(&ctx).get(&VarName::parse(name)) {
            Some(VarValue::Text(value)) => String::from_utf8_lossy(&value).into_owned(),
            _ => String::new(),
        };
        for (name, expected) in [
            ("request_uri", "/a?apikey=***&b=1"),
            ("args", "apikey=***&b=1"),
            ("request", "GET /a?apikey=***&b=1 HTTP/1.1"),
            ("arg_apikey", "***"),
            ("arg_b", "1"),
            ("http_apikey", "***"),
            ("http_cookie", "***"),
            ("cookie_a", "***"),
            ("http_host", "h"),
        ] {
            assert_eq!(get(name), expected, "{name}");
        }
    }
}
