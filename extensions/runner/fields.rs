//! Fields, arguments and paths between a request and the runner. Names and values of the runner are checked: none of
//! them can break a message.

use std::borrow::Cow;

use sigma_http::{HeaderId, Headers};
use sigma_plugin::Context;
use sigma_plugin::variables::{pairs, percent_decoded, percent_encode_path};
use sigma_plugin_kit::fields::{frames, is_name};

use crate::messages::Entry;

/// Response fields that a runner cannot set while the request continues, as in APISIX.
const KEPT_FIELDS: [&str; 10] = [
    "connection",
    "content-length",
    "transfer-encoding",
    "location",
    "server",
    "www-authenticate",
    "content-encoding",
    "content-type",
    "content-location",
    "content-language",
];

/// Fields of one connection.
const HOP_FIELDS: [&str; 5] = ["keep-alive", "proxy-connection", "te", "upgrade", "http2-settings"];

/// A name and a value that a message can have; None for a field to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) value: Option<Vec<u8>>,
}

/// Returns true if a field stays as the node sent it.
pub(crate) fn is_kept(name: &str) -> bool {
    KEPT_FIELDS.iter().any(|kept| kept.eq_ignore_ascii_case(name))
}

/// Returns true if a field is about the connection or the length of the body, which are the gateway's.
pub(crate) fn is_of_gateway(name: &str) -> bool {
    frames(name) || HOP_FIELDS.iter().any(|hop| hop.eq_ignore_ascii_case(name))
}

/// Returns true if a value has no byte that could end a field.
fn is_value(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

/// Checks the runner's fields; fields of the gateway are omitted.
///
/// # Errors
/// Returns an error message if a name or a value would break a message.
pub(crate) fn checked(entries: &[Entry<'_>]) -> Result<Vec<Field>, String> {
    let mut fields = Vec::with_capacity(entries.len());
    for entry in entries {
        let name = std::str::from_utf8(entry.name).ok().filter(|name| is_name(name));
        let name =
            name.ok_or_else(|| format!("`{}` is not the name of a field", entry.name.escape_ascii()))?;
        if entry.value.is_some_and(|value| !is_value(value)) {
            return Err(format!("the value of `{name}` has a line break or a zero byte"));
        }
        if !is_of_gateway(name) {
            fields.push(Field { name: name.to_owned(), value: entry.value.map(<[u8]>::to_vec) });
        }
    }
    Ok(fields)
}

/// Returns the names of fields in lower case, with their values.
pub(crate) fn listed(headers: &Headers) -> Vec<(Vec<u8>, Cow<'_, [u8]>)> {
    headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), Cow::Borrowed(value))).collect()
}

/// Returns the fields of a request for the runner: `host` is the host for the node.
pub(crate) fn of_request(ctx: &Context) -> Vec<(Vec<u8>, Cow<'_, [u8]>)> {
    let host = ctx.host.as_deref().unwrap_or(ctx.request.authority());
    let mut fields = vec![(b"host".to_vec(), Cow::Borrowed(host))];
    let others = listed(&ctx.request.headers).into_iter();
    fields.extend(others.filter(|(name, _)| HeaderId::of(name) != HeaderId::Host));
    fields
}

/// Returns the path for the runner, without its query: the one for the node, or the client's in canonical form.
pub(crate) fn path(ctx: &Context) -> &[u8] {
    if ctx.target.is_empty() {
        return &ctx.uri;
    }
    ctx.target.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// Returns the target for the node: the path, which gets an escaped form, and the query with the runner's arguments.
pub(crate) fn target(ctx: &Context, path: Option<&[u8]>, args: &[Entry<'_>]) -> Vec<u8> {
    let mut target = Vec::new();
    match path {
        Some(path) => {
            if path.first() != Some(&b'/') {
                target.push(b'/');
            }
            percent_encode_path(path, &mut target);
        }
        None => {
            let old = ctx.outgoing_target();
            target.extend_from_slice(old.split(|byte| *byte == b'?').next().unwrap_or_default());
        }
    }
    let query = query(ctx.outgoing_query().unwrap_or_default(), args);
    if !query.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&query);
    }
    target
}

/// Changes a query: an argument without a value is removed, the first value of a name replaces, others are added.
/// Arguments that the runner does not name stay byte for byte.
fn query(old: &[u8], args: &[Entry<'_>]) -> Vec<u8> {
    let name_of = |pair: &[u8]| {
        let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        percent_decoded(&pair[..end]).into_owned()
    };
    let is_changed = |pair: &[u8]| args.iter().any(|entry| *entry.name == *name_of(pair));
    let kept = old.split(|byte| *byte == b'&').filter(|pair| args.is_empty() || !is_changed(pair));
    let mut parts: Vec<Vec<u8>> = kept.filter(|pair| !pair.is_empty()).map(<[u8]>::to_vec).collect();
    for (at, entry) in args.iter().enumerate() {
        let is_removed_later =
            args[at + 1..].iter().any(|later| later.name == entry.name && later.value.is_none());
        if let Some(value) = entry.value.filter(|_| !is_removed_later) {
            let mut part = Vec::new();
            escape(entry.name, &mut part);
            part.push(b'=');
            escape(value, &mut part);
            parts.push(part);
        }
    }
    parts.join(&b'&')
}

/// Escapes all bytes that are not unreserved (RFC 3986 §2.3).
fn escape(text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// An argument; one without `=` has no value.
type Argument<'q> = (Cow<'q, [u8]>, Option<Cow<'q, [u8]>>);

/// Returns the decoded arguments for the runner.
pub(crate) fn arguments(ctx: &Context) -> Vec<Argument<'_>> {
    let query = ctx.outgoing_query().unwrap_or_default();
    pairs(query).filter(|(name, value)| !name.is_empty() || value.is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(name: &'a str, value: Option<&'a str>) -> Entry<'a> {
        Entry { name: name.as_bytes(), value: value.map(str::as_bytes) }
    }

    #[test]
    fn arguments_are_replaced_repeated_and_removed() {
        let check = |old: &str, args: &[Entry<'_>], expected: &str| {
            let query = query(old.as_bytes(), args);
            assert_eq!(String::from_utf8(query).unwrap(), expected, "{old} {args:?}");
        };
        check("a=1&b=%20x&a=2", &[], "a=1&b=%20x&a=2");
        check("a=1&b=%20x&a=2", &[entry("a", None)], "b=%20x");
        check("a=1&b=2", &[entry("a", Some("3")), entry("a", Some("4"))], "b=2&a=3&a=4");
        check("%61=1", &[entry("a", Some("é&"))], "a=%C3%A9%26");
        check("a=1", &[entry("a", Some("2")), entry("a", None)], "");
        check("flag", &[entry("x y", Some(""))], "flag&x%20y=");
    }

    #[test]
    fn fields_that_break_messages_are_refused() {
        let check = |name: &str, value: Option<&str>, expected: Result<usize, &str>| {
            let found = checked(&[entry(name, value)]).map(|fields| fields.len());
            assert_eq!(found, expected.map_err(str::to_owned), "{name}");
        };
        check("X-A", Some("1"), Ok(1));
        check("x-a", None, Ok(1));
        check("Content-Length", Some("7"), Ok(0));
        check("upgrade", Some("h2c"), Ok(0));
        check("a b", Some("1"), Err("`a b` is not the name of a field"));
        check("a\r\nb", Some("1"), Err("`a\\r\\nb` is not the name of a field"));
        check("", Some("1"), Err("`` is not the name of a field"));
        check("a", Some("1\r\nb: 2"), Err("the value of `a` has a line break or a zero byte"));
    }
}
