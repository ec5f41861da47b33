//! Settings of Consul: its services, and its keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use super::RegistryAddress;
use sigma_schema::Confidential;

/// What APISIX takes for the memory that its workers share.
pub(super) const SHARED_SIZE: &str = "64m";

/// What services and keys of Consul have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsulAgents {
    /// Agents of one cluster, `http://host:port`; the first that answers is asked until it fails.
    #[schemars(length(min = 1, max = 64))]
    pub servers: Vec<RegistryAddress>,
    /// The ACL token.
    #[serde(default)]
    pub token: Confidential,
    /// Whether a question waits at Consul until there is something new (blocking queries).
    #[serde(default = "yes")]
    pub keepalive: bool,
    /// Seconds between questions without `keepalive`.
    #[serde(default = "fetch_interval")]
    #[schemars(range(min = 1))]
    pub fetch_interval: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: ConsulTimeout,
    /// Weight of nodes that name none; services name none.
    #[serde(default = "weight")]
    #[schemars(range(min = 1))]
    pub weight: u32,
    /// A file of its own for the last good lists; unset: that of `last_good`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Dump>,
    /// The node of services without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_service: Option<DefaultService>,
    /// Taken from APISIX, without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_size: Option<String>,
}

/// Consul's services. What is asked for are the healthy nodes of the services that upstreams name, and
/// Consul tells at once when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Consul {
    /// The agents, and how they are asked.
    #[serde(flatten)]
    pub agents: ConsulAgents,
    /// Most questions at a time. There are twice as many connections at most, since a question that is given
    /// one while another is opened leaves that behind; Consul takes 200 from one client
    /// (`limits.http_max_conns_per_client`). More services than that take turns; then a change is known
    /// after ten seconds at the latest.
    #[serde(default = "max_blocking_queries")]
    #[schemars(range(min = 1))]
    pub max_blocking_queries: u32,
    /// The order of nodes.
    #[serde(default)]
    pub sort_type: SortType,
    /// Services that no upstream may use; `consul` is one in any case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_services: Vec<String>,
}

/// Nodes that stand in Consul's keys: `<prefix>/<service>/<host>:<port>`, with a value such as
/// `{"weight": 1}`. The `service_name` of an upstream is
/// `http://<host:port of Consul>/v1/kv/<prefix>/<service>/`, as in APISIX, or `<service>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsulKv {
    /// The agents, and how they are asked.
    #[serde(flatten)]
    pub agents: ConsulAgents,
    /// The beginning of all keys.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 256))]
    pub prefix: String,
    /// Beginnings of keys that do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_keys: Vec<String>,
}

/// How long Consul may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsulTimeout {
    /// Milliseconds to connect.
    #[schemars(range(min = 1))]
    pub connect: u32,
    /// Milliseconds for an answer, after it has waited.
    #[schemars(range(min = 1))]
    pub read: u32,
    /// Seconds that a question waits at Consul.
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
    /// Consul's.
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
    /// Whether a start reads it.
    #[serde(default = "yes")]
    pub load_on_init: bool,
    /// Seconds after which it is too old for that; 0 for never.
    #[serde(default)]
    pub expire: u32,
}

/// A node that stands in for those that there are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DefaultService {
    /// Its host.
    #[schemars(length(min = 1, max = 256))]
    pub host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Its weight.
    #[serde(default)]
    pub metadata: DefaultMetadata,
}

/// What APISIX says of a default node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultMetadata {
    /// Taken from APISIX, without effect.
    pub fail_timeout: u32,
    /// Share of requests.
    #[schemars(range(min = 1))]
    pub weight: u32,
    /// Taken from APISIX, without effect.
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

/// Whether a size is another one than APISIX's default, which tools write out.
pub(super) fn is_chosen(shared_size: Option<&String>) -> bool {
    shared_size.is_some_and(|size| size != SHARED_SIZE)
}
