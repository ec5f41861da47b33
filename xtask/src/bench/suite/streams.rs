//! Sigma compared with other gateways as a forwarder of bytes over TCP, and of datagrams.
//!
//! CPU time is compared, by the GiB, the session and the datagram: it does not depend on the speed of the
//! load generator. How many datagrams pass in a second does.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use super::{Outcome, Suite};
use crate::bench::h2load::{self, Batch};
use crate::bench::launch::Running;
use crate::bench::process::{LOAD_CORE, pinned};
use crate::bench::report::{self, Markers};
use crate::bench::{Bench, Folders, process, relay};

pub(super) const SUITE: Suite = Suite {
    name: "streams",
    peers: &["nginx", "haproxy", "floor"],
    tools: &["h2load"],
    trials,
    measure,
    report: |_| Ok(String::new()),
    publish,
};

/// The marks around the table in `docs/performance.md`.
const MARKS: Markers = Markers { start: "<!-- bench:streams:start -->", end: "<!-- bench:streams:end -->" };

/// Its label, in the table and among the contenders.
const SIGMA: &str = "Sigma";

/// MiB that one round of the bulk trial moves.
const BULK_MIB: u64 = 4 * 1024;
/// Sessions of one round.
const SESSIONS: u64 = 16_000;
/// Datagrams of one round, each of which gets a response.
const DATAGRAMS: u64 = 200_000;

/// The work of a trial.
#[derive(Clone, Copy)]
enum Work {
    /// Responses of 1 MiB over so many kept sessions.
    Bulk { connections: u32 },
    /// Sessions of one small exchange each.
    Sessions,
    /// So many sessions that idle after one exchange.
    Idle(u32),
    /// Small datagrams of a few clients, each of which gets a response; whether wall time is measured, and not CPU
    /// time.
    Datagrams { by_clock: bool },
}

struct Trial {
    name: &'static str,
    title: &'static str,
    work: Work,
}

static TRIALS: [Trial; 8] = [
    Trial { name: "bulk-1", title: "CPU ms per GiB, 1 session", work: Work::Bulk { connections: 1 } },
    Trial { name: "bulk-20", title: "CPU ms per GiB, 20 sessions", work: Work::Bulk { connections: 20 } },
    Trial { name: "sessions", title: "CPU µs per session of one small exchange", work: Work::Sessions },
    Trial { name: "idle-100", title: "KiB for each of 100 idle sessions", work: Work::Idle(100) },
    // For machines that let a process open 20,000 files, of which clients have a share.
    Trial { name: "idle-4500", title: "KiB for each of 4,500 idle sessions", work: Work::Idle(4_500) },
    Trial { name: "idle-10000", title: "KiB for each of 10,000 idle sessions", work: Work::Idle(10_000) },
    Trial {
        name: "datagrams",
        title: "CPU µs per datagram and its answer, UDP",
        work: Work::Datagrams { by_clock: false },
    },
    Trial {
        name: "datagrams-pace",
        title: "µs between answers over UDP, 32 clients",
        work: Work::Datagrams { by_clock: true },
    },
];

fn trials() -> Vec<&'static str> {
    TRIALS.iter().map(|trial| trial.name).collect()
}

/// A row of the table.
#[derive(Serialize, Deserialize)]
struct Row {
    cells: Vec<Cell>,
}

/// The needs of a contender.
#[derive(Serialize, Deserialize)]
struct Cell {
    label: String,
    figure: f64,
    /// Sigma's share of it: the median of the rounds' shares, each of which has the same disturbances of the
    /// machine in both parts.
    share: Option<f64>,
}

impl Row {
    /// Of the figures of all rounds, by label.
    fn of(rounds: Vec<(String, Vec<f64>)>) -> Row {
        let sigma = rounds.iter().find(|(label, _)| label == SIGMA).map(|(_, figures)| figures.clone());
        let cell = |(label, figures): (String, Vec<f64>)| {
            let of_sigma = sigma.iter().flatten().zip(&figures);
            let shares: Vec<f64> =
                of_sigma.filter(|(_, theirs)| **theirs > 0.0).map(|(own, theirs)| own / theirs).collect();
            let share = (label != SIGMA && !shares.is_empty()).then(|| median(shares));
            Cell { label, figure: median(figures), share }
        };
        Row { cells: rounds.into_iter().map(cell).collect() }
    }
}

fn measure(bench: &Bench<'_>, name: &str) -> anyhow::Result<Outcome> {
    let trial = TRIALS.iter().find(|trial| trial.name == name).context("no such trial")?;
    eprintln!("{name}: {}", trial.title);
    let Bench { options, folders, programs } = bench;
    raise_open_files();
    let origin = process::origin(programs, &folders.work)?;
    let mut rounds: Vec<(String, Vec<f64>)> = Vec::new();
    let mut add = |label: &str, figure| match rounds.iter_mut().find(|(known, _)| known == label) {
        Some((_, figures)) => figures.push(figure),
        None => rounds.push((label.to_owned(), vec![figure])),
    };
    let takes = |contender| match trial.work {
        Work::Datagrams { .. } => relay::takes_datagrams(contender),
        _ => true,
    };
    let present =
        relay::CONTENDERS.into_iter().filter(|&c| options.wants(c) && programs.path(c).is_some() && takes(c));
    let mut running = Vec::new();
    for contender in present {
        let launch = relay::prepare(contender, programs, &folders.work, origin.port)?;
        let start = || launch.start_listening();
        if let Work::Idle(count) = trial.work {
            // Each afresh, so that none has memory of the one before.
            for _ in 0..options.rounds().min(3) {
                add(&launch.label, idle(bench, &start()?, count)?);
            }
            continue;
        }
        let gateway = start()?;
        load(bench, &gateway, origin.port, trial.work, 16)
            .with_context(|| format!("read {}", launch.log.display()))?;
        running.push((launch.label, gateway));
    }
    for _ in 0..options.rounds() {
        for (label, gateway) in &running {
            add(label, load(bench, gateway, origin.port, trial.work, 1)?);
        }
    }
    let row = Row::of(rounds);
    if !options.quick {
        let path = kept(folders, trial);
        fs::write(&path, serde_json::to_vec_pretty(&row)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Outcome { section: line(trial, &row), errors: 0 })
}

/// CPU time of `gateway` for a GiB in ms, or for a session or a datagram in µs; of a `part`th of a round's load.
fn load(bench: &Bench<'_>, gateway: &Running, node: u16, work: Work, part: u64) -> anyhow::Result<f64> {
    let before = gateway.process.cpu();
    let units = match work {
        Work::Bulk { connections } => {
            let url = format!("http://127.0.0.1:{}/1m", gateway.port);
            let requests = BULK_MIB / part;
            h2load::run(&Batch { connections, requests, url, options: &["--h1".to_owned()] })?;
            requests as f64 / 1024.0 * 1000.0
        }
        Work::Sessions | Work::Idle(_) => {
            let sessions = SESSIONS / part;
            let program = bench.programs.sessions.display().to_string();
            let command = [program, gateway.port.to_string(), sessions.to_string()];
            let output = pinned(LOAD_CORE, &command).output().context("cannot run bench-sessions")?;
            let text = String::from_utf8_lossy(&output.stdout);
            ensure!(text.trim() == "done 0", "sessions of {} failed: {text}", gateway.port);
            sessions as f64
        }
        Work::Datagrams { by_clock } => {
            let count = DATAGRAMS / part;
            let program = bench.programs.datagrams.display().to_string();
            let command = [program, gateway.port.to_string(), node.to_string(), count.to_string()];
            let output = pinned(LOAD_CORE, &command).output().context("cannot run bench-datagrams")?;
            let text = String::from_utf8_lossy(&output.stdout);
            let took_us = text.trim().strip_prefix("done 0 ").and_then(|us| us.parse::<f64>().ok());
            let took_us =
                took_us.with_context(|| format!("datagrams of {} were lost: {text}", gateway.port))?;
            if by_clock {
                return Ok(took_us / count as f64);
            }
            count as f64
        }
    };
    let cpu = gateway.process.cpu().saturating_sub(before);
    Ok(cpu.as_secs_f64() * 1e6 / units)
}

/// Lets later processes open as many files as all idle sessions need, with a share for clients of less than
/// half. Where that is not allowed the trial fails and says so.
fn raise_open_files() {
    let most = 65_536;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < most)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })
    {
        eprintln!("the limit of open files stays at {:?}: {error}", limit.maximum);
        // As many as there may be; that is always allowed.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Memory of each of `count` sessions that idle on `gateway`, in KiB.
fn idle(bench: &Bench<'_>, gateway: &Running, count: u32) -> anyhow::Result<f64> {
    // The first use of everything is no session's.
    load(bench, gateway, 0, Work::Sessions, 80)?;
    let before = gateway.process.memory_kib();
    let command = [bench.programs.idle.display().to_string(), gateway.port.to_string(), count.to_string()];
    let mut client = pinned(LOAD_CORE, &command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(output) = client.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let after = gateway.process.memory_kib();
    // Closing its input ends the client.
    drop(client.stdin.take());
    client.wait()?;
    ensure!(line.trim() == "ready 0", "not all of {count} sessions were opened: {line}");
    Ok(after.saturating_sub(before) as f64 / f64::from(count))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

fn kept(folders: &Folders, trial: &Trial) -> PathBuf {
    folders.results().join(format!("streams-{}.json", trial.name))
}

/// Every contender's figure, and behind it Sigma's share of it.
fn line(trial: &Trial, row: &Row) -> String {
    let mut line = format!("| {} |", trial.title);
    for contender in relay::CONTENDERS {
        let label = contender.label();
        let text = match row.cells.iter().find(|cell| cell.label == label) {
            None => "–".to_owned(),
            Some(Cell { figure, share: None, .. }) => format!("{figure:.1}"),
            Some(Cell { figure, share: Some(share), .. }) => format!("{figure:.1} ({share:.2})"),
        };
        let _ = write!(line, " {text} |");
    }
    line.push('\n');
    line
}

/// Puts the rows that were kept into `docs/performance.md`.
fn publish(folders: &Folders) -> anyhow::Result<()> {
    let labels: Vec<String> = relay::CONTENDERS.into_iter().map(|contender| contender.label()).collect();
    let mut table = format!("| | {} |\n|---|{}\n", labels.join(" | "), "--:|".repeat(labels.len()));
    for trial in &TRIALS {
        let path = kept(folders, trial);
        let Ok(bytes) = fs::read(&path) else { continue };
        let row: Row = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} cannot be read: remove it and measure again", path.display()))?;
        table.push_str(&line(trial, &row));
    }
    report::fill_between(&folders.root.join("docs/performance.md"), MARKS, &table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_tell_figures_and_shares() {
        let rounds = [
            ("Sigma", vec![90.0, 180.0, 20.0]),
            ("nginx", vec![100.0, 150.0, 30.0]),
            ("HAProxy", vec![0.0; 3]),
        ];
        let row = Row::of(rounds.map(|(label, figures)| (label.to_owned(), figures)).into());
        assert_eq!(line(&TRIALS[0], &row), "| CPU ms per GiB, 1 session | 90.0 | 100.0 (0.90) | 0.0 | – |\n");
    }

    #[test]
    fn the_middle_of_all_rounds_counts() {
        for (figures, expected) in [(vec![], 0.0), (vec![2.0], 2.0), (vec![3.0, 1.0, 2.0], 2.0)] {
            assert_eq!(median(figures), expected);
        }
    }
}
