//! Time, as counters need it: the same for all workers.

use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

use sigma_plugin::system::{Host, System};

/// Returns the milliseconds of this process; they never go back.
pub fn process_ms() -> u64 {
    Host.uptime().as_millis() as u64
}

/// Returns the milliseconds since 1970 at the start of this process plus its own: for windows of this gateway that
/// are aligned to the clock. A change of the system's clock begins no new window.
pub fn steady_unix_ms() -> u64 {
    static OFFSET: LazyLock<u64> = LazyLock::new(|| unix_ms().saturating_sub(process_ms()));
    OFFSET.saturating_add(process_ms())
}

/// Returns the milliseconds since 1970: for windows that several gateways share, which share no other clock.
pub fn unix_ms() -> u64 {
    Host.now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
