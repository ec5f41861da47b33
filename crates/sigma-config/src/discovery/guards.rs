//! What a registry may not do, whatever it says.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Against lists that shrink by mistake: a registry that was started anew and knows little yet, or
/// whose own health checks are cut off, would take everything out of service at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Protection {
    /// The list of a service may shrink by this share at once. Where it shrinks more, the nodes that
    /// are gone are used on, until the registry has said the same for `believed_after_ms`. Nodes that
    /// take the place of others make it no shorter. 100 for no protection.
    #[schemars(range(min = 0, max = 100))]
    pub max_vanished_percent: u8,
    /// Milliseconds after which such a list is believed.
    pub believed_after_ms: u32,
}

impl Default for Protection {
    fn default() -> Self {
        Protection { max_vanished_percent: 80, believed_after_ms: 60_000 }
    }
}

/// The file with the last good lists, from which a start serves while a registry is away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LastGood {
    /// The file, or `off`. Its folder is made if it is not there.
    pub path: PathBuf,
    /// Lists that were written longer ago than this many seconds are not used; 0 for any age.
    pub expire: u32,
    /// How long a start waits for the registry before it serves by the file, in milliseconds. A registry
    /// that fails is not waited for.
    pub wait_ms: u32,
}

impl Default for LastGood {
    fn default() -> Self {
        LastGood { path: "./data/discovery.json".into(), expire: 0, wait_ms: 2_000 }
    }
}

impl LastGood {
    /// The file, unless it is switched off.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        (self.path.as_os_str() != "off").then_some(&self.path)
    }
}

/// Limits on what a registry may answer. Where one is passed, the last good list stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryLimits {
    /// Bytes of one answer, or of one message of a watch.
    #[schemars(range(min = 1024))]
    pub answer_bytes: u32,
    /// Nodes of one service; more are left out, with a line in the log.
    #[schemars(range(min = 1))]
    pub nodes: u32,
    /// Keys, instances, or objects and their endpoints, that are kept of one registry.
    #[schemars(range(min = 1))]
    pub objects: u32,
}

impl Default for DiscoveryLimits {
    fn default() -> Self {
        DiscoveryLimits { answer_bytes: 32 * 1024 * 1024, nodes: 10_000, objects: 100_000 }
    }
}
