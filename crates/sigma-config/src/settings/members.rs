//! Registration of gateways on a shared store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The id of this gateway among those on one etcd, and its registration there: host name, version, listeners, start
/// time and served revision. The Admin API lists them (`members`). Read once, at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Members {
    /// The gateway's id, unique in the store. Unset: a UUID that is generated at the first start and kept in the file
    /// `gateway.id` in the folder `store.path`; without a store, a new UUID at each start.
    #[schemars(regex(pattern = "^[a-zA-Z0-9-_.]{1,64}$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether the gateway registers itself; unset: yes, if the store is an `etcd` that it may write to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<bool>,
    /// Seconds after which a silent gateway is removed; 30 unless set.
    #[schemars(range(min = 5, max = 3600))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,
}

impl Members {
    /// Returns [`Members::report`] or its default.
    #[must_use]
    pub fn reports(&self) -> bool {
        self.report.unwrap_or(true)
    }

    /// Returns [`Members::ttl`] or its default.
    #[must_use]
    pub fn ttl_seconds(&self) -> u32 {
        self.ttl.unwrap_or(30)
    }
}
