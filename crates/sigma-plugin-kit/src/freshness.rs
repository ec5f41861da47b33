//! The times at which the keys of an issuer are fetched, and how long they are used. A rule without a clock: time is
//! an argument, in milliseconds that never go back.

/// How long keys are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// The age from which on they are fetched again, while the old ones are used.
    pub fresh_ms: u64,
    /// How much longer they are used if the issuer gives no new ones.
    pub stale_ms: u64,
    /// The least time between two fetches, regardless of the clients.
    pub pause_ms: u64,
}

/// The times of fetches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History {
    /// When the known keys came. None without keys.
    pub keys_ms: Option<u64>,
    /// When the last fetch ended, successfully or not.
    pub tried_ms: Option<u64>,
}

/// The decision on a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It is verified with the known keys.
    Use,
    /// The same, and they are fetched again meanwhile.
    UseAndFetch,
    /// It waits for a fetch.
    Wait,
    /// It is rejected: there is no key, and it is too early to fetch again.
    Refuse,
}

impl Freshness {
    /// Decides at `now` on a token whose key is among the known ones, or is not.
    pub fn advise(&self, history: History, now_ms: u64, is_known: bool) -> Advice {
        let age = history.keys_ms.map(|at| now_ms.saturating_sub(at));
        let may_fetch = history.tried_ms.is_none_or(|at| now_ms.saturating_sub(at) >= self.pause_ms);
        let usable = age.is_some_and(|age| age < self.fresh_ms.saturating_add(self.stale_ms));
        match (usable && is_known, may_fetch) {
            (true, true) if age >= Some(self.fresh_ms) => Advice::UseAndFetch,
            (true, _) => Advice::Use,
            (false, true) => Advice::Wait,
            (false, false) => Advice::Refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    const RULE: Freshness = Freshness { fresh_ms: 1000, stale_ms: 500, pause_ms: 100 };

    #[test]
    fn keys_have_an_age() {
        let check = |keys: Option<u64>, tried: Option<u64>, now, known, expected| {
            let history = History { keys_ms: keys, tried_ms: tried };
            assert_eq!(RULE.advise(history, now, known), expected, "{history:?} {now} {known}");
        };
        check(None, None, 0, false, Advice::Wait);
        check(None, Some(0), 99, false, Advice::Refuse);
        check(None, Some(0), 100, false, Advice::Wait);
        check(Some(0), Some(0), 999, true, Advice::Use);
        check(Some(0), Some(0), 1000, true, Advice::UseAndFetch);
        check(Some(0), Some(950), 1000, true, Advice::Use);
        check(Some(0), Some(1499), 1499, true, Advice::Use);
        check(Some(0), Some(1499), 1500, true, Advice::Refuse);
        check(Some(0), Some(1400), 1500, true, Advice::Wait);
        // An unknown name: one fetch per pause, regardless of the client.
        check(Some(0), Some(0), 99, false, Advice::Refuse);
        check(Some(0), Some(0), 100, false, Advice::Wait);
    }

    /// For all sequences: fetches are spaced, keys are not used beyond their age, and a known key is used while it is
    /// young.
    #[test]
    fn fetches_are_always_spaced() {
        for seed in 1..500u64 {
            let mut next = seeded(seed);
            let (mut now, mut history) = (0, History::default());
            for _ in 0..200 {
                now += next(300);
                let known = next(3) > 0 && history.keys_ms.is_some();
                let advice = RULE.advise(history, now, known);
                let age = history.keys_ms.map(|at| now - at);
                match advice {
                    Advice::Use | Advice::UseAndFetch => assert!(known && age < Some(1500), "seed {seed}"),
                    Advice::Wait | Advice::Refuse => {
                        assert!(!known || age.is_none_or(|age| age >= 1500), "seed {seed}");
                    }
                }
                if matches!(advice, Advice::Wait | Advice::UseAndFetch) {
                    assert!(history.tried_ms.is_none_or(|at| now - at >= 100), "seed {seed}");
                    now += next(50);
                    history.tried_ms = Some(now);
                    if next(2) > 0 {
                        history.keys_ms = Some(now);
                    }
                }
            }
        }
    }
}
