//! Clients of every kind, which count their requests and losses.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::http2;
use super::outcome::{Outcome, PATIENCE, expect};

/// Between two requests of one client.
const PAUSE: Duration = Duration::from_millis(30);

/// The observations of one kind of clients.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) asked: AtomicU64,
    pub(super) lost: AtomicU64,
    /// Sessions that the gateway has ended in the way of their protocol.
    pub(super) ended: AtomicU64,
    /// Connections that were refused.
    pub(super) refused: AtomicU64,
}

/// A kind of clients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    KeepAlive,
    NewConnections,
    Http2,
    Grpc,
    WebSocket,
    Tcp,
    Udp,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] = [
        Kind::KeepAlive,
        Kind::NewConnections,
        Kind::Http2,
        Kind::Grpc,
        Kind::WebSocket,
        Kind::Tcp,
        Kind::Udp,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::KeepAlive => "HTTP/1, connections kept",
            Kind::NewConnections => "HTTP/1, new connections",
            Kind::Http2 => "HTTP/2, connections kept",
            Kind::Grpc => "gRPC, messages of streams",
            Kind::WebSocket => "WebSocket frames",
            Kind::Tcp => "TCP, questions of sessions",
            Kind::Udp => "UDP, datagrams",
        }
    }
}

/// Where the gateway is.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) http: u16,
    pub(super) tcp: u16,
    pub(super) udp: u16,
}

/// Sends requests until it is ordered to stop.
pub(super) fn run(kind: Kind, ports: Ports, stop: &AtomicBool, tally: &Tally) {
    let mut session = None;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let (mut open, is_new) = match session.take() {
            Some(open) => (open, false),
            None => match Session::open(kind, ports) {
                Ok(open) => (open, true),
                Err(_) => {
                    tally.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            },
        };
        tally.asked.fetch_add(1, Ordering::Relaxed);
        match open.ask(is_new) {
            Ok(Outcome::Answered) => session = (kind != Kind::NewConnections).then_some(open),
            Ok(Outcome::Ended) => drop(tally.ended.fetch_add(1, Ordering::Relaxed)),
            Err(_) => drop(tally.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// Asks once over a new connection.
pub(super) fn is_served(ports: Ports) -> bool {
    let session = Session::open(Kind::NewConnections, ports);
    session.is_ok_and(|mut session| matches!(session.ask(true), Ok(Outcome::Answered)))
}

enum Session {
    Http(TcpStream),
    Http2(Box<http2::Client>),
    WebSocket(TcpStream),
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Session {
    fn open(kind: Kind, ports: Ports) -> io::Result<Session> {
        let connect = |port: u16| {
            let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok::<_, io::Error>(stream)
        };
        Ok(match kind {
            Kind::KeepAlive | Kind::NewConnections => Session::Http(connect(ports.http)?),
            Kind::Http2 => Session::Http2(Box::new(http2::Client::new(connect(ports.http)?, false)?)),
            Kind::Grpc => Session::Http2(Box::new(http2::Client::new(connect(ports.http)?, true)?)),
            Kind::WebSocket => Session::WebSocket(connect(ports.http)?),
            Kind::Tcp => Session::Tcp(connect(ports.tcp)?),
            Kind::Udp => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                socket.connect((Ipv4Addr::LOCALHOST, ports.udp))?;
                socket.set_read_timeout(Some(PATIENCE))?;
                Session::Udp(socket)
            }
        })
    }

    fn ask(&mut self, is_new: bool) -> io::Result<Outcome> {
        const QUESTION: &[u8; 16] = b"0123456789abcdef";
        let mut answer = [0; 16];
        match self {
            Session::Http(stream) => {
                stream.write_all(b"GET /question HTTP/1.1\r\nHost: endure\r\n\r\n")?;
                let head = head(stream)?;
                let mut body = [0; 9];
                stream.read_exact(&mut body)?;
                expect(head.starts_with("http/1.1 200 ") && &body == b"/question")?;
                let is_last = head.contains("connection: close");
                return Ok(if is_last { Outcome::Ended } else { Outcome::Answered });
            }
            Session::Http2(client) => return client.ask(),
            Session::WebSocket(stream) => {
                if is_new {
                    stream.write_all(b"GET /ws HTTP/1.1\r\nHost: endure\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")?;
                    expect(head(stream)?.starts_with("http/1.1 101 "))?;
                }
                // A text of 16 bytes, under a mask of zeros.
                stream.write_all(&[&[0x81, 0x90, 0, 0, 0, 0], &QUESTION[..]].concat())?;
                let mut frame = [0; 2];
                stream.read_exact(&mut frame)?;
                if frame[0] == 0x88 {
                    let mut reason = vec![0; usize::from(frame[1])];
                    stream.read_exact(&mut reason)?;
                    expect(reason.starts_with(&1_001_u16.to_be_bytes()))?;
                    return Ok(Outcome::Ended);
                }
                expect(frame == [0x81, 16])?;
                stream.read_exact(&mut answer)?;
            }
            Session::Tcp(stream) => {
                stream.write_all(QUESTION)?;
                if stream.read(&mut answer[..1])? == 0 {
                    return Ok(Outcome::Ended);
                }
                stream.read_exact(&mut answer[1..])?;
            }
            Session::Udp(socket) => {
                socket.send(QUESTION)?;
                let len = socket.recv(&mut answer)?;
                expect(len == answer.len())?;
            }
        }
        expect(&answer == QUESTION)?;
        Ok(Outcome::Answered)
    }
}

/// A head in lower case.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).to_ascii_lowercase())
}
