//! One active probe.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use sigma_net::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::grpc;
use super::plan::{Active, Probe, ProbeTls};
use super::state::Event;
use crate::endpoint::{Address, Endpoint};

/// The bytes of a response that are read for its status line.
const STATUS_LINE_MAX: usize = 1024;
/// The bytes of a response that are searched for the expected text.
const BODY_MAX: usize = 64 * 1024;

/// Probes `endpoint`; None if the result is inconclusive.
pub async fn probe(active: &Active, endpoint: &Endpoint) -> Option<Event> {
    match attempt(active, endpoint).await {
        Ok(event) => event,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Some(Event::Timeout),
        // It is about this machine alone.
        Err(error) if sigma_net::limits::is_own_lack(&error) => None,
        Err(_) => Some(Event::TcpFailure),
    }
}

async fn attempt(active: &Active, endpoint: &Endpoint) -> io::Result<Option<Event>> {
    let limit = active.timeout;
    match &endpoint.addr {
        Address::Tcp(addr) => {
            let mut addr = *addr;
            addr.set_port(active.port.unwrap_or(addr.port()));
            talk(active, endpoint, within(limit, Stream::connect_tcp(addr)).await?).await
        }
        Address::Unix(path) => talk(active, endpoint, within(limit, Stream::connect_unix(path)).await?).await,
    }
}

async fn talk(active: &Active, endpoint: &Endpoint, mut stream: Stream) -> io::Result<Option<Event>> {
    if !active.introduction.is_empty() {
        within(active.timeout, stream.write_all(&active.introduction)).await?;
    }
    let (before_host, after_host, expected) = match &active.probe {
        Probe::Tcp => return Ok(Some(Event::Success)),
        Probe::Grpc(service) => {
            let host = host_header(active, endpoint);
            let (mut stream, scheme) = match &active.tls {
                Some(tls) => (shaken(active, tls, stream, &host).await?, grpc::Scheme::Https),
                None => (stream, grpc::Scheme::Http),
            };
            let asked = within(active.timeout, grpc::ask(&mut stream, scheme, &host, service)).await?;
            return Ok(Some(if asked { Event::Success } else { Event::HttpFailure }));
        }
        Probe::Http { before_host, after_host, expected } => (before_host, after_host, expected),
    };
    let host = host_header(active, endpoint);
    if let Some(tls) = &active.tls {
        stream = shaken(active, tls, stream, &host).await?;
    }
    let request = [before_host.as_slice(), host.as_bytes(), after_host].concat();
    within(active.timeout, async {
        stream.write_all(&request).await?;
        stream.flush().await
    })
    .await?;
    // One timeout for all of it: a node that sends byte by byte would delay the checks of the others.
    let mut answer = Vec::with_capacity(STATUS_LINE_MAX);
    let status = within(active.timeout, read_status(&mut stream, &mut answer)).await?;
    let event = active.judge(status);
    let (Some(Event::Success), Some(text)) = (event, expected) else { return Ok(event) };
    let found = tokio::time::timeout(active.timeout, has_body(&mut stream, answer, text.as_bytes())).await;
    Ok(Some(if found == Ok(true) { Event::Success } else { Event::HttpFailure }))
}

/// Returns the stream after a TLS handshake with the node named `host`.
async fn shaken(active: &Active, ProbeTls(tls): &ProbeTls, stream: Stream, host: &str) -> io::Result<Stream> {
    let shaken = async { tls.shake(stream, server_name(host)).await.map_err(io::Error::other) };
    within(active.timeout, shaken).await
}

/// Returns true if the read part of a response body, which begins with `answer`, contains a text.
async fn has_body(stream: &mut (impl AsyncRead + Unpin), mut answer: Vec<u8>, text: &[u8]) -> bool {
    loop {
        if let Some(end) = position(&answer, b"\r\n\r\n") {
            let (head, body) = answer.split_at(end + 4);
            if position(body, text).is_some() {
                return true;
            }
            // The connection need not end.
            if declared_length(head).is_some_and(|length| body.len() >= length) {
                return false;
            }
        }
        let room = BODY_MAX.saturating_sub(answer.len()).min(4096);
        if room == 0 {
            return false;
        }
        let len = answer.len();
        answer.resize(len + room, 0);
        match stream.read(&mut answer[len..]).await {
            Ok(read) if read > 0 => answer.truncate(len + read),
            _ => return false,
        }
    }
}

/// Returns the length of the body from its head.
fn declared_length(head: &[u8]) -> Option<usize> {
    let line = head.split(|byte| *byte == b'\n').find_map(|line| {
        let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then_some(value.trim())
    });
    line?.parse().ok()
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Returns the TLS server name of a host: without port and brackets.
fn server_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// Returns the Host header of a probe.
fn host_header(active: &Active, endpoint: &Endpoint) -> String {
    if let Some(host) = &active.rewrite_host {
        return host.clone();
    }
    if let Some(host) = &active.host {
        return host.clone();
    }
    match (endpoint.host.parse::<IpAddr>(), &endpoint.addr) {
        (_, Address::Unix(_)) => "localhost".to_owned(),
        (Ok(IpAddr::V6(ip)), _) => format!("[{ip}]"),
        (Ok(IpAddr::V4(ip)), _) => ip.to_string(),
        (Err(_), _) => endpoint.host.clone(),
    }
}

/// Returns the status of a response; 0 if it is not HTTP. The read bytes are in `answer`, little more than the status
/// line.
async fn read_status(stream: &mut (impl AsyncRead + Unpin), answer: &mut Vec<u8>) -> io::Result<u16> {
    while answer.len() < STATUS_LINE_MAX && !answer.contains(&b'\n') {
        let mut piece = [0; STATUS_LINE_MAX];
        match stream.read(&mut piece[answer.len()..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                let from = answer.len();
                answer.extend_from_slice(&piece[from..from + read]);
            }
        }
    }
    Ok(parse_status(answer).unwrap_or(0))
}

fn parse_status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, rest) = rest.split_at_checked(3)?;
    let ended = rest.first().is_some_and(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
    let digits = std::str::from_utf8(digits).ok().filter(|_| ended)?;
    digits.parse().ok().filter(|_| !digits.starts_with('+'))
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that sends a byte now and then, forever, does not respond in time.
    #[tokio::test]
    async fn a_response_byte_by_byte_has_one_timeout() {
        use crate::health::Plan;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            let mut pace = tokio::time::interval(Duration::from_millis(20));
            while stream.write_all(b"x").await.is_ok() {
                pace.tick().await;
            }
        });
        let active = Some(sigma_config::checks::Active::default());
        let checks = sigma_config::checks::Checks { active, ..Default::default() };
        let plan = Plan::compile(&checks, None, None).expect("valid");
        let active = Active { timeout: Duration::from_millis(200), ..plan.active.expect("active checks") };
        let endpoint = Endpoint {
            lease: crate::identity::Lease::numbered(0),
            host: "127.0.0.1".to_owned(),
            port: addr.port(),
            addr: Address::Tcp(addr),
            host_header: String::new(),
            weight: 1,
            priority: 0,
            metadata: None,
            by_address: false,
            quic_port: None,
            health: std::sync::Arc::new(crate::health::Health::unchecked()),
        };
        assert_eq!(probe(&active, &endpoint).await, Some(Event::Timeout));
    }

    #[test]
    fn status_lines() {
        let check = |line: &str, want: Option<u16>| {
            assert_eq!(parse_status(line.as_bytes()), want, "{line:?}");
        };
        check("HTTP/1.1 200 OK\r\n", Some(200));
        check("HTTP/1.0 503\r\n", Some(503));
        check("HTTP/1.1 20\r\n", None);
        check("HTTP/1.1 2000 x\n", None);
        check("HTTP/1.1 +20 x\n", None);
        check("HTTP/2 200\r\n", None);
        check("SSH-2.0\r\n", None);
    }

    #[tokio::test]
    async fn a_text_is_found_across_any_cut_of_the_body() {
        let check = async |head: &str, rest: &str, text: &str, want: bool| {
            let mut stream = rest.as_bytes();
            let found = has_body(&mut stream, head.as_bytes().to_vec(), text.as_bytes()).await;
            assert_eq!(found, want, "{head:?} {text:?}");
        };
        check("HTTP/1.1 200 OK\r\nA: ready\r\n\r\n", "not yet", "ready", false).await;
        check("HTTP/1.1 200 OK\r\nA: b\r", "\n\r\nall is ready", "ready", true).await;
        check("HTTP/1.1 200 OK\r\n\r\nrea", "dy", "ready", true).await;
        // Bytes after the body are not waited for.
        check("HTTP/1.1 200 OK\r\nContent-length: 3\r\n\r\nnot", "ready", "ready", false).await;
        let long = "x".repeat(BODY_MAX);
        check("HTTP/1.1 200 OK\r\n\r\n", &format!("{long}ready"), "ready", false).await;
    }
}
