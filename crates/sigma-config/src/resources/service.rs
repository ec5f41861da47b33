//! Services.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::rare::Rare;
use super::route::{Script, script_schema};
use super::shared::{Labels, Plugins, UnixTime, hosts_schema, id_schema, plugins_schema, resource_schema};
use super::upstream::Upstream;
use crate::forms::HostPattern;
use crate::id::Id;

/// Plugins, hosts and an upstream that several routes have in common.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Service {
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
    /// Plugins by name.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub plugins: Plugins,
    /// Inline upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Arc<Upstream>>,
    /// Reference to an upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<Id>,
    /// A program in Lua that serves the request; needs the Lua engine.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub script: Rare<Script>,
    /// Allow `Upgrade` (WebSocket).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_websocket: Option<bool>,
    /// Host patterns of routes that have none of their own.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(with = "Vec<HostPattern>", length(min = 1), extend("uniqueItems" = true))]
    pub hosts: Rare<Vec<String>>,
}

/// APISIX's schema of a service.
pub(super) fn schema() -> Value {
    resource_schema(json!({
        "plugins": plugins_schema(),
        "upstream": super::upstream::schema(),
        "upstream_id": id_schema(),
        "script": script_schema(),
        "enable_websocket": { "type": "boolean" },
        "hosts": hosts_schema(),
    }))
}
