//! The signature base: the components of a request, line by line (RFC 9421 §2).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use sigma_http::Headers;
use sigma_plugin::variables::percent_decoded;

use super::structured::{Bare, Dictionary, InnerList, Item, param};

/// A request as its signature sees it.
pub(crate) struct Subject<'s> {
    pub(crate) method: &'s [u8],
    /// `http` or `https`.
    pub(crate) scheme: &'s str,
    /// Host and port as they stand in the request.
    pub(crate) authority: &'s [u8],
    /// Path and query as they stand in the request.
    pub(crate) target: &'s [u8],
    pub(crate) headers: &'s Headers,
}

/// The name of something that is signed, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Component(Item);

impl JsonSchema for Component {
    fn schema_name() -> Cow<'static, str> {
        "Component".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 256 })
    }
}

impl TryFrom<String> for Component {
    type Error = String;

    fn try_from(text: String) -> Result<Component, String> {
        let wrong = |reason: &str| Err(format!("`{text}` is not a component of a request: {reason}"));
        let item = match text.starts_with('"') {
            true => Item::parse(text.as_bytes()),
            false => Some(Item::text(&text)),
        };
        let Some(item) = item else { return wrong("it is not a structured field (RFC 8941)") };
        match known(&item) {
            Ok(()) => Ok(Component(item)),
            Err(reason) => wrong(reason),
        }
    }
}

/// The parts of a request that have their own name (RFC 9421 §2.2).
const DERIVED: [&str; 8] =
    ["@method", "@target-uri", "@authority", "@scheme", "@request-target", "@path", "@query", "@query-param"];

/// Fields that are dictionaries, of which a canonical form can be signed (`sf`).
const DICTIONARIES: [&str; 7] = [
    "content-digest",
    "repr-digest",
    "want-content-digest",
    "want-repr-digest",
    "priority",
    "signature",
    "signature-input",
];

fn name(item: &Item) -> Option<&str> {
    match &item.value {
        Bare::Text(name) => Some(name),
        _ => None,
    }
}

/// Whether an item names something that a request has and this gateway can compute. An unknown component
/// makes the signature invalid (RFC 9421 §2.5).
fn known(item: &Item) -> Result<(), &'static str> {
    let name = name(item).ok_or("it is not a string")?;
    let keys: Vec<&str> = item.params.iter().map(|(key, _)| &**key).collect();
    if name.starts_with('@') {
        return match (name, &keys[..]) {
            ("@query-param", ["name"]) => match param(&item.params, "name") {
                Some(Bare::Text(_)) => Ok(()),
                _ => Err("`name` is not a string"),
            },
            ("@query-param", _) => Err("it needs the parameter `name` and no other"),
            (name, []) if DERIVED.contains(&name) => Ok(()),
            (name, _) if DERIVED.contains(&name) => Err("it has no parameters"),
            ("@status", _) => Err("only responses have this component"),
            _ => Err("it is unknown"),
        };
    }
    let is_field =
        |b: u8| b.is_ascii_graphic() && !b.is_ascii_uppercase() && !b"\"(),/:;<=>?@[\\]{}".contains(&b);
    if name.is_empty() || !name.bytes().all(is_field) {
        return Err("it is not the name of a field in small letters");
    }
    for (key, value) in &item.params {
        match (&**key, value) {
            ("sf", Bare::Boolean(true)) if DICTIONARIES.contains(&name) => {}
            ("bs", Bare::Boolean(true)) if keys.len() == 1 => {}
            ("key", Bare::Text(_)) => {}
            ("sf", _) => return Err("`sf` needs a field that is a dictionary"),
            _ => return Err("a parameter is unknown, or excludes another"),
        }
    }
    Ok(())
}

impl Component {
    /// Whether the signed components cover this one, by itself or as part of another one.
    pub(crate) fn is_covered(&self, signed: &[Item]) -> bool {
        let has = |name: &str| signed.iter().any(|item| *item == Item::text(name));
        let own = name(&self.0).unwrap_or_default();
        if signed.iter().any(|item| same(item, &self.0)) {
            return true;
        }
        if !own.starts_with('@') && self.0.params.is_empty() {
            // All of the field, in another form.
            let whole = |item: &Item| name(item) == Some(own) && param(&item.params, "key").is_none();
            return signed.iter().any(whole);
        }
        match own {
            "@scheme" | "@authority" => has("@target-uri"),
            "@request-target" => has("@target-uri") || has("@path") && has("@query"),
            "@path" | "@query" => has("@target-uri") || has("@request-target"),
            "@target-uri" => {
                has("@scheme")
                    && has("@authority")
                    && (has("@request-target") || has("@path") && has("@query"))
            }
            "@query-param" => has("@target-uri") || has("@request-target") || has("@query"),
            _ => false,
        }
    }

    /// Returns the item as it is written in the signature base.
    pub(crate) fn item(&self) -> &Item {
        &self.0
    }

    /// Whether a request has it.
    pub(crate) fn is_in(&self, subject: &Subject<'_>) -> bool {
        let own = name(&self.0).unwrap_or_default();
        own.starts_with('@') || subject.headers.find(own.as_bytes()).is_some()
    }

    /// A component without parameters.
    pub(crate) fn named(name: &str) -> Component {
        Component(Item::text(name))
    }
}

/// Whether a request that has all of these signed has this signed.
pub(crate) fn is_settled_by(name: &str, components: &[Component]) -> bool {
    let signed: Vec<Item> = components.iter().map(|component| component.0.clone()).collect();
    Component::named(name).is_covered(&signed)
}

/// Whether two items are the same component: the order of parameters says nothing (RFC 9421 §2.5).
fn same(a: &Item, b: &Item) -> bool {
    a.value == b.value
        && a.params.len() == b.params.len()
        && a.params.iter().all(|(key, value)| param(&b.params, key) == Some(value))
}

/// The text that is signed (RFC 9421 §2.5).
///
/// # Errors
/// Returns an error, which is a text for the log, if a component is unknown, appears twice, or is not in the
/// request.
pub(crate) fn signature_base(subject: &Subject<'_>, signed: &InnerList) -> Result<Vec<u8>, &'static str> {
    let mut base = Vec::new();
    for (at, item) in signed.items.iter().enumerate() {
        known(item)?;
        if signed.items[..at].iter().any(|before| same(before, item)) {
            return Err("a component is signed twice");
        }
        let value = subject.value(item)?;
        // The signed lines end in line feeds: a value must not contain any.
        if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err("a component contains a line break");
        }
        base.extend_from_slice(item.write().as_bytes());
        base.extend_from_slice(b": ");
        base.extend_from_slice(&value);
        base.push(b'\n');
    }
    base.extend_from_slice(b"\"@signature-params\": ");
    base.extend_from_slice(signed.write().as_bytes());
    Ok(base)
}

impl Subject<'_> {
    fn value(&self, item: &Item) -> Result<Vec<u8>, &'static str> {
        let name = name(item).ok_or("a component is not a string")?;
        let (path, query) = match self.target.iter().position(|byte| *byte == b'?') {
            Some(at) => self.target.split_at(at),
            None => (self.target, &b"?"[..]),
        };
        Ok(match name {
            "@method" => self.method.to_vec(),
            "@scheme" => self.scheme.as_bytes().to_vec(),
            "@authority" => self.authority()?,
            "@request-target" => self.target.to_vec(),
            "@path" => path.to_vec(),
            "@query" => query.to_vec(),
            "@target-uri" => [self.scheme.as_bytes(), b"://", &self.authority()?, self.target].concat(),
            "@query-param" => query_param(item, &query[1..])?,
            field => self.field(field, item)?,
        })
    }

    /// In small letters and without the scheme's own port (RFC 9421 §2.2.3).
    fn authority(&self) -> Result<Vec<u8>, &'static str> {
        if self.authority.is_empty() {
            return Err("the request has no host");
        }
        let default: &[u8] = if self.scheme == "https" { b":443" } else { b":80" };
        let authority = self.authority.strip_suffix(default).unwrap_or(self.authority);
        Ok(authority.strip_suffix(b":").unwrap_or(authority).to_ascii_lowercase())
    }

    fn field(&self, name: &str, item: &Item) -> Result<Vec<u8>, &'static str> {
        let joined = joined(self.headers, name).ok_or("a signed field is not in the request")?;
        if param(&item.params, "bs").is_some() {
            let lines: Vec<String> =
                lines(self.headers, name).map(|line| bare_text(Bare::Bytes(line.to_vec()))).collect();
            return Ok(lines.join(", ").into_bytes());
        }
        if item.params.is_empty() {
            return Ok(joined);
        }
        let dictionary = Dictionary::parse(&joined).ok_or("a signed field is not a dictionary")?;
        match param(&item.params, "key") {
            Some(Bare::Text(key)) => {
                let member = dictionary.get(key).ok_or("a signed field has no such key")?;
                Ok(member.write().into_bytes())
            }
            _ => Ok(dictionary.write().into_bytes()),
        }
    }
}

fn lines<'h>(headers: &'h Headers, name: &str) -> impl Iterator<Item = &'h [u8]> {
    let named = headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
    named.map(|(_, value)| value.trim_ascii())
}

/// All lines of a field as one list (RFC 9421 §2.1); None if it is not there.
pub(crate) fn joined(headers: &Headers, name: &str) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = lines(headers, name).collect();
    (!lines.is_empty()).then(|| lines.join(&b", "[..]))
}

fn bare_text(value: Bare) -> String {
    Item { value, params: Vec::new() }.write()
}

/// The value of the only argument of this name (RFC 9421 §2.2.8). Of several none can be signed: the node
/// might take another one.
fn query_param(item: &Item, query: &[u8]) -> Result<Vec<u8>, &'static str> {
    let Some(Bare::Text(name)) = param(&item.params, "name") else {
        return Err("a query parameter has no name");
    };
    let encoded = |text: &[u8]| {
        let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        form_encoded(&percent_decoded(&spaced))
    };
    let mut found = query.split(|byte| *byte == b'&').filter_map(|pair| {
        let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let value = pair.get(end + 1..).unwrap_or_default();
        (encoded(&pair[..end]) == *name && !pair.is_empty()).then_some(value)
    });
    match (found.next(), found.next()) {
        (Some(value), None) => Ok(encoded(value).into_bytes()),
        (None, _) => Err("a signed query parameter is not in the request"),
        (Some(_), Some(_)) => Err("a signed query parameter is repeated"),
    }
}

/// As forms are encoded, but a space is `%20`.
fn form_encoded(text: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' => {
                encoded.push(char::from(*byte))
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
