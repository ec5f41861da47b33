//! `server-info`: who this gateway is, for the Control API and for those who look into etcd.
//!
//! The control plane does all of the work; the plugin switches it on.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Configuration, Descriptor, Plugin};
use sigma_schema::described::schema_of;

/// The plugin.
pub(crate) static SERVER_INFO: Descriptor = Descriptor {
    name: "server-info",
    priority: 990,
    example: include_str!("example.md"),
    attributes: Some(schema_of::<Attributes>),
    ..Descriptor::itself::<ServerInfo>()
};

/// Information on this gateway, at `/v1/server_info` of the Control API, and in etcd under `data_plane/server_info/`.
///
/// It needs no route. The record in etcd is written if the setting `plugins` names the plugin, the store is an etcd
/// and the gateway may write there. The plugin is deprecated, as in APISIX: gateways list each other without it, see
/// `members` in the settings. `etcd_version` is the version of the etcd member that the gateway uses.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ServerInfo {}

impl Configuration for ServerInfo {}

impl Plugin for ServerInfo {}

/// The settings of the plugin in `plugin_attr`.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
struct Attributes {
    /// Seconds after which the record expires if the gateway does not renew it.
    #[schemars(range(min = 3, max = 86_400))]
    report_ttl: u32,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { report_ttl: 60 }
    }
}
