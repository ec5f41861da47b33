//! Resources that hold plugins only.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::rare::Rare;
use super::shared::{Labels, Plugins, UnixTime, plugins_schema, resource_schema, with};
use crate::id::Id;

/// Plugins that routes refer to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["plugins"]))]
pub struct PluginConfig {
    /// Identity.
    pub id: Id,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
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

/// Plugins that run for every request, before those of the route.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["plugins"]))]
pub struct GlobalRule {
    /// Identity.
    pub id: Id,
    /// When it was created, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<UnixTime>,
    /// When it was changed last, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<UnixTime>,
    /// Plugins by name; each may stand in one global rule only.
    pub plugins: Plugins,
}

/// Settings that all uses of one plugin share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["id"]))]
pub struct PluginMetadata {
    /// The name of the plugin.
    #[schemars(with = "String", length(min = 1))]
    pub id: Box<str>,
    /// The settings, as the plugin defines them.
    #[serde(flatten)]
    pub settings: Arc<Map<String, Value>>,
}

/// One name of the list of enabled plugins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnabledPlugin {
    /// The name of the plugin.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Whether it serves stream routes rather than HTTP.
    #[serde(default)]
    pub stream: bool,
}

/// APISIX's schema of a plugin config.
pub(super) fn config_schema() -> Value {
    let properties = json!({ "name": { "type": "string" }, "plugins": plugins_schema() });
    with(resource_schema(properties), json!({ "required": ["id", "plugins"] }))
}

/// APISIX's schema of a global rule.
pub(super) fn global_rule_schema() -> Value {
    let properties = json!({ "name": null, "desc": null, "labels": null, "plugins": plugins_schema() });
    with(resource_schema(properties), json!({ "required": ["id", "plugins"] }))
}

/// Plugin metadata is what the plugin makes of it.
pub(super) fn metadata_schema() -> Value {
    json!({ "type": "object", "properties": { "id": { "type": "string" } } })
}
