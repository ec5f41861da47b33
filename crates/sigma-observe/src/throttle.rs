//! A rate limit for log lines that peers can cause: a few at once, then rarely.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The rate of one place in the code on one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Lines at once.
    pub burst: u32,
    /// Pause between two lines after that.
    pub pause: Duration,
}

/// Applies an [`Allowance`] to one place in the code and counts suppressed lines.
#[derive(Debug)]
pub struct Throttle {
    left: u32,
    since: Instant,
    kept_back: u64,
}

impl Throttle {
    /// Returns a new throttle at the time `now`.
    pub fn new(allowance: Allowance, now: Instant) -> Throttle {
        Throttle { left: allowance.burst, since: now, kept_back: 0 }
    }

    /// Returns the number of lines suppressed before this one, or None if it is suppressed too.
    pub fn pass(&mut self, allowance: Allowance, now: Instant) -> Option<u64> {
        let pause = allowance.pause.max(Duration::from_millis(1));
        let pauses = now.saturating_duration_since(self.since).as_millis() / pause.as_millis();
        if pauses > 0 {
            let earned = u32::try_from(pauses).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(allowance.burst);
            self.since = now;
        }
        if self.left == 0 {
            self.kept_back += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.kept_back))
    }
}

/// A [`Throttle`] for each number, e.g. of a reason, on one thread.
#[derive(Debug)]
pub struct Throttles(RefCell<Vec<Throttle>>);

impl Throttles {
    /// Returns new throttles.
    pub const fn new() -> Throttles {
        Throttles(RefCell::new(Vec::new()))
    }

    /// As [`Throttle::pass`], for this number. Numbers are few and small: each has an entry.
    pub fn pass(&self, number: usize, allowance: Allowance, now: Instant) -> Option<u64> {
        let mut throttles = self.0.borrow_mut();
        if throttles.len() <= number {
            throttles.resize_with(number + 1, || Throttle::new(allowance, now));
        }
        throttles[number].pass(allowance, now)
    }
}

impl Default for Throttles {
    fn default() -> Throttles {
        Throttles::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_a_pause() {
        let allowance = Allowance { burst: 2, pause: Duration::from_secs(1) };
        let start = Instant::now();
        let mut throttle = Throttle::new(allowance, start);
        let mut check = |ms: u64, expected: Option<u64>| {
            assert_eq!(throttle.pass(allowance, start + Duration::from_millis(ms)), expected, "at {ms} ms");
        };
        check(0, Some(0));
        check(1, Some(0));
        check(2, None);
        check(999, None);
        check(1_000, Some(2));
        check(1_001, None);
        check(60_000, Some(1));
        check(60_000, Some(0));
        check(60_000, None);
        // Another clock reading may be slightly behind.
        check(0, None);
    }

    #[test]
    fn each_number_has_a_throttle() {
        let (allowance, now) = (Allowance { burst: 1, pause: Duration::from_secs(1) }, Instant::now());
        let throttles = Throttles::new();
        let results = [3, 3, 0, 3].map(|number| throttles.pass(number, allowance, now));
        assert_eq!(results, [Some(0), None, Some(0), None]);
        assert_eq!(throttles.pass(3, allowance, now + Duration::from_secs(1)), Some(2));
    }
}
