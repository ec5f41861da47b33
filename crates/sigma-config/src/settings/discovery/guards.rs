//! Protection against faulty responses of a registry.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Protection against lists that shrink by mistake. A registry that has just restarted, or whose own health checks
/// fail, could otherwise remove all nodes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Protection {
    /// Maximum share of a service's nodes that may disappear at once, in percent. If more disappear, the missing nodes
    /// stay in use until the registry has returned the same list for `believed_after_ms`. Replaced nodes do not count
    /// as missing. 100: no protection.
    #[schemars(range(min = 0, max = 100))]
    pub max_vanished_percent: u8,
    /// Milliseconds after which such a list is accepted.
    pub believed_after_ms: u32,
}

impl Default for Protection {
    fn default() -> Self {
        Protection { max_vanished_percent: 80, believed_after_ms: 60_000 }
    }
}

/// The file with the last good lists, which a start uses while a registry is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LastGood {
    /// The file, or `off`. Its folder is created if missing.
    pub path: PathBuf,
    /// Maximum age of a list in seconds; 0 for no limit.
    pub expire: u32,
    /// How long a start waits for a registry before it uses the file, in milliseconds. It does not wait for a registry
    /// that fails.
    pub wait_ms: u32,
}

impl Default for LastGood {
    fn default() -> Self {
        LastGood { path: "./data/discovery.json".into(), expire: 0, wait_ms: 2_000 }
    }
}

impl LastGood {
    /// Returns the file, unless it is off.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        (self.path.as_os_str() != "off").then_some(&self.path)
    }
}

/// Limits on responses of a registry. A response that exceeds a limit is ignored and the last good list stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryLimits {
    /// Maximum size in bytes of a response, or of a watch message.
    #[schemars(range(min = 1024))]
    pub answer_bytes: u32,
    /// Maximum number of nodes of a service; further nodes are ignored and logged.
    #[schemars(range(min = 1))]
    pub nodes: u32,
    /// Maximum number of stored keys, instances, or objects and their endpoints, per registry.
    #[schemars(range(min = 1))]
    pub objects: u32,
}

impl Default for DiscoveryLimits {
    fn default() -> Self {
        DiscoveryLimits { answer_bytes: 32 * 1024 * 1024, nodes: 10_000, objects: 100_000 }
    }
}
