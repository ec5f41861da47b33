//! The choice of sampled allocations, and the weight of each sample.
//!
//! Imagine all bytes that a thread allocates as a line with random points on it, one in so many bytes: an allocation
//! with a point in it is sampled. The distances between such points are exponential. So sampling depends on the size
//! of an allocation alone, not on earlier ones. With a regular distance, a loop over two sizes could always sample
//! one of them and never the other.

use std::cell::Cell;

/// The distance of a thread to its next point.
pub(super) struct Countdown {
    random: Cell<u64>,
    /// The remaining bytes, up to the one with the point.
    left: Cell<u64>,
}

impl Countdown {
    pub(super) const fn new() -> Countdown {
        Countdown { random: Cell::new(0), left: Cell::new(0) }
    }

    /// Starts again.
    pub(super) fn begin(&self, seed: u64, mean: u32) {
        self.random.set(mixed(seed));
        self.left.set(self.distance(mean));
    }

    /// Counts an allocation, and returns true if it has a point.
    pub(super) fn is_due(&self, size: u64, mean: u32) -> bool {
        let left = self.left.get();
        if size < left {
            self.left.set(left - size);
            return false;
        }
        // Distances are independent of each other.
        self.left.set(self.distance(mean));
        true
    }

    /// Returns an exponential distance in whole bytes: rounded up, so that the probability of a point in the next
    /// `size` bytes is unchanged.
    fn distance(&self, mean: u32) -> u64 {
        let random = self.random.get().wrapping_add(STEP);
        self.random.set(random);
        /// The number of values of a float's 53-bit fraction.
        const VALUES: f64 = (1_u64 << 53) as f64;
        // Above 0 and up to 1.
        let share = ((mixed(random) >> 11) as f64 + 1.0) / VALUES;
        (-share.ln() * f64::from(mean)).ceil().max(1.0) as u64
    }
}

/// SplitMix64: its increment, and its mixing function.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

pub(super) fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The weight of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// Allocations, in units of 1/[`PARTS`].
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

/// The units of one allocation in [`Weight::objects`]: a large one counts as itself and a little more.
pub(super) const PARTS: u64 = 1 << 16;

impl Weight {
    /// Returns the weight of an allocation of `size` bytes: the inverse of the probability of a point in it.
    pub(super) fn of(size: u64, mean: u32) -> Weight {
        let size = size.max(1) as f64;
        let chance = -(-size / f64::from(mean)).exp_m1();
        Weight { objects: (PARTS as f64 / chance).round() as u64, bytes: (size / chance).round() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sums over samples match the real sums, within the statistical error.
    #[test]
    fn samples_represent_all_allocations() {
        let check = |sizes: &[u64], count: usize, mean: u32| {
            let countdown = Countdown::new();
            countdown.begin(42, mean);
            let (mut objects, mut bytes, mut seen) = (0_u64, 0_u64, 0_u64);
            let (mut all_bytes, mut variance_of_objects, mut variance_of_bytes) = (0_u64, 0.0, 0.0);
            for at in 0..count {
                let size = sizes[at % sizes.len()];
                all_bytes += size;
                let chance = 1.0 - (-(size as f64) / f64::from(mean)).exp();
                let variance = (1.0 - chance) / chance;
                variance_of_objects += variance;
                variance_of_bytes += variance * (size as f64).powi(2);
                if countdown.is_due(size, mean) {
                    let weight = Weight::of(size, mean);
                    (objects, bytes, seen) = (objects + weight.objects, bytes + weight.bytes, seen + 1);
                }
            }
            let off = |told: f64, all: f64, variance: f64| (told - all).abs() / f64::sqrt(variance).max(1.0);
            let of_objects = off(objects as f64 / PARTS as f64, count as f64, variance_of_objects);
            let of_bytes = off(bytes as f64, all_bytes as f64, variance_of_bytes);
            assert!(of_objects < 3.0 && of_bytes < 3.0, "{sizes:?}: {of_objects} {of_bytes}");
            assert!(seen > 100 && (seen as usize) < count, "{sizes:?}: {seen}");
        };
        check(&[64], 1_000_000, 16 << 10);
        check(&[8, 100_000], 50_000, 512 << 10);
        // A regular distance would always sample one of these two.
        check(&[256 << 10, 1, 256 << 10], 30_000, 512 << 10);
        check(&[1, 24, 500, 3_000, 16 << 10, 1 << 20], 600_000, 512 << 10);
    }

    #[test]
    fn threads_differ_and_runs_with_one_seed_do_not() {
        let first = |seed: u64| {
            let countdown = Countdown::new();
            countdown.begin(seed, 512 << 10);
            [countdown.left.get(), countdown.distance(512 << 10)]
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        assert_ne!(first(1)[1], first(2)[0], "one is not the other, a step later");
    }

    #[test]
    fn a_large_allocation_counts_as_itself() {
        let check = |size: u64, mean: u32, objects: f64, bytes: u64| {
            let weight = Weight::of(size, mean);
            assert!((weight.objects as f64 / PARTS as f64 - objects).abs() < 0.001, "{size}: {weight:?}");
            assert!(weight.bytes.abs_diff(bytes) <= 1, "{size}: {weight:?}");
        };
        check(64 << 20, 512 << 10, 1.0, 64 << 20);
        check(512 << 10, 512 << 10, 1.581_977, 829_411);
        check(1, 16 << 10, 16_384.5, 16_385);
        check(0, 16 << 10, 16_384.5, 16_385);
    }
}
