//! Rules of an upstream by which a node is chosen, beside its type.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Slow start of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SlowStart {
    /// Seconds until a node has its full share.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 86400))]
    pub window: f64,
    /// How fast the share grows: it is (age / window)^(1 / aggression) of the full one. At 1 it grows
    /// evenly, above faster at the beginning.
    #[serde(default = "even")]
    #[schemars(range(min = 0.01, max = 100))]
    pub aggression: f64,
    /// The least share, in percent of the full one.
    #[serde(default = "tenth")]
    #[schemars(range(min = 1, max = 100))]
    pub min_weight_percent: u8,
}

fn even() -> f64 {
    1.0
}

fn tenth() -> u8 {
    10
}
