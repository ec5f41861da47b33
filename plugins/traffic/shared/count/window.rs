//! How requests are counted, in memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sigma_plugin::counter::Shared;
use sigma_plugin::{Inheritable, inheritance};

use sigma_plugin_kit::clock;

/// The sequence of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WindowType {
    /// A window begins with the first request after the previous window.
    Fixed,
    /// Windows are aligned to the clock, and the previous window counts in part.
    Sliding,
}

/// How many requests in how many seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) limit: u64,
    pub(super) window_s: u64,
}

impl Quota {
    pub(super) fn window_ms(self) -> u64 {
        self.window_s.saturating_mul(1000)
    }
}

/// The result of counting a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Verdict {
    /// Requests that may follow; None if this one is refused.
    pub(super) remaining: Option<u64>,
    /// Seconds until the quota is whole again, in hundredths.
    pub(super) reset_s: f64,
}

impl Verdict {
    pub(super) fn new(remaining: Option<u64>, reset_s: f64) -> Verdict {
        // A value that is a hundredth but for the last bit is that hundredth.
        Verdict { remaining, reset_s: (reset_s.max(0.0) * 100.0 + 1e-6).floor() / 100.0 }
    }

    /// With `used` of a fixed window counted.
    pub(super) fn fixed(quota: Quota, used: u64, reset_ms: u64) -> Verdict {
        Verdict::new(quota.limit.checked_sub(used), reset_ms as f64 / 1000.0)
    }

    pub(super) fn is_refusal(self) -> bool {
        self.remaining.is_none()
    }
}

/// The counters of all keys of this gateway.
#[derive(Default)]
pub(super) struct Counters {
    fixed: Shared<u64>,
    sliding: Shared<Pair>,
}

/// The counts of a window and of the one before.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Pair {
    window: u64,
    current: u64,
    last: u64,
}

impl Inheritable for Counters {
    const NAME: &'static str = "limit-count";

    fn leave(&self) -> Value {
        json!({ "fixed": inheritance::entries(&self.fixed), "sliding": inheritance::entries(&self.sliding) })
    }

    fn take_over(&self, left: &Value) {
        inheritance::enter(&self.fixed, &left["fixed"]);
        inheritance::enter(&self.sliding, &left["sliding"]);
    }
}

impl Counters {
    /// Counts a request that costs so much.
    pub(super) fn count(&self, kind: WindowType, key: &[u8], quota: Quota, cost: u64) -> Verdict {
        match kind {
            WindowType::Fixed => self.count_fixed(key, quota, cost, clock::process_ms()),
            WindowType::Sliding => self.count_sliding(key, quota, cost, clock::steady_unix_ms()),
        }
    }

    /// Counts what turned out later, whether there is room for it or not.
    pub(super) fn add(&self, kind: WindowType, key: &[u8], quota: Quota, cost: u64) -> Verdict {
        match kind {
            WindowType::Fixed => self.count_fixed(key, quota, cost, clock::process_ms()),
            WindowType::Sliding => self.add_sliding(key, quota, cost, clock::steady_unix_ms()),
        }
    }

    /// Returns the remaining quota of a key, and in how many seconds it is whole again; nothing is counted.
    pub(super) fn left(&self, kind: WindowType, key: &[u8], quota: Quota) -> (u64, f64) {
        match kind {
            WindowType::Fixed => self.left_fixed(key, quota, clock::process_ms()),
            WindowType::Sliding => self.left_sliding(key, quota, clock::steady_unix_ms()),
        }
    }

    fn left_fixed(&self, key: &[u8], quota: Quota, now_ms: u64) -> (u64, f64) {
        let known = self.fixed.peek(key, now_ms, |slot| (slot.value, slot.expires_ms - now_ms));
        // A window begins with its first request.
        let (used, reset_ms) = known.unwrap_or((0, quota.window_ms()));
        (quota.limit.saturating_sub(used), Verdict::new(None, reset_ms as f64 / 1000.0).reset_s)
    }

    fn left_sliding(&self, key: &[u8], quota: Quota, now_ms: u64) -> (u64, f64) {
        let key = [key, b".", &quota.window_s.to_be_bytes()].concat();
        let moment = Moment::of(quota, now_ms);
        let pair = self.sliding.peek(&key, now_ms, |slot| moment.turned(slot.value)).unwrap_or_default();
        let verdict = moment.estimate(quota, pair.last).admitted(quota, pair.current);
        (verdict.remaining.unwrap_or_default(), verdict.reset_s)
    }

    fn count_fixed(&self, key: &[u8], quota: Quota, cost: u64, now_ms: u64) -> Verdict {
        self.fixed.with(key, now_ms, |slot| {
            if slot.expires_ms == u64::MAX {
                slot.expires_ms = now_ms.saturating_add(quota.window_ms()).min(u64::MAX - 1);
            }
            slot.value = slot.value.saturating_add(cost);
            Verdict::fixed(quota, slot.value, slot.expires_ms - now_ms)
        })
    }

    fn add_sliding(&self, key: &[u8], quota: Quota, cost: u64, now_ms: u64) -> Verdict {
        let key = [key, b".", &quota.window_s.to_be_bytes()].concat();
        let moment = Moment::of(quota, now_ms);
        self.sliding.with(&key, now_ms, |slot| {
            let pair = &mut slot.value;
            *pair = moment.turned(*pair);
            slot.expires_ms = now_ms.saturating_add(quota.window_ms().saturating_mul(2));
            pair.current = pair.current.saturating_add(cost);
            moment.estimate(quota, pair.last).admitted(quota, pair.current)
        })
    }

    fn count_sliding(&self, key: &[u8], quota: Quota, cost: u64, now_ms: u64) -> Verdict {
        // A template may give one key windows of several lengths, which have nothing in common.
        let key = [key, b".", &quota.window_s.to_be_bytes()].concat();
        let moment = Moment::of(quota, now_ms);
        self.sliding.with(&key, now_ms, |slot| {
            let pair = &mut slot.value;
            *pair = moment.turned(*pair);
            slot.expires_ms = now_ms.saturating_add(quota.window_ms().saturating_mul(2));
            let estimate = moment.estimate(quota, pair.last);
            if let Some(refusal) = estimate.refusal(quota, pair.current, cost) {
                return refusal;
            }
            pair.current = pair.current.saturating_add(cost);
            estimate.admitted(quota, pair.current)
        })
    }
}

/// A moment in windows that are aligned to the clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Number of the window.
    pub(super) window: u64,
    /// Milliseconds that are left of it.
    left_ms: u64,
}

impl Moment {
    pub(super) fn of(quota: Quota, now_ms: u64) -> Moment {
        let window_ms = quota.window_ms();
        Moment { window: now_ms / window_ms, left_ms: window_ms - now_ms % window_ms }
    }

    /// The counts as they are in this window.
    fn turned(self, pair: Pair) -> Pair {
        match self.window.checked_sub(pair.window) {
            Some(0) | None => pair,
            Some(1) => Pair { window: self.window, current: 0, last: pair.current },
            Some(_) => Pair { window: self.window, ..Pair::default() },
        }
    }

    /// Returns the remaining weight of the previous window, which had `last` requests.
    pub(super) fn estimate(self, quota: Quota, last: u64) -> Estimate {
        let rate = last.min(quota.limit) as f64 / quota.window_s as f64;
        let left_s = self.left_ms as f64 / 1000.0;
        let reset_s = self.left_ms.div_ceil(10) as f64 / 100.0;
        Estimate { rate, left_s, reset_s, weight: rate * left_s }
    }
}

/// The remaining weight of the previous window in a sliding one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate {
    /// Its requests per second.
    rate: f64,
    /// Seconds that are left of the present window.
    left_s: f64,
    /// The same, rounded up to hundredths.
    reset_s: f64,
    /// Requests of it that are still counted.
    pub(super) weight: f64,
}

impl Estimate {
    /// Returns the refusal of a request with this cost, if there is no room for it next to `current` in the
    /// present window. The last accepted request may be over by the part of a request that the previous
    /// window has lost.
    pub(super) fn refusal(self, quota: Quota, current: u64, cost: u64) -> Option<Verdict> {
        let taken = current.saturating_add(cost.saturating_sub(1));
        if taken >= quota.limit {
            return Some(Verdict::new(None, self.reset_s));
        }
        let room = (quota.limit - taken) as f64;
        if self.weight < room {
            return None;
        }
        let reset_s = if self.rate == 0.0 { self.reset_s } else { self.left_s - room / self.rate };
        Some(Verdict::new(None, reset_s))
    }

    /// The verdict on a request that was counted as one of `current`.
    pub(super) fn admitted(self, quota: Quota, current: u64) -> Verdict {
        let remaining = (quota.limit as f64 - current as f64 - self.weight).floor().max(0.0);
        Verdict::new(Some(remaining as u64), self.reset_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    #[test]
    fn a_look_counts_nothing() {
        let counters = Counters::default();
        let quota = Quota { limit: 3, window_s: 10 };
        for _ in 0..2 {
            assert_eq!(counters.left_fixed(b"k", quota, 1_000), (3, 10.0));
            assert_eq!(counters.left_sliding(b"k", quota, 1_000), (3, 9.0));
        }
        counters.count_fixed(b"k", quota, 1, 1_000);
        counters.count_sliding(b"k", quota, 1, 1_000);
        for _ in 0..2 {
            assert_eq!(counters.left_fixed(b"k", quota, 5_000), (2, 6.0));
            assert_eq!(counters.left_sliding(b"k", quota, 5_000), (2, 5.0));
        }
        for _ in 0..5 {
            counters.count_fixed(b"k", quota, 1, 5_000);
        }
        assert_eq!(counters.left_fixed(b"k", quota, 5_000), (0, 6.0));
        assert_eq!(counters.left_fixed(b"k", quota, 11_000), (3, 10.0));
    }

    #[test]
    fn fixed_windows_begin_with_the_first_request() {
        let counters = Counters::default();
        let quota = Quota { limit: 2, window_s: 10 };
        let check = |now_ms: u64, remaining: Option<u64>, reset_s: f64| {
            assert_eq!(
                counters.count_fixed(b"k", quota, 1, now_ms),
                Verdict { remaining, reset_s },
                "{now_ms}"
            );
        };
        check(5_000, Some(1), 10.0);
        check(6_005, Some(0), 8.99);
        check(7_000, None, 8.0);
        check(14_999, None, 0.0);
        check(15_000, Some(1), 10.0);
    }

    #[test]
    fn sliding_windows_weigh_the_last_one() {
        let counters = Counters::default();
        let quota = Quota { limit: 4, window_s: 10 };
        let check = |now_ms: u64, remaining: Option<u64>, reset_s: f64| {
            assert_eq!(
                counters.count_sliding(b"k", quota, 1, now_ms),
                Verdict { remaining, reset_s },
                "{now_ms}"
            );
        };
        for remaining in [3, 2, 1, 0] {
            check(1_000, Some(remaining), 9.0);
        }
        check(1_000, None, 9.0);
        // All four still weigh in full, then three, two.
        check(10_000, None, 0.0);
        check(12_600, Some(0), 7.4);
        check(12_600, Some(0), 7.4);
        check(12_600, None, 2.4);
        check(15_100, Some(0), 4.9);
        check(35_000, Some(3), 5.0);
    }

    /// With any costs and times of requests, no window accepts more than its limit.
    #[test]
    fn no_window_is_overdrawn() {
        let seeds = 0..200u64;
        for seed in seeds {
            let mut random = seeded(seed);
            let quota = Quota { limit: 1 + random(20), window_s: 1 + random(5) };
            for kind in [WindowType::Fixed, WindowType::Sliding] {
                let (counters, mut now_ms, mut passed) = (Counters::default(), 10_000, Vec::new());
                for _ in 0..200 {
                    now_ms += random(900);
                    let cost = 1 + random(6);
                    let verdict = match kind {
                        WindowType::Fixed => counters.count_fixed(b"k", quota, cost, now_ms),
                        WindowType::Sliding => counters.count_sliding(b"k", quota, cost, now_ms),
                    };
                    if !verdict.is_refusal() {
                        // Of a fixed window it is known when it ends, of a sliding one which it is.
                        let window = match kind {
                            WindowType::Fixed => now_ms + (verdict.reset_s * 1000.0).ceil() as u64,
                            WindowType::Sliding => Moment::of(quota, now_ms).window,
                        };
                        passed.push((window, cost));
                    }
                }
                let in_one = |window: u64| -> u64 {
                    let near = |other: &&(u64, u64)| match kind {
                        // The end is reported in hundredths of a second.
                        WindowType::Fixed => other.0.abs_diff(window) < 20,
                        WindowType::Sliding => other.0 == window,
                    };
                    passed.iter().filter(near).map(|(_, cost)| cost).sum()
                };
                for (window, _) in &passed {
                    assert!(in_one(*window) <= quota.limit, "seed {seed} {kind:?} {quota:?}");
                }
            }
        }
    }

    #[test]
    fn no_request_is_lost_between_threads() {
        let counters = Counters::default();
        for kind in [WindowType::Fixed, WindowType::Sliding] {
            let passed = std::thread::scope(|scope| {
                let one = || {
                    let quota = Quota { limit: 1000, window_s: 1_000_000 };
                    (0..1000).filter(|_| !counters.count(kind, b"k", quota, 1).is_refusal()).count()
                };
                let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
            });
            assert_eq!(passed, 1000, "{kind:?}");
        }
    }
}
