//! The suites: what `cargo xtask bench` can compare.
//!
//! A suite is a file here and a line in [`ALL`]. It names its trials, measures one of them at a time, keeps
//! its results under [`Folders::results`], and writes the section of the report from them.

mod cache;
mod config;
mod count;
mod extensions;
mod gateways;
mod h2;
mod h3;
mod observe;
mod plugins;
mod streams;
mod tls;

use std::fs;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::contender::Contender;
use super::edge::Edge;
use super::launch::Running;
use super::trial::{LoadMeasure, Measure, Results};
use super::{Bench, Folders};

/// Something that can be compared.
pub(super) struct Suite {
    /// The name on the command line.
    pub(super) name: &'static str,
    /// The gateways that it compares Sigma with, by their names on the command line.
    pub(super) peers: &'static [&'static str],
    /// The other programs that it runs and the project does not build.
    pub(super) tools: &'static [&'static str],
    /// The names of its trials, in the order of the report.
    pub(super) trials: fn() -> Vec<&'static str>,
    /// Measures one trial and, unless the run is quick, keeps the result.
    pub(super) measure: fn(&Bench<'_>, &str) -> anyhow::Result<Outcome>,
    /// Its part of `docs/benchmarks.md`, from the results that were kept; empty without any.
    pub(super) report: fn(&Folders) -> anyhow::Result<String>,
    /// Writes the pages that its results stand in.
    pub(super) publish: fn(&Folders) -> anyhow::Result<()>,
}

/// The result of a trial.
pub(super) struct Outcome {
    /// Markdown.
    pub(super) section: String,
    /// Requests that Sigma responded with an error; the figures are void unless this is 0.
    pub(super) errors: u64,
}

/// All suites, in the order of the report.
pub(super) static ALL: [Suite; 11] = [
    gateways::SUITE,
    tls::SUITE,
    h2::SUITE,
    h3::SUITE,
    streams::SUITE,
    plugins::SUITE,
    extensions::SUITE,
    cache::SUITE,
    observe::SUITE,
    config::SUITE,
    count::SUITE,
];

/// The suite of this name.
pub(super) fn named(name: &str) -> anyhow::Result<&'static Suite> {
    match ALL.iter().find(|suite| suite.name == name) {
        Some(suite) => Ok(suite),
        None => {
            let known: Vec<_> = ALL.iter().map(|suite| suite.name).collect();
            bail!("no suite {name:?}: use one of {}", known.join(", "))
        }
    }
}

/// The gateways that speak every [`Edge`].
const EDGE_PEERS: [&str; 3] = ["nginx", "haproxy", "envoy"];

/// Measures Sigma and [`EDGE_PEERS`] with `edge` in front of `origin`, in turns, after a second each to warm up.
///
/// `load` loads the gateway that it is given, under its name in tables, for so many seconds.
fn in_turns(
    bench: &Bench<'_>,
    trial: &str,
    edge: &Edge,
    origin: u16,
    load: impl Fn(&str, &Running, u32) -> anyhow::Result<LoadMeasure>,
) -> anyhow::Result<Results> {
    let Bench { options, folders, programs } = bench;
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let all = [
        Contender::Sigma { routes: 1 },
        Contender::Nginx { keepalive: 512 },
        Contender::Haproxy,
        Contender::Envoy,
    ];
    let mut running = Vec::new();
    for contender in all {
        if !options.wants(contender) || programs.path(contender).is_none() {
            continue;
        }
        let launch = contender.prepare_edge(programs, &folders.work, origin, edge)?;
        let gateway = launch.start_listening()?;
        load(&launch.label, &gateway, 1).with_context(|| format!("read {}", launch.log.display()))?;
        running.push((launch.label, gateway));
    }
    let mut results =
        Results { shape: trial.into(), title: String::new(), rounds, seconds, contenders: Vec::new() };
    for _ in 0..rounds {
        for (label, gateway) in &running {
            results.add(label, Measure::Load(load(label, gateway, seconds)?));
        }
    }
    Ok(results)
}

/// A section of the report as it was written when its trial ran, for suites whose tables need no other results.
#[derive(Serialize, Deserialize)]
struct Section {
    text: String,
}

/// Keeps the section of `suite`'s `trial`, and gives it as the outcome.
fn kept(bench: &Bench<'_>, suite: &str, trial: &str, text: String, errors: u64) -> anyhow::Result<Outcome> {
    let section = Section { text };
    if !bench.options.quick {
        let path = bench.folders.results().join(format!("{suite}-{trial}.json"));
        fs::write(&path, serde_json::to_vec_pretty(&section)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Outcome { section: section.text, errors })
}

/// The kept sections of `suite`, in the order of its trials.
fn kept_sections(folders: &Folders, suite: &str, trials: &[&str]) -> anyhow::Result<String> {
    let mut text = String::new();
    for trial in trials {
        let path = folders.results().join(format!("{suite}-{trial}.json"));
        let Ok(bytes) = fs::read(&path) else { continue };
        let section: Section = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} cannot be read: remove it and measure again", path.display()))?;
        text.push_str(&section.text);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_and_trials_have_names_of_their_own() {
        for (at, suite) in ALL.iter().enumerate() {
            assert!(ALL[..at].iter().all(|other| other.name != suite.name), "{}", suite.name);
            let trials = (suite.trials)();
            for (at, trial) in trials.iter().enumerate() {
                assert!(!trials[..at].contains(trial), "{trial} of {}", suite.name);
            }
        }
        assert!(named("gateways").is_ok());
        let unknown = named("routers").err().map(|error| error.to_string());
        assert_eq!(
            unknown.as_deref(),
            Some(
                "no suite \"routers\": use one of gateways, tls, h2, h3, streams, plugins, extensions, cache, observe, config, count"
            )
        );
    }
}
