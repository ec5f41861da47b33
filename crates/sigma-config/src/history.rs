//! What is kept of changes of the configuration.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is kept of changes of the configuration: who changed what, when, and how it was before. It stands in the file
/// `history.redb` beside the store, and each gateway on an etcd keeps what it saw. Oldest versions go first, at
/// whichever limit is reached first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Versions that are kept; 0 for no history at all.
    #[schemars(range(max = 1_000_000))]
    pub keep: u32,
    /// Days that they are kept.
    #[schemars(range(min = 1, max = 36_500))]
    pub days: u32,
    /// Bytes that the former values of objects may take. A change that takes more by itself is kept without them.
    #[schemars(range(min = 65_536))]
    pub bytes: u64,
    /// The folder of the file; default: that of the store. Without a store and without this, the history is in memory
    /// and ends with the process; none is kept of a file with more than 10,000 routes, upstreams and consumers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

impl Default for History {
    fn default() -> Self {
        History { keep: 1000, days: 90, bytes: 64 << 20, path: None }
    }
}
