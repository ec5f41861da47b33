//! Sigma and nginx with HTTP/3, compared with themselves over TCP: the same program, certificate and requests.

use std::process::Command;

use anyhow::Context;

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::contender::Contender;
use crate::bench::edge::{Certificate, Edge, Protocol};
use crate::bench::h2load::{self, Streams};
use crate::bench::launch::Running;
use crate::bench::shape::{Load, SMALL};
use crate::bench::trial::{self, LoadMeasure, Measure, Results, Target};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "h3",
    peers: &["nginx"],
    tools: &["wrk", "h2load", "openssl"],
    trials,
    measure,
    report: |folders: &Folders| kept_sections(folders, SUITE.name, &TRIALS),
    publish: report::write,
};

/// Small responses on many streams, large ones, and a connection for each request.
const TRIALS: [&str; 3] = ["h3-small", "h3-1m", "h3-handshake"];

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

/// On a busy machine, a hundred handshakes take more than a second.
const WARM_UP_SECONDS: u32 = 2;

/// The requests of a trial.
struct Requests {
    title: &'static str,
    path: &'static str,
    connections: u32,
    /// Requests open at a time on each connection; 0: a connection for each request.
    streams: u32,
    /// The comparison over TCP.
    tcp: &'static str,
}

fn requests(trial: &str) -> Requests {
    match trial {
        "h3-small" => Requests {
            title: "HTTP/3: small GET, 100 × 10 streams",
            path: "/",
            connections: 100,
            streams: 10,
            tcp: "HTTP/2 over TLS",
        },
        "h3-1m" => Requests {
            title: "HTTP/3: GET of 1 MiB, 20 × 1 stream",
            path: "/1m",
            connections: 20,
            streams: 1,
            tcp: "HTTP/2 over TLS",
        },
        _ => Requests {
            title: "HTTP/3: full handshakes",
            path: "/",
            connections: 50,
            streams: 0,
            tcp: "HTTP/1.1 over TLS",
        },
    }
}

/// A gateway that runs, and what tables call its two protocols.
struct Side {
    gateway: Running,
    tcp: String,
    quic: String,
}

impl Side {
    /// Starts the gateway and warms it up by both protocols.
    fn start(
        bench: &Bench<'_>,
        requests: &Requests,
        contender: Contender,
        edge: &Edge,
        origin: u16,
    ) -> anyhow::Result<Self> {
        let launch = contender.prepare_edge(&bench.programs, &bench.folders.work, origin, edge)?;
        let gateway = launch.start_listening()?;
        let label = &launch.label;
        let side =
            Self { gateway, tcp: format!("{label}, {}", requests.tcp), quic: format!("{label}, HTTP/3") };
        let read = || format!("read {}", launch.log.display());
        side.over_tcp(bench, requests, WARM_UP_SECONDS).with_context(read)?;
        side.over_quic(bench, requests, WARM_UP_SECONDS).with_context(read)?;
        Ok(side)
    }

    /// The requests over QUIC.
    fn over_quic(&self, bench: &Bench<'_>, requests: &Requests, seconds: u32) -> anyhow::Result<LoadMeasure> {
        let program = bench.programs.h3load.display().to_string();
        let numbers = [requests.connections, requests.streams, seconds].map(|number| number.to_string());
        let command = [program, self.gateway.port.to_string(), requests.path.to_owned()];
        let command: Vec<String> = command.into_iter().chain(numbers).collect();
        trial::measured(&command, &self.quic, &self.gateway)
    }

    /// The same requests over TCP.
    fn over_tcp(&self, bench: &Bench<'_>, requests: &Requests, seconds: u32) -> anyhow::Result<LoadMeasure> {
        let Requests { connections, streams, path, .. } = requests;
        if *streams == 0 {
            let target = Target {
                label: self.tcp.clone(),
                scheme: "https",
                path: (*path).to_owned(),
                keys: 0,
                authorization: String::new(),
            };
            let load = Load { connections: *connections, close: true, ..SMALL };
            return trial::load(&load, &target, &self.gateway, bench.folders, seconds);
        }
        let url = format!("https://127.0.0.1:{}{path}", self.gateway.port);
        let streams = Streams { connections: *connections, each: *streams, url, call: None };
        h2load::load(&streams, &self.tcp, &self.gateway, bench.folders, seconds)
    }
}

/// Returns the gateways of this run. nginx is left out if it was built without HTTP/3.
fn contenders(bench: &Bench<'_>) -> anyhow::Result<Vec<Contender>> {
    let mut all = vec![Contender::Sigma { routes: 1 }];
    let nginx = Contender::Nginx { keepalive: 512 };
    if let Some(program) = bench.programs.path(nginx).filter(|_| bench.options.wants(nginx)) {
        let output = Command::new(program).arg("-V").output()?;
        if String::from_utf8_lossy(&output.stderr).contains("http_v3_module") {
            all.push(nginx);
        } else {
            eprintln!("nginx is left out: {} has no HTTP/3", program.display());
        }
    }
    Ok(all)
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let requests = requests(trial);
    let edge = Edge {
        clients: Protocol::Http2,
        certificate: Some(Certificate::make(&folders.work)?),
        http3: true,
        origin: Protocol::Http1,
        pool: 1_000,
    };
    let origin = process::origin(programs, &folders.work)?;
    let contenders = contenders(bench)?;
    let start = |contender| Side::start(bench, &requests, contender, &edge, origin.port);
    let sides = contenders.into_iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let mut results =
        Results { shape: trial.into(), title: String::new(), rounds, seconds, contenders: Vec::new() };
    for _ in 0..rounds {
        for side in &sides {
            results.add(&side.tcp, Measure::Load(side.over_tcp(bench, &requests, seconds)?));
            results.add(&side.quic, Measure::Load(side.over_quic(bench, &requests, seconds)?));
        }
    }
    let references: Vec<&str> = sides.iter().flat_map(|side| [side.tcp.as_str(), &side.quic]).collect();
    let table = report::load_table_beside("gateway", &results, &references);
    let text = format!(
        "\n## {}\n\nThe load generator for HTTP/3 is `bench/h3load`, another implementation (quinn and h3). No session is \
         resumed; handshakes are whole.\n\n{table}\n`bench h3 --only {trial}`: {rounds} rounds of {seconds} s.\n",
        requests.title
    );
    let of_sigma = results.contenders.iter().filter(|(label, _)| label.starts_with("Sigma"));
    let errors = of_sigma.flat_map(|(_, all)| all).map(Measure::errors).sum();
    kept(bench, SUITE.name, trial, text, errors)
}
