//! Which sampled allocations are not freed yet: a table by addresses, for any thread and without a lock.
//!
//! An address has one line of the table, as long as one of the CPU's cache, and is at any place of it: to find that it is
//! not there, which is the answer for nearly all, takes one line. What a full line has no place for is not followed.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};

use super::distance::mixed;

/// Lines, and places in each: 64 Ki allocations, some 32 GiB at the usual distance. Half of that fits before lines begin to
/// be full.
const LINES: usize = 1 << 13;
const PLACES: usize = 8;

/// Where there is nothing: no allocation is there.
const FREE: usize = 0;

#[repr(align(64))]
struct Line([AtomicUsize; PLACES]);

/// The addresses. Aligned to pages, which it fills, so that they can be given back.
#[repr(align(4096))]
pub(super) struct Held([Line; LINES]);

impl Held {
    pub(super) const fn new() -> Held {
        Held([const { Line([const { AtomicUsize::new(FREE) }; PLACES]) }; LINES])
    }

    /// The number of an address's line. Its low bits say little: blocks of one size are one size apart.
    fn line(address: usize) -> usize {
        mixed(address as u64) as usize % LINES
    }

    /// Where an address is: its place's number. May be called at any time, and reads one line.
    pub(super) fn find(&self, address: usize) -> Option<usize> {
        let line = Held::line(address);
        // Whoever may free it has it from the one that allocated it, whose entry is seen therefore.
        let at = self.0[line].0.iter().position(|place| place.load(Ordering::Relaxed) == address)?;
        Some(line * PLACES + at)
    }

    fn place(&self, number: usize) -> &AtomicUsize {
        &self.0[number / PLACES % LINES].0[number % PLACES]
    }

    /// Takes a free place for an address, which is in none.
    fn claim(&self, address: usize) -> Option<usize> {
        let line = Held::line(address);
        // Acquire: who had the place has read what belongs to it before it was free.
        let is_free = |place: &AtomicUsize| {
            place.compare_exchange(FREE, address, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let at = self.0[line].0.iter().position(is_free)?;
        Some(line * PLACES + at)
    }

    /// Gives a place back, if an address has it.
    fn give_back(&self, number: usize, address: usize) -> bool {
        // Release: what belongs to it was read before.
        self.place(number).compare_exchange(address, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Forgets all of them, and gives their memory back to the system. Nobody may write meanwhile.
    #[expect(unsafe_code)]
    pub(super) fn clear(&self) {
        for place in self.0.iter().flat_map(|line| &line.0) {
            if place.load(Ordering::Relaxed) != FREE {
                place.store(FREE, Ordering::Relaxed);
            }
        }
        let start = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the pages are this value's alone, as large and as aligned as it is. Each word of them is zero, and is zero
        // when it comes back; those who read one meanwhile find that, by an atomic load. Where pages are larger, or are of
        // another kind, the system refuses, and they stay as they are.
        let _ = unsafe { madvise(start, size_of::<Held>(), Advice::LinuxDontNeed) };
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().flat_map(|line| &line.0).all(|place| place.load(Ordering::Relaxed) == FREE)
    }
}

/// What is known of an allocation that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of its stack.
    pub(super) stack: u32,
    /// Its bytes.
    pub(super) size: u64,
}

/// What belongs to each place of [`Held`], for one run.
pub(super) struct Entries(Box<[(AtomicU32, AtomicU64)]>);

impl Entries {
    pub(super) fn new() -> Entries {
        Entries((0..LINES * PLACES).map(|_| Default::default()).collect())
    }

    /// Holds an allocation, which nobody can free before this returns. Is false if there is no place.
    pub(super) fn insert(&self, held: &Held, address: usize, entry: Entry) -> bool {
        let Some(number) = held.claim(address) else { return false };
        let (stack, size) = &self.0[number];
        // Read by the one that frees it, who has the address from here.
        stack.store(entry.stack, Ordering::Relaxed);
        size.store(entry.size, Ordering::Relaxed);
        true
    }

    /// Takes out the entry of an address, at the place where it was found: None if it is not there any more, since it was
    /// of another run.
    pub(super) fn remove(&self, held: &Held, number: usize, address: usize) -> Option<Entry> {
        let (stack, size) = &self.0[number];
        // Before the place is free and somebody else writes there.
        let entry = Entry { stack: stack.load(Ordering::Relaxed), size: size.load(Ordering::Relaxed) };
        held.give_back(number, address).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn table() -> (Box<Held>, Entries) {
        (Box::new(Held::new()), Entries::new())
    }

    #[test]
    fn what_a_line_has_no_place_for_is_refused() {
        let (held, entries) = table();
        let same_line: Vec<usize> =
            (1..).map(|n| n * 16).filter(|address| Held::line(*address) == 7).take(PLACES + 1).collect();
        let entry = |address: usize| Entry { stack: address as u32, size: address as u64 };
        for address in &same_line[..PLACES] {
            assert!(entries.insert(&held, *address, entry(*address)));
        }
        let (first, last) = (same_line[0], same_line[PLACES]);
        assert!(!entries.insert(&held, last, entry(last)) && held.find(last).is_none());
        let place = held.find(first).unwrap();
        assert_eq!(entries.remove(&held, place, last), None, "it is another one's");
        assert_eq!(entries.remove(&held, place, first), Some(entry(first)));
        assert_eq!(entries.remove(&held, place, first), None, "once");
        assert!(entries.insert(&held, last, entry(last)));
        assert_eq!(held.find(last), Some(place));
        assert_eq!(
            held.find(same_line[3]).and_then(|at| entries.remove(&held, at, same_line[3])),
            Some(entry(same_line[3]))
        );
        assert!(!held.is_empty());
        held.clear();
        assert!(held.is_empty() && held.find(last).is_none());
    }

    /// Addresses go from thread to thread, as those of an allocator do, and are used again at once: each is found by the one
    /// that has it, with what was said of it.
    #[test]
    fn threads_find_what_others_have_written() {
        const THREADS: usize = 8;
        const ROUNDS: u64 = 20_000;
        let (held, entries) = table();
        let free: Vec<usize> = (1..=THREADS * 64).map(|n| n * 48).collect();
        let (give, take): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| std::sync::mpsc::channel::<(usize, Option<Entry>)>()).unzip();
        for (at, address) in free.iter().enumerate() {
            give[at % THREADS].send((*address, None)).unwrap();
        }
        let start = Barrier::new(THREADS);
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (me, own) in take.into_iter().enumerate() {
                let (give, held, entries, start, refused) = (give.clone(), &held, &entries, &start, &refused);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..ROUNDS {
                        // Those who have ended give nothing more; what they had is at the next one.
                        let Ok((address, written)) = own.recv() else { return };
                        let found = held.find(address).and_then(|at| entries.remove(held, at, address));
                        assert_eq!(found, written, "{address:x}");
                        assert!(held.find(address).is_none());
                        let entry = Entry { stack: me as u32, size: round << 8 | me as u64 };
                        let is_in = entries.insert(held, address, entry);
                        refused.fetch_add(u64::from(!is_in), Ordering::Relaxed);
                        let next = (me + 1 + round as usize % (THREADS - 1)) % THREADS;
                        let _ = give[next].send((address, is_in.then_some(entry)));
                    }
                });
            }
            drop(give);
        });
        assert!(refused.into_inner() < ROUNDS * THREADS as u64 / 100);
        assert!(!held.is_empty());
    }
}
