//! `cargo xtask soak`: HTTP/2 for long, and with many of everything.
//!
//! Two gateways in a row, so that the codec has both roles: the first responses itself, asks the second over HTTP/2,
//! or asks it over HTTP/1. First [`matrix`]: h2load from 1 connection to 500, of 1 stream to 100 each, where no
//! request may fail. Then [`resets`]: millions of requests, of which a share is taken back in any state, where the
//! memory of both gateways may not grow from the first half to the second.

mod chain;
mod client;
pub(crate) mod gateway;
mod matrix;
mod resets;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use chain::Chain;

/// How long and how much.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Requests while memory is watched
    #[arg(long, default_value_t = 10_000_000)]
    requests: u64,
    /// Requests of each pair of connections and streams, or as many as are open at a time; 0 leaves them out
    #[arg(long, default_value_t = 20_000)]
    each: u32,
    /// Connections at a time while memory is watched
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Of a hundred requests so many are taken back
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=90))]
    resets_percent: u8,
    /// A Sigma binary to use instead of building one with the profile `release`
    #[arg(long, value_name = "FILE")]
    sigma: Option<PathBuf>,
}

/// The ways of a request: answered by the first gateway, or by the second over either version.
const PATHS: [&str; 3] = ["/own", "/h2", "/h1"];

/// Runs both parts; the first failure ends it.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let sigma = match &options.sigma {
        Some(path) => path.canonicalize().with_context(|| format!("no Sigma at {}", path.display()))?,
        None => build(root)?,
    };
    let work = root.join("target/soak");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    if options.each > 0 {
        matrix::run(&Chain::start(&sigma, &work)?, options.each)?;
    }
    resets::run(&Chain::start(&sigma, &work)?, options)
}

/// Builds Sigma with the profile `release`.
pub(crate) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let command = ["build", "--release", "--locked", "-p", "sigma"];
    let status = Command::new("cargo").current_dir(root).args(command).status()?;
    ensure!(status.success(), "Sigma does not build: read what cargo says above");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/sigma"))
}
