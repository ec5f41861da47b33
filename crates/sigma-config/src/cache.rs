//! The memory of kept answers.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The memory in which answers are kept of routes with a `cache`; all workers share it. The plugin proxy-cache has
/// zones of its own. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// How much there is, in bytes. What is asked for often stays longest. An answer that takes more than half of a part
    /// is not kept in memory; there is a part for each 8 MiB, up to 16.
    #[schemars(range(min = 65_536))]
    pub memory_bytes: u64,
    /// Where they are kept on a disk as well: over a restart, and where they are too large for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
}

/// A folder for answers. What memory has no room for is read from it, and large bodies are sent from it without being
/// held in memory. The table of what is there takes `memory_bytes` at most, beside the memory of answers: some 400 bytes
/// for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CacheDisk")]
pub struct Disk {
    /// The folder. It is made if it is not there, and is this gateway's alone: nobody else may write to it.
    pub path: PathBuf,
    /// How much of the disk they take, in bytes; those go first that nobody has used for the longest time.
    #[serde(default = "max_bytes")]
    #[schemars(range(min = 1_048_576))]
    pub max_bytes: u64,
    /// Seconds after which what nobody has used is forgotten, fresh or not.
    #[serde(default = "inactive")]
    #[schemars(range(min = 1))]
    pub inactive: u32,
}

fn max_bytes() -> u64 {
    1 << 30
}

fn inactive() -> u32 {
    600
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { memory_bytes: 128 << 20, disk: None }
    }
}
