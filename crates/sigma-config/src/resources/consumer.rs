//! Consumers, their credentials and their groups.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::rare::Rare;
use super::shared::{Labels, Plugins, UnixTime, id_schema, plugins_schema, resource_schema, with};
use crate::id::Id;

/// Someone who calls through the gateway.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Consumer {
    /// The name, which is the identity: letters, digits, `-` and `_`.
    #[schemars(with = "String", length(min = 1, max = 256), extend("pattern" = "^[a-zA-Z0-9_\\-]+$"))]
    pub username: Box<str>,
    /// The name once more, if it is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Box<Id>>,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 256))]
    pub desc: Option<Box<str>>,
    /// Labels; `custom_id` is sent upstream as `X-Consumer-Custom-ID`.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub labels: Labels,
    /// When it was created, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<UnixTime>,
    /// When it was changed last, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<UnixTime>,
    /// Reference to a consumer group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_id: Option<Id>,
    /// Its credentials, by authenticating plugin, and further plugins.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub plugins: Plugins,
}

/// Another way for a consumer to identify itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Credential {
    /// The identity, with that of the consumer: `jack/credentials/c1`.
    #[schemars(with = "String")]
    pub id: Box<str>,
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
    /// The credential, by authenticating plugin; one at most.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub plugins: Plugins,
}

impl Credential {
    /// The name of the consumer and the identity among its credentials.
    #[must_use]
    pub fn owner_and_id(&self) -> Option<(&str, &str)> {
        split_credential(&self.id)
    }
}

/// `jack/credentials/c1` as `jack` and `c1`.
pub(crate) fn split_credential(id: &str) -> Option<(&str, &str)> {
    id.split_once("/credentials/")
}

/// An item of the section `consumers` of a file: a consumer, or, by its `id`, a credential of one.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, rename = "Consumer")]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct ConsumerItem {
    /// The name of the consumer: letters, digits, `-` and `_`.
    #[schemars(length(min = 1, max = 256), extend("pattern" = "^[a-zA-Z0-9_\\-]+$"))]
    username: Option<String>,
    /// For a credential: `<username>/credentials/<id>`.
    #[schemars(extend("pattern" = "^([a-zA-Z0-9_\\-]{1,256}|[a-zA-Z0-9_\\-]{1,256}/credentials/[a-zA-Z0-9-_.]{1,64})$"))]
    id: Option<String>,
    /// Name of a credential for people.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
    /// Description.
    #[schemars(length(max = 256))]
    desc: Option<String>,
    /// Labels; `custom_id` is sent upstream as `X-Consumer-Custom-ID`.
    #[schemars(default)]
    labels: Labels,
    /// When it was created, in Unix seconds.
    create_time: Option<UnixTime>,
    /// When it was changed last, in Unix seconds.
    update_time: Option<UnixTime>,
    /// Reference to a consumer group.
    group_id: Option<Id>,
    /// Its credentials, by authenticating plugin, and further plugins.
    #[schemars(default)]
    plugins: Plugins,
}

/// Plugins that several consumers share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["plugins"]))]
pub struct ConsumerGroup {
    /// Identity.
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
    /// Plugins by name.
    pub plugins: Plugins,
}

/// APISIX's schema of a consumer.
pub(super) fn consumer_schema() -> Value {
    let properties = json!({
        "username": { "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[a-zA-Z0-9_\-]+$" },
        "name": null,
        "group_id": id_schema(),
        "plugins": plugins_schema(),
    });
    with(resource_schema(properties), json!({ "required": ["username"] }))
}

/// APISIX's schema of a credential.
pub(super) fn credential_schema() -> Value {
    let whole = json!({
        "type": "string",
        "minLength": 15,
        "maxLength": 128,
        "pattern": "^[a-zA-Z0-9-_]+/credentials/[a-zA-Z0-9-_.]+$",
    });
    let mut id = id_schema();
    if let Some(forms) = id.get_mut("anyOf").and_then(Value::as_array_mut) {
        forms.push(whole);
    }
    resource_schema(json!({
        "id": id,
        "plugins": with(plugins_schema(), json!({ "maxProperties": 1 })),
    }))
}

/// APISIX's schema of a consumer group.
pub(super) fn group_schema() -> Value {
    with(resource_schema(json!({ "plugins": plugins_schema() })), json!({ "required": ["id", "plugins"] }))
}
