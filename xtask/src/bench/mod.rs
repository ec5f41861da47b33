//! `cargo xtask bench`: Sigma beside its peers, in turns, in one run.
//!
//! Absolute times mean nothing on a shared machine; what counts are ratios within one run. So the gateway is
//! pinned to one core with one worker, the load generator and the origin share the other, and the gateways take
//! turns, round after round. Two figures are kept: requests per second, and CPU time per request, which stays
//! steady even when the load generator is the one that cannot keep up.
//!
//! - [`contender`]: which gateways run, with which configuration.
//! - [`shape`]: which traffic they get.
//! - [`trial`]: one measurement.
//! - [`report`] and [`plot`]: `docs/benchmarks.md` and `docs/benchmarks.svg`.

mod contender;
mod install;
mod plot;
mod process;
mod report;
mod shape;
mod trial;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use contender::{Contender, Programs};
use process::Pinned;
use shape::{Kind, Shape};
use trial::{Measure, Results};

/// Files a process of a benchmark may hold open: 9,000 client connections, as many upstream, and room. HAProxy
/// insists on twice its `maxconn`. Not more than machines commonly allow without privileges.
const OPEN_FILES: u64 = 20_000;

/// What one run of the benchmarks does.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// One round of 2 seconds, printed and not written to docs/
    #[arg(long)]
    quick: bool,
    /// Only these shapes of traffic, by comma
    #[arg(long, value_delimiter = ',', value_name = "SHAPE")]
    only: Vec<String>,
    /// The gateways to run beside Sigma, by comma
    #[arg(long, value_delimiter = ',', default_value = "nginx,haproxy,envoy,pingora,floor")]
    peers: Vec<String>,
    /// Length of each measurement
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Measurements of each gateway in each shape; the report gives their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// A Sigma binary to measure instead of building one with the profile `dist`
    #[arg(long, value_name = "FILE")]
    sigma: Option<PathBuf>,
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

    fn shapes(&self) -> anyhow::Result<Vec<Shape>> {
        let all = shape::all();
        for name in &self.only {
            let known: Vec<_> = all.iter().map(|shape| shape.name).collect();
            ensure!(known.contains(&name.as_str()), "no shape {name:?}: use one of {}", known.join(", "));
        }
        Ok(all
            .into_iter()
            .filter(|shape| self.only.is_empty() || self.only.iter().any(|n| n == shape.name))
            .collect())
    }
}

/// The folders of a run.
struct Folders {
    root: PathBuf,
    /// Configurations, logs, peers' programs and results.
    work: PathBuf,
}

/// Runs the benchmarks and, unless quick, rewrites `docs/benchmarks.md` and `docs/benchmarks.svg`.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    for peer in &options.peers {
        let known = contender::FAMILIES;
        ensure!(known.contains(&peer.as_str()), "no peer {peer:?}: use some of {}", known.join(", "));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folders = Folders { root: root.to_owned(), work: target.join("bench") };
    let saved = folders.work.join("results");
    std::fs::create_dir_all(&saved).with_context(|| format!("cannot create {}", saved.display()))?;
    if options.report_only {
        return report::write(&folders.root, &Results::load_all(&saved)?);
    }
    raise_open_files()?;
    let programs = install::programs(&folders, options)?;
    let mut failed = 0;
    for shape in options.shapes()? {
        let results = measure(&shape, &programs, &folders, options)
            .with_context(|| format!("shape {} could not be measured", shape.name))?;
        print!("{}", report::section(&results));
        failed += results.errors_of_sigma();
        if !options.quick {
            results.save(&saved)?;
        }
    }
    if !options.quick {
        report::write(&folders.root, &Results::load_all(&saved)?)?;
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

/// Measures all contenders of one shape, in turns.
fn measure(
    shape: &Shape,
    programs: &Programs,
    folders: &Folders,
    options: &Options,
) -> anyhow::Result<Results> {
    eprintln!("{}: {}", shape.name, shape.title);
    let origin = process::origin(programs, &folders.work)?;
    let mut results = Results::new(shape, options.rounds(), options.seconds());
    let contenders: Vec<Contender> = shape
        .contenders()
        .into_iter()
        .filter(|&contender| options.wants(contender) && programs.path(contender).is_some())
        .collect();
    if let Kind::Load(load) = &shape.kind {
        let mut running = Vec::new();
        for &contender in &contenders {
            let gateway = contender.start(programs, &folders.work, origin.port)?;
            trial::load(load, contender, &gateway, folders, 1)?;
            running.push((contender, gateway));
        }
        for _ in 0..options.rounds() {
            for (contender, gateway) in &running {
                let measure = trial::load(load, *contender, gateway, folders, options.seconds())?;
                results.add(*contender, Measure::Load(measure));
            }
        }
        return Ok(results);
    }
    for _ in 0..options.rounds() {
        for &contender in &contenders {
            let measure = match shape.kind {
                Kind::Idle { connections } => {
                    trial::idle(connections, contender, programs, folders, origin.port)?
                }
                _ => trial::start_up(contender, programs, folders, origin.port)?,
            };
            results.add(contender, measure);
        }
    }
    Ok(results)
}

/// A gateway or origin that runs, and the loopback port it listens on. Dropping it ends the process.
struct Running {
    process: Pinned,
    port: u16,
}
