//! One active probe.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use sigma_net::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::plan::{Active, Probe, ProbeTls};
use super::state::Event;
use crate::endpoint::{Address, Endpoint};

/// Most bytes of an answer that are looked at for its status line.
const STATUS_LINE_MAX: usize = 1024;

/// Probes `endpoint`; none if the answer says nothing either way.
pub async fn probe(active: &Active, endpoint: &Endpoint) -> Option<Event> {
    match attempt(active, endpoint).await {
        Ok(event) => event,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Some(Event::Timeout),
        // It says something of this machine alone.
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
    let Probe::Http { before_host, after_host } = &active.probe else {
        return Ok(Some(Event::Success));
    };
    let host = host_header(active, endpoint);
    if let Some(ProbeTls(tls)) = &active.tls {
        let shaken = async { tls.shake(stream, server_name(&host)).await.map_err(io::Error::other) };
        stream = within(active.timeout, shaken).await?;
    }
    let request = [before_host.as_slice(), host.as_bytes(), after_host].concat();
    within(active.timeout, async {
        stream.write_all(&request).await?;
        stream.flush().await
    })
    .await?;
    // One time for all of it: a node that sends byte by byte would hold up the checks of the others.
    let status = within(active.timeout, read_status(&mut stream)).await?;
    Ok(active.judge(status))
}

/// The name that a host goes by in TLS: without port and brackets.
fn server_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// The Host header of a probe.
fn host_header(active: &Active, endpoint: &Endpoint) -> String {
    if let Some(host) = &active.rewrite_host {
        return host.clone();
    }
    let configured = || active.host.clone();
    match (endpoint.host.parse::<IpAddr>(), &endpoint.addr) {
        (_, Address::Unix(_)) => configured().unwrap_or_else(|| "localhost".to_owned()),
        (Ok(IpAddr::V6(ip)), _) => configured().unwrap_or_else(|| format!("[{ip}]")),
        (Ok(IpAddr::V4(ip)), _) => configured().unwrap_or_else(|| ip.to_string()),
        (Err(_), _) => endpoint.host.clone(),
    }
}

/// The status of an answer; 0 if it is not HTTP. Reads no further than the status line.
async fn read_status(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<u16> {
    let mut line = [0; STATUS_LINE_MAX];
    let mut len = 0;
    while len < line.len() && !line[..len].contains(&b'\n') {
        match stream.read(&mut line[len..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => len += read,
        }
    }
    Ok(parse_status(&line[..len]).unwrap_or(0))
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

    /// A node that sends a byte now and then, for ever, is one that does not answer in time.
    #[tokio::test]
    async fn an_answer_byte_by_byte_has_one_time() {
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
}
