//! What the limiting plugins have in common: whose quota a request uses, how large it is, and how
//! a request over it is refused.

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_config::template::Template;
use sigma_plugin::{Context, Reply, Step};

/// How `key` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeyType {
    /// The name of a variable.
    Var,
    /// A text with variables.
    VarCombination,
    /// Itself.
    Constant,
}

/// Whose quota a request uses.
#[derive(Debug)]
pub(super) enum Key {
    Variable(VarName),
    Template(Template),
    Constant(Vec<u8>),
}

impl Key {
    pub(super) fn new(key: &str, kind: KeyType) -> Key {
        match kind {
            KeyType::Var => Key::Variable(VarName::parse(key)),
            KeyType::VarCombination => Key::template(key),
            KeyType::Constant => Key::Constant(key.as_bytes().to_vec()),
        }
    }

    pub(super) fn template(text: &str) -> Key {
        Key::Template(Template::parse(text))
    }

    /// Its value, or what stands for a long one; None if the variable, or every variable of the
    /// template, is absent.
    pub(super) fn of(&self, cx: &Context) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.write(cx, &mut value).then_some(value)
    }

    /// Appends [`Key::of`] to `out`; whether there was a value.
    pub(super) fn write(&self, cx: &Context, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let found = match self {
            Key::Variable(name) => match cx.get(name) {
                Some(VarValue::Text(text)) => {
                    out.extend_from_slice(&text);
                    true
                }
                Some(VarValue::Bool(truth)) => {
                    out.extend_from_slice(truth.to_string().as_bytes());
                    true
                }
                Some(VarValue::List(items)) => {
                    out.extend(items.join(&b", "[..]));
                    true
                }
                None => false,
            },
            Key::Template(template) => template.render(cx, out) > 0,
            Key::Constant(text) => {
                out.extend_from_slice(text);
                true
            }
        };
        if out.len() - begin > LONGEST_KEY {
            let short = bounded(out.split_off(begin));
            out.extend(short);
        }
        if !found {
            out.truncate(begin);
        }
        found
    }

    /// Its value, or the client's address.
    pub(super) fn or_client(&self, cx: &Context) -> Vec<u8> {
        self.of(cx).unwrap_or_else(|| cx.remote_addr().into_bytes())
    }
}

/// Bytes of a key that counters are kept under as it is. Clients choose what their requests hold, and
/// a flood of long keys must take no more memory, here or in Redis, than one of short ones.
const LONGEST_KEY: usize = 256;

/// Bytes of a longer key that are kept, for people to recognise it.
const SHOWN_KEY: usize = 64;

/// A key, or the beginning of a long one with its digest: the same in all gateways.
pub(crate) fn bounded(key: Vec<u8>) -> Vec<u8> {
    if key.len() <= LONGEST_KEY {
        return key;
    }
    let digest = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &key));
    [&key[..SHOWN_KEY], b"~", digest.as_bytes()].concat()
}

/// A number, or a text with variables that makes one for each request.
#[derive(Debug)]
pub(super) enum Amount {
    Fixed(u64),
    Template(Template),
}

/// The largest number that every part of a chain of gateways counts exactly: 2^53 − 1.
const LARGEST: f64 = 9_007_199_254_740_991.0;

impl Amount {
    /// Of a checked configuration: an integer or a string.
    pub(super) fn new(value: &Value) -> Amount {
        match value {
            Value::String(text) => Amount::Template(Template::parse(text)),
            number => Amount::Fixed(number.as_u64().unwrap_or(0)),
        }
    }

    /// The amount for this request; None if it is no whole number from `least` on.
    pub(super) fn resolve(&self, cx: &Context, least: u64) -> Option<u64> {
        match self {
            Amount::Fixed(amount) => {
                Some(*amount).filter(|amount| *amount >= least && *amount as f64 <= LARGEST)
            }
            Amount::Template(template) => {
                let mut text = Vec::new();
                template.render(cx, &mut text);
                let number: f64 = std::str::from_utf8(&text).ok()?.trim().parse().ok()?;
                let whole = number.fract() == 0.0 && (least as f64..=LARGEST).contains(&number);
                whole.then_some(number as u64)
            }
        }
    }
}

/// The schema of an [`Amount`] above a bound, or from one on.
pub(super) fn amount_schema(bound: &str, value: u64, about: &str) -> Value {
    json!({
        "oneOf": [{"type": "integer", bound: value}, {"type": "string"}],
        "description": format!("{about} A text is a template that must make such a number for each request.")
    })
}

/// How a request over the limit is answered.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    rejected_code: u16,
    rejected_msg: Option<String>,
}

impl Refusal {
    /// The answer.
    pub(super) fn step(&self) -> Step {
        match &self.rejected_msg {
            Some(message) => Step::json(self.rejected_code, &json!({"error_msg": message})),
            None => Reply::new(self.rejected_code).into(),
        }
    }
}

pub(super) fn rejected_code_schema() -> Value {
    json!({"type": "integer", "minimum": 200, "maximum": 599, "default": 503,
        "description": "Status of requests over the limit."})
}

pub(super) fn rejected_msg_schema() -> Value {
    json!({"type": "string", "minLength": 1,
        "description": "Text of the member `error_msg` in the body of such answers; none for a plain answer."})
}

pub(super) fn allow_degradation_schema() -> Value {
    json!({"type": "boolean", "default": false,
        "description": "Whether requests pass when the limit cannot be determined, e.g. without Redis."})
}

pub(super) fn key_type_schema(types: &[&str]) -> Value {
    json!({"type": "string", "enum": types, "default": "var",
        "description": "Whether `key` is the name of a variable, or a text with variables."})
}

/// What all counters of one configuration begin with: they follow the resource, and begin anew
/// when the configuration changes.
pub(super) fn key_prefix(build: &sigma_plugin::Build<'_>) -> String {
    format!("{}:{:x}:", build.resource, build.conf_hash())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    #[test]
    fn long_keys_are_short_and_still_differ() {
        let key = |value: &str| {
            let case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nX-Key: {value}"));
            Key::new("http_x-key", KeyType::Var).of(&case.cx).unwrap()
        };
        let (long, longer) = ("k".repeat(LONGEST_KEY), "k".repeat(10_000));
        assert_eq!(key(&long), long.as_bytes());
        assert_eq!(key(&longer).len(), SHOWN_KEY + 1 + 43);
        assert_eq!(key(&longer), key(&longer));
        assert_ne!(key(&longer), key(&format!("{longer}k")));
    }
}
