//! Requests and sessions at this moment, by key.

use std::time::Duration;

use sigma_plugin::counter::Shared;

use sigma_plugin_kit::clock;

/// Requests at this moment, by key.
#[derive(Default)]
pub(super) struct Counts(Shared<u64>);

impl Counts {
    /// Counts a request in, if there are not more than `most` then; the number with it.
    pub(super) fn enter(&self, key: &[u8], most: u64) -> Option<u64> {
        self.0.with(key, clock::process_ms(), |slot| {
            if slot.value >= most {
                return None;
            }
            slot.value += 1;
            slot.expires_ms = u64::MAX;
            Some(slot.value)
        })
    }

    /// How many there are.
    pub(super) fn now(&self, key: &[u8]) -> u64 {
        self.0.peek(key, clock::process_ms(), |slot| slot.value).unwrap_or_default()
    }

    pub(super) fn leave(&self, key: &[u8]) {
        let now_ms = clock::process_ms();
        self.0.with(key, now_ms, |slot| {
            slot.value = slot.value.saturating_sub(1);
            if slot.value == 0 {
                // Not removed here, since another request may enter at the same time; a sweep removes it.
                slot.expires_ms = now_ms;
            }
        });
    }
}

/// How long the request waits that is number `value`.
pub(super) fn waits(delay_s: f64, value: u64, conn: u64) -> Duration {
    if value <= conn {
        return Duration::ZERO;
    }
    // No timer goes on for years.
    Duration::from_secs_f64((delay_s * ((value - 1) / conn) as f64).min(1e8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_bounded_and_given_back() {
        let counts = Counts::default();
        assert_eq!(
            [counts.enter(b"k", 2), counts.enter(b"k", 2), counts.enter(b"k", 2)],
            [Some(1), Some(2), None]
        );
        assert_eq!(counts.enter(b"other", 2), Some(1));
        assert_eq!([counts.now(b"k"), counts.now(b"nobody")], [2, 0]);
        counts.leave(b"k");
        assert_eq!(counts.enter(b"k", 2), Some(2));
        (0..3).for_each(|_| counts.leave(b"k"));
        assert_eq!(counts.enter(b"k", 1), Some(1));
    }

    #[test]
    fn waiting_grows_with_the_crowd() {
        let waits_ms = |value, conn| waits(0.1, value, conn).as_millis();
        assert_eq!([waits_ms(1, 1), waits_ms(2, 1), waits_ms(3, 1)], [0, 100, 200]);
        assert_eq!([waits_ms(2, 2), waits_ms(3, 2), waits_ms(4, 2), waits_ms(5, 2)], [0, 100, 100, 200]);
    }
}
