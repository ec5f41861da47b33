//! Where calls of operators are written down.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who called the Admin API and the Control API to change something: a line of JSON for each call, refused ones
/// included. It holds neither bodies nor queries nor keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditLog {
    /// `off`, or a file path. The file is readable by its owner and group, and is reopened as the access log is.
    pub path: String,
    /// Lines of refused calls in one second; more are counted in the next line, so that nobody without a key can
    /// fill a disk.
    #[schemars(range(min = 1, max = 10_000))]
    pub refused_per_second: u32,
}

impl Default for AuditLog {
    fn default() -> Self {
        AuditLog { path: "off".into(), refused_per_second: 20 }
    }
}

impl AuditLog {
    /// The file, unless it is switched off.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        (self.path != "off").then_some(&*self.path)
    }
}
