//! Simulations: tests whose content is generated from a seed. And the seeds of fuzz targets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds in a run of the tests, unless `SIGMA_SEEDS` says how many.
const SEEDS: u64 = 1_000;

/// Runs `simulate` with as many seeds as `SIGMA_SEEDS` says, or with `SIGMA_SEED` alone, on all CPUs.
/// `command` runs this test.
///
/// # Panics
/// A simulation fails or panics: with its seed, and how to run it alone.
pub fn for_seeds(command: &str, simulate: impl Fn(u64) -> Result<(), String> + Sync) {
    for_few_seeds(command, SEEDS, simulate);
}

/// As [`for_seeds`], for simulations that take longer: with `few` seeds instead of a thousand, and with that share of
/// `SIGMA_SEEDS`.
///
/// # Panics
/// As [`for_seeds`].
pub fn for_few_seeds(command: &str, few: u64, simulate: impl Fn(u64) -> Result<(), String> + Sync) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    };
    let seeds = match number("SIGMA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIGMA_SEEDS").map_or(few, |seeds: u64| (seeds * few / SEEDS).max(1)),
    };
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(|| simulate(seed)));
            let failure = result.unwrap_or_else(|_| Err("it panicked".to_owned())).err();
            if let (Some(failure), Ok(mut failed)) = (failure, failed.lock()) {
                failed.push((seed, failure));
                // The first ones are enough to look at.
                next.store(seeds.end, Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    let failed = failed.into_inner().unwrap_or_default();
    let told = failed
        .iter()
        .map(|(seed, failure)| format!("seed {seed}: {failure}\nalone: SIGMA_SEED={seed} {command}\n"));
    assert!(failed.is_empty(), "{}", told.collect::<String>());
}

/// Calls `holds` with the seeds of a fuzz target, with their beginnings, and with each of them with a bit of one byte
/// changed: so the properties are checked between runs of the fuzzer, too.
///
/// # Panics
/// The target has no seeds, or `holds` panics.
pub fn for_inputs_of(target: &str, holds: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let entries = folder.read_dir().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds = 0;
    for entry in entries.flatten() {
        let seed =
            std::fs::read(entry.path()).unwrap_or_else(|error| panic!("{}: {error}", entry.path().display()));
        holds(&seed);
        for at in 0..seed.len() {
            holds(&seed[..at]);
            let mut other = seed.clone();
            other[at] ^= 1 << (at % 8);
            holds(&other);
        }
        seeds += 1;
    }
    assert!(seeds > 0, "{target} has no seeds");
}
