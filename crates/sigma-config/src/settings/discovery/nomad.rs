//! Settings of Nomad as a service registry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConsulTimeout, RegistryAddress};
use sigma_schema::Confidential;

/// Services in Nomad itself (`provider = "nomad"` in a job). The gateway watches the services that upstreams name, and
/// gets changes at once. Nomad lists all instances, also those whose checks fail: use `checks` of the upstream. The tags
/// `sigma.weight=NUMBER` and `sigma.metadata.KEY=VALUE` of a service are its weight and metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nomad {
    /// Agents of one region, `http://host:port`. The gateway uses the first one that responds, until it fails.
    #[schemars(length(min = 1, max = 64))]
    pub servers: Vec<RegistryAddress>,
    /// The ACL token; it needs `read-job` in the namespace.
    #[serde(default)]
    pub token: Confidential,
    /// Namespace of services without `namespace_id` in `discovery_args`.
    #[serde(default = "namespace")]
    #[schemars(length(min = 1, max = 128))]
    pub namespace: String,
    /// Region of the services; unset: the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub region: Option<String>,
    /// Whether requests wait at Nomad for a change (blocking queries).
    #[serde(default = "yes")]
    pub keepalive: bool,
    /// Seconds between requests without `keepalive`.
    #[serde(default = "fetch_interval")]
    #[schemars(range(min = 1))]
    pub fetch_interval: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: ConsulTimeout,
    /// Weight of nodes without the tag `sigma.weight`.
    #[serde(default = "weight")]
    #[schemars(range(min = 0))]
    pub weight: u32,
    /// Maximum number of concurrent requests. Connections may be twice as many. Nomad accepts 100 per client
    /// (`limits.http_max_conns_per_client`). With more services the requests take turns; a change is then seen within
    /// ten seconds.
    #[serde(default = "max_blocking_queries")]
    #[schemars(range(min = 1))]
    pub max_blocking_queries: u32,
}

fn namespace() -> String {
    "default".to_owned()
}

fn fetch_interval() -> u32 {
    3
}

fn weight() -> u32 {
    1
}

fn max_blocking_queries() -> u32 {
    45
}

fn yes() -> bool {
    true
}
