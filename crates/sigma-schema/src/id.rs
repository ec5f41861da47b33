//! Ids of resources.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Maximum length of an id in characters.
pub const MAX_ID_LENGTH: usize = 64;

/// The characters of an id.
pub const ID_PATTERN: &str = "^[a-zA-Z0-9-_.]+$";

/// The id of a resource: 1 to 64 letters, digits, `-`, `_` or `.`. An integer from 1 means the text of its digits. The
/// default is the empty id: not yet assigned.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Id(Box<str>);

/// The error for a text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id: 1 to 64 letters, digits, `-`, `_` or `.`, or an integer from 1")]
pub struct InvalidId(String);

impl Id {
    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether no id is assigned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl AsRef<str> for Id {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Id {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if text.is_empty() || text.len() > MAX_ID_LENGTH || !text.bytes().all(allowed) {
            return Err(InvalidId(text.to_owned()));
        }
        Ok(Id(text.into()))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl Visitor<'_> for IdVisitor {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string of 1 to 64 letters, digits, `-`, `_` or `.`, or an integer from 1")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Id, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Id, E> {
                match number {
                    0 => Err(E::invalid_value(Unexpected::Unsigned(0), &self)),
                    _ => Ok(Id(number.to_string().into())),
                }
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Id, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                }
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}

impl JsonSchema for Id {
    fn schema_name() -> Cow<'static, str> {
        "Id".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "1 to 64 letters, digits, `-`, `_` or `.`, or an integer from 1.",
            "anyOf": [
                { "type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH, "pattern": ID_PATTERN },
                { "type": "integer", "minimum": 1 }
            ]
        })
    }
}

/// Returns the text of an id from a file or a store, or None if it has another type.
pub fn text_of_id(id: &Value) -> Option<String> {
    match id {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_texts_or_positive_integers() {
        let check = |json: &str, expected: Option<&str>| {
            let id = serde_json::from_str::<Id>(json).ok();
            assert_eq!(id.as_ref().map(Id::as_str), expected, "{json}");
        };
        check("1", Some("1"));
        check("\"a-b_c.9\"", Some("a-b_c.9"));
        check(&format!("\"{}\"", "x".repeat(64)), Some(&"x".repeat(64)));
        for bad in [
            "0",
            "-1",
            "1.5",
            "\"\"",
            "\"a b\"",
            "\"a/b\"",
            "null",
            "true",
            &format!("\"{}\"", "x".repeat(65)),
        ] {
            check(bad, None);
        }
        assert!(Id::default().is_empty());
    }
}
