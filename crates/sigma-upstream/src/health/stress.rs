//! Stress tests: the share of an upstream's requests that a target and its companions in the test get.
//!
//! The control side repeats the share every second. Workers ignore a share that was not repeated for a while, so that
//! a test ends with the task that runs it.

use std::sync::atomic::{AtomicU32, Ordering};

/// The bits of a word for the share.
const SHARE_BITS: u32 = 14;

/// The share of a stress test, as workers read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StressShare {
    /// The part of all requests, of [`StressShare::WHOLE`]; 0 without a test.
    pub share: u32,
    /// It changes each time the share is repeated.
    pub beat: u32,
}

impl StressShare {
    /// All requests.
    pub const WHOLE: u32 = 10_000;
}

/// The share of one target. The control side writes it.
#[derive(Debug, Default)]
pub(super) struct StressCell(AtomicU32);

impl StressCell {
    /// Sets or repeats the share, at most [`StressShare::WHOLE`]; returns true if it has changed.
    pub(super) fn set(&self, share: u32) -> bool {
        let share = share.min(StressShare::WHOLE);
        let before = self.get();
        let beat = before.beat.wrapping_add(1) << SHARE_BITS;
        self.0.store(beat | share, Ordering::Relaxed);
        before.share != share
    }

    /// Returns the share.
    #[inline]
    pub(super) fn get(&self) -> StressShare {
        let word = self.0.load(Ordering::Relaxed);
        StressShare { share: word & ((1 << SHARE_BITS) - 1), beat: word >> SHARE_BITS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_and_beat_are_kept_apart() {
        let cell = StressCell::default();
        assert_eq!(cell.get(), StressShare::default());
        assert!(cell.set(7) && !cell.set(7));
        assert_eq!(cell.get(), StressShare { share: 7, beat: 2 });
        assert!(cell.set(20_000));
        assert_eq!(cell.get().share, StressShare::WHOLE);
        cell.0.store(u32::MAX << SHARE_BITS, Ordering::Relaxed);
        assert!(cell.set(1));
        assert_eq!(cell.get(), StressShare { share: 1, beat: 0 }, "the beat begins again");
    }
}
