//! `docs/benchmarks.md`: a table for each shape, with ratios to nginx and HAProxy.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::trial::{LoadMeasure, Measure, Results};
use super::{Folders, install, plot, suite};

const HEAD: &str = "# Benchmarks

Written by `cargo xtask bench`; do not edit.

Every gateway runs one worker pinned to one core; load generator and origin share the other core. The gateways of
a table took turns in one run; figures are medians of the rounds. **Compare within a table only**: absolute
times depend on the machine and on what else it does, ratios much less.

- *CPU µs*: user and system time of the gateway's processes over the run, by requests answered; its range over the
  rounds is in brackets. The steadier figure: it does not depend on the load generator keeping up.
- *CPU / nginx*, *CPU / HAProxy*: the ratio of that figure to theirs; below 1 is cheaper.
- *memory*: resident, pages shared between a gateway's processes counted once.
- *errors*: answers outside 2xx and 3xx, socket errors and time-outs; anything but 0 makes a row void.
- *bare forwarder* (`bench/floor`): the least that a proxy on tokio can do, without routes, limits, time-outs or
  logs; it adds the same five forwarding fields as Sigma. It is the floor of CPU time under Sigma, not a gateway; it
  makes no effort to save memory.

All gateways do the same: kept connections to the origin, `X-Real-IP` and `X-Forwarded-For` added (by Sigma and the
bare forwarder `X-Forwarded-Proto`, `-Host` and `-Port` as well), no access log, bodies streamed; HTTP/1.1 in the
clear on both sides where a table says nothing else. Their configurations are in `xtask/src/bench/contender.rs`.

![CPU time per request relative to nginx](benchmarks.svg)
";

/// The shape whose table is shown in the README, and where.
const README_SHAPE: &str = "keepalive-100";
const TABLE: Markers = Markers { start: "<!-- bench:start -->", end: "<!-- bench:end -->" };

const REFERENCES: [&str; 2] = ["nginx", "HAProxy"];

/// The comments around a generated part of a page.
#[derive(Clone, Copy)]
pub(super) struct Markers {
    pub(super) start: &'static str,
    pub(super) end: &'static str,
}

/// Writes `docs/benchmarks.md`, `docs/benchmarks.svg` and the table in `README.md` from the results that were kept.
pub(super) fn write(folders: &Folders) -> anyhow::Result<()> {
    let root = &folders.root;
    let docs = root.join("docs");
    fs::create_dir_all(&docs)?;
    let mut text = HEAD.to_owned();
    text.push_str(&environment(folders));
    for suite in &suite::ALL {
        text.push_str(&(suite.report)(folders)?);
    }
    let all = Results::load_all(&folders.results())?;
    let plot = plot::bars(&relative_to_nginx(&all));
    for (name, content) in [("benchmarks.md", text), ("benchmarks.svg", plot)] {
        let path = docs.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let Some(results) = all.iter().find(|results| results.shape == README_SHAPE) else { return Ok(()) };
    fill(&root.join("README.md"), &format!("{}:\n\n{}", results.title, load_table("gateway", results)))
}

/// Puts `table` between the markers of the main table in the page at `path`.
pub(super) fn fill(path: &Path, table: &str) -> anyhow::Result<()> {
    fill_between(path, TABLE, table)
}

/// Puts `table` between `markers` in the page at `path`.
pub(super) fn fill_between(path: &Path, markers: Markers, table: &str) -> anyhow::Result<()> {
    let Markers { start, end } = markers;
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let marked = text.split_once(start).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, after) =
        marked.with_context(|| format!("{} has lost its marks for the bench table", path.display()))?;
    let filled = format!("{before}{start}\n{table}{end}{after}");
    fs::write(path, filled).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the machine of the figures and the command to measure them again.
fn environment(folders: &Folders) -> String {
    let first = |program: &str, argument: &str, skip: &str| {
        let output = Command::new(program).arg(argument).output().ok()?;
        // nginx prints its version to standard error.
        let text = [output.stdout, output.stderr].concat();
        Some(String::from_utf8_lossy(&text).lines().next()?.trim_start_matches(skip).trim().to_owned())
    };
    let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let model =
            text.lines().find(|line| line.starts_with("model name"))?.split_once(':')?.1.trim().to_owned();
        Some(format!("{model}, {} cores", text.matches("processor\t").count()))
    });
    let haproxy =
        first("haproxy", "-v", "").map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "));
    let facts = [
        ("processor", processor),
        ("kernel", first("uname", "-sr", "")),
        ("compiler", first("rustc", "--version", "")),
        (
            "nginx",
            first("nginx", "-v", "nginx version:")
                .or_else(|| first("/usr/sbin/nginx", "-v", "nginx version:")),
        ),
        ("HAProxy", haproxy),
        ("Envoy", install::envoy_version(&folders.work)),
        (
            "load",
            first("wrk", "-v", "").map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")),
        ),
        ("load of HTTP/2", first("h2load", "--version", "")),
        ("OpenSSL of the peers and the load", first("openssl", "version", "")),
    ];
    let mut text = "\n## Environment\n\n| | |\n|---|---|\n".to_owned();
    for (name, value) in facts {
        let _ = writeln!(text, "| {name} | {} |", value.unwrap_or_else(|| "not found".into()));
    }
    text.push_str(
        "\n```\n\
         cargo xtask bench                          # all shapes, all peers\n\
         cargo xtask bench --only keepalive-100     # one shape; the other tables stay as they are\n\
         cargo xtask bench tls                      # TLS 1.3: kept connections and full handshakes\n\
         cargo xtask bench h2                       # HTTP/2 and gRPC\n\
         cargo xtask bench plugins                  # what plugins cost; `config`: what changes cost\n\
         cargo xtask bench cache                    # hits of the cache, for docs/performance.md\n\
         cargo xtask bench observe                  # what logs, traces and dead receivers of logs cost\n\
         cargo xtask bench count                    # instructions per request, for docs/performance.md\n\
         cargo xtask bench --quick --peers nginx    # one short round, printed only\n\
         ```\n",
    );
    text
}

/// The section of one shape.
pub(super) fn section(results: &Results) -> String {
    let Results { shape, title, rounds, seconds, .. } = results;
    let mut text = format!("\n## {title}\n\n");
    let first = results.contenders.first().and_then(|(_, measures)| measures.first());
    let rows = match first {
        None => "No gateway was measured.\n".to_owned(),
        Some(Measure::Load(_)) => load_table("gateway", results),
        Some(Measure::Idle { .. }) => idle_table(results),
        Some(Measure::StartUp { .. }) => start_up_table(results),
    };
    text.push_str(&rows);
    let _ = match first {
        Some(Measure::Load(_)) => writeln!(text, "\n`--only {shape}`: {rounds} rounds of {seconds} s."),
        _ => writeln!(text, "\n`--only {shape}`: {rounds} rounds."),
    };
    text
}

/// The median of one figure over the rounds.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

fn loads(measures: &[Measure]) -> Vec<&LoadMeasure> {
    measures.iter().filter_map(Measure::load).collect()
}

/// The median CPU time per request of the contender called `label`.
fn cpu(results: &Results, label: &str) -> Option<f64> {
    let (_, measures) = results.contenders.iter().find(|(known, _)| known == label)?;
    let loads = loads(measures);
    (!loads.is_empty()).then(|| median(loads.iter().map(|load| load.cpu_micros).collect()))
}

fn ratio(own: f64, reference: Option<f64>) -> String {
    reference.filter(|&value| value > 0.0).map_or_else(|| "–".into(), |value| format!("{:.2}", own / value))
}

/// A row for each contender; `subject` names the contenders.
pub(super) fn load_table(subject: &str, results: &Results) -> String {
    // A shape without peers compares its rows with the first one.
    let has_peers = results.contenders.iter().any(|(label, _)| REFERENCES.contains(&label.as_str()));
    let own = results.contenders.first().map(|(label, _)| label.as_str()).unwrap_or_default();
    let references: Vec<&str> = if has_peers { REFERENCES.to_vec() } else { vec![own] };
    load_table_beside(subject, results, &references)
}

/// The same, with CPU time relative to these contenders.
pub(super) fn load_table_beside(subject: &str, results: &Results, references: &[&str]) -> String {
    let mut text = format!("| {subject} | requests/s | CPU µs |");
    for reference in references {
        let _ = write!(text, " CPU / {reference} |");
    }
    text.push_str(" p50 | p99 | memory | errors |\n|---|--:|--:|");
    text.push_str(&"--:|".repeat(references.len() + 4));
    text.push('\n');
    for (label, measures) in &results.contenders {
        let loads = loads(measures);
        let of = |figure: fn(&LoadMeasure) -> f64| median(loads.iter().map(|load| figure(load)).collect());
        let cpu_values = || loads.iter().map(|load| load.cpu_micros);
        let (least, most) = (cpu_values().fold(f64::MAX, f64::min), cpu_values().fold(0.0, f64::max));
        let own = of(|load| load.cpu_micros);
        let _ =
            write!(text, "| {label} | {:.0} | {own:.1} [{least:.1}–{most:.1}] |", of(|load| load.per_second));
        for reference in references {
            let _ = write!(text, " {} |", ratio(own, cpu(results, reference)));
        }
        let _ = writeln!(
            text,
            " {} | {} | {} | {} |",
            duration(of(|load| load.p50_micros as f64)),
            duration(of(|load| load.p99_micros as f64)),
            memory(of(|load| load.memory_kib as f64)),
            loads.iter().map(|load| load.errors).sum::<u64>(),
        );
    }
    text
}

fn idle_table(results: &Results) -> String {
    let mut text =
        "| gateway | memory before | memory with them | each | errors |\n|---|--:|--:|--:|--:|\n".to_owned();
    let count = match super::shape::all()
        .into_iter()
        .find(|shape| shape.name == results.shape)
        .map(|shape| shape.kind)
    {
        Some(super::shape::Kind::Idle { connections }) => f64::from(connections),
        _ => 1.0,
    };
    for (label, measures) in &results.contenders {
        let of = |pick: fn(&Measure) -> Option<u64>| {
            median(measures.iter().filter_map(pick).map(|value| value as f64).collect())
        };
        let before =
            of(
                |measure| {
                    if let Measure::Idle { before_kib, .. } = measure { Some(*before_kib) } else { None }
                },
            );
        let after =
            of(|measure| if let Measure::Idle { after_kib, .. } = measure { Some(*after_kib) } else { None });
        let failed: u64 = measures.iter().map(Measure::errors).sum();
        let each = (after - before) / count;
        let _ =
            writeln!(text, "| {label} | {} | {} | {each:.2} KiB | {failed} |", memory(before), memory(after));
    }
    text
}

fn start_up_table(results: &Results) -> String {
    let mut text = "| gateway | median | range |\n|---|--:|--:|\n".to_owned();
    for (label, measures) in &results.contenders {
        let micros = |measure: &Measure| {
            if let Measure::StartUp { micros } = measure { Some(*micros as f64) } else { None }
        };
        let values: Vec<f64> = measures.iter().filter_map(micros).collect();
        let (least, most) =
            (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(0.0, f64::max));
        let _ = writeln!(
            text,
            "| {label} | {} | {}–{} |",
            duration(median(values)),
            duration(least),
            duration(most)
        );
    }
    text
}

/// Microseconds for people.
pub(super) fn duration(micros: f64) -> String {
    if micros < 1000.0 { format!("{micros:.0} µs") } else { format!("{:.2} ms", micros / 1000.0) }
}

/// KiB for people.
pub(super) fn memory(kib: f64) -> String {
    format!("{:.1} MiB", kib / 1024.0)
}

/// CPU time per request relative to nginx, for every shape where nginx ran.
fn relative_to_nginx(all: &[Results]) -> Vec<plot::Group> {
    let group = |results: &Results| {
        let reference = cpu(results, "nginx")?;
        let bars = results
            .contenders
            .iter()
            .filter_map(|(label, _)| Some((label.clone(), cpu(results, label)? / reference)));
        Some(plot::Group { title: results.title.clone(), bars: bars.collect() })
    };
    all.iter().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let check = |values: &[f64], expected: f64| {
            assert!((median(values.to_vec()) - expected).abs() < 1e-9, "{values:?}");
        };
        check(&[], 0.0);
        check(&[3.0], 3.0);
        check(&[9.0, 1.0, 2.0], 2.0);
        check(&[4.0, 1.0, 2.0, 9.0], 3.0);
    }

    #[test]
    fn a_table_gives_ratios_to_the_references() {
        let measure = |cpu_micros| {
            let (requests, per_second, p50_micros, p99_micros, memory_kib, errors) =
                (10, 5.0, 90, 1500, 2048, 0);
            let load =
                LoadMeasure { requests, per_second, cpu_micros, p50_micros, p99_micros, memory_kib, errors };
            vec![Measure::Load(load)]
        };
        let results = Results {
            shape: "keepalive-100".into(),
            title: "small".into(),
            rounds: 1,
            seconds: 2,
            contenders: vec![("Sigma".into(), measure(12.0)), ("nginx".into(), measure(20.0))],
        };
        let text = section(&results);
        assert!(
            text.contains("| Sigma | 5 | 12.0 [12.0–12.0] | 0.60 | – | 90 µs | 1.50 ms | 2.0 MiB | 0 |"),
            "{text}"
        );
    }
}
