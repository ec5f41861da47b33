//! The time of day, for what certificates and lists say of theirs.

use std::time::UNIX_EPOCH;

/// The seconds since 1970.
pub(crate) fn unix_seconds() -> i64 {
    let since = sigma_net::wall_clock::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
