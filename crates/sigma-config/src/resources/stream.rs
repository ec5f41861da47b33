//! Routes for TCP and UDP.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::rare::Rare;
use super::shared::{
    HOST_PATTERN, Labels, Plugins, UnixTime, id_schema, ip_schema, plugins_schema, resource_schema,
};
use super::upstream::Upstream;
use crate::cidr::Cidr;
use crate::expr::Expr;
use crate::forms::{CidrText, HostPattern};
use crate::id::Id;

/// Selects connections, and says where they go.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamRoute {
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
    /// The client's address or network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<CidrText>")]
    pub remote_addr: Option<Cidr>,
    /// The address or network that the client connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<CidrText>")]
    pub server_addr: Option<Cidr>,
    /// The port that the client connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub server_port: Option<u16>,
    /// The server name that the client asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPattern>")]
    pub sni: Option<Box<str>>,
    /// Inline upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Arc<Upstream>>,
    /// Reference to an upstream; wins over `upstream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<Id>,
    /// Reference to a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_id: Option<Id>,
    /// Stream plugins by name.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub plugins: Plugins,
    /// The protocol on the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Box<Protocol>>,
}

/// A protocol on a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Protocol {
    /// Its name.
    pub name: String,
    /// The stream route that this one is a branch of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superior_id: Option<Id>,
    /// The settings of the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf: Option<Map<String, Value>>,
    /// Where its calls are logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logger: Vec<ProtocolLogger>,
}

/// Where the calls of a protocol are logged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct ProtocolLogger {
    /// Name of a logging plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which calls are logged.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub filter: Rare<Expr>,
    /// The configuration of the plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<Map<String, Value>>,
}

/// APISIX's schema of a stream route.
pub(super) fn schema() -> Value {
    let logger = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "filter": { "type": "array" },
            "conf": { "type": "object" },
        },
        "dependencies": { "name": ["conf"] },
    });
    resource_schema(json!({
        "remote_addr": ip_schema(),
        "server_addr": ip_schema(),
        "server_port": { "type": "integer", "minimum": 1, "maximum": 65535 },
        "sni": { "type": "string", "pattern": HOST_PATTERN },
        "upstream": super::upstream::schema(),
        "upstream_id": id_schema(),
        "service_id": id_schema(),
        "plugins": plugins_schema(),
        "protocol": {
            "type": "object",
            "properties": {
                "name": { "type": "string" },
                "superior_id": id_schema(),
                "conf": { "type": "object" },
                "logger": { "type": "array", "items": logger },
            },
            "required": ["name"],
        },
    }))
}
