//! Load shedding: requests are refused before resources run out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::PriorityClass;

/// Refuses requests before the process runs out of memory, descriptors or time, the least important ones first: 503
/// `gateway_overloaded`, before any plugin runs. Pressure, in percent, is the highest of three values: memory,
/// descriptors (of those for connections) and the time that ready work waits in the worker. Above the percentage of a
/// class its requests are refused at random. The share grows with the pressure, and all are refused at the percentage
/// of the next class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoadShedding {
    /// Whether load shedding is on.
    pub enabled: bool,
    /// Bytes of the process's own memory that count as 100 percent; unset: the limit of its cgroup. Without either,
    /// memory is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub memory_bytes: Option<u64>,
    /// Milliseconds of waiting that count as 100 percent; 0: waiting is ignored.
    pub queue_time_ms: u32,
    /// Percentage for routes with `priority_class: sheddable`.
    #[schemars(range(min = 1, max = 100))]
    pub sheddable_percent: u8,
    /// Percentage for routes with `priority_class: sheddable_plus`; not below `sheddable_percent`.
    #[schemars(range(min = 1, max = 100))]
    pub sheddable_plus_percent: u8,
    /// Percentage for all other routes except those with `priority_class: critical_plus`, which are never refused; not
    /// below `sheddable_plus_percent`.
    #[schemars(range(min = 1, max = 100))]
    pub critical_percent: u8,
    /// Refuse nothing, only count the requests that would be refused.
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
    /// Returns the percentages at which some requests of a class, and all, are refused; None if the class is never
    /// refused.
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
