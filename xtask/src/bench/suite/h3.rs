//! Sigma with HTTP/3, compared with itself over TCP: the same program, certificate and requests.

use anyhow::Context;

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::edge::Certificate;
use crate::bench::h2load::{self, Streams};
use crate::bench::launch::{Launch, Running};
use crate::bench::process::free_port;
use crate::bench::shape::{Load, SMALL};
use crate::bench::trial::{self, LoadMeasure, Measure, Results, Target};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "h3",
    peers: &[],
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

fn configuration(port: u16, origin: u16, certificate: &Certificate) -> String {
    let Certificate { chain, key, .. } = certificate;
    format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\", http3: true, tls: {{ protocols: [TLSv1.3], \
         alpn: [h2, http/1.1], certificates: [ {{ cert: \"{chain}\", key: \"{key}\" }} ] }} }} ]\n\
         tls: {{ resumption: \"off\" }}\n\
         limits: {{ keepalive_requests: 100000000 }}\n\
         access_log: \"off\"\n\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }}, \
         keepalive_pool: {{ size: 1000, requests: 100000000 }} }} ]\n\
         routes: [ {{ id: \"1\", uri: \"/*\", upstream_id: \"1\" }} ]\n"
    )
}

/// The requests over QUIC.
fn over_quic(
    bench: &Bench<'_>,
    requests: &Requests,
    gateway: &Running,
    seconds: u32,
) -> anyhow::Result<LoadMeasure> {
    let program = bench.programs.h3load.display().to_string();
    let numbers = [requests.connections, requests.streams, seconds].map(|number| number.to_string());
    let command = [program, gateway.port.to_string(), requests.path.to_owned()];
    let command: Vec<String> = command.into_iter().chain(numbers).collect();
    trial::measured(&command, "HTTP/3", gateway)
}

/// The same requests over TCP.
fn over_tcp(
    bench: &Bench<'_>,
    requests: &Requests,
    gateway: &Running,
    seconds: u32,
) -> anyhow::Result<LoadMeasure> {
    let Requests { connections, streams, path, tcp, .. } = requests;
    if *streams == 0 {
        let target = Target {
            label: (*tcp).to_owned(),
            scheme: "https",
            path: (*path).to_owned(),
            keys: 0,
            authorization: String::new(),
        };
        let load = Load { connections: *connections, close: true, ..SMALL };
        return trial::load(&load, &target, gateway, bench.folders, seconds);
    }
    let url = format!("https://127.0.0.1:{}{path}", gateway.port);
    let streams = Streams { connections: *connections, each: *streams, url, call: None };
    h2load::load(&streams, tcp, gateway, bench.folders, seconds)
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let requests = requests(trial);
    let certificate = Certificate::make(&folders.work)?;
    let origin = process::origin(programs, &folders.work)?;
    let port = free_port()?;
    let text = configuration(port, origin.port, &certificate);
    let launch = Launch::sigma(programs, &folders.work, trial, port, &text)?;
    let gateway = launch.start_listening()?;
    over_tcp(bench, &requests, &gateway, 1).with_context(|| format!("read {}", launch.log.display()))?;
    over_quic(bench, &requests, &gateway, 1).with_context(|| format!("read {}", launch.log.display()))?;
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let mut results =
        Results { shape: trial.into(), title: String::new(), rounds, seconds, contenders: Vec::new() };
    for _ in 0..rounds {
        results.add(requests.tcp, Measure::Load(over_tcp(bench, &requests, &gateway, seconds)?));
        results.add("HTTP/3", Measure::Load(over_quic(bench, &requests, &gateway, seconds)?));
    }
    let table = report::load_table("protocol", &results);
    let text = format!(
        "\n## {}\n\nThe load generator for HTTP/3 is `bench/h3load`, another implementation (quinn and h3). No session is \
         resumed; handshakes are whole.\n\n{table}\n`bench h3 --only {trial}`: {rounds} rounds of {seconds} s.\n",
        requests.title
    );
    let errors = results.contenders.iter().flat_map(|(_, all)| all).map(Measure::errors).sum();
    kept(bench, SUITE.name, trial, text, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_well_formed() {
        let [chain, key, both] = ["c.pem", "k.pem", "b.pem"].map(str::to_owned);
        let text = configuration(1, 2, &Certificate { chain, key, both });
        let document = sigma_schema::document::Document::parse(&text, 1 << 20).expect(&text);
        assert_eq!(document.value["listeners"][0]["http3"], true, "{text}");
        assert_eq!(document.value["upstreams"][0]["keepalive_pool"]["size"], 1000, "{text}");
    }
}
