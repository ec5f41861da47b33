//! `cargo xtask fuzz`: the simulations with many seeds, then every target in `fuzz/` for a bounded time.
//!
//! The sanitizer is a nightly feature; `RUSTC_BOOTSTRAP` lets the pinned stable compiler use it, so that fuzz
//! targets are built by the compiler of the release.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// The target to fuzz and the time.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these targets; all without one
    targets: Vec<String>,
    /// Time for each target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Seeds for each simulation
    #[arg(long, default_value_t = 20_000)]
    seeds: u32,
    /// Also keep what each target has found: its smallest inputs go to `fuzz/corpora`
    #[arg(long)]
    keep: bool,
}

/// The crates that have a simulation among their tests.
const SIMULATED: [&str; 3] = ["sigma-control", "sigma-proxy", "sigma-upstream"];

/// Runs the targets one after the other; the first crash ends it and leaves its input in `fuzz/artifacts`.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let known = targets(root)?;
    for target in &options.targets {
        ensure!(known.contains(target), "no target {target:?}: use one of {}", known.join(", "));
    }
    if options.targets.is_empty() {
        simulate(root, options.seeds)?;
    }
    ensure_installed()?;
    for target in if options.targets.is_empty() { &known } else { &options.targets } {
        eprintln!("{target}: {} s", options.seconds);
        // The first folder grows with new inputs, the seeds are only read.
        let corpus = root.join("fuzz/corpus").join(target);
        unpack(root, target, &corpus)?;
        let status = cargo_fuzz()
            .current_dir(root)
            .args(["run", target.as_str()])
            .arg(&corpus)
            .arg(root.join("fuzz/seeds").join(target))
            .args([
                "--",
                &format!("-max_total_time={}", options.seconds),
                "-timeout=10",
                "-print_final_stats=1",
            ])
            .status()?;
        ensure!(
            status.success(),
            "{target} failed: make the input in fuzz/artifacts/{target} a unit test, fix the code, and keep the \
             input in fuzz/seeds/{target}"
        );
        if options.keep {
            keep(root, target, &corpus)?;
        }
    }
    Ok(())
}

/// Where the inputs that a target has found are kept between checkouts.
fn kept(root: &Path, target: &str) -> PathBuf {
    root.join("fuzz/corpora").join(format!("{target}.tar.gz"))
}

/// Begins with earlier inputs.
fn unpack(root: &Path, target: &str, corpus: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(corpus).with_context(|| format!("cannot create {}", corpus.display()))?;
    let archive = kept(root, target);
    if archive.exists() {
        let status = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(corpus).status()?;
        ensure!(
            status.success(),
            "{} cannot be unpacked: remove it to start with an empty corpus",
            archive.display()
        );
    }
    Ok(())
}

/// Packs the inputs that are needed to reach the same code as the whole corpus.
fn keep(root: &Path, target: &str, corpus: &Path) -> anyhow::Result<()> {
    let least = root.join("fuzz/corpus").join(format!("{target}.least"));
    if least.exists() {
        std::fs::remove_dir_all(&least)?;
    }
    std::fs::create_dir_all(&least)?;
    let mut merge = cargo_fuzz();
    merge.current_dir(root).args(["run", target]).arg(&least).arg(corpus).args(["--", "-merge=1"]);
    ensure!(merge.status()?.success(), "the inputs of {target} cannot be merged");
    std::fs::remove_dir_all(corpus)?;
    std::fs::rename(&least, corpus)?;
    pack(corpus, &kept(root, target))
}

/// The same inputs make the same bytes, so that nothing changes where nothing was found.
fn pack(corpus: &Path, archive: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(archive.with_file_name(""))?;
    let status = Command::new("tar")
        .args([
            "--sort=name",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            "--mode=u=rwX,go=rX",
            "-I",
            "gzip -n9",
            "-cf",
        ])
        .arg(archive)
        .arg("-C")
        .arg(corpus)
        .arg(".")
        .status()?;
    ensure!(status.success(), "{} cannot be written", archive.display());
    Ok(())
}

/// Runs the simulations; a failure tells its seed and how to run it alone.
fn simulate(root: &Path, seeds: u32) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root).env("SIGMA_SEEDS", seeds.to_string()).args(["test", "--locked", "--lib"]);
    for name in SIMULATED {
        command.args(["-p", name]);
    }
    ensure!(command.arg("simulation").status()?.success(), "a simulation failed: its seed is printed above");
    Ok(())
}

/// The names of the files in `fuzz/fuzz_targets`, in order.
fn targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let entries = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned);
    let mut names: Vec<String> = entries.filter_map(|entry| name(entry.ok()?)).collect();
    names.sort();
    Ok(names)
}

fn cargo_fuzz() -> Command {
    let mut command = Command::new("cargo");
    command.env("RUSTC_BOOTSTRAP", "1").arg("fuzz");
    command
}

fn ensure_installed() -> anyhow::Result<()> {
    let there = cargo_fuzz().arg("--version").output().is_ok_and(|output| output.status.success());
    if there {
        return Ok(());
    }
    eprintln!("installing cargo-fuzz");
    let status = Command::new("cargo").args(["install", "--locked", "cargo-fuzz"]).status()?;
    ensure!(status.success(), "cargo-fuzz could not be installed: run `cargo install --locked cargo-fuzz`");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_target_has_seeds() {
        let root = crate::repository().expect("tests run where they were built");
        let names = super::targets(&root).expect("the targets can be listed");
        assert!(!names.is_empty());
        for name in names {
            let seeds = root.join("fuzz/seeds").join(&name).read_dir().map_or(0, Iterator::count);
            assert!(seeds > 0, "give {name} a first input in fuzz/seeds/{name}");
        }
    }
}
