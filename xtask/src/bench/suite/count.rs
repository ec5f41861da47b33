//! The cost of a request in instructions: the baseline for changes of the request path.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::plugins::{RS256, Token};
use super::{Outcome, Suite};
use crate::bench::callgrind::Counted;
use crate::bench::contender::Contender;
use crate::bench::edge::{Certificate, Edge};
use crate::bench::h2load::{self, Batch};
use crate::bench::launch::{Launch, Running, Workplace};
use crate::bench::process::free_port;
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "count",
    peers: &["floor"],
    tools: &["valgrind", "h2load", "openssl"],
    trials,
    measure,
    report: |_| Ok(String::new()),
    publish,
};

/// Requests of the two loads of a count. Their difference is counted: connecting, handshakes and the first
/// use of everything are in both.
const LOADS: [u64; 2] = [1_000, 3_000];

/// How often each load is counted. The least counts: where the clients have to wait for a processor, the gateway
/// has less to do at a time and sleeps more often, so that a busy machine adds some per cent and never takes any.
const REPEATS: usize = 3;

/// Clients of a load.
const CONNECTIONS: u32 = 10;

/// Each does its work on every request and refuses none.
const FOUR: &str = r#""cors": {}, "request-id": {},
    "limit-count": { "count": 1000000000, "time_window": 60, "key": "remote_addr" },
    "response-rewrite": { "headers": { "set": { "X-Served-By": "bench" } } }"#;

/// The function that the suite `extensions` compares with another gateway.
const LUA: &str = r#""serverless-pre-function": { "functions": [
    "return function() ngx.req.set_header(\"X-Client\", ngx.var.remote_addr) end" ] }"#;

const NO_LOG: &str = "access_log: \"off\"\n";

/// A collector that accepts nothing: only the gateway's own work is counted.
const COLLECTOR: &str = "access_log: \"off\"\n\
    plugin_metadata: [ { id: opentelemetry, collector: { address: \"127.0.0.1:9\" } } ]\n";

/// A kind of request, by its name on the command line and in the table.
struct Shape {
    name: &'static str,
    title: &'static str,
    /// Members of `plugins` of the route, as JSON; `{origin}` is the origin's address.
    plugins: &'static str,
    /// Further settings, a line of YAML each; `{folder}` is where files may be.
    settings: &'static str,
    /// The token of all requests.
    token: Option<&'static Token>,
    tls: bool,
    /// The bare forwarder is counted as well.
    floor: bool,
    options: &'static [&'static str],
    body_bytes: usize,
}

const SMALL: Shape = Shape {
    name: "small-get",
    title: "small GET",
    plugins: "",
    settings: NO_LOG,
    token: None,
    tls: false,
    floor: true,
    options: &["--h1"],
    body_bytes: 0,
};

static SHAPES: [Shape; 13] = [
    SMALL,
    Shape { name: "post-1k", title: "POST of 1 KiB", body_bytes: 1024, ..SMALL },
    Shape {
        name: "four-plugins",
        title: "small GET; cors, request-id, limit-count, response-rewrite",
        plugins: FOUR,
        floor: false,
        ..SMALL
    },
    Shape {
        name: "jwt-cached",
        title: "small GET; jwt-auth (RS256), a signature that was verified before",
        plugins: r#""jwt-auth": {}"#,
        token: Some(&RS256),
        floor: false,
        ..SMALL
    },
    Shape {
        name: "forward-auth-cached",
        title: "small GET; forward-auth, a decision that is remembered",
        plugins: r#""forward-auth": { "uri": "http://{origin}/", "cache": { "ttl": 3600 } }"#,
        floor: false,
        ..SMALL
    },
    Shape {
        name: "opa-cached",
        title: "small GET; opa, a decision that is remembered",
        plugins: r#""opa": { "host": "http://{origin}", "policy": "bench", "cache": { "ttl": 3600 } }"#,
        floor: false,
        ..SMALL
    },
    Shape {
        name: "access-log-json",
        title: "small GET; an access log in JSON, to a file",
        settings: "access_log: { path: \"{folder}/access.log\", format: json }\n",
        floor: false,
        ..SMALL
    },
    Shape {
        name: "opentelemetry-none",
        title: "small GET; opentelemetry, no request sampled",
        plugins: r#""opentelemetry": { "sampler": { "name": "always_off" } }"#,
        settings: COLLECTOR,
        floor: false,
        ..SMALL
    },
    Shape {
        name: "opentelemetry-1",
        title: "small GET; opentelemetry, 1 % of the requests sampled",
        plugins: r#""opentelemetry": { "sampler": { "name": "trace_id_ratio", "options": { "fraction": 0.01 } } }"#,
        settings: COLLECTOR,
        floor: false,
        ..SMALL
    },
    Shape {
        name: "lua",
        title: "small GET; a Lua function sets a request field from a variable",
        plugins: LUA,
        floor: false,
        ..SMALL
    },
    Shape {
        name: "h2-clear",
        title: "small GET, HTTP/2 in the clear, 10 streams",
        floor: false,
        options: &["-m10"],
        ..SMALL
    },
    Shape {
        name: "new-connection",
        title: "small GET, a new connection for each request",
        options: &["--h1", "-HConnection: close"],
        ..SMALL
    },
    Shape { name: "tls-keepalive", title: "small GET, TLS 1.3", tls: true, floor: false, ..SMALL },
];

fn trials() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
}

/// Instructions for each request.
#[derive(Serialize, Deserialize)]
struct Count {
    sigma: u64,
    floor: Option<u64>,
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let shape = SHAPES.iter().find(|shape| shape.name == trial).context("no such trial")?;
    eprintln!("{trial}: {}", shape.title);
    let origin = process::origin(&bench.programs, &bench.folders.work)?;
    let sigma = count(bench, shape, sigma(bench, shape, origin.port)?)?;
    let floor = match bench.programs.floor {
        Some(_) if shape.floor => {
            let launch = Contender::Floor.prepare(&bench.programs, &bench.folders.work, origin.port)?;
            Some(count(bench, shape, launch)?)
        }
        _ => None,
    };
    let count = Count { sigma, floor };
    if !bench.options.quick {
        let path = kept(bench.folders, shape);
        fs::write(&path, serde_json::to_vec_pretty(&count)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Outcome { section: row(shape, &count), errors: 0 })
}

/// Sigma as `shape` wants it.
fn sigma(bench: &Bench<'_>, shape: &Shape, origin: u16) -> anyhow::Result<Launch> {
    let Bench { folders, programs, .. } = bench;
    if shape.plugins.is_empty() && shape.settings == NO_LOG {
        let certificate = if shape.tls { Some(Certificate::make(&folders.work)?) } else { None };
        let edge = Edge { certificate, pool: 512, ..Edge::PLAIN };
        return Contender::Sigma { routes: 1 }.prepare_edge(programs, &folders.work, origin, &edge);
    }
    let port = free_port()?;
    let text = format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\n\
         {}\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }} }} ]\n\
         routes: [ {{ id: \"1\", uri: \"/*\", upstream_id: \"1\", plugins: {{ {} }} }} ]\n\
         {}",
        shape.settings.replace("{folder}", &folders.work.display().to_string()),
        shape.plugins.replace("{origin}", &format!("127.0.0.1:{origin}")),
        shape.token.map_or(String::new(), Token::consumers)
    );
    Launch::sigma(programs, &folders.work, shape.name, port, &text)
}

fn count(bench: &Bench<'_>, shape: &Shape, launch: Launch) -> anyhow::Result<u64> {
    let place = Workplace::new(&bench.folders.work, "count")?;
    let mut options: Vec<String> = shape.options.iter().map(|&option| option.to_owned()).collect();
    options.extend(shape.token.map(|token| format!("-HAuthorization: {}", token.authorization())));
    if shape.body_bytes > 0 {
        options.push(format!("--data={}", place.write("body", &"x".repeat(shape.body_bytes))?));
    }
    let mut counted = Counted::start(launch, &place.folder)?;
    let Running { port, .. } = counted.gateway;
    let scheme = if shape.tls { "https" } else { "http" };
    let batch = |requests| Batch {
        connections: CONNECTIONS,
        requests,
        url: format!("{scheme}://127.0.0.1:{port}/"),
        options: &options,
    };
    h2load::run(&batch(500))?;
    let mut counts = LOADS.map(|_| u64::MAX);
    for _ in 0..REPEATS {
        for (count, requests) in counts.iter_mut().zip(LOADS) {
            *count = counted.during(|| h2load::run(&batch(requests)))?.min(*count);
        }
    }
    let ([least, most], [few, many]) = (counts, LOADS);
    Ok(most.saturating_sub(least) / (many - few))
}

fn kept(folders: &Folders, shape: &Shape) -> PathBuf {
    folders.results().join(format!("count-{}.json", shape.name))
}

fn row(shape: &Shape, count: &Count) -> String {
    let floor = count.floor.map_or_else(|| "–".to_owned(), grouped);
    format!("| {} | {} | {floor} |\n", shape.title, grouped(count.sigma))
}

/// With a comma before every third digit.
fn grouped(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        _ => format!("{},{:03}", grouped(n / 1_000), n % 1_000),
    }
}

/// Puts the table of all counts that were kept into `docs/performance.md`.
fn publish(folders: &Folders) -> anyhow::Result<()> {
    let mut rows = String::new();
    for shape in &SHAPES {
        let path = kept(folders, shape);
        let Ok(bytes) = fs::read(&path) else { continue };
        let count: Count = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} cannot be read: remove it and count again", path.display()))?;
        let _ = write!(rows, "{}", row(shape, &count));
    }
    let head = "| request | Sigma | bare forwarder |\n|---|--:|--:|\n";
    report::fill(&folders.root.join("docs/performance.md"), &format!("{head}{rows}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_tell_the_counts() {
        let row = |sigma, floor| row(&SMALL, &Count { sigma, floor });
        assert_eq!(row(12_034, Some(999)), "| small GET | 12,034 | 999 |\n");
        assert_eq!(row(1_000_007, None), "| small GET | 1,000,007 | – |\n");
    }
}
