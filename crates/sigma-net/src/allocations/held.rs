//! The sampled allocations that are not freed: a lock-free table by address, for any thread.
//!
//! An address belongs to one line of the table, the size of a cache line, and may be anywhere in it. So the usual
//! negative look-up reads one line. If a line is full, further allocations in it are not tracked.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};

use super::distance::mixed;

/// The number of lines, and of places in each: 64 Ki allocations, about 32 GiB at the usual distance. Half of that
/// fits before lines become full.
const LINES: usize = 1 << 13;
const PLACES: usize = 8;

/// An empty place: address 0 is never allocated.
const FREE: usize = 0;

#[repr(align(64))]
struct Line([AtomicUsize; PLACES]);

/// The addresses. Aligned to pages, and a multiple of their size, so that they can be returned to the system.
#[repr(align(4096))]
pub(super) struct AddressTable([Line; LINES]);

impl AddressTable {
    pub(super) const fn new() -> AddressTable {
        AddressTable([const { Line([const { AtomicUsize::new(FREE) }; PLACES]) }; LINES])
    }

    /// Returns the line of an address. Low bits have little information: blocks of one size are one size apart.
    fn line(address: usize) -> usize {
        mixed(address as u64) as usize % LINES
    }

    /// Returns the index of an address. It may be called at any time, and reads one line.
    pub(super) fn find(&self, address: usize) -> Option<usize> {
        let line = AddressTable::line(address);
        // The thread that frees it got it from the thread that allocated it, so it sees the entry.
        let at = self.0[line].0.iter().position(|place| place.load(Ordering::Relaxed) == address)?;
        Some(line * PLACES + at)
    }

    fn place(&self, number: usize) -> &AtomicUsize {
        &self.0[number / PLACES % LINES].0[number % PLACES]
    }

    /// Takes a free place for a new address.
    fn claim(&self, address: usize) -> Option<usize> {
        let line = AddressTable::line(address);
        // Acquire: the previous owner has read its data before it freed the place.
        let is_free = |place: &AtomicUsize| {
            place.compare_exchange(FREE, address, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let at = self.0[line].0.iter().position(is_free)?;
        Some(line * PLACES + at)
    }

    /// Removes an address from its place; returns false if the address is gone.
    fn give_back(&self, number: usize, address: usize) -> bool {
        // Release: the data of the place were read before.
        self.place(number).compare_exchange(address, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Removes all addresses, and returns their memory to the system. No thread may write meanwhile.
    #[expect(unsafe_code)]
    pub(super) fn clear(&self) {
        for place in self.0.iter().flat_map(|line| &line.0) {
            if place.load(Ordering::Relaxed) != FREE {
                place.store(FREE, Ordering::Relaxed);
            }
        }
        let start = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the pages belong to this value alone, which has their size and alignment. Each word is zero
        // afterwards; concurrent readers see that by an atomic load. If pages are larger, or of another kind, the
        // system refuses, and they stay unchanged.
        let _ = unsafe { madvise(start, size_of::<AddressTable>(), Advice::LinuxDontNeed) };
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().flat_map(|line| &line.0).all(|place| place.load(Ordering::Relaxed) == FREE)
    }
}

/// The data of a tracked allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of its stack.
    pub(super) stack: u32,
    /// Its size in bytes.
    pub(super) size: u64,
}

/// The data of each place in [`AddressTable`], for one run.
pub(super) struct Entries(Box<[(AtomicU32, AtomicU64)]>);

impl Entries {
    pub(super) fn new() -> Entries {
        Entries((0..LINES * PLACES).map(|_| Default::default()).collect())
    }

    /// Tracks an allocation, which cannot be freed before this returns. Returns false if there is no place.
    pub(super) fn insert(&self, held: &AddressTable, address: usize, entry: Entry) -> bool {
        let Some(number) = held.claim(address) else { return false };
        let (stack, size) = &self.0[number];
        // It is read by the thread that frees the allocation, which got the address after this.
        stack.store(entry.stack, Ordering::Relaxed);
        size.store(entry.size, Ordering::Relaxed);
        true
    }

    /// Removes the entry of an address at its place; None if it is gone, since it belonged to another run.
    pub(super) fn remove(&self, held: &AddressTable, number: usize, address: usize) -> Option<Entry> {
        let (stack, size) = &self.0[number];
        // Before the place is free and another thread writes there.
        let entry = Entry { stack: stack.load(Ordering::Relaxed), size: size.load(Ordering::Relaxed) };
        held.give_back(number, address).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn table() -> (Box<AddressTable>, Entries) {
        (Box::new(AddressTable::new()), Entries::new())
    }

    #[test]
    fn a_full_line_rejects_addresses() {
        let (held, entries) = table();
        let same_line: Vec<usize> = (1..)
            .map(|n| n * 16)
            .filter(|address| AddressTable::line(*address) == 7)
            .take(PLACES + 1)
            .collect();
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

    /// As in an allocator, addresses pass between threads and are reused at once: each owner finds its address with
    /// the right data.
    #[test]
    fn threads_find_entries_of_other_threads() {
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
                        // A thread that has ended passes nothing on; its addresses are with the next one.
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
