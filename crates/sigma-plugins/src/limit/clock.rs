//! Time, as counters need it: the same for all workers.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds of this process; they never go back.
pub(crate) fn process_ms() -> u64 {
    START.elapsed().as_millis() as u64
}

/// Milliseconds since 1970: for windows that several gateways share.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
