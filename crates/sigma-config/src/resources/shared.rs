//! Fields that several kinds of resources have.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroI64;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::optional::Optional;

/// Labels: free key-value pairs.
pub type Labels = Optional<BTreeMap<Box<str>, Box<str>>>;

/// Plugin configurations by plugin name. They are shared, so that merging a route with its service only copies
/// pointers; equality compares the values.
pub type Plugins = Optional<BTreeMap<Box<str>, Arc<Value>>>;

/// Timeouts of an upstream, in seconds (fractions allowed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timeout {
    /// Connect timeout.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub connect: f64,
    /// Timeout between two writes.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub send: f64,
    /// Timeout between two reads.
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
/// Stored as the distance from the one invalid number, so that an unset time takes no more space; every route has two.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnixTime(NonZeroI64);

impl UnixTime {
    /// Returns the time `seconds` after 1970, or None for the smallest integer.
    #[must_use]
    pub fn new(seconds: i64) -> Option<UnixTime> {
        NonZeroI64::new(seconds ^ i64::MIN).map(UnixTime)
    }

    /// Returns the seconds since 1970.
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
        json_schema!({ "type": "integer" })
    }
}

/// Whether a resource is enabled: 1, or 0 for disabled. The default is enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Status(bool);

impl Status {
    /// Enabled.
    pub const ON: Status = Status(true);
    /// Disabled.
    pub const OFF: Status = Status(false);

    /// Returns whether the resource is enabled.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.0
    }
}

impl Default for Status {
    fn default() -> Self {
        Status::ON
    }
}

impl From<Status> for u8 {
    fn from(status: Status) -> u8 {
        status.0.into()
    }
}

impl TryFrom<u8> for Status {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, &'static str> {
        match number {
            0 | 1 => Ok(Status(number == 1)),
            _ => Err("a status is 1 or 0"),
        }
    }
}

impl JsonSchema for Status {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Status".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "enum": [1, 0] })
    }
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
}
