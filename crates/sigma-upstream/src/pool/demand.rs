//! The recent need of an endpoint for connections.

use std::cell::Cell;

/// The time in which the peak falls half the way to the current use.
const HALVING_MS: u64 = 5_000;

/// The connections in use, and their recent peak. Counting costs a few loads and stores; time passes only in
/// [`Demand::settle`].
#[derive(Debug, Default)]
pub(super) struct Demand {
    in_use: Cell<usize>,
    /// The most in use since the peak last fell.
    top: Cell<usize>,
    /// The peak of the previous period.
    earlier: Cell<usize>,
    settled_ms: Cell<u64>,
}

impl Demand {
    /// Counts a connection that comes into use, or is dialled for it.
    pub(super) fn rise(&self) {
        let in_use = self.in_use.get() + 1;
        self.in_use.set(in_use);
        if in_use > self.top.get() {
            self.top.set(in_use);
        }
    }

    /// Counts a connection that is no longer in use.
    pub(super) fn fall(&self) {
        self.in_use.set(self.in_use.get() - 1);
    }

    /// Returns the difference between the recent peak and the current use.
    pub(super) fn spare(&self) -> usize {
        self.top.get().max(self.earlier.get()) - self.in_use.get()
    }

    /// Lowers the peak as time passes.
    pub(super) fn settle(&self, now_ms: u64) {
        if now_ms.saturating_sub(self.settled_ms.get()) < HALVING_MS {
            return;
        }
        let top = self.top.replace(self.in_use.get());
        self.earlier.set(top + self.earlier.get().saturating_sub(top) / 2);
        self.settled_ms.set(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_kept_and_fades() {
        let demand = Demand::default();
        (0..1_000).for_each(|_| demand.rise());
        assert_eq!(demand.spare(), 0, "all are in use");
        (0..990).for_each(|_| demand.fall());
        assert_eq!(demand.spare(), 990);
        // The first interval has the peak itself; then half of the excess goes each time.
        let expected = [990, 495, 247, 123, 61];
        for (at, spare) in (1..).zip(expected) {
            demand.settle(at * HALVING_MS);
            demand.settle(at * HALVING_MS + HALVING_MS - 1);
            assert_eq!(demand.spare(), spare, "after {at} intervals");
        }
        (0..20).for_each(|_| demand.rise());
        (0..20).for_each(|_| demand.fall());
        assert_eq!(demand.spare(), 61, "a smaller peak counts for nothing");
        (0..400).for_each(|_| demand.rise());
        (0..400).for_each(|_| demand.fall());
        assert_eq!(demand.spare(), 400, "a higher one counts at once");
        (0..20).for_each(|at| demand.settle((10 + at) * HALVING_MS));
        assert_eq!(demand.spare(), 0, "in the end nothing is left of it");
    }
}
