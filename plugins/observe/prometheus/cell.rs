//! The counters of workers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(super) struct Cell(AtomicU64);

impl Cell {
    /// Owning thread only: two writers would lose counts.
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Owning thread only.
    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Owning thread only; the bits encode a float.
    pub(super) fn add_float(&self, n: f64) {
        let sum = f64::from_bits(self.0.load(Ordering::Relaxed)) + n;
        self.0.store(sum.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
