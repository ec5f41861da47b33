//! Limits of the dashboard's live traffic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of rows that a worker counts per second while the dashboard is open. Traffic beyond it counts in the
/// total only, as unlisted. A row takes about 300 bytes in each worker, and for a minute in the control thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Live {
    /// Maximum number of routes.
    #[schemars(range(min = 1, max = 100_000))]
    pub routes: u32,
    /// Maximum number of nodes.
    #[schemars(range(min = 1, max = 100_000))]
    pub nodes: u32,
    /// Maximum number of consumers.
    #[schemars(range(min = 1, max = 100_000))]
    pub consumers: u32,
}

impl Default for Live {
    fn default() -> Self {
        Live { routes: 1_000, nodes: 1_000, consumers: 1_000 }
    }
}
