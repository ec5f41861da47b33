//! Sigma compared with other gateways with HTTP/2 towards clients, and with gRPC on both sides.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::{EDGE_PEERS, Outcome, Suite, in_turns, kept, kept_sections};
use crate::bench::edge::{Certificate, Edge, Protocol};
use crate::bench::h2load::{self, Call, Streams};
use crate::bench::launch::{Running, Workplace};
use crate::bench::process::{self, LOAD_CORE, Pinned, await_listening, free_port};
use crate::bench::{Bench, Folders, report};

pub(super) const SUITE: Suite = Suite {
    name: "h2",
    peers: &EDGE_PEERS,
    tools: &["h2load", "nghttpd", "openssl"],
    trials,
    measure,
    report: whole_report,
    publish: report::write,
};

/// HTTP/2 in cleartext and over TLS, both to an origin of HTTP/1.1; gRPC calls over 1 and 100 connections.
const TRIALS: [&str; 4] = ["h2c", "h2-tls", "grpc-1", "grpc-100"];

/// Requests open at a time on each connection.
const STREAMS: u32 = 10;

/// One length-prefixed gRPC message (a zero octet for "not compressed", its length in four, and so many bytes): both
/// the request and the response.
const MESSAGE: &str = "\0\0\0\0\x10sixteen bytes ok";

/// Where nghttpd has the message: it tells the media type by the suffix.
const METHOD: &str = "/bench.Echo/Unary.grpc";

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

fn whole_report(folders: &Folders) -> anyhow::Result<String> {
    kept_sections(folders, SUITE.name, &TRIALS)
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let (connections, title) = match trial {
        "h2c" => (100, "HTTP/2 in the clear"),
        "h2-tls" => (100, "HTTP/2 over TLS 1.3"),
        "grpc-1" => (1, "gRPC, 1 connection"),
        _ => (100, "gRPC, 100 connections"),
    };
    eprintln!("{trial}: {title}");
    let Bench { options, folders, programs } = bench;
    let certificate = match trial {
        "h2-tls" => Some(Certificate::make(&folders.work)?),
        _ => None,
    };
    let grpc = trial.starts_with("grpc");
    let protocol = if grpc { Protocol::Http2 } else { Protocol::Http1 };
    let pool = connections * STREAMS;
    let edge = Edge { clients: Protocol::Http2, certificate, http3: false, origin: protocol, pool };
    let origin = if grpc { grpc_origin(&folders.work)? } else { process::origin(programs, &folders.work)? };
    let results = in_turns(bench, trial, &edge, origin.port, |label, gateway, seconds| {
        let place = Workplace::new(&folders.work, "grpc")?;
        let (path, call) = if grpc {
            let message = place.write("message", MESSAGE)?.into();
            (METHOD, Some(Call { message, answer_bytes: MESSAGE.len() as u64 }))
        } else {
            ("/", None)
        };
        let url = format!("{}://127.0.0.1:{}{path}", edge.scheme(), gateway.port);
        h2load::load(&Streams { connections, each: STREAMS, url, call }, label, gateway, folders, seconds)
    })?;
    let what = if grpc {
        "unary calls of one 16-byte message each way, in the clear, to an origin of HTTP/2 (nghttpd, which answers every \
         call with the same message and `grpc-status: 0` in the trailers). *requests/s* are calls/s; a call that brings \
         no message counts as an error."
    } else {
        "small GET, to an origin of HTTP/1.1; where TLS is used, with the same ECDSA certificate (P-256) for all."
    };
    let table = report::load_table("gateway", &results);
    let text = format!(
        "\n## {title}\n\n{connections} × {STREAMS} streams, {what}\n\n{table}\n`bench h2 --only {trial}`: {} rounds of \
         {} s.\n",
        options.rounds(),
        options.seconds(),
    );
    kept(bench, SUITE.name, trial, text, results.errors_of_sigma())
}

/// Starts nghttpd so that it responds to each call of [`METHOD`] as a gRPC server does.
fn grpc_origin(work: &Path) -> anyhow::Result<Running> {
    let place = Workplace::new(work, "grpc-origin")?;
    let file = place.folder.join("files").join(METHOD.trim_start_matches('/'));
    let files = file.parent().context("the method has a service")?;
    std::fs::create_dir_all(files).with_context(|| format!("cannot create {}", files.display()))?;
    std::fs::write(&file, MESSAGE).with_context(|| format!("cannot write {}", file.display()))?;
    let types = place.write("mime.types", "application/grpc grpc\n")?;
    let port = free_port()?;
    let command = [
        "nghttpd".to_owned(),
        "--no-tls".into(),
        "--address=127.0.0.1".into(),
        format!("--htdocs={}", place.folder.join("files").display()),
        format!("--mime-types-file={types}"),
        "--no-content-length".into(),
        "--trailer=grpc-status: 0".into(),
        port.to_string(),
    ];
    let log = place.folder.join("log");
    let mut process = Pinned::start(LOAD_CORE, &command, &log)?;
    await_listening(&mut process, port, Duration::from_secs(5))
        .with_context(|| format!("nghttpd does not start: read {}", log.display()))?;
    Ok(Running { process, port })
}

#[cfg(test)]
mod tests {
    use super::MESSAGE;

    #[test]
    fn the_message_says_its_length() {
        let bytes = MESSAGE.as_bytes();
        assert_eq!(usize::from(bytes[4]), bytes.len() - 5);
    }
}
