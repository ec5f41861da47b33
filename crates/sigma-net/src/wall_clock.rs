//! The time of day.

use std::time::SystemTime;

/// Returns the time of day of the system, or of the simulation that this thread runs.
#[inline]
pub fn now() -> SystemTime {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::time_of_day() {
        return now;
    }
    SystemTime::now()
}
