//! Settings of the response cache.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The response cache of routes with `cache`, shared by all workers. The plugin proxy-cache has its own zones. Read
/// once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Size of the memory cache in bytes. Responses that are requested often stay longest. The cache has one part per 8
    /// MiB, up to 16 parts. A response larger than half a part is not stored in memory.
    #[schemars(range(min = 65_536))]
    pub memory_bytes: u64,
    /// A disk cache in addition: it survives restarts and stores responses that are too large for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
}

/// A folder for responses. Responses that do not fit in memory are read from it; large bodies are sent from it without
/// a copy in memory. Its index takes up to `memory_bytes` in addition to the memory cache: about 400 bytes per
/// response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CacheDisk")]
pub struct Disk {
    /// The folder. It is created if missing and belongs to this gateway alone: no other process may write to it.
    pub path: PathBuf,
    /// Maximum size on disk in bytes; the least recently used responses are removed first.
    #[serde(default = "max_bytes")]
    #[schemars(range(min = 1_048_576))]
    pub max_bytes: u64,
    /// Seconds without use after which a response is removed, fresh or not.
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
