//! The history of the configuration.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The history of the configuration: the author, time and former value of each change. It is in the file `history.redb`
/// next to the store, and each gateway on an etcd keeps the changes that it saw. The oldest versions are removed when
/// the first limit is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Maximum number of versions; 0 for no history.
    #[schemars(range(max = 1_000_000))]
    pub keep: u32,
    /// Maximum age of versions in days.
    #[schemars(range(min = 1, max = 36_500))]
    pub days: u32,
    /// Maximum size of the former values in bytes. A change that is larger is kept without them.
    #[schemars(range(min = 65_536))]
    pub bytes: u64,
    /// The folder of the file; default: the folder of the store. If neither is set, the history is in memory and ends
    /// with the process. Then a file with more than 10,000 routes, upstreams and consumers has no history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

impl Default for History {
    fn default() -> Self {
        History { keep: 1000, days: 90, bytes: 64 << 20, path: None }
    }
}
