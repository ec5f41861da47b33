//! Settings of Consul services and Consul keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use super::RegistryAddress;
use sigma_schema::Confidential;

/// APISIX's default for the shared memory of its workers.
pub(super) const SHARED_SIZE: &str = "64m";

/// Common settings of Consul services and keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsulAgents {
    /// Agents of one cluster, `http://host:port`. The gateway uses the first one that responds, until it fails.
    #[schemars(length(min = 1, max = 64))]
    pub servers: Vec<RegistryAddress>,
    /// The ACL token.
    #[serde(default)]
    pub token: Confidential,
    /// Whether requests wait at Consul for a change (blocking queries).
    #[serde(default = "yes")]
    pub keepalive: bool,
    /// Seconds between requests without `keepalive`.
    #[serde(default = "fetch_interval")]
    #[schemars(range(min = 1))]
    pub fetch_interval: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: ConsulTimeout,
    /// Weight of nodes without a weight; nodes of services never have one.
    #[serde(default = "weight")]
    #[schemars(range(min = 1))]
    pub weight: u32,
    /// A separate file for the last good lists; unset: the file of `last_good`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Dump>,
    /// The node for services without nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_service: Option<DefaultService>,
    /// Accepted for APISIX, without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_size: Option<String>,
}

/// Services in Consul. The gateway watches the healthy nodes of the services that upstreams name, and gets changes at
/// once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Consul {
    /// The agents, and how they are called.
    #[serde(flatten)]
    pub agents: ConsulAgents,
    /// Maximum number of concurrent requests. Connections may be twice as many, because a request that takes a new
    /// connection can leave another one idle. Consul accepts 200 per client (`limits.http_max_conns_per_client`). With
    /// more services the requests take turns; a change is then seen within ten seconds.
    #[serde(default = "max_blocking_queries")]
    #[schemars(range(min = 1))]
    pub max_blocking_queries: u32,
    /// The order of nodes.
    #[serde(default)]
    pub sort_type: SortType,
    /// Services that upstreams must not use; `consul` is always one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_services: Vec<String>,
}

/// Nodes in Consul keys: `<prefix>/<service>/<host>:<port>`, with a value such as `{"weight": 1}`. The `service_name`
/// of an upstream is `http://<host:port of Consul>/v1/kv/<prefix>/<service>/`, as in APISIX, or `<service>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsulKv {
    /// The agents, and how they are called.
    #[serde(flatten)]
    pub agents: ConsulAgents,
    /// The prefix of all keys.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 256))]
    pub prefix: String,
    /// Prefixes of keys to ignore.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_keys: Vec<String>,
}

/// Timeouts of calls of Consul.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsulTimeout {
    /// Connect timeout in milliseconds.
    #[schemars(range(min = 1))]
    pub connect: u32,
    /// Read timeout in milliseconds, in addition to `wait`.
    #[schemars(range(min = 1))]
    pub read: u32,
    /// Seconds that a request waits at Consul for a change.
    #[schemars(range(min = 1, max = 600))]
    pub wait: u32,
}

impl Default for ConsulTimeout {
    fn default() -> Self {
        ConsulTimeout { connect: 2_000, read: 2_000, wait: 60 }
    }
}

/// The order of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SortType {
    /// As Consul returns them.
    #[default]
    Origin,
    /// By host.
    HostSort,
    /// By port.
    PortSort,
    /// By host, then port.
    CombineSort,
}

/// A file for the last good lists of one registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dump {
    /// The file.
    pub path: PathBuf,
    /// Whether the file is read at the start.
    #[serde(default = "yes")]
    pub load_on_init: bool,
    /// Maximum age of the file in seconds for reading; 0 for no limit.
    #[serde(default)]
    pub expire: u32,
}

/// A node that is used for services without nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DefaultService {
    /// Host of the node.
    #[schemars(length(min = 1, max = 256))]
    pub host: String,
    /// Port of the node.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Weight of the node.
    #[serde(default)]
    pub metadata: DefaultMetadata,
}

/// APISIX's metadata of a default node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultMetadata {
    /// Accepted for APISIX, without effect.
    pub fail_timeout: u32,
    /// Share of requests, relative to other nodes.
    #[schemars(range(min = 1))]
    pub weight: u32,
    /// Accepted for APISIX, without effect.
    pub max_fails: u32,
}

impl Default for DefaultMetadata {
    fn default() -> Self {
        DefaultMetadata { fail_timeout: 1, weight: 1, max_fails: 1 }
    }
}

fn fetch_interval() -> u32 {
    3
}

fn max_blocking_queries() -> u32 {
    90
}

fn weight() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn prefix() -> String {
    "upstreams".to_owned()
}

/// Returns whether a size differs from APISIX's default, which tools write out.
pub(super) fn is_chosen(shared_size: Option<&String>) -> bool {
    shared_size.is_some_and(|size| size != SHARED_SIZE)
}
