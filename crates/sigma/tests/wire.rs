//! Runs every case under `wire/` for every protocol pair that applies. The cases of `wire/plugins/`,
//! a file for each plugin, run for two pairs that have nothing in common: no plugin knows of versions.
//!
//! Cases without settings of their own share gateways; see [`groups`].
//!
//! `SIGMA_CASE=part` runs only the cases whose `file/name` contains `part`. `SIGMA_IO=io_uring` has the
//! gateways of every test use it; the cases of `wire/` run by epoll and by io_uring in any case.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

use std::path::Path;
use std::sync::Mutex;

use sigma_testkit::wire::{Pair, groups, run};
use sigma_testkit::{Case, parse_cases};

/// Gateways at a time: each is mostly waiting for its process to start or for something to time out.
const PARALLEL: usize = 4;

/// Where the cases are, below `tests`.
const GENERAL: &str = "wire";
const PLUGINS: &str = "wire/plugins";

fn cases(folder: &str) -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "case"));
    files.sort();
    let wanted = std::env::var("SIGMA_CASE").unwrap_or_default();
    let mut all = Vec::new();
    for file in files {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        let parsed = parse_cases(&std::fs::read_to_string(&file).unwrap());
        for case in parsed.unwrap_or_else(|e| panic!("{}: {e:#}", file.display())) {
            let name = format!("{stem}/{}", case.name);
            if name.contains(&wanted) {
                all.push((name, case));
            }
        }
    }
    all
}

#[test]
fn names_are_unique() {
    let all = [GENERAL, PLUGINS].into_iter().flat_map(cases);
    let mut names: Vec<String> = all.map(|(name, _)| name).collect();
    names.sort();
    let doubled: Vec<_> = names.windows(2).filter(|w| w[0] == w[1]).map(|w| &w[0]).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
}

#[test]
fn wire() {
    run_all(cases(GENERAL), Pair::ALL);
}

#[test]
fn wire_by_io_uring() {
    let pairs: Vec<Pair> = Pair::ALL.iter().map(|pair| pair.by_io_uring()).collect();
    run_all(cases(GENERAL), &pairs);
}

#[test]
fn plugins() {
    // HTTP/1 in clear text and HTTP/2 over TLS.
    let [first, .., last] = Pair::ALL else { panic!("at least two pairs") };
    run_all(cases(PLUGINS), &[*first, *last]);
}

fn run_all(cases: Vec<(String, Case)>, pairs: &[Pair]) {
    let of_pair = |pair: &Pair| {
        let applying = cases.iter().filter(|(_, case)| pair.applies(case)).cloned().collect();
        groups(applying).into_iter().map(|group| (group, *pair)).collect::<Vec<_>>()
    };
    let queue: Vec<(Vec<(String, Case)>, Pair)> = pairs.iter().flat_map(of_pair).collect();
    let total: usize = queue.iter().map(|(group, _)| group.len()).sum();
    let queue = Mutex::new(queue.into_iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                loop {
                    let Some((group, pair)) = queue.lock().unwrap().next() else { return };
                    let failures = run(&group, env!("CARGO_BIN_EXE_sigma"), pair);
                    failed.lock().unwrap().extend(failures);
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
    assert!(failed.is_empty(), "{} of {total} cases failed\n\n{}", failed.len(), failed.join("\n\n"));
}
