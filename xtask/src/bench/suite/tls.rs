//! Sigma compared with other gateways with TLS 1.3 towards clients.

use super::{EDGE_PEERS, Outcome, Suite, in_turns, kept, kept_sections};
use crate::bench::edge::{Certificate, Edge};
use crate::bench::shape::{Load, SMALL};
use crate::bench::trial::{self, Target};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "tls",
    peers: &EDGE_PEERS,
    tools: &["wrk", "openssl"],
    trials,
    measure,
    report: whole_report,
    publish: report::write,
};

/// Requests on kept connections, and a full handshake for each request.
const TRIALS: [&str; 2] = ["keepalive-100", "handshake"];

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

fn whole_report(folders: &Folders) -> anyhow::Result<String> {
    kept_sections(folders, SUITE.name, &TRIALS)
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let (title, load, explained) = match trial {
        "handshake" => (
            "full handshakes of TLS 1.3",
            Load { close: true, ..SMALL },
            "100 clients, each with a new connection for every request. *requests/s* are handshakes/s, and *CPU µs* is \
             the cost of a handshake with its connection and one small request. nginx and HAProxy send two tickets with \
             each, which no client uses: OpenSSL does so, and they have no setting for it. A handshake costs the load \
             generator more than any of the gateways, so it is what bounds *requests/s*; compare *CPU µs*.",
        ),
        _ => (
            "TLS 1.3: small GET, 100 kept connections",
            SMALL,
            "The figures hold the 100 handshakes at the start of each round.",
        ),
    };
    eprintln!("{trial}: {title}");
    let Bench { options, folders, programs } = bench;
    let edge = Edge { certificate: Some(Certificate::make(&folders.work)?), ..Edge::PLAIN };
    let origin = process::origin(programs, &folders.work)?;
    let results = in_turns(bench, trial, &edge, origin.port, |label, gateway, seconds| {
        let target = Target {
            label: label.into(),
            scheme: edge.scheme(),
            path: load.path.into(),
            keys: 0,
            authorization: String::new(),
        };
        trial::load(&load, &target, gateway, folders, seconds)
    })?;
    let table = report::load_table("gateway", &results);
    let text = format!(
        "\n## {title}\n\n{explained} The same ECDSA certificate (P-256) for all, X25519, AES-256-GCM, no session is \
         resumed.\n\n{table}\n`bench tls --only {trial}`: {} rounds of {} s.\n",
        options.rounds(),
        options.seconds(),
    );
    kept(bench, SUITE.name, trial, text, results.errors_of_sigma())
}
