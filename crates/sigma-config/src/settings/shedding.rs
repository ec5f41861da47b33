//! Refusing requests before resources run out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::PriorityClass;

/// Refuses requests before the process runs out of memory, descriptors or time, the least important ones first:
/// 503 `gateway_overloaded`, before any plugin runs. Pressure is the highest of what is looked at, in
/// percent: memory, descriptors (of those that connections may have) and the time that ready work waits in
/// the worker. From the percentage of a class on its requests are refused at random, the more the
/// nearer the percentage of the next class is, where all are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoadShedding {
    /// Off: nothing is looked at.
    pub enabled: bool,
    /// Bytes of the process's own memory that are 100 percent; unset: the limit of its cgroup. Without
    /// either memory is not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub memory_bytes: Option<u64>,
    /// Milliseconds of waiting that are 100 percent; 0: it is not looked at.
    pub queue_time_ms: u32,
    /// For routes with `priority_class: sheddable`.
    #[schemars(range(min = 1, max = 100))]
    pub sheddable_percent: u8,
    /// For routes with `priority_class: sheddable_plus`; not below `sheddable_percent`.
    #[schemars(range(min = 1, max = 100))]
    pub sheddable_plus_percent: u8,
    /// For all others but those with `priority_class: critical_plus`, which are never refused; not below
    /// `sheddable_plus_percent`.
    #[schemars(range(min = 1, max = 100))]
    pub critical_percent: u8,
    /// Refuse nothing, and count what would have been refused.
    pub dry_run: bool,
}

impl Default for LoadShedding {
    fn default() -> Self {
        LoadShedding {
            enabled: true,
            memory_bytes: None,
            queue_time_ms: 0,
            sheddable_percent: 80,
            sheddable_plus_percent: 90,
            critical_percent: 95,
            dry_run: false,
        }
    }
}

impl LoadShedding {
    /// The percentages from which on some requests of a class are refused, and all; None if none ever is.
    #[must_use]
    pub fn range(&self, class: PriorityClass) -> Option<(u32, u32)> {
        let [low, middle, high] =
            [self.sheddable_percent, self.sheddable_plus_percent, self.critical_percent].map(u32::from);
        match class {
            PriorityClass::Sheddable => Some((low, middle)),
            PriorityClass::SheddablePlus => Some((middle, high)),
            PriorityClass::Critical => Some((high, 100)),
            PriorityClass::CriticalPlus => None,
        }
    }
}
