//! Honest clients, and how long their requests take.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::http2;
use super::super::outcome::{Outcome, PATIENCE, expect};
use super::Ports;

/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(20);
/// A datagram without a reply is sent again after this time, as any client of UDP does.
const RESEND: Duration = Duration::from_secs(1);
const RESENDS: u32 = 5;

/// A kind of honest clients.
pub(super) struct Honest {
    pub(super) name: &'static str,
    open: fn(Ports) -> io::Result<Session>,
    /// Each request has a connection or port of its own.
    is_always_new: bool,
}

pub(super) const HONEST: [Honest; 5] = [
    Honest { name: "HTTP/1, connections kept", open: http1, is_always_new: false },
    Honest { name: "HTTP/1, new connections", open: http1, is_always_new: true },
    Honest { name: "HTTP/2, connections kept", open: http2, is_always_new: false },
    Honest { name: "UDP, one session", open: udp, is_always_new: false },
    Honest { name: "UDP, new sessions", open: udp, is_always_new: true },
];

/// The observations of a kind of clients.
#[derive(Default)]
pub(super) struct Record {
    pub(super) asked: u64,
    pub(super) failed: u64,
    pub(super) first_error: Option<String>,
    times_us: Vec<u32>,
}

impl Record {
    /// The time within which so many percent of the requests got a response.
    pub(super) fn percentile_us(&self, percent: usize) -> u32 {
        let mut times = self.times_us.clone();
        times.sort_unstable();
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(at).copied().unwrap_or_default()
    }
}

enum Session {
    Http1(TcpStream),
    Http2(Box<http2::Client>),
    Udp(UdpSocket),
}

fn connect(ports: Ports) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, ports.http)), PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn http1(ports: Ports) -> io::Result<Session> {
    connect(ports).map(Session::Http1)
}

fn http2(ports: Ports) -> io::Result<Session> {
    Ok(Session::Http2(Box::new(http2::Client::new(connect(ports)?, false)?)))
}

fn udp(ports: Ports) -> io::Result<Session> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((Ipv4Addr::LOCALHOST, ports.udp))?;
    socket.set_read_timeout(Some(RESEND))?;
    Ok(Session::Udp(socket))
}

/// Sends requests until it is ordered to stop.
pub(super) fn run(kind: &Honest, ports: Ports, stop: &AtomicBool) -> Record {
    let (mut record, mut kept) = (Record::default(), None);
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let begin = Instant::now();
        record.asked += 1;
        let session = kept.take().map_or_else(|| (kind.open)(ports), Ok);
        let asked = session.and_then(|mut session| Ok((ask(&mut session, record.asked)?, session)));
        match asked {
            Ok((outcome, session)) => {
                record.times_us.push(u32::try_from(begin.elapsed().as_micros()).unwrap_or(u32::MAX));
                kept = (matches!(outcome, Outcome::Answered) && !kind.is_always_new).then_some(session);
            }
            Err(error) => {
                record.failed += 1;
                record.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
    record
}

/// Whether HTTP and UDP are served.
pub(super) fn is_served(ports: Ports) -> bool {
    let asks =
        |open: fn(Ports) -> io::Result<Session>| open(ports).and_then(|mut session| ask(&mut session, 0));
    asks(http1).is_ok() && asks(udp).is_ok()
}

fn ask(session: &mut Session, number: u64) -> io::Result<Outcome> {
    match session {
        Session::Http1(stream) => {
            stream.write_all(b"GET /question HTTP/1.1\r\nHost: a\r\n\r\n")?;
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
            if !head.starts_with(b"HTTP/1.1 200 ") {
                let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
                return Err(io::Error::other(String::from_utf8_lossy(line).into_owned()));
            }
            let mut body = [0; 9];
            stream.read_exact(&mut body)?;
            expect(&body == b"/question")?;
            let is_last = String::from_utf8_lossy(&head).to_ascii_lowercase().contains("connection: close");
            Ok(if is_last { Outcome::Ended } else { Outcome::Answered })
        }
        Session::Http2(client) => client.ask(),
        Session::Udp(socket) => {
            let (question, mut reply) = (number.to_be_bytes(), [0; 16]);
            for _ in 0..RESENDS {
                socket.send(&question)?;
                // A reply to an earlier datagram may be late.
                while let Ok(len) = socket.recv(&mut reply) {
                    if reply[..len] == question {
                        return Ok(Outcome::Answered);
                    }
                }
            }
            Err(io::Error::other("no reply to five datagrams"))
        }
    }
}
