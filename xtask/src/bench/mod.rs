//! `cargo xtask bench [SUITE]`: Sigma compared with its peers, or with itself, in turns, in one run.
//!
//! Absolute times mean nothing on a shared machine; what counts are ratios within one run. So the gateway is
//! pinned to one core, the load generator and the origin share the other, and the contenders take turns,
//! round after round. Two figures are kept: requests per second, and CPU time per request, which stays steady
//! even when the load generator is the one that cannot keep up.
//!
//! - [`suite`]: the comparisons; a new one is a file there.
//! - [`contender`]: which gateways run, with which configuration.
//! - [`edge`]: which protocols they speak.
//! - [`relay`]: which gateways run as forwarders of bytes.
//! - [`shape`]: which traffic they get.
//! - [`launch`] and [`process`]: how programs are started.
//! - [`trial`] and [`h2load`]: one measurement, over HTTP/1.1 and HTTP/2.
//! - [`callgrind`]: one measurement in instructions.
//! - [`build`]: the times of a build of the program.
//! - [`report`] and [`plot`]: `docs/benchmarks.md` and `docs/benchmarks.svg`, and the tables of other pages.

mod build;
mod callgrind;
mod client;
mod contender;
mod edge;
mod h2load;
mod install;
mod launch;
mod plot;
mod process;
mod relay;
mod report;
mod shape;
mod suite;
mod trial;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use contender::{Contender, Programs};
use suite::Suite;

/// Files a process of a benchmark may hold open: 9,000 client connections, as many upstream, and room. HAProxy
/// insists on twice its `maxconn`. Not more than machines commonly allow without privileges.
const OPEN_FILES: u64 = 20_000;

/// The options of one run of the benchmarks.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The comparison: gateways, tls, h2, h3, streams, plugins, extensions, cache, observe, config or count; `build` times a
    /// build
    #[arg(default_value = "gateways")]
    suite: String,
    /// One round of 2 seconds, printed and not written to docs/
    #[arg(long)]
    quick: bool,
    /// Only these trials of the suite, by comma
    #[arg(long, value_delimiter = ',', value_name = "TRIAL")]
    only: Vec<String>,
    /// The gateways to compare Sigma with, by comma
    #[arg(long, value_delimiter = ',', default_value = "nginx,haproxy,envoy,pingora,floor")]
    peers: Vec<String>,
    /// Length of each measurement
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Measurements of each contender in each trial; the report gives their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// A Sigma binary to measure instead of building one with the profile `dist`
    #[arg(long, value_name = "FILE")]
    sigma: Option<PathBuf>,
    /// The profile of cargo that `build` times
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Leave Sigma out: measure the peers alone
    #[arg(long)]
    without_sigma: bool,
    /// Write docs/benchmarks.* from the last results and measure nothing
    #[arg(long)]
    report_only: bool,
}

impl Options {
    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    fn seconds(&self) -> u32 {
        if self.quick { 2 } else { self.seconds }
    }

    fn wants(&self, contender: Contender) -> bool {
        match contender {
            Contender::Sigma { .. } => !self.without_sigma,
            other => self.peers.iter().any(|peer| peer == other.family()),
        }
    }

    /// The trials of `suite` that are requested, in the suite's order.
    fn trials(&self, suite: &Suite) -> anyhow::Result<Vec<&'static str>> {
        let all = (suite.trials)();
        for name in &self.only {
            let known = all.join(", ");
            ensure!(all.contains(&name.as_str()), "no trial {name:?} in {}: use one of {known}", suite.name);
        }
        let asked = |trial: &&str| self.only.is_empty() || self.only.iter().any(|name| name == trial);
        Ok(all.into_iter().filter(asked).collect())
    }
}

/// The folders of a run.
struct Folders {
    root: PathBuf,
    /// Configurations, logs, peers' programs and results.
    work: PathBuf,
}

impl Folders {
    fn results(&self) -> PathBuf {
        self.work.join("results")
    }
}

/// The inputs of every trial.
struct Bench<'a> {
    options: &'a Options,
    folders: &'a Folders,
    programs: Programs,
}

/// The suites that load all parts of a gateway.
const EXERCISES: [&str; 8] = ["gateways", "tls", "h2", "h3", "streams", "plugins", "cache", "observe"];

/// Loads a Sigma binary as the benchmarks do, without peers: every trial once and briefly.
pub(crate) fn exercise(root: &Path, sigma: &Path) -> anyhow::Result<()> {
    for suite in EXERCISES {
        let options = Options {
            suite: suite.to_owned(),
            quick: true,
            only: Vec::new(),
            peers: Vec::new(),
            seconds: 2,
            rounds: 1,
            sigma: Some(sigma.to_owned()),
            profile: String::new(),
            without_sigma: false,
            report_only: false,
        };
        run(root, &options)?;
    }
    Ok(())
}

/// Runs one suite and, unless quick, rewrites the pages that its results stand in.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    for peer in &options.peers {
        let known = contender::FAMILIES;
        ensure!(known.contains(&peer.as_str()), "no peer {peer:?}: use some of {}", known.join(", "));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folders = Folders { root: root.to_owned(), work: target.join("bench") };
    let saved = folders.results();
    std::fs::create_dir_all(&saved).with_context(|| format!("cannot create {}", saved.display()))?;
    if options.report_only {
        return report::write(&folders);
    }
    if options.suite == "build" {
        return build::run(root, &folders.work, &options.profile);
    }
    let suite = suite::named(&options.suite)?;
    let trials = options.trials(suite)?;
    raise_open_files()?;
    let programs = install::programs(&folders, options, suite)?;
    let bench = Bench { options, folders: &folders, programs };
    let mut failed = 0;
    for trial in trials {
        let outcome = (suite.measure)(&bench, trial)
            .with_context(|| format!("{trial} of the suite {} could not be measured", suite.name))?;
        print!("{}", outcome.section);
        failed += outcome.errors;
    }
    if !options.quick {
        (suite.publish)(&folders)?;
    }
    if failed > 0 {
        bail!(
            "Sigma answered {failed} requests with an error: its figures above mean nothing until that is 0"
        );
    }
    Ok(())
}

fn raise_open_files() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let had = getrlimit(Resource::Nofile);
    if had.current.is_none_or(|files| files >= OPEN_FILES) {
        return Ok(());
    }
    let maximum = had.maximum.map(|files| files.max(OPEN_FILES));
    setrlimit(Resource::Nofile, Rlimit { current: Some(OPEN_FILES), maximum }).with_context(|| {
        format!("cannot raise the limit of open files: run `ulimit -n {OPEN_FILES}` as root first")
    })
}
