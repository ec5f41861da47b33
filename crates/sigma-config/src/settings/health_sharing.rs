//! Sharing of node health between gateways on one store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Gateways on one etcd share which nodes they took out because of real requests: by outlier detection and passive
/// checks. Results of probes are not shared, because each gateway probes for itself. Needs a `store` of kind `etcd`
/// with `access: read_write`. Read once, at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthSharing {
    /// Seconds after which the reports of a silent gateway expire.
    #[schemars(range(min = 5, max = 3600))]
    pub ttl: u32,
    /// Number of other gateways that must report a node before this gateway takes it out.
    #[schemars(range(min = 1, max = 1000))]
    pub gateways: u32,
    /// Maximum share of an upstream's nodes, in percent, that reports of others take out: at least one node, and never
    /// all. A gateway's reports about an upstream are ignored if it has taken out a larger share.
    #[schemars(range(min = 1, max = 100))]
    pub max_percent: u8,
}

impl Default for HealthSharing {
    fn default() -> Self {
        HealthSharing { ttl: 30, gateways: 1, max_percent: 30 }
    }
}
