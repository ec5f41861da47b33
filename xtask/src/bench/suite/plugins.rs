//! What plugins cost: Sigma compared with itself, with and without them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::client::Client;
use crate::bench::launch::Launch;
use crate::bench::process::{LOAD_CORE, free_port, pinned};
use crate::bench::shape::SMALL;
use crate::bench::trial::{self, Measure, Results, Target};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "plugins",
    peers: &[],
    tools: &["wrk"],
    trials,
    measure,
    report: whole_report,
    publish: report::write,
};

/// Configurations of one route that are compared with the first, and metrics read under load.
const TRIALS: [&str; 2] = ["cost", "scrape"];

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    match trial {
        "cost" => cost(bench),
        _ => scrape(bench),
    }
}

fn whole_report(folders: &Folders) -> anyhow::Result<String> {
    kept_sections(folders, SUITE.name, &TRIALS)
}

/// A quota that no run uses up, so that the plugin counts and lets everything through.
const LIMIT_COUNT: &str =
    r#""limit-count": { "count": 1000000000, "time_window": 60, "key": "remote_addr" }"#;
const PROMETHEUS: &str = r#""prometheus": {}"#;
const KEY_AUTH: &str = r#""key-auth": {}"#;
/// The origin itself decides on requests: `{origin}` is its address.
const FORWARD_AUTH: &str = r#""forward-auth": { "uri": "http://{origin}/" }"#;
const FORWARD_AUTH_CACHED: &str =
    r#""forward-auth": { "uri": "http://{origin}/", "cache": { "ttl": 3600 } }"#;

/// The same of opa, whose response the origin gives as a policy would.
const OPA: &str = r#""opa": { "host": "http://{origin}", "policy": "bench" }"#;
const OPA_CACHED: &str =
    r#""opa": { "host": "http://{origin}", "policy": "bench", "cache": { "ttl": 3600 } }"#;
const JWT_AUTH: &str = r#""jwt-auth": {}"#;

/// A token that all requests of a run bring, and the key of the consumer who has signed it. It is good until 2100.
pub(super) struct Token {
    algorithm: &'static str,
    public_key: &'static str,
    text: &'static str,
}

impl Token {
    /// The consumers of a configuration: the one who has signed it.
    pub(super) fn consumers(&self) -> String {
        let Token { algorithm, public_key, .. } = self;
        format!(
            "consumers:\n  - {{ username: bench, plugins: {{ \"jwt-auth\": {{ \"key\": \"bench\", \
             \"algorithm\": \"{algorithm}\", \"public_key\": {public_key:?} }} }} }}\n"
        )
    }

    /// The value of `Authorization` that brings it.
    pub(super) fn authorization(&self) -> String {
        format!("Bearer {}", self.text.trim())
    }
}

pub(super) static RS256: Token = Token {
    algorithm: "RS256",
    public_key: include_str!("../../../../bench/wrk/rs256.pem"),
    text: include_str!("../../../../bench/wrk/rs256.token"),
};
static ES256: Token = Token {
    algorithm: "ES256",
    public_key: include_str!("../../../../bench/wrk/es256.pem"),
    text: include_str!("../../../../bench/wrk/es256.token"),
};

/// Consumers of the large configuration, and how many of their keys the load generator takes turns with.
const CONSUMERS: u32 = 100_000;
const KEYS: u32 = 10_000;

/// One configuration: Sigma with some plugins on its only route.
struct Variant {
    label: &'static str,
    /// Members of `plugins`, as JSON.
    plugins: String,
    consumers: u32,
    /// See [`Target::keys`].
    keys: u32,
    /// The token of all requests.
    token: Option<&'static Token>,
}

fn variants() -> Vec<Variant> {
    let variant = |label, plugins: &[&str], consumers, keys| Variant {
        label,
        plugins: plugins.join(", "),
        consumers,
        keys,
        token: None,
    };
    let signed = |label, token| Variant { token: Some(token), ..variant(label, &[JWT_AUTH], 0, 0) };
    // Each does its work on every request and refuses none.
    let ten = [
        r#""real-ip": { "source": "http_x_forwarded_for", "trusted_addresses": ["127.0.0.0/8"] }"#,
        r#""request-id": {}"#,
        r#""cors": {}"#,
        r#""ip-restriction": { "whitelist": ["127.0.0.0/8", "10.0.0.0/8"] }"#,
        r#""ua-restriction": { "bypass_missing": true, "denylist": ["(?i)bot", "(?i)spider"] }"#,
        KEY_AUTH,
        LIMIT_COUNT,
        r#""proxy-rewrite": { "headers": { "set": { "X-Gateway": "bench", "X-Client": "$remote_addr" } } }"#,
        r#""response-rewrite": { "headers": { "set": { "X-Served-By": "bench" } } }"#,
        PROMETHEUS,
    ];
    vec![
        variant("no plugin", &[], 0, 0),
        variant("limit-count, prometheus", &[LIMIT_COUNT, PROMETHEUS], 0, 0),
        variant("ten plugins", &ten, 1, 1),
        variant("key-auth, 1 consumer", &[KEY_AUTH], 1, 1),
        variant("key-auth, 100000 consumers", &[KEY_AUTH], CONSUMERS, KEYS),
        variant("forward-auth", &[FORWARD_AUTH], 0, 0),
        variant("forward-auth, remembered", &[FORWARD_AUTH_CACHED], 0, 0),
        variant("opa", &[OPA], 0, 0),
        variant("opa, remembered", &[OPA_CACHED], 0, 0),
        signed("jwt-auth RS256", &RS256),
        signed("jwt-auth ES256", &ES256),
    ]
}

/// The configuration of `variant`; its consumers have the keys `key-0`, `key-1`, ….
fn configuration(variant: &Variant, port: u16, origin: u16) -> String {
    let mut text = settings(port, origin);
    match variant.token {
        Some(token) => text.push_str(&token.consumers()),
        None if variant.consumers > 0 => text.push_str("consumers:\n"),
        None => {}
    }
    for number in 0..variant.consumers {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  - {{ username: \"consumer_{number}\", plugins: {{ \"key-auth\": {{ \"key\": \"key-{number}\" }} }} }}"
        );
    }
    let plugins = variant.plugins.replace("{origin}", &format!("127.0.0.1:{origin}"));
    let _ = writeln!(
        text,
        "routes: [ {{ id: \"1\", uri: \"/*\", upstream_id: \"1\", plugins: {{ {plugins} }} }} ]"
    );
    text
}

/// Returns the common settings of this suite.
fn settings(port: u16, origin: u16) -> String {
    format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\n\
         access_log: \"off\"\n\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }} }} ]\n"
    )
}

fn cost(bench: &Bench<'_>) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let origin = process::origin(programs, &folders.work)?;
    let mut running = Vec::new();
    for variant in variants() {
        let port = free_port()?;
        let text = configuration(&variant, port, origin.port);
        let launch = Launch::sigma(programs, &folders.work, variant.label, port, &text)
            .context("the suite `plugins` measures plugins and consumers that this build does not have")?;
        let authorization = variant.token.map(Token::authorization).unwrap_or_default();
        let fields = match (variant.keys, &*authorization) {
            (0, "") => String::new(),
            (0, value) => format!("Authorization: {value}\r\n"),
            _ => "apikey: key-0\r\n".to_owned(),
        };
        let (gateway, _) = launch.start_with_fields(&fields)?;
        let target = Target {
            label: variant.label.into(),
            scheme: "http",
            path: SMALL.path.into(),
            keys: variant.keys,
            authorization,
        };
        trial::load(&SMALL, &target, &gateway, folders, 1)?;
        running.push((target, gateway));
    }
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let mut results =
        Results { shape: "plugins".into(), title: String::new(), rounds, seconds, contenders: Vec::new() };
    for _ in 0..rounds {
        for (target, gateway) in &running {
            let load = trial::load(&SMALL, target, gateway, folders, seconds)?;
            results.add(&target.label, Measure::Load(load));
        }
    }
    let table = report::load_table("configuration", &results);
    let text = format!(
        "\n## what plugins cost\n\nSmall GET, 100 kept connections, Sigma with one route. *ten plugins*: real-ip, \
         request-id, cors, ip-restriction, ua-restriction, key-auth, limit-count, proxy-rewrite, response-rewrite, \
         prometheus. *forward-auth* and *opa* ask the origin itself about each request, *remembered* once an hour. \
         *jwt-auth*: all requests bring one token, whose signature a worker verifies once. With 100,000 \
         consumers requests take turns with {KEYS} of their keys.\n\n{table}\n\
         `bench plugins --only cost`: {rounds} rounds of {seconds} s.\n"
    );
    kept(
        bench,
        SUITE.name,
        "cost",
        text,
        results.contenders.iter().flat_map(|(_, all)| all).map(Measure::errors).sum(),
    )
}

/// Routes that have series of their own when metrics are read under load.
const SCRAPED_ROUTES: u32 = 10_000;
/// Where Prometheus finds the metrics, on the listener of the plugin.
const METRICS_PATH: &str = "/apisix/prometheus/metrics";
/// Pause between two scrapes: far shorter than Prometheus takes, so that a short run has one at least.
const SCRAPE_PAUSE: Duration = Duration::from_secs(5);

fn scrape(bench: &Bench<'_>) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let origin = process::origin(programs, &folders.work)?;
    let (port, metrics) = (free_port()?, free_port()?);
    let mut text = settings(port, origin.port);
    let export = format!("export_addr: {{ ip: \"127.0.0.1\", port: {metrics} }}");
    let _ = writeln!(text, "plugin_attr: {{ prometheus: {{ {export} }} }}\nroutes:");
    for number in 0..SCRAPED_ROUTES {
        let _ = writeln!(
            text,
            "  - {{ id: \"{number}\", uri: \"/r/{number}/*\", upstream_id: \"1\", plugins: {{ {PROMETHEUS} }} }}"
        );
    }
    let launch = Launch::sigma(programs, &folders.work, "metrics", port, &text)
        .context("the suite `plugins` measures a plugin that this build does not have")?;
    let (gateway, _) = launch.start()?;
    every_route_once(port)?;
    let size = scraped_bytes(metrics)?;
    let target = Target {
        label: "metrics".into(),
        scheme: "http",
        path: format!("/r/{}/x", SCRAPED_ROUTES - 1),
        keys: 0,
        authorization: String::new(),
    };
    let mut quiet = Vec::new();
    let mut scraped = Vec::new();
    let mut times = Vec::new();
    let compressed = scraped_by_curl(metrics)?.bytes;
    for _ in 0..options.rounds() {
        quiet.push(trial::load(&SMALL, &target, &gateway, folders, options.seconds())?);
        scraped.push(while_scraping(metrics, &mut times, || {
            trial::load(&SMALL, &target, &gateway, folders, options.seconds())
        })?);
    }
    let row = |label: &str, all: &[trial::LoadMeasure]| {
        let of = |figure: fn(&trial::LoadMeasure) -> f64| report::median(all.iter().map(figure).collect());
        format!(
            "| {label} | {:.0} | {:.1} | {} | {} |\n",
            of(|load| load.per_second),
            of(|load| load.cpu_micros),
            report::duration(of(|load| load.p50_micros as f64)),
            report::duration(of(|load| load.p99_micros as f64)),
        )
    };
    let mut text = format!(
        "\n## metrics of {SCRAPED_ROUTES} routes, read under load\n\nSmall GET, 100 kept connections, every route with \
         its own series; a scrape each {} s. A scrape has {}, compressed {}, and takes {} (median).\n\n\
         | traffic | requests/s | CPU µs | p50 | p99 |\n|---|--:|--:|--:|--:|\n",
        SCRAPE_PAUSE.as_secs(),
        report::memory(size as f64 / 1024.0),
        report::memory(compressed / 1024.0),
        report::duration(report::median(times)),
    );
    text.push_str(&row("quiet", &quiet));
    text.push_str(&row("scraped", &scraped));
    let _ = writeln!(
        text,
        "\n`bench plugins --only scrape`: {} rounds of {} s.",
        options.rounds(),
        options.seconds()
    );
    kept(bench, SUITE.name, "scrape", text, quiet.iter().chain(&scraped).map(|load| load.errors).sum())
}

/// Makes the series of every route.
fn every_route_once(port: u16) -> anyhow::Result<()> {
    let mut client = Client::connect(port)?;
    for number in 0..SCRAPED_ROUTES {
        let status = client.get(&format!("/r/{number}/x"))?.status;
        ensure!(status == 200, "route {number} answers {status}");
    }
    Ok(())
}

/// Reads the metrics once; they must have the routes' series.
fn scraped_bytes(metrics: u16) -> anyhow::Result<usize> {
    let answer = Client::connect(metrics)?.get(METRICS_PATH)?;
    ensure!(
        answer.status == 200,
        "this build has no metrics at {METRICS_PATH}, which answers {}",
        answer.status
    );
    let last = format!("route=\"{}\"", SCRAPED_ROUTES - 1);
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(text.contains(&last), "the metrics have no series with {last}");
    Ok(answer.body.len())
}

/// Runs `work` while the metrics are read again and again; adds the time of each reading in µs to `times`.
fn while_scraping<T>(
    metrics: u16,
    times: &mut Vec<f64>,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scraper = scope.spawn(|| -> anyhow::Result<Vec<f64>> {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                times.push(scraped_by_curl(metrics)?.micros);
                std::thread::sleep(SCRAPE_PAUSE);
            }
            Ok(times)
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        let scraped = scraper.join().map_err(|_| anyhow::anyhow!("the scraping thread panicked"))?;
        times.extend(scraped?);
        done
    })
}

/// A reading of the metrics.
struct Scraped {
    micros: f64,
    /// The bytes over the connection.
    bytes: f64,
}

/// Reads the metrics as Prometheus does, which takes them compressed, and leaves the CPU to the load
/// generator.
fn scraped_by_curl(metrics: u16) -> anyhow::Result<Scraped> {
    let curl = ["nice", "-n", "19", "curl", "-sf", "-H", "Accept-Encoding: gzip", "-o", "/dev/null"];
    let told = ["-w", "%{time_total} %{size_download}"].map(str::to_owned);
    let url = format!("http://127.0.0.1:{metrics}{METRICS_PATH}");
    let curl: Vec<String> = curl.into_iter().map(str::to_owned).chain(told).chain([url]).collect();
    let output = pinned(LOAD_CORE, &curl).output().context("cannot run curl: install it")?;
    ensure!(output.status.success(), "the metrics cannot be read: {}", output.status);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let (seconds, bytes) = told.trim().split_once(' ').context("curl reported no time")?;
    Ok(Scraped { micros: seconds.parse::<f64>()? * 1e6, bytes: bytes.parse()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configurations are YAML with JSON inside; a typing error there would show only at the run.
    #[test]
    fn configurations_are_well_formed() {
        for variant in variants() {
            let text = configuration(&Variant { consumers: variant.consumers.min(3), ..variant }, 1, 2);
            let document = sigma_schema::document::Document::parse(&text, 1 << 20).expect(&text);
            let plugins = document.value["routes"][0]["plugins"].as_object().expect("plugins").len();
            let expected = match document.value["consumers"].as_array().map(Vec::len) {
                _ if text.contains("cors") => 10,
                None if text.contains("prometheus") => 2,
                None if !text.contains("forward-auth") && !text.contains("opa") => 0,
                _ => 1,
            };
            assert_eq!(plugins, expected, "{text}");
        }
    }
}
