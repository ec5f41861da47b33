//! When a token is used, and when the next one is fetched. A rule without a clock: time is an argument, in
//! milliseconds that never go back.

/// How the token that a server gives is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Lifetime {
    /// So long before its end the next one is fetched, while it is used.
    pub(super) refresh_before_ms: u64,
    /// The least time between two attempts to fetch one of which the first failed.
    pub(super) pause_ms: u64,
}

/// A token's times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// From then on the next one is fetched. None if there is no token.
    pub(super) refresh_ms: Option<u64>,
    /// From then on it is not sent any more.
    pub(super) end_ms: u64,
    /// Before then no fetch begins.
    pub(super) pause_until_ms: u64,
}

/// The advice for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    /// It gets the token.
    Use,
    /// Use the same one, and fetch the next one meanwhile.
    UseAndFetch,
    /// It waits for a token.
    Wait,
    /// There is no token, and it is too early to fetch again.
    Refuse,
}

/// A token is not sent in the last part of its life: it has to reach the node, whose clock may be ahead.
const LAST_MS: u64 = 5_000;

impl Lifetime {
    /// The times of a token that came at `now_ms` and is good for so long.
    pub(super) fn times(&self, now_ms: u64, lifetime_ms: u64) -> Times {
        let last_ms = LAST_MS.min(lifetime_ms / 10);
        let end_ms = now_ms.saturating_add(lifetime_ms - last_ms);
        let refresh_ms = end_ms.saturating_sub(self.refresh_before_ms.min(lifetime_ms / 2));
        Times { refresh_ms: Some(refresh_ms), end_ms, pause_until_ms: 0 }
    }

    /// The same after an attempt that came to nothing.
    pub(super) fn failed(&self, times: Times, now_ms: u64) -> Times {
        Times { pause_until_ms: now_ms.saturating_add(self.pause_ms), ..times }
    }
}

impl Times {
    /// Returns the advice for a request at `now_ms`.
    pub(super) fn advise(&self, now_ms: u64) -> Advice {
        let may_fetch = now_ms >= self.pause_until_ms;
        match self.refresh_ms.filter(|_| now_ms < self.end_ms) {
            Some(refresh_ms) if now_ms >= refresh_ms && may_fetch => Advice::UseAndFetch,
            Some(_) => Advice::Use,
            None if may_fetch => Advice::Wait,
            None => Advice::Refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    const RULE: Lifetime = Lifetime { refresh_before_ms: 30_000, pause_ms: 1_000 };

    #[test]
    fn a_token_has_an_age() {
        let times = RULE.times(1_000, 300_000);
        let check =
            |times: Times, now_ms: u64, expected| assert_eq!(times.advise(now_ms), expected, "{now_ms}");
        check(Times::default(), 0, Advice::Wait);
        check(times, 1_000, Advice::Use);
        check(times, 265_999, Advice::Use);
        check(times, 266_000, Advice::UseAndFetch);
        check(times, 295_999, Advice::UseAndFetch);
        check(times, 296_000, Advice::Wait);
        let failed = RULE.failed(times, 270_000);
        check(failed, 270_999, Advice::Use);
        check(failed, 271_000, Advice::UseAndFetch);
        let failed = RULE.failed(times, 296_000);
        check(failed, 296_999, Advice::Refuse);
        check(failed, 297_000, Advice::Wait);
        // One that is good for less than the time before its end.
        let short = RULE.times(0, 10_000);
        check(short, 3_999, Advice::Use);
        check(short, 4_000, Advice::UseAndFetch);
        check(short, 9_000, Advice::Wait);
        check(RULE.times(0, 0), 0, Advice::Wait);
    }

    /// In any order of events no token is sent after its end, and failures are spaced.
    #[test]
    fn any_order_of_events_is_safe() {
        for seed in 1..500u64 {
            let mut next = seeded(seed);
            let (mut now, mut times, mut good_until, mut failed_at) = (0, Times::default(), 0, None);
            for _ in 0..300 {
                now += next(20_000);
                let advice = times.advise(now);
                if matches!(advice, Advice::Use | Advice::UseAndFetch) {
                    assert!(now < good_until, "seed {seed}");
                }
                if matches!(advice, Advice::Wait | Advice::UseAndFetch) {
                    assert!(failed_at.is_none_or(|at| now >= at + 1_000), "seed {seed}");
                    if next(3) > 0 {
                        let lifetime = next(100_000);
                        (times, good_until, failed_at) = (RULE.times(now, lifetime), now + lifetime, None);
                    } else {
                        (times, failed_at) = (RULE.failed(times, now), Some(now));
                    }
                }
            }
        }
    }
}
