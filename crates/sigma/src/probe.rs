//! `sigma probe`: sends the same requests to two servers and compares the responses.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use sigma_convert::import::probe::compare::{Difference, differences};
use sigma_convert::import::probe::response::{MOST_BYTES, Response};
use sigma_convert::import::probe::{self, Probe};
use sigma_net::Stream;
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust, is_server_name};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use crate::args::{Compare, ReportForm};
use crate::output::printed;

/// Most bytes of a file with probes.
const MOST_FILE_BYTES: u64 = 64 << 20;

/// Exit status if a response differs.
const DIFFERENT: u8 = 1;

/// A server: its address, and the port of the source that it represents.
struct Server {
    /// Port of the probes that this server gets; 0 for all others.
    port: u16,
    authority: String,
    /// Whether it speaks TLS.
    is_tls: bool,
}

/// The means of a comparison.
struct Asker {
    runtime: Runtime,
    tls: Option<ClientTls>,
    timeout: Duration,
}

/// A probe with what differs.
struct Outcome<'a> {
    probe: &'a Probe,
    differences: Vec<Difference>,
}

/// Runs `sigma probe`.
pub(crate) fn execute(args: &Compare) -> Result<ExitCode> {
    let name = args.file.display();
    let size = std::fs::metadata(&args.file).with_context(|| format!("cannot read {name}"))?.len();
    if size > MOST_FILE_BYTES {
        bail!("{name} is larger than {} MiB", MOST_FILE_BYTES >> 20);
    }
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    let probes = probe::read(&text).map_err(|reason| anyhow!("{name}: {reason}"))?;
    let (left, right) = (servers(&args.left)?, servers(&args.right)?);
    let is_encrypted = left.iter().chain(&right).any(|server| server.is_tls);
    let asker = Asker {
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        tls: is_encrypted.then(|| client_tls(args.cacert.as_deref(), args.insecure)).transpose()?,
        timeout: Duration::from_millis(args.timeout_ms.max(1)),
    };
    let mut outcomes = Vec::with_capacity(probes.len());
    for probe in &probes {
        let (one, two) = (of(&left, probe), of(&right, probe));
        let answers = (asker.ask(probe, one)?, asker.ask(probe, two)?);
        let mut found = differences(probe, &answers.0, &answers.1, [&one.authority, &two.authority]);
        found.retain(|it| !args.allow.iter().any(|allowed| allowed.eq_ignore_ascii_case(&it.field)));
        outcomes.push(Outcome { probe, differences: found });
    }
    let different = outcomes.iter().filter(|outcome| !outcome.differences.is_empty()).count();
    let report = match args.report {
        ReportForm::Json => format!("{}\n", as_json(&outcomes)),
        ReportForm::Text => as_text(&outcomes),
    };
    printed(report.as_bytes());
    Ok(if different == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

/// Returns the settings of connections over TLS.
fn client_tls(authorities: Option<&Path>, trusts_all: bool) -> Result<ClientTls> {
    let trust = match authorities {
        _ if trusts_all => Trust::Anyone,
        Some(path) => {
            let name = path.display();
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
            Trust::Authorities(Authorities::from_pem(&text).map_err(|error| anyhow!("{name}: {error}"))?)
        }
        None => Trust::Authorities(Authorities::system().map_err(|error| anyhow!("{error}"))?),
    };
    let settings = ClientSettings { trust, alpn: vec![b"http/1.1".to_vec()], ..ClientSettings::default() };
    ClientTls::new(settings).map_err(|error| anyhow!("{error}"))
}

/// Parses servers: `http://host:port` or `https://host:port`, with `PORT=` before it for the probes of one listener.
fn servers(texts: &[String]) -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    for text in texts {
        let (port, url) = match text.split_once('=') {
            Some((port, url)) => (port.parse().with_context(|| format!("`{port}` is not a port"))?, url),
            None => (0, text.as_str()),
        };
        let is_tls = url.starts_with("https://");
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let authority = rest.map(|rest| rest.trim_end_matches('/'));
        let authority = authority.filter(|rest| !rest.is_empty() && !rest.contains('/'));
        let Some(authority) = authority else {
            bail!("`{url}` is not a URL such as http://HOST:PORT or https://HOST:PORT; remove its path");
        };
        let is_short = authority.rsplit(':').next().is_none_or(|port| port.parse::<u16>().is_err());
        let default = if is_tls { 443 } else { 80 };
        let authority = if is_short { format!("{authority}:{default}") } else { authority.to_owned() };
        servers.push(Server { port, authority, is_tls });
    }
    Ok(servers)
}

/// Returns the server for a probe.
fn of<'a>(servers: &'a [Server], probe: &Probe) -> &'a Server {
    let own = servers.iter().find(|server| server.port != 0 && server.port == probe.port);
    let any = servers.iter().find(|server| server.port == 0);
    // There is at least one server: the command line demands it.
    own.or(any).unwrap_or(&servers[0])
}

impl Asker {
    /// Sends a probe and reads the response.
    fn ask(&self, probe: &Probe, server: &Server) -> Result<Response> {
        let authority = &server.authority;
        let address =
            authority.to_socket_addrs().with_context(|| format!("cannot resolve {authority}"))?.next();
        let address = address.with_context(|| format!("cannot resolve {authority}: no address"))?;
        let is_head = probe.method == "HEAD";
        let mut bytes = Vec::new();
        self.runtime.block_on(async {
            let end = tokio::time::Instant::now() + self.timeout;
            let opening = tokio::time::timeout_at(end, self.open(probe, server, address));
            let mut stream = opening.await.map_err(|_| anyhow!("{authority} does not respond in time"))??;
            let exchange = async {
                // A server may refuse before it has read all: its response counts.
                let _ = stream.write_all(&probe::request(probe, authority)).await;
                let _ = stream.flush().await;
                let mut buffer = [0_u8; 16 << 10];
                while bytes.len() < MOST_BYTES && !Response::is_whole(&bytes, is_head) {
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => break,
                        Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                    }
                }
            };
            let _ = tokio::time::timeout_at(end, exchange).await;
            anyhow::Ok(())
        })?;
        Ok(Response::parse(&bytes, is_head))
    }

    /// Connects to a server. Over TLS, the name is the host of the probe, or of the server where that is no name.
    async fn open(&self, probe: &Probe, server: &Server, address: SocketAddr) -> Result<Stream> {
        let authority = &server.authority;
        let stream = Stream::connect_tcp(address).await;
        let stream = stream.with_context(|| format!("cannot connect to {authority}"))?;
        let Some(tls) = self.tls.as_ref().filter(|_| server.is_tls) else { return Ok(stream) };
        let own = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
        let asked = probe.host.rsplit_once(':').map_or(probe.host.as_str(), |(host, _)| host);
        let name = if is_server_name(asked) { asked } else { own.trim_matches(['[', ']']) };
        tls.shake(stream, name).await.map_err(|error| {
            anyhow!("the TLS handshake with {authority} for `{name}` fails: {error}; --cacert FILE names its authority, --insecure accepts any certificate")
        })
    }
}

fn as_json(outcomes: &[Outcome<'_>]) -> Value {
    let different: Vec<Value> = outcomes
        .iter()
        .filter(|outcome| !outcome.differences.is_empty())
        .map(|Outcome { probe, differences }| {
            let fields: Vec<Value> = differences
                .iter()
                .map(|it| json!({"field": it.field, "left": it.left, "right": it.right}))
                .collect();
            json!({"name": probe.name, "method": probe.method, "host": probe.host, "target": probe.target,
                "differences": fields})
        })
        .collect();
    json!({"probes": outcomes.len(), "different": different.len(), "differences": different})
}

fn as_text(outcomes: &[Outcome<'_>]) -> String {
    let mut text = String::new();
    for Outcome { probe, differences } in outcomes.iter().filter(|it| !it.differences.is_empty()) {
        text.push_str(&format!("{} {} {}: {}\n", probe.method, probe.host, probe.target, probe.name));
        for Difference { field, left, right } in differences {
            let shown = |value: &Option<String>| {
                value.as_deref().map_or("-".to_owned(), |value| format!("`{value}`"))
            };
            text.push_str(&format!("  {field}: left {}, right {}\n", shown(left), shown(right)));
        }
    }
    let different = outcomes.iter().filter(|it| !it.differences.is_empty()).count();
    text.push_str(&format!("{} probes, {different} different\n", outcomes.len()));
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that gives each connection the same response.
    fn server(response: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = stream;
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(response.as_bytes());
            }
        });
        format!("http://{address}")
    }

    #[test]
    fn two_servers_are_compared() {
        let one = server("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na");
        let two = server("HTTP/1.1 200 OK\r\nX-B: 1\r\nContent-Length: 1\r\n\r\na");
        let probe = Probe { port: 80, ..Probe::get("n", "a.test", "/") };
        let list = servers(&[format!("80={two}"), one]).expect("servers");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let asker = Asker { runtime, tls: None, timeout: Duration::from_secs(10) };
        let other = Probe { port: 81, ..probe.clone() };
        let left = asker.ask(&probe, of(&list, &probe)).expect("a response");
        let right = asker.ask(&other, of(&list, &other)).expect("a response");
        let found = differences(&probe, &left, &right, ["a:1", "b:2"]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].field, "x-b");
        for url in ["ftp://a", "http://", "https://a/b", "x=http://a"] {
            assert!(servers(&[url.to_owned()]).is_err(), "{url}");
        }
    }
}
