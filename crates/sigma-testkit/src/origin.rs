//! Fake origins: scripted step by step by the test, or answering by a function per connection.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::DEADLINE;
use crate::message::Message;
use crate::peer::Peer;
use crate::socket::{Address, Socket};
use crate::streams::StreamOrigin;

/// How long an answering origin keeps a silent connection.
const IDLE: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicUsize,
    requests: AtomicUsize,
    stopped: AtomicBool,
}

/// A listening origin. Dropping it stops accepting; open connections end with their holders.
#[derive(Debug)]
pub struct Origin {
    address: Address,
    counters: Arc<Counters>,
    accepted: Mutex<Receiver<Peer>>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> std::io::Result<Socket> {
        match self {
            Listener::Tcp(l) => l.accept().and_then(|(s, _)| s.set_nodelay(true).map(|()| Socket::Tcp(s))),
            Listener::Unix(l) => l.accept().map(|(s, _)| Socket::Unix(s)),
        }
    }
}

/// A listener with the address that it is bound to.
struct BoundListener {
    listener: Listener,
    address: Address,
}

impl Origin {
    /// Starts an origin on 127.0.0.1 whose connections the test takes with [`Origin::accept`].
    pub fn scripted() -> Result<Origin> {
        let (sender, receiver) = channel();
        Origin::listen(tcp("127.0.0.1:0")?, Arc::default(), receiver, move |peer| {
            // The receiver goes with the origin; a connection after that is simply closed.
            let _ = sender.send(peer);
        })
    }

    /// Starts a scripted origin for HTTP/2 in cleartext: it sends its preface to a connection at once, as servers do,
    /// and then the connection waits to be taken.
    pub(crate) fn streams() -> Result<(Origin, Receiver<StreamOrigin>)> {
        let (sender, streams) = channel();
        let origin = Origin::listen(tcp("127.0.0.1:0")?, Arc::default(), channel().1, move |peer| {
            if let Ok(greeted) = StreamOrigin::over(peer.into_socket()) {
                let _ = sender.send(greeted);
            }
        })?;
        Ok((origin, streams))
    }

    /// Starts an origin on 127.0.0.1 that runs `serve` in a thread for every connection.
    pub fn serve(serve: impl Fn(Peer) + Send + Sync + 'static) -> Result<Origin> {
        Origin::threaded(tcp("127.0.0.1:0")?, Arc::default(), serve)
    }

    /// Starts an origin that responds to every request by `answer`: it returns the raw bytes of the response.
    pub fn answer(answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static) -> Result<Origin> {
        Origin::answering(tcp("127.0.0.1:0")?, answer)
    }

    /// Starts an origin that returns 200 with `name` in the header `X-Origin` and the received request as JSON:
    /// `method`, `target`, `headers` (list of pairs), `body_bytes`, `body_checksum`.
    pub fn echo(name: &str) -> Result<Origin> {
        let name = name.to_string();
        Origin::answering(tcp("127.0.0.1:0")?, move |request| echo(&name, request))
    }

    /// Starts an echo origin at an address of this machine, `ip:port`.
    pub fn echo_at(name: &str, address: &str) -> Result<Origin> {
        let name = name.to_string();
        Origin::answering(tcp(address)?, move |request| echo(&name, request))
    }

    /// Starts an echo origin on the IPv6 loopback.
    pub fn echo_ipv6(name: &str) -> Result<Origin> {
        let name = name.to_string();
        Origin::answering(tcp("[::1]:0")?, move |request| echo(&name, request))
    }

    /// Starts an echo origin on a Unix socket at `path`.
    pub fn echo_unix(name: &str, path: &Path) -> Result<Origin> {
        let name = name.to_string();
        Origin::answering(unix(path)?, move |request| echo(&name, request))
    }

    /// Starts an origin on a Unix socket at `path` that runs `serve` in a thread for every connection.
    pub fn serve_unix(path: &Path, serve: impl Fn(Peer) + Send + Sync + 'static) -> Result<Origin> {
        Origin::threaded(unix(path)?, Arc::default(), serve)
    }

    fn answering(
        bound: BoundListener,
        answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Origin> {
        let counters = Arc::new(Counters::default());
        let seen = Arc::clone(&counters);
        Origin::threaded(bound, counters, move |mut peer| {
            while let Ok(request) = peer.read_request() {
                seen.requests.fetch_add(1, Ordering::SeqCst);
                if peer.send(answer(&request)).is_err() {
                    return;
                }
            }
        })
    }

    fn threaded(
        bound: BoundListener,
        counters: Arc<Counters>,
        serve: impl Fn(Peer) + Send + Sync + 'static,
    ) -> Result<Origin> {
        let serve = Arc::new(serve);
        let (_, receiver) = channel();
        Origin::listen(bound, counters, receiver, move |peer| {
            let serve = Arc::clone(&serve);
            // Idle keep-alive connections of a gateway outlive the usual deadline of a step.
            let peer = peer.with_deadline(IDLE);
            std::thread::spawn(move || serve(peer));
        })
    }

    fn listen(
        bound: BoundListener,
        counters: Arc<Counters>,
        accepted: Receiver<Peer>,
        take: impl Fn(Peer) + Send + 'static,
    ) -> Result<Origin> {
        let BoundListener { listener, address } = bound;
        let shared = Arc::clone(&counters);
        std::thread::spawn(move || {
            while let Ok(socket) = listener.accept() {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                shared.connections.fetch_add(1, Ordering::SeqCst);
                take(Peer::over(socket));
            }
        });
        Ok(Origin { address, counters, accepted: Mutex::new(accepted) })
    }

    /// Returns the next connection, in the order of arrival (scripted origins only).
    pub fn accept(&self) -> Result<Peer> {
        // A poisoned lock means that another thread of the same test has failed already.
        let accepted = self.accepted.lock().map_err(|_| anyhow!("the test has failed elsewhere"))?;
        accepted.recv_timeout(DEADLINE).context("the gateway opened no connection to the origin")
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns its port; 0 for Unix sockets.
    pub fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp(addr) => addr.port(),
            Address::Unix(_) => 0,
        }
    }

    /// Returns the number of accepted connections so far.
    pub fn connections(&self) -> usize {
        self.counters.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of answered requests so far (not counted for scripted origins).
    pub fn requests(&self) -> usize {
        self.counters.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.counters.stopped.store(true, Ordering::SeqCst);
        // Wakes the accept call so that its thread sees the flag and closes the listener.
        drop(Socket::connect(&self.address, DEADLINE));
    }
}

fn tcp(address: &str) -> Result<BoundListener> {
    let listener = TcpListener::bind(address).with_context(|| format!("bind {address}"))?;
    let bound: SocketAddr = listener.local_addr()?;
    Ok(BoundListener { listener: Listener::Tcp(listener), address: Address::Tcp(bound) })
}

fn unix(path: &Path) -> Result<BoundListener> {
    let listener = UnixListener::bind(path).with_context(|| format!("bind {}", path.display()))?;
    Ok(BoundListener { listener: Listener::Unix(listener), address: Address::Unix(path.to_path_buf()) })
}

fn echo(name: &str, request: &Message) -> Vec<u8> {
    // The strict reader has checked the request line.
    let (method, target) = request.head.request_line().unwrap_or_default();
    let body = serde_json::json!({
        "method": method,
        "target": target,
        "headers": request.head.fields,
        "body_bytes": request.body.len(),
        "body_checksum": checksum(&request.body),
    });
    let body = if method == "HEAD" { String::new() } else { body.to_string() };
    let head = format!("HTTP/1.1 200 OK\r\nX-Origin: {name}\r\nContent-Type: application/json\r\n");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Returns the FNV-1a hash, 64 bits, which shows whether bytes arrived unchanged.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_answers_and_counts() {
        let origin = Origin::echo("a").unwrap();
        let mut client = Peer::connect(origin.address()).unwrap();
        let answer = client.ask("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi").unwrap();
        let json = answer.json().unwrap();
        assert_eq!(json["target"], "/x");
        assert_eq!(json["body_bytes"], 2);
        assert_eq!(client.get("/y").unwrap().head.get("x-origin"), Some("a"));
        assert_eq!((origin.connections(), origin.requests()), (1, 2));
    }

    #[test]
    fn scripted_resets() {
        let origin = Origin::scripted().unwrap();
        let mut client = Peer::connect(origin.address()).unwrap();
        origin.accept().unwrap().reset().unwrap();
        client.expect_closed().unwrap();
    }
}
