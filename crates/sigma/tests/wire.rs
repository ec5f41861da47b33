//! Runs every case under `wire/` for every protocol pair that applies. The cases of plugins run for two pairs that have
//! nothing in common: no plugin knows of versions. They are in the folder of the plugin, in `wire.case`; cases about
//! several plugins are in `wire/plugins/`.
//!
//! Cases without settings of their own share gateways; see [`groups`].
//!
//! `SIGMA_CASE=part` runs only the cases whose `file/name`, or `plugin/name`, contains `part`. `SIGMA_IO=io_uring` has the
//! gateways of every test use it; the cases of `wire/` run by epoll and by io_uring in any case.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sigma_testkit::wire::{Pair, groups, run};
use sigma_testkit::{Case, parse_cases};

/// Gateways at a time: each is mostly waiting for its process to start or for something to time out.
const PARALLEL: usize = 4;

/// The folder of this crate's cases, below `tests`, and its folder for cases about several plugins.
const GENERAL: &str = "wire";
const PLUGINS: &str = "wire/plugins";

/// The folders with groups of plugins, from the root of the repository.
const GROUPS: [&str; 2] = ["plugins", "extensions"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The entries of a folder, in order.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut all: Vec<_> = read.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

/// The cases of a folder of `tests`.
fn cases(folder: &str) -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let files = entries(&folder).into_iter().filter(|file| file.extension().is_some_and(|e| e == "case"));
    files.flat_map(|file| read(&file, &file.file_stem().unwrap().to_string_lossy())).collect()
}

/// The cases in the folders of plugins, and those about several plugins.
fn cases_of_plugins() -> Vec<(String, Case)> {
    let crates: Vec<PathBuf> = GROUPS.iter().flat_map(|group| entries(&repository().join(group))).collect();
    let folders =
        crates.iter().filter(|path| path.is_dir()).flat_map(|path| entries(path)).chain(crates.clone());
    let mut files: Vec<PathBuf> = folders.map(|folder| folder.join("wire.case")).collect();
    files.retain(|file| file.is_file());
    files.sort();
    let name = |file: &Path| file.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    let of_plugins = files.iter().flat_map(|file| read(file, &name(file)));
    of_plugins.chain(cases(PLUGINS)).collect()
}

/// The wanted cases of a file, with their names.
fn read(file: &Path, title: &str) -> Vec<(String, Case)> {
    let wanted = std::env::var("SIGMA_CASE").unwrap_or_default();
    let parsed = parse_cases(&std::fs::read_to_string(file).unwrap());
    let all = parsed.unwrap_or_else(|e| panic!("{}: {e:#}", file.display()));
    let named = all.into_iter().map(|case| (format!("{title}/{}", case.name), case));
    named.filter(|(name, _)| name.contains(&wanted)).collect()
}

#[test]
fn names_are_unique() {
    let all = cases(GENERAL).into_iter().chain(cases_of_plugins());
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
    run_all(cases_of_plugins(), &[*first, *last]);
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
