//! Pseudo-random bits (xorshift64*), for shares, samples and balancing; not for secrets.

use std::cell::Cell;

/// A source of pseudo-random bits.
#[derive(Debug, Default)]
pub struct Random(Cell<u64>);

impl Random {
    /// Returns a source whose bits follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }

    /// Returns the next bits.
    pub fn bits(&self) -> u64 {
        // The state must not be 0, which is its own successor; no other state leads to it.
        let mut x = match self.0.get() {
            0 => 1,
            state => state,
        };
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_follow_from_the_seed() {
        let three = |seed| {
            let random = Random::new(seed);
            [random.bits(), random.bits(), random.bits()]
        };
        assert_eq!(three(7), three(7));
        assert_ne!(three(7), three(9));
        assert_eq!(three(0), three(1));
        let [first, second, third] = three(1);
        assert!(first != second && second != third && first != 0);
    }
}
