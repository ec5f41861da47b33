//! Sums of allocations and frees by call stack: a table for all threads, without locks and allocations.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::calls::MOST_CALLS;
use super::distance::{PARTS, Weight, mixed};
use super::{Amount, Stack};

/// The number of places for stacks, of slightly over a kilobyte each: about 9 MiB.
const PLACES: usize = 1 << 13;
/// The number of places to try for a stack. If more than nine tenths are taken, the search may fail.
const LOOKS: usize = 64;

/// Stacks by a hash of their calls. They are identified by the 64 bits alone: a collision in a full table is less
/// likely than one in 10¹¹.
pub(super) struct Stacks(Box<[StackSlot]>);

struct StackSlot {
    /// 0 while it is free.
    hash: AtomicU64,
    /// Written by the thread that takes the place, and read after all threads have left.
    depth: AtomicU32,
    calls: [AtomicU64; MOST_CALLS],
    allocated: Sum,
    freed: Sum,
}

/// Sums of weights. They cannot overflow: a profile has an end.
struct Sum {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Sum {
    const fn new() -> Sum {
        Sum { objects: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn add(&self, weight: Weight) {
        self.objects.fetch_add(weight.objects, Ordering::Relaxed);
        self.bytes.fetch_add(weight.bytes, Ordering::Relaxed);
    }

    fn subtract(&self, weight: Weight) {
        self.objects.fetch_sub(weight.objects, Ordering::Relaxed);
        self.bytes.fetch_sub(weight.bytes, Ordering::Relaxed);
    }

    /// Returns the difference to another sum, in whole objects.
    fn beyond(&self, other: &Sum) -> Amount {
        let difference = |all: &AtomicU64, less: &AtomicU64| {
            all.load(Ordering::Relaxed).saturating_sub(less.load(Ordering::Relaxed))
        };
        Amount {
            objects: difference(&self.objects, &other.objects).saturating_add(PARTS / 2) / PARTS,
            bytes: difference(&self.bytes, &other.bytes),
        }
    }
}

impl Stacks {
    pub(super) fn new() -> Stacks {
        let place = |_| StackSlot {
            hash: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            calls: [const { AtomicU64::new(0) }; MOST_CALLS],
            allocated: Sum::new(),
            freed: Sum::new(),
        };
        Stacks((0..PLACES).map(place).collect())
    }

    /// Returns the number of a stack; a new stack gets a place. None if the table is full.
    pub(super) fn number(&self, calls: &[u64]) -> Option<u32> {
        let hash = calls.iter().fold(1, |hash: u64, call| mixed(hash.rotate_left(7) ^ call)).max(1);
        for look in 0..LOOKS {
            let number = (hash as usize).wrapping_add(look) % PLACES;
            let place = &self.0[number];
            let taken = place.hash.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => {
                    for (room, call) in place.calls.iter().zip(calls) {
                        room.store(*call, Ordering::Relaxed);
                    }
                    place.depth.store(calls.len() as u32, Ordering::Relaxed);
                    return Some(number as u32);
                }
                Err(other) if other == hash => return Some(number as u32),
                Err(_) => {}
            }
        }
        None
    }

    pub(super) fn allocated(&self, number: u32, weight: Weight) {
        self.0[number as usize % PLACES].allocated.add(weight);
    }

    pub(super) fn freed(&self, number: u32, weight: Weight) {
        self.0[number as usize % PLACES].freed.add(weight);
    }

    /// Reverts [`Stacks::freed`].
    pub(super) fn not_freed(&self, number: u32, weight: Weight) {
        self.0[number as usize % PLACES].freed.subtract(weight);
    }

    /// Returns all stacks, after the last thread has left.
    pub(super) fn all(&self) -> Vec<Stack> {
        let nothing = Sum::new();
        let taken = self.0.iter().filter(|place| place.hash.load(Ordering::Relaxed) != 0);
        let told = taken.map(|place| {
            let calls = place.calls.iter().take(place.depth.load(Ordering::Relaxed) as usize);
            Stack {
                calls: calls.map(|call| call.load(Ordering::Relaxed)).collect(),
                allocated: place.allocated.beyond(&nothing),
                in_use: place.allocated.beyond(&place.freed),
            }
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Weight = Weight { objects: PARTS, bytes: 10 };

    #[test]
    fn threads_share_the_places_of_stacks() {
        let stacks = Stacks::new();
        let calls = |n: u64| [100 + n, 7, 9];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..500 {
                        let number = stacks.number(&calls(n)).unwrap();
                        stacks.allocated(number, ONE);
                        if n % 2 == 0 {
                            stacks.freed(number, ONE);
                        }
                    }
                });
            }
        });
        let mut all = stacks.all();
        all.sort_by_key(|stack| stack.calls[0]);
        assert_eq!(all.len(), 500);
        for (n, stack) in (0..).zip(&all) {
            let left = if n % 2 == 0 { 0 } else { 8 };
            assert_eq!(stack.calls, calls(n));
            assert_eq!(stack.allocated, Amount { objects: 8, bytes: 80 });
            assert_eq!(stack.in_use, Amount { objects: left, bytes: left * 10 });
        }
    }

    #[test]
    fn a_full_table_has_no_further_places() {
        let stacks = Stacks::new();
        let found = (0..2 * PLACES as u64).filter(|n| stacks.number(&[*n]).is_some()).count();
        assert!(found > PLACES * 9 / 10 && found <= PLACES, "{found}");
        assert_eq!(stacks.all().len(), found);
        // Existing stacks are still found, also one without a call.
        assert_eq!(stacks.number(&[3]), stacks.number(&[3]));
        assert!(Stacks::new().number(&[]).is_some());
    }
}
