//! The client's address behind other proxies.

use std::borrow::Cow;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The request field with the client's address, set by proxies in front. It is read before routing, and only from peers
/// in `trusted_addresses`. Routes, conditions, plugins, limits and logs use that address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientAddress {
    /// The field. `X-Forwarded-For` and `Forwarded` are lists of proxies: the client's address is the last one that is
    /// not in `trusted_addresses`. Any other field has one address, with or without a port.
    pub field: AddressField,
    /// The number of proxies in front; it replaces the search for untrusted addresses. The client's address is the
    /// element at this position from the right. If the list is shorter, it is the peer's address. Only for a field with
    /// a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<NonZeroU32>,
}

/// A request field with an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AddressField {
    /// A list of addresses.
    #[default]
    XForwardedFor,
    /// The list of RFC 7239.
    Forwarded,
    /// One address.
    Single(String),
}

impl AddressField {
    /// Returns the name of the field.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            AddressField::XForwardedFor => "X-Forwarded-For",
            AddressField::Forwarded => "Forwarded",
            AddressField::Single(name) => name,
        }
    }
}

impl Serialize for AddressField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for AddressField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(token) {
            let reason = format!("`{name}` is not the name of a header field; write e.g. X-Forwarded-For");
            return Err(serde::de::Error::custom(reason));
        }
        Ok(match &*name.to_ascii_lowercase() {
            "x-forwarded-for" => AddressField::XForwardedFor,
            "forwarded" => AddressField::Forwarded,
            _ => AddressField::Single(name),
        })
    }
}

impl JsonSchema for AddressField {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AddressField".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "minLength": 1})
    }
}

/// Returns errors of the whole section that its schema cannot find: the field, the message, and the remedy.
pub(crate) fn breaches(
    section: &serde_json::Map<String, serde_json::Value>,
    names_proxies: bool,
) -> Vec<(&'static str, String, &'static str)> {
    let mut found = Vec::new();
    if !names_proxies {
        let message = "no proxy is trusted, so the field is never read".to_owned();
        found.push(("", message, "name the proxies in front in `trusted_addresses`"));
    }
    let field = section.get("field").and_then(|field| AddressField::deserialize(field).ok());
    if let Some(AddressField::Single(name)) = field
        && section.contains_key("hops")
    {
        let message = format!("`{name}` has one address, not a list");
        found.push(("hops", message, "remove it, or write `field: X-Forwarded-For`"));
    }
    found
}
