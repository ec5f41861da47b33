//! Samples of the allocations of this process: about one allocation in so many bytes, with its call stack, and
//! whether it was freed.
//!
//! | file | content |
//! |---|---|
//! | `distance` | the choice of samples, and their weights |
//! | `calls` | the call stack of a thread |
//! | `held` | sampled allocations that are not freed |
//! | `stacks` | sums by call stack |
//!
//! [`Sampled`] wraps the program's allocator. Without a run it loads one word in each call. During a [`Sampler`]'s
//! run, a thread counts down the bytes that it allocates, and looks up each freed address in a table of fixed size:
//! neither takes a lock. Only one allocation in so many costs more.
//!
//! # Correctness under races
//!
//! - The tables of a run are behind [`TABLES`], which threads try to read and never wait for. Only the start and
//!   the end of a run write there. - A late thread finds other tables or none, and stops: it compares its word with
//!   the tables' word.
//! - An address is in [`HELD`] from before its allocation returns until before it goes back to the allocator. So it
//!   is there at most once, and only its owner looks for it. The way of the address from the allocating thread to the
//!   freeing one orders the two: the second one sees the entry, and the word of that run or a later one. So within a
//!   run no free is missed.
//! - A reused address was freed before, and its entry was removed before that.
//! - A free at the end of its run may or may not count: both are true of some moment. No entry is left, since the
//!   table is cleared when no thread uses it, and the next run begins after that.
//! - A look-up outside a run, or a late one, may read unrelated words. Its result counts only if the entry is
//!   removed successfully within the tables of that run.

mod calls;
mod distance;
mod held;
mod stacks;
#[cfg(test)]
mod tests;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use self::calls::MOST_CALLS;
use self::distance::{Countdown, Weight};
use self::held::{AddressTable, Entries, Entry};
use self::stacks::Stacks;

/// The allowed mean distances in bytes. A sample costs about ten microseconds: a process that allocates a gigabyte a
/// second, which is rare, would spend most of a CPU on the shortest distance.
pub const DISTANCES: std::ops::RangeInclusive<u32> = 16 << 10..=64 << 20;

/// The current run: 0, or its number in the upper half and its mean distance in the lower half. One word, so that no
/// thread combines the distance of one run with the number of another.
static RUN: AtomicU64 = AtomicU64::new(0);

/// The number of runs so far.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// The random seed of the next thread.
static SEEDS: AtomicU64 = AtomicU64::new(0);

/// The results of the current run.
static TABLES: RwLock<Option<Tables>> = RwLock::new(None);

/// The addresses of sampled allocations that are not freed yet. It always exists, since a free reads it without a
/// check for the end of the run; its pages use no memory until the first write.
static HELD: AddressTable = AddressTable::new();

/// The state of a thread. It needs no drop, so that it exists to the end of the thread, and it needs no allocation.
struct Own {
    /// The run of its countdown.
    run: Cell<u64>,
    countdown: Countdown,
    /// Set during a sample: allocations of the sampling itself are ignored.
    is_looking: Cell<bool>,
}

thread_local! {
    static OWN: Own =
        const { Own { run: Cell::new(0), countdown: Countdown::new(), is_looking: Cell::new(false) } };
}

/// An allocator that can be sampled: the program's, by `#[global_allocator]`.
///
/// Without a [`Sampler`] it costs a load and a branch in each call.
#[derive(Debug)]
pub struct Sampled<A>(A);

impl<A> Sampled<A> {
    /// Wraps the allocator `inner`, which does all the work.
    pub const fn new(inner: A) -> Sampled<A> {
        Sampled(inner)
    }
}

// SAFETY: every method passes its arguments to the inner allocator, under the guarantees of its own caller, and
// returns the result unchanged. No code in between touches the memory, unwinds or allocates.
#[expect(unsafe_code)]
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller guarantees the same contract.
            return unsafe { self.alloc_watched(layout) };
        }
        // SAFETY: the same.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller guarantees the same contract.
            return unsafe { self.dealloc_watched(at, layout) };
        }
        // SAFETY: the same.
        unsafe { self.0.dealloc(at, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller guarantees the same contract.
            return unsafe { self.alloc_zeroed_watched(layout) };
        }
        // SAFETY: the same.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller guarantees the same contract.
            return unsafe { self.realloc_watched(at, layout, size) };
        }
        // SAFETY: the same.
        unsafe { self.0.realloc(at, layout, size) }
    }
}

/// The paths during a run, as separate calls, so that they cost nothing otherwise. They load the word again: to pass
/// it would cost instructions without a run. It may be 0 by now.
#[expect(unsafe_code)]
impl<A: GlobalAlloc> Sampled<A> {
    // SAFETY: callers keep the contract of `GlobalAlloc::alloc`.
    #[cold]
    #[inline(never)]
    unsafe fn alloc_watched(&self, layout: Layout) -> *mut u8 {
        let run = RUN.load(Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        let at = unsafe { self.0.alloc(layout) };
        allocated(run, at, layout.size());
        at
    }

    // SAFETY: callers keep the contract of `GlobalAlloc::alloc_zeroed`.
    #[cold]
    #[inline(never)]
    unsafe fn alloc_zeroed_watched(&self, layout: Layout) -> *mut u8 {
        let run = RUN.load(Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        let at = unsafe { self.0.alloc_zeroed(layout) };
        allocated(run, at, layout.size());
        at
    }

    // SAFETY: callers keep the contract of `GlobalAlloc::dealloc`.
    #[cold]
    #[inline(never)]
    unsafe fn dealloc_watched(&self, at: *mut u8, layout: Layout) {
        // Before another thread can get the address.
        freed(RUN.load(Ordering::Relaxed), at);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { self.0.dealloc(at, layout) }
    }

    /// Counts as a free and an allocation, wherever the new block is.
    // SAFETY: callers keep the contract of `GlobalAlloc::realloc`.
    #[cold]
    #[inline(never)]
    unsafe fn realloc_watched(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let run = RUN.load(Ordering::Relaxed);
        let before = freed(run, at);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        let now = unsafe { self.0.realloc(at, layout, size) };
        match before {
            // The reallocation failed, and the block is unchanged.
            Some(before) if now.is_null() => held_still(run, at, before),
            _ => allocated(run, now, size),
        }
        now
    }
}

/// Counts an allocation, and samples it if it has a point.
fn allocated(run: u64, at: *mut u8, size: usize) {
    if at.is_null() || run == 0 {
        return;
    }
    // A thread without its state (there should be none) is not sampled.
    let _ = OWN.try_with(|own| {
        if own.is_looking.get() {
            return;
        }
        let mean = distance_of(run);
        if own.run.replace(run) != run {
            own.countdown.begin(SEEDS.fetch_add(1, Ordering::Relaxed), mean);
        }
        if own.countdown.is_due(size as u64, mean) {
            own.is_looking.set(true);
            look_at(run, at, size);
            own.is_looking.set(false);
        }
    });
}

/// Returns the mean distance of a run's word.
fn distance_of(run: u64) -> u32 {
    run as u32
}

/// Records an allocation with its call stack. It does not allocate: its tables exist already.
fn look_at(run: u64, at: *mut u8, size: usize) {
    let mut room = [0; MOST_CALLS];
    let calls = calls::of_this_thread(&mut room);
    with_tables(run, |tables| tables.add(&HELD, at.addr(), size as u64, calls));
}

/// Records the end of an allocation; returns its entry if it was sampled.
fn freed(run: u64, at: *mut u8) -> Option<Entry> {
    let place = HELD.find(at.addr())?;
    with_tables(run, |tables| tables.remove(&HELD, place, at.addr()))?
}

/// Reverts [`freed`]: the allocation did not end.
#[cold]
fn held_still(run: u64, at: *mut u8, entry: Entry) {
    with_tables(run, |tables| tables.put_back(&HELD, at.addr(), entry));
}

/// Calls `f` with the tables of a run, if it is current and not about to end.
fn with_tables<T>(run: u64, f: impl FnOnce(&Tables) -> T) -> Option<T> {
    // Only the start and the end of a run write there: a thread that cannot read has nothing to add.
    let tables = TABLES.try_read().ok()?;
    tables.as_ref().filter(|tables| tables.run == run).map(f)
}

/// The results of a run.
struct Tables {
    /// Its word.
    run: u64,
    stacks: Stacks,
    entries: Entries,
    samples: AtomicU64,
    without_stack: Missing,
    not_followed: Missing,
}

#[derive(Default)]
struct Missing {
    samples: AtomicU64,
    bytes: AtomicU64,
}

impl Missing {
    fn add(&self, weight: Weight) {
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(weight.bytes, Ordering::Relaxed);
    }

    fn counts(&self) -> Untold {
        Untold { samples: self.samples.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

impl Tables {
    fn new(run: u64) -> Tables {
        Tables {
            run,
            stacks: Stacks::new(),
            entries: Entries::new(),
            samples: AtomicU64::new(0),
            without_stack: Missing::default(),
            not_followed: Missing::default(),
        }
    }

    fn weight(&self, size: u64) -> Weight {
        Weight::of(size, distance_of(self.run))
    }

    fn add(&self, held: &AddressTable, address: usize, size: u64, calls: &[u64]) {
        let weight = self.weight(size);
        self.samples.fetch_add(1, Ordering::Relaxed);
        let Some(stack) = self.stacks.number(calls) else { return self.without_stack.add(weight) };
        self.stacks.allocated(stack, weight);
        if !self.entries.insert(held, address, Entry { stack, size }) {
            // Its free would not be seen: so it does not count as in use.
            self.stacks.freed(stack, weight);
            self.not_followed.add(weight);
        }
    }

    /// Removes an entry, if it is still the one that was found.
    fn remove(&self, held: &AddressTable, place: usize, address: usize) -> Option<Entry> {
        let entry = self.entries.remove(held, place, address)?;
        self.stacks.freed(entry.stack, self.weight(entry.size));
        Some(entry)
    }

    fn put_back(&self, held: &AddressTable, address: usize, entry: Entry) {
        let weight = self.weight(entry.size);
        if self.entries.insert(held, address, entry) {
            self.stacks.not_freed(entry.stack, weight);
        } else {
            self.not_followed.add(weight);
        }
    }

    fn report(&self) -> Allocations {
        Allocations {
            stacks: self.stacks.all(),
            samples: self.samples.load(Ordering::Relaxed),
            without_stack: self.without_stack.counts(),
            not_followed: self.not_followed.counts(),
        }
    }
}

/// Samples the allocations of all threads of this process, until it is dropped. Only one can exist.
#[derive(Debug)]
pub struct Sampler(());

impl Sampler {
    /// Starts to sample one allocation in about `mean` bytes, within [`DISTANCES`]; `seed` is the seed of the random
    /// distances.
    ///
    /// # Errors
    /// Returns an error if there is one already ([`io::ErrorKind::ResourceBusy`]), or if the program's allocator is
    /// not a [`Sampled`] ([`io::ErrorKind::Unsupported`]).
    pub fn start(mean: u32, seed: u64) -> io::Result<Sampler> {
        let mean = mean.clamp(*DISTANCES.start(), *DISTANCES.end());
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let run = u64::from(number) << 32 | u64::from(mean);
        let tables = Tables::new(run);
        {
            let mut place = TABLES.write().unwrap_or_else(PoisonError::into_inner);
            if place.is_some() {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            *place = Some(tables);
            SEEDS.store(seed, Ordering::Relaxed);
            RUN.store(run, Ordering::Release);
        }
        let sampler = Sampler(());
        // An allocation of this thread, which starts its countdown if the allocator is sampled.
        drop(std::hint::black_box(Box::new(0_u64)));
        let is_seen = OWN.try_with(|own| own.run.get() == run);
        if is_seen != Ok(true) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(sampler)
    }

    /// Ends the run and returns its results.
    pub fn end(self) -> Allocations {
        let tables = ended();
        // Another run may have started by now; a drop would end it.
        std::mem::forget(self);
        // The tables exist as long as the sampler.
        tables.map(|tables| tables.report()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(ended());
    }
}

/// Ends the current run: from here on threads do not see it, and running samples are waited for.
fn ended() -> Option<Tables> {
    RUN.store(0, Ordering::Release);
    let mut place = TABLES.write().unwrap_or_else(PoisonError::into_inner);
    let tables = place.take();
    // No thread writes: entries are written by readers of the tables.
    HELD.clear();
    tables
}

/// The results of a [`Sampler`]. Numbers are estimates for all allocations, made from the samples: each sample counts
/// by the inverse of its probability, so that the sums have no bias.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocations {
    /// The allocations by call stack.
    pub stacks: Vec<Stack>,
    /// The number of samples.
    pub samples: u64,
    /// Samples without a stack, since the table was full.
    pub without_stack: Untold,
    /// Samples without tracking, which do not count as in use, since the table was full.
    pub not_followed: Untold,
}

/// The allocations of one call stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stack {
    /// The addresses of the calls, the innermost first, which are the allocator's own. Each is after the calling
    /// instruction.
    pub calls: Vec<u64>,
    /// All allocations.
    pub allocated: Amount,
    /// Allocations that were not freed before the end.
    pub in_use: Amount,
}

/// A number of allocations, and their requested bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Allocations.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Samples that did not fit a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Untold {
    /// Samples.
    pub samples: u64,
    /// The bytes that they represent.
    pub bytes: u64,
}
