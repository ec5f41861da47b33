//! One measurement of one gateway, and the results of a shape.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::Folders;
use super::contender::{Contender, Programs};
use super::launch::Running;
use super::process::{LOAD_CORE, pinned};
use super::shape::{self, Load, Shape};

/// The result of one trial.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Measure {
    Load(LoadMeasure),
    Idle {
        /// Before the first and after the last connection, in KiB.
        before_kib: u64,
        after_kib: u64,
        failed: u64,
    },
    StartUp {
        micros: u64,
    },
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct LoadMeasure {
    pub(super) requests: u64,
    pub(super) per_second: f64,
    /// CPU time of the gateway for one request, in µs.
    pub(super) cpu_micros: f64,
    pub(super) p50_micros: u64,
    pub(super) p99_micros: u64,
    pub(super) memory_kib: u64,
    /// Answers outside 2xx and 3xx, socket errors and time-outs.
    pub(super) errors: u64,
}

/// All trials of one shape; kept as a file so that a report can join shapes that were measured apart.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) shape: String,
    pub(super) title: String,
    pub(super) rounds: u32,
    pub(super) seconds: u32,
    /// Label of the contender and its trials, in the order of measurement.
    pub(super) contenders: Vec<(String, Vec<Measure>)>,
}

impl Results {
    pub(super) fn new(shape: &Shape, rounds: u32, seconds: u32) -> Self {
        Self { shape: shape.name.into(), title: shape.title.into(), rounds, seconds, contenders: Vec::new() }
    }

    pub(super) fn add(&mut self, label: &str, measure: Measure) {
        match self.contenders.iter_mut().find(|(known, _)| known == label) {
            Some((_, measures)) => measures.push(measure),
            None => self.contenders.push((label.to_owned(), vec![measure])),
        }
    }

    pub(super) fn errors_of_sigma(&self) -> u64 {
        let own = self.contenders.iter().filter(|(label, _)| label.starts_with("Sigma"));
        own.flat_map(|(_, measures)| measures).map(Measure::errors).sum()
    }

    pub(super) fn save(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(format!("{}.json", self.shape));
        fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The last saved results of every shape, in the order of the shapes.
    pub(super) fn load_all(folder: &Path) -> anyhow::Result<Vec<Self>> {
        let mut all = Vec::new();
        for shape in shape::all() {
            let path = folder.join(format!("{}.json", shape.name));
            let Ok(bytes) = fs::read(&path) else { continue };
            all.push(serde_json::from_slice(&bytes).with_context(|| {
                format!("{} is from an older version: remove it and measure that shape again", path.display())
            })?);
        }
        Ok(all)
    }
}

impl Measure {
    pub(super) fn load(&self) -> Option<&LoadMeasure> {
        match self {
            Self::Load(load) => Some(load),
            _ => None,
        }
    }

    pub(super) fn errors(&self) -> u64 {
        match self {
            Self::Load(load) => load.errors,
            Self::Idle { failed, .. } => *failed,
            Self::StartUp { .. } => 0,
        }
    }
}

/// The target of the load generator.
pub(super) struct Target {
    /// The name in tables and messages.
    pub(super) label: String,
    /// `http` or `https`.
    pub(super) scheme: &'static str,
    pub(super) path: String,
    /// Requests take turns with the values `key-0`, `key-1`, … of the field `apikey`; with 0 it is not sent.
    pub(super) keys: u32,
    /// The value of `Authorization` of all requests; empty for none.
    pub(super) authorization: String,
}

impl Target {
    /// Returns the target of `load` at `contender`.
    pub(super) fn of(contender: Contender, load: &Load) -> Self {
        Self {
            label: contender.label(),
            scheme: "http",
            path: contender.path(load.path),
            keys: 0,
            authorization: String::new(),
        }
    }
}

/// Runs the load generator against `gateway` for `seconds`.
pub(super) fn load(
    load: &Load,
    target: &Target,
    gateway: &Running,
    folders: &Folders,
    seconds: u32,
) -> anyhow::Result<LoadMeasure> {
    let script = folders.root.join("bench/wrk/report.lua").display().to_string();
    let url = format!("{}://127.0.0.1:{}{}", target.scheme, gateway.port, target.path);
    let mut command = vec![
        "wrk".to_owned(),
        "-t1".into(),
        format!("-c{}", load.connections),
        format!("-d{seconds}s"),
        "--latency".into(),
        "--timeout=10s".into(),
        "-s".into(),
        script,
        url,
        "--".into(),
        load.method.into(),
        load.body_bytes.to_string(),
        if load.close { "close" } else { "keep" }.into(),
        target.keys.to_string(),
    ];
    if !target.authorization.is_empty() {
        command.push(target.authorization.clone());
    }
    measured(&command, &target.label, gateway)
}

/// Runs a load generator that prints the line of `bench/wrk/report.lua` against `gateway`, which `label` names in
/// messages.
pub(super) fn measured(command: &[String], label: &str, gateway: &Running) -> anyhow::Result<LoadMeasure> {
    let program = command.first().map_or("", String::as_str);
    let before = gateway.process.cpu();
    let output = pinned(LOAD_CORE, command).output();
    let output = output.with_context(|| format!("cannot run {program}: install it"))?;
    let cpu = gateway.process.cpu().saturating_sub(before);
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = figures(&text).with_context(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        format!("{program} printed no result for {label}: {text}{error}")
    })?;
    let figure = |name: &str| figures.get(name).copied().unwrap_or(0);
    let requests = figure("requests");
    ensure!(requests > 0, "{label} answered no request");
    Ok(LoadMeasure {
        requests,
        per_second: requests as f64 * 1e6 / figure("micros").max(1) as f64,
        cpu_micros: cpu.as_secs_f64() * 1e6 / requests as f64,
        p50_micros: figure("p50"),
        p99_micros: figure("p99"),
        memory_kib: gateway.process.memory_kib(),
        errors: figure("status") + figure("socket") + figure("timeout") + figure("errors"),
    })
}

/// The numbers on the line that a load generator prints.
fn figures(text: &str) -> Option<BTreeMap<&str, u64>> {
    let line = text.lines().find_map(|line| line.strip_prefix("result "))?;
    line.split_whitespace()
        .map(|pair| pair.split_once('=').and_then(|(name, n)| Some((name, n.parse().ok()?))))
        .collect()
}

/// Starts the gateway afresh and holds `connections` idle ones to it.
pub(super) fn idle(
    connections: u32,
    contender: Contender,
    programs: &Programs,
    folders: &Folders,
    origin: u16,
) -> anyhow::Result<Measure> {
    let gateway = contender.start(programs, &folders.work, origin)?;
    let before_kib = gateway.process.memory_kib();
    let command = [programs.idle.display().to_string(), gateway.port.to_string(), connections.to_string()];
    let mut client = pinned(LOAD_CORE, &command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(output) = client.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let after_kib = gateway.process.memory_kib();
    // Closing its input ends the client.
    drop(client.stdin.take());
    client.wait()?;
    let failed = line.trim().strip_prefix("ready ").and_then(|count| count.parse().ok());
    let failed =
        failed.with_context(|| format!("the idle client of {} did not finish", contender.label()))?;
    Ok(Measure::Idle { before_kib, after_kib, failed })
}

/// Times the start of the gateway up to its first response.
pub(super) fn start_up(
    contender: Contender,
    programs: &Programs,
    folders: &Folders,
    origin: u16,
) -> anyhow::Result<Measure> {
    let launch = contender.prepare(programs, &folders.work, origin)?;
    let (_running, elapsed) = launch.start()?;
    Ok(Measure::StartUp { micros: elapsed.as_micros().try_into().unwrap_or(u64::MAX) })
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn results_are_read_from_the_line_that_the_script_prints() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(figures(text).and_then(|found| found.get("requests").copied()), expected, "{text:?}");
        };
        check("Running 2s test\nresult requests=7 p50=3\n", Some(7));
        check("unable to connect\n", None);
        check("result requests=seven\n", None);
    }
}
