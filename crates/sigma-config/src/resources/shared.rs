//! Fields that resources of several kinds have.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroI64;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::rare::Rare;
use crate::described::CONFIDENTIAL;

/// Labels: free key-value pairs.
pub type Labels = Rare<BTreeMap<Box<str>, Box<str>>>;

/// Plugin configurations by plugin name. Shared, so that merging those of a route with those of
/// its service copies pointers only; equality is that of the values.
pub type Plugins = Rare<BTreeMap<Box<str>, Arc<Value>>>;

/// Timeouts towards an upstream, in seconds (fractions allowed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Timeout {
    /// To establish a connection.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub connect: f64,
    /// Between two writes.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub send: f64,
    /// Between two reads.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub read: f64,
}

impl Default for Timeout {
    fn default() -> Self {
        Timeout { connect: 60.0, send: 60.0, read: 60.0 }
    }
}

/// A point in time in Unix seconds.
///
/// Kept as the distance from the one number that is no time, so that an unset one takes no more
/// space; two are in every route.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnixTime(NonZeroI64);

impl UnixTime {
    /// The time `seconds` after 1970; None for the smallest integer.
    #[must_use]
    pub fn new(seconds: i64) -> Option<UnixTime> {
        NonZeroI64::new(seconds ^ i64::MIN).map(UnixTime)
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.get() ^ i64::MIN
    }
}

impl fmt::Debug for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seconds().fmt(f)
    }
}

impl Serialize for UnixTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.seconds())
    }
}

impl<'de> Deserialize<'de> for UnixTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = i64::deserialize(deserializer)?;
        UnixTime::new(seconds).ok_or_else(|| serde::de::Error::custom("the time is out of range"))
    }
}

impl JsonSchema for UnixTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "UnixTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // One more than the smallest, which stands for no time.
        json_schema!({ "type": "integer", "minimum": i64::MIN + 1, "maximum": i64::MAX })
    }
}

/// A text that must not show up in a log: a private key, a token. It is shown as dots.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidential(Box<str>);

impl Confidential {
    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Confidential {
    fn from(text: &str) -> Self {
        Confidential(text.into())
    }
}

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"…\"")
    }
}

impl JsonSchema for Confidential {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Confidential".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = String::json_schema(generator);
        schema.insert(CONFIDENTIAL.to_owned(), true.into());
        schema
    }
}

/// The pattern of a host, as APISIX has it.
pub(super) const HOST_PATTERN: &str = r"^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$";

/// APISIX's schema of an identity.
pub(super) fn id_schema() -> Value {
    json!({ "anyOf": [
        { "type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-zA-Z0-9-_.]+$" },
        { "type": "integer", "minimum": 1 },
    ] })
}

pub(super) fn host_schema() -> Value {
    json!({ "type": "string", "pattern": HOST_PATTERN })
}

pub(super) fn hosts_schema() -> Value {
    json!({ "type": "array", "items": host_schema(), "minItems": 1, "uniqueItems": true })
}

pub(super) fn name_schema() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 256 })
}

pub(super) fn plugins_schema() -> Value {
    json!({ "type": "object" })
}

pub(super) fn timeout_schema() -> Value {
    let seconds = json!({ "type": "number", "exclusiveMinimum": 0 });
    json!({
        "type": "object",
        "properties": { "connect": seconds, "send": seconds, "read": seconds },
        "required": ["connect", "send", "read"],
    })
}

pub(super) fn ip_schema() -> Value {
    json!({ "anyOf": [
        { "type": "string", "format": "ipv4" },
        { "type": "string", "pattern": r"^([0-9]{1,3}\.){3}[0-9]{1,3}/([0-9]|[12][0-9]|3[0-2])$" },
        { "type": "string", "format": "ipv6" },
        { "type": "string", "pattern": r"^([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?/[0-9]{1,3}$" },
    ] })
}

/// An object schema with the fields that nearly every resource has, and those given.
pub(super) fn resource_schema(own: Value) -> Value {
    let time = json!({ "type": "integer" });
    let mut properties = json!({
        "id": id_schema(),
        "name": name_schema(),
        "desc": { "type": "string", "maxLength": 256 },
        "labels": {
            "type": "object",
            "patternProperties": {
                ".*": { "type": "string", "pattern": r"^\S+$", "minLength": 1, "maxLength": 256 },
            },
        },
        "create_time": time,
        "update_time": time,
    });
    if let (Some(properties), Value::Object(own)) = (properties.as_object_mut(), own) {
        for (name, schema) in own {
            match schema {
                // A field that this kind lacks.
                Value::Null => drop(properties.shift_remove(&name)),
                schema => drop(properties.insert(name, schema)),
            }
        }
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// The same schema with further keywords.
pub(super) fn with(mut schema: Value, keywords: Value) -> Value {
    if let (Some(schema), Value::Object(keywords)) = (schema.as_object_mut(), keywords) {
        schema.extend(keywords);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_no_more_space_when_unset() {
        assert_eq!(size_of::<Option<UnixTime>>(), 8);
        for seconds in [0, 1, -1, 1_700_000_000, i64::MAX] {
            assert_eq!(UnixTime::new(seconds).map(UnixTime::seconds), Some(seconds));
        }
        assert_eq!(UnixTime::new(i64::MIN), None);
    }

    #[test]
    fn what_is_confidential_is_not_shown() {
        assert_eq!(format!("{:?}", Confidential::from("-----BEGIN")), "\"…\"");
    }
}
