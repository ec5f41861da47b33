//! Samples of what this process allocates: about one allocation in so many bytes, with the calls in which it was made, and
//! whether it was freed again.
//!
//! | file | question |
//! |---|---|
//! | `distance` | which allocations are looked at, and for how many each of them stands |
//! | `calls` | which calls a thread is in |
//! | `held` | which of those that were looked at are not freed yet |
//! | `stacks` | what was allocated and freed in which calls |
//!
//! [`Sampled`] stands in front of the program's allocator. While nothing is sampled it loads one word for each call of it,
//! and goes on. While a [`Sampler`] exists, a thread counts down the bytes that it allocates, and looks for each address
//! that it frees in a table of fixed size: neither takes a lock. One allocation in so many is looked at closer.
//!
//! # Why it is right while threads race
//!
//! - The tables of a run are behind [`TABLES`], which threads try to read and never wait for. Only the beginning and the
//!   end of a run write there. A thread that is late finds other tables or none, and leaves: the word it came with is
//!   compared with that of the tables.
//! - An address is in [`HELD`] from before its allocation returns until before it is given back to the allocator, so it is
//!   there at most once, and only its owner looks for it. How the address came from the thread that allocated it to the
//!   one that frees it orders the two: the second one sees the entry, and the word by which the first one made it or a
//!   later one. So within a run no free is missed.
//! - An address that is used again was given back before, and its entry was gone before that.
//! - A free that meets the end of its run may be counted or not: both are true of some moment of the end. Nothing is left
//!   behind, since the table is emptied when no thread is at it, and the next run begins after that.
//! - A probe outside of a run, or one that is late, reads words that say nothing to it: what it finds counts only if
//!   taking the entry out succeeds, within the tables of that run.

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
use self::held::{Entries, Entry, Held};
use self::stacks::Stacks;

/// The mean distances that can be asked for, in bytes. To look at one allocation takes some ten microseconds: a process that
/// allocates a gigabyte in a second, as few do, would spend most of a CPU on the shortest.
pub const DISTANCES: std::ops::RangeInclusive<u32> = 16 << 10..=64 << 20;

/// What is under way: 0, or a run's number in the upper half and its mean distance in the lower one. Both are one word, so
/// that no thread sees the distance of one run and the number of another.
static RUN: AtomicU64 = AtomicU64::new(0);

/// How many runs there were.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// What the random numbers of the next thread begin with.
static SEEDS: AtomicU64 = AtomicU64::new(0);

/// What the run under way has found.
static TABLES: RwLock<Option<Tables>> = RwLock::new(None);

/// The addresses of sampled allocations that are not freed yet. It is there at all times, since a free looks into it
/// without asking whether a run has ended meanwhile; its pages take no memory until something is written there.
static HELD: Held = Held::new();

/// What a thread knows. It has nothing to drop, so that it is there to the thread's very end, and is there from the
/// start without an allocation.
struct Own {
    /// The run that its countdown belongs to.
    run: Cell<u64>,
    countdown: Countdown,
    /// Whether it is looking at an allocation: those that it makes meanwhile are left alone.
    is_looking: Cell<bool>,
}

thread_local! {
    static OWN: Own =
        const { Own { run: Cell::new(0), countdown: Countdown::new(), is_looking: Cell::new(false) } };
}

/// An allocator whose allocations can be sampled: the program's, by `#[global_allocator]`.
///
/// While no [`Sampler`] exists it costs a load and a branch for each call.
#[derive(Debug)]
pub struct Sampled<A>(A);

impl<A> Sampled<A> {
    /// The allocator `inner`, which does all the work.
    pub const fn new(inner: A) -> Sampled<A> {
        Sampled(inner)
    }
}

// SAFETY: every method hands the inner allocator what it was called with, on the promises of its own caller, and returns
// what that returned. Between the two nothing touches the memory, nothing unwinds, and nothing is allocated.
#[expect(unsafe_code)]
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller's promises are those that are asked for.
            return unsafe { self.alloc_watched(layout) };
        }
        // SAFETY: the same.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller's promises are those that are asked for.
            return unsafe { self.dealloc_watched(at, layout) };
        }
        // SAFETY: the same.
        unsafe { self.0.dealloc(at, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller's promises are those that are asked for.
            return unsafe { self.alloc_zeroed_watched(layout) };
        }
        // SAFETY: the same.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if RUN.load(Ordering::Relaxed) != 0 {
            // SAFETY: the caller's promises are those that are asked for.
            return unsafe { self.realloc_watched(at, layout, size) };
        }
        // SAFETY: the same.
        unsafe { self.0.realloc(at, layout, size) }
    }
}

/// The same while a run is under way: calls of their own, so that nothing of them is in the way else. They load the word
/// once more, since to hand it over would take instructions where there is none; it may be 0 by now.
#[expect(unsafe_code)]
impl<A: GlobalAlloc> Sampled<A> {
    // SAFETY: callers keep the promises of `GlobalAlloc::alloc`.
    #[cold]
    #[inline(never)]
    unsafe fn alloc_watched(&self, layout: Layout) -> *mut u8 {
        let run = RUN.load(Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `GlobalAlloc::alloc`.
        let at = unsafe { self.0.alloc(layout) };
        allocated(run, at, layout.size());
        at
    }

    // SAFETY: callers keep the promises of `GlobalAlloc::alloc_zeroed`.
    #[cold]
    #[inline(never)]
    unsafe fn alloc_zeroed_watched(&self, layout: Layout) -> *mut u8 {
        let run = RUN.load(Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `GlobalAlloc::alloc_zeroed`.
        let at = unsafe { self.0.alloc_zeroed(layout) };
        allocated(run, at, layout.size());
        at
    }

    // SAFETY: callers keep the promises of `GlobalAlloc::dealloc`.
    #[cold]
    #[inline(never)]
    unsafe fn dealloc_watched(&self, at: *mut u8, layout: Layout) {
        // Before another thread can have the address.
        freed(RUN.load(Ordering::Relaxed), at);
        // SAFETY: the caller's promises are those of `GlobalAlloc::dealloc`.
        unsafe { self.0.dealloc(at, layout) }
    }

    /// A block that is freed and another one that is allocated, wherever that is.
    // SAFETY: callers keep the promises of `GlobalAlloc::realloc`.
    #[cold]
    #[inline(never)]
    unsafe fn realloc_watched(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let run = RUN.load(Ordering::Relaxed);
        let before = freed(run, at);
        // SAFETY: the caller's promises are those of `GlobalAlloc::realloc`.
        let now = unsafe { self.0.realloc(at, layout, size) };
        match before {
            // There is no room for it, and the block stays what it was.
            Some(before) if now.is_null() => held_still(run, at, before),
            _ => allocated(run, now, size),
        }
        now
    }
}

/// Counts what was allocated, and looks at it if it is its turn.
fn allocated(run: u64, at: *mut u8, size: usize) {
    if at.is_null() || run == 0 {
        return;
    }
    // A thread without its own values, which there is none of, is not looked at.
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

/// The mean distance of a run, of its word.
fn distance_of(run: u64) -> u32 {
    run as u32
}

/// Writes down an allocation with the calls that it was made in. It allocates nothing: what it writes to is there.
fn look_at(run: u64, at: *mut u8, size: usize) {
    let mut room = [0; MOST_CALLS];
    let calls = calls::of_this_thread(&mut room);
    with_tables(run, |tables| tables.add(&HELD, at.addr(), size as u64, calls));
}

/// Notes that an allocation ends, and which one of those that were looked at it was.
fn freed(run: u64, at: *mut u8) -> Option<Entry> {
    let place = HELD.find(at.addr())?;
    with_tables(run, |tables| tables.remove(&HELD, place, at.addr()))?
}

/// Notes that it did not end, after [`freed`].
#[cold]
fn held_still(run: u64, at: *mut u8, entry: Entry) {
    with_tables(run, |tables| tables.put_back(&HELD, at.addr(), entry));
}

/// Hands over what a run has found, if it is under way and not just ending.
fn with_tables<T>(run: u64, f: impl FnOnce(&Tables) -> T) -> Option<T> {
    // Only the beginning and the end of a run write there: whoever cannot read has nothing to add.
    let tables = TABLES.try_read().ok()?;
    tables.as_ref().filter(|tables| tables.run == run).map(f)
}

/// What a run has found.
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

    fn told(&self) -> Untold {
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

    fn add(&self, held: &Held, address: usize, size: u64, calls: &[u64]) {
        let weight = self.weight(size);
        self.samples.fetch_add(1, Ordering::Relaxed);
        let Some(stack) = self.stacks.number(calls) else { return self.without_stack.add(weight) };
        self.stacks.allocated(stack, weight);
        if !self.entries.insert(held, address, Entry { stack, size }) {
            // Whether it will be freed nobody would see: it is none of what is in use.
            self.stacks.freed(stack, weight);
            self.not_followed.add(weight);
        }
    }

    /// Takes an entry out, if it is still the one that was found.
    fn remove(&self, held: &Held, place: usize, address: usize) -> Option<Entry> {
        let entry = self.entries.remove(held, place, address)?;
        self.stacks.freed(entry.stack, self.weight(entry.size));
        Some(entry)
    }

    fn put_back(&self, held: &Held, address: usize, entry: Entry) {
        let weight = self.weight(entry.size);
        if self.entries.insert(held, address, entry) {
            self.stacks.not_freed(entry.stack, weight);
        } else {
            self.not_followed.add(weight);
        }
    }

    fn told(&self) -> Allocations {
        Allocations {
            stacks: self.stacks.all(),
            samples: self.samples.load(Ordering::Relaxed),
            without_stack: self.without_stack.told(),
            not_followed: self.not_followed.told(),
        }
    }
}

/// Looks at what all threads of this process allocate, until it is dropped. There is one at a time.
#[derive(Debug)]
pub struct Sampler(());

impl Sampler {
    /// Begins to look at one allocation in about `mean` bytes, within [`DISTANCES`]; `seed` is what the random distances
    /// begin with.
    ///
    /// # Errors
    /// Returns an error if there is one already ([`io::ErrorKind::ResourceBusy`]), or if the program's allocator is no
    /// [`Sampled`] ([`io::ErrorKind::Unsupported`]).
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
        // One of this thread's, which its countdown knows of if it came by here.
        drop(std::hint::black_box(Box::new(0_u64)));
        let is_seen = OWN.try_with(|own| own.run.get() == run);
        if is_seen != Ok(true) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(sampler)
    }

    /// Ends, and tells what was found.
    pub fn end(self) -> Allocations {
        let tables = ended();
        // Another one may have begun by now, which dropping this one would end.
        std::mem::forget(self);
        // There are tables as long as there is a sampler.
        tables.map(|tables| tables.told()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(ended());
    }
}

/// Ends the run under way: from here on threads know of none, and those that still look at an allocation are waited for.
fn ended() -> Option<Tables> {
    RUN.store(0, Ordering::Release);
    let mut place = TABLES.write().unwrap_or_else(PoisonError::into_inner);
    let tables = place.take();
    // Nobody is at it: entries are written by those who read the tables.
    HELD.clear();
    tables
}

/// What a [`Sampler`] has found. Numbers are estimates for all allocations, made of the sampled ones: each stands for as
/// many as one of its size is likely to be seen in, so that their sums are as often too high as too low.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocations {
    /// By the calls that they were made in.
    pub stacks: Vec<Stack>,
    /// How many were looked at.
    pub samples: u64,
    /// Those that are in no stack, since there was no room for another one.
    pub without_stack: Untold,
    /// Those that are not in what is in use, freed or not, since there was no room to follow more.
    pub not_followed: Untold,
}

/// What was allocated in the same calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stack {
    /// The addresses of the calls, the innermost first, which are the allocator's own. Each is behind the instruction that
    /// called.
    pub calls: Vec<u64>,
    /// All of it.
    pub allocated: Amount,
    /// What of it was not freed until the end.
    pub in_use: Amount,
}

/// So many allocations, and the bytes that were asked for by them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Allocations.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What there was no room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Untold {
    /// Samples.
    pub samples: u64,
    /// The bytes that they stand for.
    pub bytes: u64,
}
