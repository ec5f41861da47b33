//! The audit log of operators' calls.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The log of changes by callers of the Admin API and the Control API: one JSON line per call, including refused calls.
/// It contains no bodies, queries or keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditLog {
    /// `off`, or a file path. The file is readable by its owner and group, and is reopened like the access log.
    pub path: String,
    /// Maximum number of lines for refused calls per second, so that clients without a key cannot fill the disk. The
    /// next line counts the calls above the limit.
    #[schemars(range(min = 1, max = 10_000))]
    pub refused_per_second: u32,
}

impl Default for AuditLog {
    fn default() -> Self {
        AuditLog { path: "off".into(), refused_per_second: 20 }
    }
}

impl AuditLog {
    /// Returns the file, unless the log is off.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        (self.path != "off").then_some(&*self.path)
    }
}
