//! Runs every case under `wire/` for every protocol pair that applies. The cases of `wire/plugins/`,
//! a file for each plugin, run for two pairs that have nothing in common: no plugin knows of versions.
//!
//! `SIGMA_CASE=part` runs only the cases whose `file/name` contains `part`.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

use std::path::Path;
use std::sync::Mutex;

use sigma_testkit::wire::{Pair, run};
use sigma_testkit::{Case, parse_cases};

/// Cases at a time: each is mostly waiting for its own process to start or to time out.
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
fn plugins() {
    // HTTP/1 in clear text and HTTP/2 over TLS.
    let [first, .., last] = Pair::ALL else { panic!("at least two pairs") };
    run_all(cases(PLUGINS), &[*first, *last]);
}

fn run_all(cases: Vec<(String, Case)>, pairs: &[Pair]) {
    let queue: Vec<(String, Case, Pair)> = cases
        .into_iter()
        .flat_map(|(name, case)| pairs.iter().map(move |&pair| (name.clone(), case.clone(), pair)))
        .filter(|(_, case, pair)| pair.applies(case))
        .collect();
    let total = queue.len();
    let queue = Mutex::new(queue.into_iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                loop {
                    let Some((name, case, pair)) = queue.lock().unwrap().next() else { return };
                    if let Err(e) = run(&case, env!("CARGO_BIN_EXE_sigma"), pair) {
                        failed.lock().unwrap().push(format!("{name} ({pair}): {e:#}"));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
    assert!(failed.is_empty(), "{} of {total} cases failed\n\n{}", failed.len(), failed.join("\n\n"));
}
