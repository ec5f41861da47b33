//! How many connections an endpoint has needed lately.

use std::cell::Cell;

/// In this time the peak comes half the way down to what is in use.
const HALVING_MS: u64 = 5_000;

/// The connections in use, and their recent peak. Counting is a few loads and stores; time passes in
/// [`Demand::settle`] only.
#[derive(Debug, Default)]
pub(super) struct Demand {
    in_use: Cell<usize>,
    /// Most in use since the peak last came down.
    top: Cell<usize>,
    /// The peak of the time before.
    earlier: Cell<usize>,
    settled_ms: Cell<u64>,
}

impl Demand {
    /// A connection comes into use, or is dialled for it.
    pub(super) fn rise(&self) {
        let in_use = self.in_use.get() + 1;
        self.in_use.set(in_use);
        if in_use > self.top.get() {
            self.top.set(in_use);
        }
    }

    /// A connection is no longer in use.
    pub(super) fn fall(&self) {
        self.in_use.set(self.in_use.get() - 1);
    }

    /// The connections that the recent peak had in use and that are not in use now.
    pub(super) fn spare(&self) -> usize {
        self.top.get().max(self.earlier.get()) - self.in_use.get()
    }

    /// Lets the peak come down as time passes.
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
    fn a_peak_is_remembered_and_fades() {
        let demand = Demand::default();
        (0..1_000).for_each(|_| demand.rise());
        assert_eq!(demand.spare(), 0, "all are in use");
        (0..990).for_each(|_| demand.fall());
        assert_eq!(demand.spare(), 990);
        // The first interval holds the peak itself; from then on half of what is above the use goes.
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
