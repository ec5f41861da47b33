//! How much of the live traffic the dashboard is told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many rows a worker counts for the dashboard in a second, while somebody looks. What is beyond counts in the
/// total alone, as unlisted. A row takes some 300 bytes in each worker, and for a minute in the control thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Live {
    /// Most routes.
    #[schemars(range(min = 1, max = 100_000))]
    pub routes: u32,
    /// Most nodes.
    #[schemars(range(min = 1, max = 100_000))]
    pub nodes: u32,
}

impl Default for Live {
    fn default() -> Self {
        Live { routes: 1_000, nodes: 1_000 }
    }
}
