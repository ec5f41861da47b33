//! The project's own tools: `cargo xtask tidy`, `cargo xtask docs`, `cargo xtask bench`,
//! `cargo xtask fuzz`, `cargo xtask test`, `cargo xtask stress`, `cargo xtask soak`, `cargo xtask chaos`,
//! `cargo xtask endure` and `cargo xtask package`.
//!
//! They are plain code next to the code they serve, so that no script outlives its subject.

mod bench;
mod chaos;
mod docs;
mod endure;
mod fuzz;
mod package;
mod soak;
mod stress;
mod test_runner;
mod tidy;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Sigma's house checks and benchmarks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the rules of the house on the whole repository
    Tidy,
    /// Write the documents that are made from code
    Docs,
    /// Measure Sigma and other gateways, in turns, in one run
    Bench(bench::Options),
    /// Run the simulations with many seeds, then the fuzz targets for a bounded time
    Fuzz(fuzz::Options),
    /// Run the tests of the workspace; ends with all failures and the slowest tests
    Test(test_runner::Options),
    /// Run tests many times under load
    Stress(stress::Options),
    /// Run HTTP/2 for long and with many of everything
    Soak(soak::Options),
    /// Run requests past nodes that fail at random
    Chaos(chaos::Options),
    /// Reload, upgrade and kill a gateway under connections of every kind
    Endure(endure::Options),
    /// Make a release: tarball, Debian package, image, list of crates and checksums
    Package(package::Options),
}

/// The repository's root: the folder that holds `xtask/`.
fn repository() -> anyhow::Result<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().context("the repository that xtask was built in has moved: build xtask again")
}

fn main() -> anyhow::Result<()> {
    let root = repository()?;
    match Cli::parse().task {
        Task::Tidy => tidy::run(&root),
        Task::Docs => docs::run(&root),
        Task::Bench(options) => bench::run(&root, &options),
        Task::Fuzz(options) => fuzz::run(&root, &options),
        Task::Test(options) => test_runner::run(&root, &options),
        Task::Stress(options) => stress::run(&root, &options),
        Task::Soak(options) => soak::run(&root, &options),
        Task::Chaos(options) => chaos::run(&root, &options),
        Task::Endure(options) => endure::run(&root, &options),
        Task::Package(options) => package::run(&root, &options),
    }
}
