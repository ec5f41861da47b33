//! The cost of observing traffic: Sigma compared with itself, with and without an access log, traces and
//! shippers.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::client::Client;
use crate::bench::launch::{Launch, Running};
use crate::bench::process::free_port;
use crate::bench::shape::SMALL;
use crate::bench::trial::{self, LoadMeasure, Measure, Results, Target};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "observe",
    peers: &[],
    tools: &["wrk"],
    trials,
    measure,
    report: |folders: &Folders| kept_sections(folders, SUITE.name, &TRIALS),
    publish: report::write,
};

/// Ways to look at a healthy gateway's traffic, and a shipper whose receiver is dead.
const TRIALS: [&str; 2] = ["cost", "dead-receiver"];

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    match trial {
        "cost" => cost(bench),
        _ => dead_receiver(bench),
    }
}

/// One configuration.
struct Variant {
    label: &'static str,
    /// The value of `access_log`, as JSON; `{folder}` is where its file may be.
    access_log: &'static str,
    /// Members of `plugins` of the only route, as JSON.
    plugins: &'static str,
}

const SILENT: Variant = Variant { label: "nothing", access_log: r#""off""#, plugins: "" };

static VARIANTS: [Variant; 6] = [
    SILENT,
    Variant {
        label: "access log, combined",
        access_log: r#"{ "path": "{folder}/access.log", "format": "combined" }"#,
        ..SILENT
    },
    Variant {
        label: "access log, JSON",
        access_log: r#"{ "path": "{folder}/access.log", "format": "json" }"#,
        ..SILENT
    },
    Variant {
        label: "opentelemetry, no request sampled",
        plugins: r#""opentelemetry": { "sampler": { "name": "always_off" } }"#,
        ..SILENT
    },
    Variant {
        label: "opentelemetry, 1 % sampled",
        plugins: r#""opentelemetry": { "sampler": { "name": "trace_id_ratio", "options": { "fraction": 0.01 } } }"#,
        ..SILENT
    },
    Variant {
        label: "opentelemetry, all sampled",
        plugins: r#""opentelemetry": { "sampler": { "name": "always_on" } }"#,
        ..SILENT
    },
];

/// The addresses that a configuration names.
struct Places {
    port: u16,
    origin: u16,
    /// Where traces and log entries go.
    receiver: u16,
    status: u16,
}

fn configuration(variant: &Variant, places: &Places, folder: &str) -> String {
    let Places { port, origin, receiver, status } = places;
    let Variant { access_log, plugins, .. } = variant;
    let access_log = access_log.replace("{folder}", folder);
    let plugins = plugins.replace("{receiver}", &format!("127.0.0.1:{receiver}"));
    let mut text = format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\n\
         status: {{ address: \"127.0.0.1:{status}\" }}\n\
         access_log: {access_log}\n\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }} }} ]\n\
         routes: [ {{ id: \"1\", uri: \"/*\", upstream_id: \"1\", plugins: {{ {plugins} }} }} ]\n"
    );
    if plugins.contains("opentelemetry") {
        let _ = writeln!(
            text,
            "plugin_metadata: [ {{ id: opentelemetry, collector: {{ address: \"127.0.0.1:{receiver}\" }} }} ]"
        );
    }
    text
}

/// Starts Sigma as `variant` wants it and warms it up; the origin takes traces as well.
fn start(
    bench: &Bench<'_>,
    variant: &Variant,
    origin: u16,
    receiver: u16,
) -> anyhow::Result<(Target, Started)> {
    let Bench { folders, programs, .. } = bench;
    let places = Places { port: free_port()?, origin, receiver, status: free_port()? };
    let folder = folders.work.display().to_string();
    let text = configuration(variant, &places, &folder);
    let launch = Launch::sigma(programs, &folders.work, variant.label, places.port, &text)
        .context("the suite `observe` measures plugins that this build does not have")?;
    let (gateway, _) = launch.start()?;
    let target = Target {
        label: variant.label.into(),
        scheme: "http",
        path: SMALL.path.into(),
        keys: 0,
        authorization: String::new(),
    };
    trial::load(&SMALL, &target, &gateway, folders, 1)?;
    Ok((target, Started { gateway, status: places.status }))
}

struct Started {
    gateway: Running,
    /// The port of the status listener.
    status: u16,
}

fn cost(bench: &Bench<'_>) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let origin = process::origin(programs, &folders.work)?;
    let running: Vec<(Target, Started)> = VARIANTS
        .iter()
        .map(|variant| start(bench, variant, origin.port, origin.port))
        .collect::<anyhow::Result<_>>()?;
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let mut pairs: Vec<Pairs> = running[1..].iter().map(|(target, _)| Pairs::of(&target.label)).collect();
    for _ in 0..rounds {
        for (pairs, watched) in pairs.iter_mut().zip(&running[1..]) {
            let [plain, watched] = [&running[0], watched]
                .map(|(target, started)| trial::load(&SMALL, target, &started.gateway, folders, seconds));
            pairs.loads.push((plain?, watched?));
        }
    }
    let _ = std::fs::remove_file(folders.work.join("access.log"));
    let rows: String = pairs.iter().map(Pairs::row).collect();
    let text = format!(
        "\n## what looking costs\n\nSmall GET, 100 kept connections, Sigma with one route. The access log goes to \
         a file; traces go to a collector that takes everything. Each configuration is measured in turns with one \
         that does nothing of it; the ratio is the median of the ratios of all pairs, with their middle \
         half in brackets.\n\n| configuration | CPU µs | of it without | ratio | errors |\n|---|--:|--:|--:|--:|\n{rows}\n\
         `bench observe --only cost`: {rounds} pairs of {seconds} s each.\n"
    );
    let errors = pairs.iter().map(Pairs::errors).sum();
    kept(bench, SUITE.name, "cost", text, errors)
}

/// Measurements of one configuration, each right behind one of a gateway that does nothing of it: so what else the
/// machine does is in both.
struct Pairs {
    label: String,
    loads: Vec<(LoadMeasure, LoadMeasure)>,
}

impl Pairs {
    fn of(label: &str) -> Pairs {
        Pairs { label: label.to_owned(), loads: Vec::new() }
    }

    fn row(&self) -> String {
        let sorted = |figure: fn(&(LoadMeasure, LoadMeasure)) -> f64| {
            let mut figures: Vec<f64> = self.loads.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures
        };
        let at = |figures: &[f64], share: usize| {
            figures.get(figures.len() * share / 4).copied().unwrap_or_default()
        };
        let cpu = sorted(|(_, watched)| watched.cpu_micros);
        let plain = sorted(|(plain, _)| plain.cpu_micros);
        let ratios = sorted(|(plain, watched)| watched.cpu_micros / plain.cpu_micros);
        format!(
            "| {} | {:.1} | {:.1} | {:.2} [{:.2}–{:.2}] | {} |\n",
            self.label,
            at(&cpu, 2),
            at(&plain, 2),
            at(&ratios, 2),
            at(&ratios, 1),
            at(&ratios, 3),
            self.errors()
        )
    }

    fn errors(&self) -> u64 {
        self.loads.iter().map(|(plain, watched)| plain.errors + watched.errors).sum()
    }
}

/// A logger that ships an entry for each request, as fast as it can.
const SHIPPER: &str = r#""http-logger": { "uri": "http://{receiver}/", "batch_max_size": 1000 }"#;

fn dead_receiver(bench: &Bench<'_>) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let origin = process::origin(programs, &folders.work)?;
    let refusing = free_port()?;
    // Its backlog takes connections that are never read.
    let mute = TcpListener::bind("127.0.0.1:0")?;
    let shipping = |label| Variant { label, plugins: SHIPPER, ..SILENT };
    let all = [
        start(bench, &SILENT, origin.port, origin.port)?,
        start(bench, &shipping("http-logger, a receiver that takes all"), origin.port, origin.port)?,
        start(bench, &shipping("http-logger, nobody listens"), origin.port, refusing)?,
        start(
            bench,
            &shipping("http-logger, a receiver that is mute"),
            origin.port,
            mute.local_addr()?.port(),
        )?,
    ];
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let mut results =
        Results { shape: "shippers".into(), title: String::new(), rounds, seconds, contenders: Vec::new() };
    let begin = Instant::now();
    for _ in 0..rounds {
        for (target, started) in &all {
            let load = trial::load(&SMALL, target, &started.gateway, folders, seconds)?;
            results.add(&target.label, Measure::Load(load));
        }
    }
    let mut text = format!(
        "\n## a receiver of log entries that is dead\n\nSmall GET, 100 kept connections; a logger makes an entry of \
         each request. Entries beyond 10,000 that wait, or 64 MiB, are dropped and counted.\n\n{}\n\
         | configuration | entries made | dropped |\n|---|--:|--:|\n",
        report::load_table("configuration", &results)
    );
    for (target, started) in all.iter().skip(1) {
        // Since their start, what came before the measurements included.
        let made = counter(started.status, "sigma_requests_total")?;
        let dropped = counter(started.status, "sigma_access_lines_dropped_total")?;
        let _ = writeln!(text, "| {} | {made} | {dropped} |", target.label);
    }
    let _ = writeln!(
        text,
        "\n`bench observe --only dead-receiver`: {rounds} rounds of {seconds} s, {} s in all.",
        begin.elapsed().max(Duration::from_secs(1)).as_secs()
    );
    let errors = results.contenders.iter().flat_map(|(_, all)| all).map(Measure::errors).sum();
    kept(bench, SUITE.name, "dead-receiver", text, errors)
}

/// Returns a counter of the gateway.
fn counter(status: u16, name: &str) -> anyhow::Result<u64> {
    let answer = Client::connect(status)?.get("/status/counters")?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.with_context(|| format!("the status tells no {name}"))?;
    Ok(value.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_compared_with_each_other() {
        let load = |cpu_micros| LoadMeasure {
            requests: 1,
            per_second: 1.0,
            cpu_micros,
            p50_micros: 1,
            p99_micros: 1,
            memory_kib: 1,
            errors: 1,
        };
        // A machine that slows down: each pair is slower than the one before.
        let loads = [(10.0, 11.0), (20.0, 23.0), (40.0, 48.0)];
        let loads = loads.map(|(plain, watched)| (load(plain), load(watched))).into();
        let row = Pairs { label: "x".into(), loads }.row();
        assert_eq!(row, "| x | 23.0 | 20.0 | 1.15 [1.10–1.20] | 6 |\n");
    }

    #[test]
    fn configurations_are_well_formed() {
        let places = Places { port: 1, origin: 2, receiver: 3, status: 4 };
        for variant in VARIANTS.iter().chain([&Variant { plugins: SHIPPER, ..SILENT }]) {
            let text = configuration(variant, &places, "/tmp");
            let document = sigma_schema::document::Document::parse(&text, 1 << 20).expect(&text);
            let plugins = document.value["routes"][0]["plugins"].as_object().expect("plugins").len();
            assert_eq!(plugins, usize::from(!variant.plugins.is_empty()), "{text}");
            assert!(!text.contains("{folder}") && !text.contains("{receiver}"), "{text}");
        }
    }
}
