//! The file that keeps the state of nodes over a restart.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// File with the state of nodes, which survives a restart. It holds ejections with their times and counts, the results
/// of active checks, and states that operators set at the Control API. It is created when there is a state to keep.
/// Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthFile {
    /// The file, or `off`. Its folder is created if missing.
    pub path: PathBuf,
    /// Maximum age of the file in seconds; states set by operators have no limit. A running process writes the file
    /// more often.
    #[schemars(range(min = 10, max = 86_400))]
    pub max_age: u32,
}

impl Default for HealthFile {
    fn default() -> Self {
        HealthFile { path: "./data/health.json".into(), max_age: 300 }
    }
}

impl HealthFile {
    /// Returns the file, unless it is off.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        (self.path.as_os_str() != "off").then_some(&self.path)
    }
}
