//! A limit for lines of the error log that a request can cause.
//!
//! Clients must not decide how much is logged: of each such line one a second is written, with the number of lines
//! left out before it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How often a line is written at most.
const PERIOD_MS: u64 = 1000;

/// The throttle of one line in the source; a `static` next to it.
#[derive(Debug, Default)]
pub struct LogThrottle {
    /// When the last one was written, in Unix milliseconds.
    last_ms: AtomicU64,
    left_out: AtomicU64,
}

impl LogThrottle {
    /// A throttle that has let no line through yet.
    pub const fn new() -> LogThrottle {
        LogThrottle { last_ms: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Returns whether to write now; if so, how many were left out since the last one.
    pub fn due(&self) -> Option<u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        self.due_at(now)
    }

    fn due_at(&self, now_ms: u64) -> Option<u64> {
        let last = self.last_ms.load(Ordering::Relaxed);
        // A clock that was set back must not silence it.
        let early = now_ms >= last && now_ms < last + PERIOD_MS;
        if early || self.last_ms.compare_exchange(last, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_is_written_and_the_others_are_counted() {
        let throttle = LogThrottle::new();
        assert_eq!(throttle.due_at(5000), Some(0));
        assert_eq!(throttle.due_at(5001), None);
        assert_eq!(throttle.due_at(5999), None);
        assert_eq!(throttle.due_at(6000), Some(2));
        assert_eq!(throttle.due_at(6500), None);
        assert_eq!(throttle.due_at(100), Some(1), "the clock was set back");
    }
}
