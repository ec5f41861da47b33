//! Runs in this process, whose allocator is sampled.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};

use super::*;

#[global_allocator]
static ALLOCATOR: Sampled<std::alloc::System> = Sampled::new(std::alloc::System);

/// There is one sampler at a time, and tests run in parallel.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const SHORTEST: u32 = *DISTANCES.start();

/// Allocates a block in this function.
#[inline(never)]
fn kept_block(size: usize) -> Vec<u8> {
    std::hint::black_box(vec![1; size])
}

#[inline(never)]
fn freed_block(size: usize) {
    drop(std::hint::black_box(vec![1_u8; size]));
}

/// Grows a block by reallocation, then shrinks it.
#[inline(never)]
fn resized_block(block: &mut Vec<u8>, more: usize, least: usize) {
    block.reserve_exact(std::hint::black_box(more));
    block.shrink_to(std::hint::black_box(least));
}

/// The functions that allocate, each with the bytes of code within which it does.
const MAKERS: [(usize, fn() -> usize); 3] =
    [(64, || KEPT as usize), (64, || FREED as usize), (256, || RESIZED as usize)];

/// Returns the allocations made in a function of this file.
fn made_in(found: &Allocations, function: usize) -> (Amount, Amount) {
    let (mut allocated, mut in_use) = (Amount::default(), Amount::default());
    // Other functions of this file, which allocate too, may follow it.
    let is_of = |call: &u64| {
        let starts = MAKERS.iter().map(|(bytes, start)| (start(), *bytes));
        let nearest = starts.filter(|(start, _)| *start < *call as usize).max();
        nearest.is_some_and(|(start, bytes)| start == function && *call as usize - start < bytes)
    };
    for stack in found.stacks.iter().filter(|stack| stack.calls.iter().any(is_of)) {
        allocated.objects += stack.allocated.objects;
        allocated.bytes += stack.allocated.bytes;
        in_use.objects += stack.in_use.objects;
        in_use.bytes += stack.in_use.bytes;
    }
    (allocated, in_use)
}

fn is_about(value: u64, expected: u64) -> bool {
    value.abs_diff(expected) < expected / 5
}

const KEPT: fn(usize) -> Vec<u8> = kept_block;
const FREED: fn(usize) = freed_block;
const RESIZED: fn(&mut Vec<u8>, usize, usize) = resized_block;

#[test]
fn kept_and_freed_blocks_are_counted() {
    let _alone = alone();
    let sampler = Sampler::start(SHORTEST, 1).unwrap();
    let kept: Vec<Vec<u8>> = (0..4_000).map(|_| kept_block(4_096)).collect();
    (0..8_000).for_each(|_| freed_block(2_048));
    let found = sampler.end();
    drop(kept);
    let bytes = 4_000 * 4_096;
    let (allocated, in_use) = made_in(&found, KEPT as usize);
    assert!(is_about(allocated.bytes, bytes) && is_about(allocated.objects, 4_000), "{allocated:?}");
    assert_eq!(in_use, allocated);
    let (allocated, in_use) = made_in(&found, FREED as usize);
    assert!(is_about(allocated.bytes, bytes) && is_about(allocated.objects, 8_000), "{allocated:?}");
    assert_eq!(in_use, Amount::default());
    assert!(found.samples > 1_500, "{}", found.samples);
    assert_eq!((found.without_stack, found.not_followed), Default::default());
    assert!(HELD.is_empty() && TABLES.read().unwrap().is_none());
}

/// A block that grows counts with its last size; an older block does not count until it grows.
#[test]
fn blocks_that_grow_are_counted_once() {
    let _alone = alone();
    let (before, mut grown) = (kept_block(4 << 20), kept_block(1 << 20));
    let sampler = Sampler::start(SHORTEST, 2).unwrap();
    let mut blocks = vec![kept_block(1 << 20), std::hint::black_box(vec![0; 1 << 20])];
    for block in &mut blocks {
        resized_block(block, 7 << 20, 2 << 20);
    }
    resized_block(&mut grown, 3 << 20, 4 << 20);
    let found = sampler.end();
    let (allocated, in_use) = made_in(&found, RESIZED as usize);
    assert_eq!(in_use.bytes, 8 << 20, "{in_use:?}");
    assert!(allocated.bytes >= 24 << 20, "{allocated:?}");
    assert_eq!(before.len() + grown.len(), 5 << 20);
    // A new run does not know these blocks.
    let sampler = Sampler::start(SHORTEST, 2).unwrap();
    drop((blocks, grown, before));
    let found = sampler.end();
    assert_eq!(made_in(&found, KEPT as usize), Default::default());
}

/// Blocks are freed by other threads, and their addresses reused: none is lost, none is counted twice.
#[test]
fn any_thread_may_free_the_blocks_of_another() {
    const THREADS: usize = 8;
    let _alone = alone();
    let sampler = Sampler::start(SHORTEST, 3).unwrap();
    let (give, take): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| std::sync::mpsc::channel::<Vec<u8>>()).unzip();
    std::thread::scope(|scope| {
        for (me, own) in take.into_iter().enumerate() {
            let give = give.clone();
            scope.spawn(move || {
                for round in 0..5_000 {
                    let next = (me + 1 + round % (THREADS - 1)) % THREADS;
                    // The receiver may have ended: then the block is freed here.
                    let _ = give[next].send(kept_block(256 << (round % 5)));
                    own.try_iter().for_each(drop);
                }
                drop(give);
                own.iter().for_each(drop);
            });
        }
        drop(give);
    });
    let found = sampler.end();
    let (allocated, in_use) = made_in(&found, KEPT as usize);
    let bytes = THREADS as u64 * 1_000 * (256 + 512 + 1024 + 2048 + 4096);
    assert!(is_about(allocated.bytes, bytes), "{allocated:?}, not {bytes}");
    assert_eq!(in_use, Amount::default());
}

/// Runs start and end while threads allocate and free: no run affects another.
#[test]
fn runs_do_not_affect_each_other() {
    let _alone = alone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut held: Vec<Vec<u8>> = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    held.push(kept_block(8 << 10));
                    // Of earlier runs, too.
                    if held.len() > 64 {
                        held.drain(..32);
                    }
                    freed_block(8 << 10);
                }
            });
        }
        for round in 0..60 {
            let sampler = Sampler::start(SHORTEST, round).unwrap();
            std::thread::yield_now();
            let kept: Vec<Vec<u8>> = (0..200).map(|_| kept_block(8 << 10)).collect();
            let found = sampler.end();
            assert!(HELD.is_empty());
            drop(kept);
            for stack in &found.stacks {
                assert!(stack.in_use.bytes <= stack.allocated.bytes, "{stack:?}");
                assert!(!stack.calls.is_empty() && stack.calls.iter().all(|call| *call != 0), "{stack:?}");
            }
            // The blocks of this thread, and at most the blocks that the others hold at one moment.
            let (_, in_use) = made_in(&found, KEPT as usize);
            assert!((1 << 20..8 << 20).contains(&in_use.bytes), "{in_use:?}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn there_is_one_sampler_at_a_time() {
    let _alone = alone();
    let first = Sampler::start(SHORTEST, 4).unwrap();
    assert_eq!(Sampler::start(SHORTEST, 4).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    // The rejected sampler ends nothing.
    assert_ne!(RUN.load(Ordering::Relaxed), 0);
    let kept = kept_block(1 << 20);
    drop(first);
    assert_eq!(RUN.load(Ordering::Relaxed), 0);
    assert!(HELD.is_empty() && TABLES.read().unwrap().is_none());
    let second = Sampler::start(1, 4).unwrap();
    assert_eq!(distance_of(RUN.load(Ordering::Relaxed)), SHORTEST, "within its bounds");
    drop(kept);
    assert_eq!(made_in(&second.end(), KEPT as usize), Default::default());
}

/// Samples beyond the tables are counted, and do not spoil the rest.
#[test]
fn overflow_is_reported() {
    let (tables, held) = (Tables::new(u64::from(SHORTEST)), Box::new(AddressTable::new()));
    let weight = tables.weight(SHORTEST.into());
    // Each in its own place, until lines are full.
    for n in 1..=200_000 {
        tables.add(&held, n * 16, SHORTEST.into(), &[1, 2]);
    }
    let found = tables.report();
    let [stack] = &found.stacks[..] else { panic!("{found:?}") };
    assert_eq!((found.samples, stack.allocated.bytes), (200_000, 200_000 * weight.bytes));
    assert!(found.not_followed.samples > 130_000 && found.without_stack.samples == 0, "{found:?}");
    let followed = found.samples - found.not_followed.samples;
    assert_eq!(stack.in_use.bytes, followed * weight.bytes);
    for n in 1..=200_000 {
        let entry = held.find(n * 16).and_then(|place| tables.remove(&held, place, n * 16));
        // A block that could not grow is still there.
        if let Some(entry) = entry.filter(|_| n % 2 == 0) {
            tables.put_back(&held, n * 16, entry);
        }
    }
    let in_use = tables.report().stacks[0].in_use.bytes / weight.bytes;
    assert!(in_use.abs_diff(followed / 2) < followed / 20, "{in_use} of {followed}");
    // As many stacks as fit.
    for n in 0..20_000 {
        tables.add(&held, 7 << 30, 100, &[n]);
    }
    let found = tables.report();
    assert!(found.without_stack.samples > 10_000 && found.stacks.len() > 7_000, "{}", found.stacks.len());
    assert_eq!(found.without_stack.bytes, found.without_stack.samples * tables.weight(100).bytes);
}
