//! `headers` of proxy-rewrite and response-rewrite: fields to add, to set and to remove.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use sigma_http::{HeaderId, Headers};
use sigma_plugin::{Context, OwnedField};
use sigma_schema::expr::{VarName, VarValue, Variables};

use crate::field_value::FieldValue;

/// Fields that frame a message. A rule about them would break the message.
const FRAMING: [HeaderId; 4] =
    [HeaderId::ContentLength, HeaderId::TransferEncoding, HeaderId::Connection, HeaderId::Trailer];

/// The rules of one `headers`, in the order in which they apply; none is about a field that frames messages.
#[derive(Debug, Default)]
pub struct FieldRules {
    /// The only fields that stay, besides the fields of [`stays`].
    pass: Option<Vec<Box<str>>>,
    add: Vec<(Box<str>, FieldValue)>,
    set: Vec<(Box<str>, Vec<FieldValue>)>,
    remove: Vec<Box<str>>,
    /// Whether a value without text makes an empty field.
    keep_empty: bool,
}

/// Access to a message's fields.
pub type Side = fn(&mut Context) -> &mut Headers;

/// The notations of `headers`: rules, or fields to set. `A` are the fields to add; with `MANY` a field to set may
/// have several values.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Notation<A, const MANY: bool> {
    /// Fields to add, to set and to remove.
    Rules(Rules<A, MANY>),
    /// Fields that replace existing ones of the same name.
    Fields(Fields<false>),
}

/// The three lists of rules.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct Rules<A, const MANY: bool> {
    add: Option<A>,
    /// Fields that replace existing ones of the same name.
    set: Option<Fields<MANY>>,
    /// Names of fields to remove.
    #[schemars(length(min = 1), inner(regex(pattern = "^[^:]+$")))]
    remove: Option<Vec<Box<str>>>,
    /// Names of the only fields that stay; it applies before the others. Host, and fields that frame or describe the
    /// body, stay always.
    #[schemars(inner(regex(pattern = "^[^:]+$")))]
    pass: Option<Vec<Box<str>>>,
    /// Whether a field whose value has no text is sent as an empty field, instead of not at all.
    #[serde(default)]
    #[schemars(extend("default" = false, "own_default" = true))]
    keep_empty: bool,
}

/// Fields by their names; with `MANY` one may have several values.
#[derive(Deserialize, JsonSchema)]
#[schemars(
    with = "Value",
    extend("type" = "object", "minProperties" = 1, "patternProperties" = {"^[^:]+$": a_value(MANY)})
)]
pub struct Fields<const MANY: bool>(Map<String, Value>);

fn a_value(or_many: bool) -> Value {
    let (text, number) = (json!({"type": "string"}), json!({"type": "number"}));
    let one = json!({"oneOf": [text, number]});
    let many = || json!({"oneOf": [text, number, {"type": "array", "minItems": 1, "items": one}]});
    if or_many { many() } else { one }
}

impl<const MANY: bool> Fields<MANY> {
    fn values(&self) -> Vec<(Box<str>, Vec<FieldValue>)> {
        self.0.iter().map(|(name, value)| (name.as_str().into(), values(name, value))).collect()
    }
}

/// Fields to add, one for each value.
#[derive(Deserialize, JsonSchema)]
pub struct Added(Fields<true>);

impl From<Added> for Vec<(Box<str>, FieldValue)> {
    fn from(Added(fields): Added) -> Self {
        let each = fields.values().into_iter();
        each.flat_map(|(name, values)| values.into_iter().map(move |value| (name.clone(), value))).collect()
    }
}

/// Fields to add, as `Name: value`.
#[derive(Deserialize, JsonSchema)]
pub struct Lines(#[schemars(length(min = 1), inner(regex(pattern = "^[^:]+:.+$")))] Vec<String>);

impl From<Lines> for Vec<(Box<str>, FieldValue)> {
    fn from(Lines(lines): Lines) -> Self {
        let lines = lines.iter().filter_map(|line| line.split_once(':'));
        lines.map(|(name, text)| (name.trim().into(), value(name.trim(), text.trim()))).collect()
    }
}

impl<A: Into<Vec<(Box<str>, FieldValue)>>, const MANY: bool> Notation<A, MANY> {
    /// The rules; for `deserialize_with`.
    ///
    /// # Errors
    /// Returns an error, in the words of APISIX, for names and values that would break a message.
    pub fn rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FieldRules, D::Error>
    where
        A: Deserialize<'de>,
    {
        let notation = Self::deserialize(deserializer)?;
        let is_torn = match &notation {
            Notation::Fields(Fields(fields)) => {
                fields.values().any(|value| value.as_str().is_some_and(|text| !is_plain(text)))
            }
            Notation::Rules(_) => false,
        };
        let rules = match notation {
            Notation::Fields(fields) => FieldRules { set: fields.values(), ..FieldRules::default() },
            Notation::Rules(Rules { add, set, remove, pass, keep_empty }) => FieldRules {
                pass,
                keep_empty,
                add: add.map(Into::into).unwrap_or_default(),
                set: set.map(|set| set.values()).unwrap_or_default(),
                remove: remove.unwrap_or_default(),
            },
        };
        let names = rules.add.iter().map(|(name, _)| name).chain(rules.set.iter().map(|(name, _)| name));
        if let Some(name) = names.chain(&rules.remove).find(|name| !is_name(name)) {
            let wrong = if name.is_empty() { "length" } else { "character" };
            return Err(D::Error::custom(format!("invalid field {wrong} in header")));
        }
        if is_torn {
            return Err(D::Error::custom("invalid value character in header"));
        }
        let FieldRules { pass, mut add, mut set, mut remove, keep_empty } = rules;
        add.retain(|(name, _)| !frames(name));
        set.retain(|(name, _)| !frames(name));
        remove.retain(|name| !frames(name));
        Ok(FieldRules { pass, add, set, remove, keep_empty })
    }
}

impl FieldRules {
    /// Returns true if a field with this name, in lower case, is set.
    pub fn sets(&self, name: &str) -> bool {
        self.set.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    /// Applies the rules to one side's fields. `captures` are the values of `$1` and so on. A field without a value
    /// does not exist, as with nginx: adding it does nothing, setting it removes the field. With `keep_empty` it is
    /// empty.
    pub fn apply(&self, ctx: &mut Context, captures: &[Vec<u8>], side: Side) {
        if let Some(pass) = &self.pass {
            let passes = |name: &[u8]| pass.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
            side(ctx).remove_where(|_, name| !stays(name) && !passes(name));
        }
        for (name, value) in &self.add {
            let value = render(value, ctx, captures);
            if self.keep_empty || !value.is_empty() {
                side(ctx).append(name, &value);
            }
        }
        for (name, values) in &self.set {
            if let [value] = &values[..] {
                let value = render(value, ctx, captures);
                side(ctx).remove_name(name.as_bytes());
                if self.keep_empty || !value.is_empty() {
                    side(ctx).append(name, &value);
                }
                continue;
            }
            // All of them before the field that they may be made of is removed.
            let values: Vec<Cow<'_, [u8]>> =
                values.iter().map(|value| render(value, ctx, captures)).collect();
            side(ctx).remove_name(name.as_bytes());
            for value in values.iter().filter(|value| self.keep_empty || !value.is_empty()) {
                side(ctx).append(name, value);
            }
        }
        for name in &self.remove {
            side(ctx).remove_name(name.as_bytes());
        }
    }
}

/// Returns the request fields that a `headers` of a configuration adds, sets or removes.
pub fn changed_fields(headers: Option<&Value>) -> Vec<OwnedField> {
    let mut names: Vec<&str> = Vec::new();
    for (name, value) in headers.and_then(Value::as_object).into_iter().flatten() {
        match value {
            Value::Array(_) if name == "pass" => {}
            Value::Bool(_) if name == "keep_empty" => {}
            Value::Object(fields) => names.extend(fields.keys().map(String::as_str)),
            Value::Array(lines) => names.extend(lines.iter().filter_map(Value::as_str)),
            _ => names.push(name),
        }
    }
    let name = |text: &str| text.split(':').next().unwrap_or_default().trim().to_owned();
    names.into_iter().map(|text| OwnedField::shared(name(text))).collect()
}

/// Returns true if a field frames its message.
pub fn frames(name: &str) -> bool {
    FRAMING.contains(&HeaderId::of(name.as_bytes()))
}

/// The fields that no list of fields to pass has to name: those that frame or describe the body, that change the
/// protocol, and that the gateway itself needs or writes.
const ALWAYS: [&str; 25] = [
    "host",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "transfer-encoding",
    "trailer",
    "te",
    "expect",
    "upgrade",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "sec-websocket-accept",
    "cdn-loop",
    "via",
    "date",
    "server",
    "forwarded",
    "x-real-ip",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
];

/// Returns true if a list of fields to pass does not remove this one.
fn stays(name: &[u8]) -> bool {
    ALWAYS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Parses a value or a list of values of the field `name`.
fn values(name: &str, told: &Value) -> Vec<FieldValue> {
    match told {
        Value::Array(all) => all.iter().flat_map(|told| values(name, told)).collect(),
        Value::String(text) => vec![value(name, text)],
        other => vec![value(name, &other.to_string())],
    }
}

/// Parses a value in which `$1x` is group 1 and an `x`, not a variable `1x`.
fn value(name: &str, text: &str) -> FieldValue {
    let mut spelled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        spelled.push_str(&rest[..at]);
        if end == 0 || rest[..at].ends_with('\\') {
            spelled.push('$');
            rest = after;
        } else {
            spelled.push_str(&format!("${{{}}}", &after[..end]));
            rest = &after[end..];
        }
    }
    spelled.push_str(rest);
    FieldValue::parse(name, &spelled)
}

fn render<'v>(value: &'v FieldValue, ctx: &Context, captures: &[Vec<u8>]) -> Cow<'v, [u8]> {
    value.rendered_with(ctx, &WithCaptures { ctx, captures })
}

/// The variables of an exchange, and the groups of a match under their numbers.
struct WithCaptures<'a> {
    ctx: &'a Context,
    captures: &'a [Vec<u8>],
}

impl Variables for WithCaptures<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        if let VarName::Other(name) = name
            && let Ok(number) = name.parse::<usize>()
            // Without a match they are groups of the path expression.
            && !self.captures.is_empty()
        {
            return self.captures.get(number).map(|text| VarValue::Text(Cow::Borrowed(text)));
        }
        self.ctx.get(name)
    }
}

/// Returns true if this is a valid name of a field (RFC 9110 §5.1).
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Returns true if it has neither control characters nor characters beyond ASCII.
pub fn is_plain(value: &str) -> bool {
    value.bytes().all(|b| (0x20..0x7f).contains(&b) || b == b'\t')
}
