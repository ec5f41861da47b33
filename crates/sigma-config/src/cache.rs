//! The memory of kept answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The memory in which answers are kept of routes with a `cache`; all workers share it. The plugin proxy-cache has
/// zones of its own. Read once, at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// How much there is, in bytes. What is asked for often stays longest. An answer that takes more than half of a part
    /// is not kept; there is a part for each 8 MiB, up to 16.
    #[schemars(range(min = 65_536))]
    pub memory_bytes: u64,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { memory_bytes: 128 << 20 }
    }
}
