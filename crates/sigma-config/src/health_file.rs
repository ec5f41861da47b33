//! Where what is known of nodes lasts over a restart.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The file in which what is known of nodes lasts over a restart: ejections with their times and numbers, nodes
/// that probes have found down, and states that operators have told the Control API. It is made when there is
/// something to keep. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthFile {
    /// The file, or `off`. Its folder is made if it is not there.
    pub path: PathBuf,
    /// Seconds after which a file is not believed any more; what operators have said is, however old. A process
    /// that runs writes it more often.
    #[schemars(range(min = 10, max = 86_400))]
    pub max_age: u32,
}

impl Default for HealthFile {
    fn default() -> Self {
        HealthFile { path: "./data/health.json".into(), max_age: 300 }
    }
}

impl HealthFile {
    /// The file, unless it is switched off.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        (self.path.as_os_str() != "off").then_some(&self.path)
    }
}
