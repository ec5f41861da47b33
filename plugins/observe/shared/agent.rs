//! Lines of StatsD: the times in them, and the agent that gets them, over UDP, in datagrams that are no longer than it
//! reads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sigma_plugin::record::Record;
use tokio::net::{UdpSocket, lookup_host};

use sigma_plugin_kit::batch::{Destination, Refusal, Sending};

/// The times of a request in milliseconds.
pub(crate) struct Latencies {
    /// From its first byte to the last one of the response.
    pub(crate) total: f64,
    /// The sum of all attempts. None if no node got the request.
    pub(crate) upstream: Option<f64>,
    /// The rest.
    pub(crate) gateway: f64,
}

impl Latencies {
    pub(crate) fn of(record: &Record) -> Latencies {
        let total = record.elapsed_ms().unwrap_or_default();
        let responses = record.attempts.iter().filter_map(|attempt| attempt.response_ms);
        let upstream = (!record.attempts.is_empty()).then(|| responses.sum::<f64>());
        Latencies { total, upstream, gateway: (total - upstream.unwrap_or_default()).max(0.0) }
    }
}

/// How long the agent's name may take to be found.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An agent.
pub(crate) struct Agent {
    /// Its name in the error log.
    pub(crate) what: &'static str,
    /// A name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The longest datagram.
    pub(crate) datagram_bytes: usize,
}

impl Agent {
    /// Sends all of it from one socket. The number counts the entries before the failed one.
    async fn tell(&self, entries: &[Vec<u8>]) -> Result<(), (usize, String)> {
        let socket = self.socket().await.map_err(|reason| (0, reason))?;
        for (taken, lines) in entries.iter().enumerate() {
            for datagram in datagrams(lines, self.datagram_bytes) {
                socket.send(datagram).await.map_err(|error| (taken, error.to_string()))?;
            }
        }
        Ok(())
    }

    async fn socket(&self) -> Result<UdpSocket, String> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let found = tokio::time::timeout(TIMEOUT, lookup_host((host, self.port))).await;
        let found = found.map_err(|_| "the name server did not respond".to_owned())?;
        let mut found = found.map_err(|error| error.to_string())?;
        let agent = found.next().ok_or("the host name has no address")?;
        let own: IpAddr = match agent {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((own, 0)).await.map_err(|error| error.to_string())?;
        socket.connect(agent).await.map_err(|error| error.to_string())?;
        Ok(socket)
    }
}

impl Destination for Agent {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async move {
            let (what, host, port) = (self.what, &self.host, self.port);
            self.tell(entries).await.map_err(|(taken, reason)| Refusal {
                reason: format!(
                    "failed to send metrics to {what} server: host[{host}] port[{port}] err: {reason}"
                ),
                taken,
            })
        })
    }
}

/// Lines as few datagrams of at most this many bytes. A line that is longer by itself is one: half of it would be
/// another metric.
fn datagrams(lines: &[u8], most: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(lines);
    std::iter::from_fn(move || {
        let left = rest?;
        let room = left.len().min(most.saturating_add(1));
        let last_end = left[..room].iter().rposition(|byte| *byte == b'\n');
        let end = match last_end {
            _ if left.len() <= most => None,
            Some(end) => Some(end),
            None => left.iter().position(|byte| *byte == b'\n'),
        };
        rest = end.map(|end| &left[end + 1..]);
        Some(&left[..end.unwrap_or(left.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_packed_and_never_cut() {
        let check = |lines: &str, most: usize, expected: &[&str]| {
            let found: Vec<&[u8]> = datagrams(lines.as_bytes(), most).collect();
            let expected: Vec<&[u8]> = expected.iter().map(|one| one.as_bytes()).collect();
            assert_eq!(found, expected, "{lines:?} {most}");
        };
        check("aa\nbb\ncc", 8, &["aa\nbb\ncc"]);
        check("aa\nbb\ncc", 7, &["aa\nbb", "cc"]);
        check("aa\nbb\ncc", 5, &["aa\nbb", "cc"]);
        check("aa\nbb\ncc", 4, &["aa", "bb", "cc"]);
        check("a\nbbbb\nc", 2, &["a", "bbbb", "c"]);
        check("bbbb", 2, &["bbbb"]);
        check("a\nb", usize::MAX, &["a\nb"]);
    }
}
