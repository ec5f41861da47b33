//! Protocol Buffers definitions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::rare::Rare;
use super::shared::{Labels, UnixTime, resource_schema, with};
use crate::id::Id;

/// A Protocol Buffers definition.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["content"]))]
pub struct Proto {
    /// Identity.
    #[serde(skip_serializing_if = "Id::is_empty")]
    pub id: Id,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 256))]
    pub name: Option<Box<str>>,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 256))]
    pub desc: Option<Box<str>>,
    /// Labels.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub labels: Labels,
    /// When it was created, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<UnixTime>,
    /// When it was changed last, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<UnixTime>,
    /// The text of a `.proto` file, or a FileDescriptorSet in base64.
    #[schemars(with = "String", length(min = 1, max = 1048576))]
    pub content: Box<str>,
}

/// APISIX's schema of a proto.
pub(super) fn schema() -> Value {
    let properties = json!({ "content": { "type": "string", "minLength": 1, "maxLength": 1_048_576 } });
    with(resource_schema(properties), json!({ "required": ["content"] }))
}
