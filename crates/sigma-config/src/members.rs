//! What a gateway tells the others on its store of itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What this gateway is called among those on one etcd, and what it tells them of itself: host name, version,
/// listeners, since when it runs and which revision it serves. The Admin API lists them (`members`). Read once, at
/// the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Members {
    /// The gateway's id, which no other gateway of the store may have. Unset: a UUID that is made at the first
    /// start and kept in the file `gateway.id` in the folder `store.path`; without a store, another one with each
    /// start.
    #[schemars(regex(pattern = "^[a-zA-Z0-9-_.]{1,64}$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether it tells the others; unset: yes, with the store `etcd` that it may write to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<bool>,
    /// Seconds after which a gateway is forgotten that is not heard of any more; 30 unless set.
    #[schemars(range(min = 5, max = 3600))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,
}

impl Members {
    /// See [`Members::report`].
    #[must_use]
    pub fn reports(&self) -> bool {
        self.report.unwrap_or(true)
    }

    /// See [`Members::ttl`].
    #[must_use]
    pub fn ttl_seconds(&self) -> u32 {
        self.ttl.unwrap_or(30)
    }
}
