//! What gateways on one store tell each other of nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Gateways on one etcd tell each other which nodes they have out by what requests have shown: outlier detection
/// and passive checks. What probes find is not told, as each gateway probes for itself. Needs `store` with the kind
/// `etcd` and `access: read_write`. Read once, at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthSharing {
    /// Seconds for which the word of a gateway holds that is not heard of any more.
    #[schemars(range(min = 5, max = 3600))]
    pub ttl: u32,
    /// So many other gateways must have a node out before this one takes it out.
    #[schemars(range(min = 1, max = 1000))]
    pub gateways: u32,
    /// Of the nodes of an upstream, at most so many percent are taken out by the word of others: one at least, and
    /// never all. What a gateway says of an upstream of which it has more out does not count.
    #[schemars(range(min = 1, max = 100))]
    pub max_percent: u8,
}

impl Default for HealthSharing {
    fn default() -> Self {
        HealthSharing { ttl: 30, gateways: 1, max_percent: 30 }
    }
}
