//! The floor of the benchmarks: `bench-floor PORT ORIGIN_PORT [bytes]`.
//!
//! The least that a forwarding HTTP/1.1 proxy on tokio can do and still be one: parse both heads, drop the
//! hop-by-hop header, add the five forwarding fields that Sigma adds, keep upstream connections, copy bodies framed
//! by `Content-Length`. It has no routes, no timeouts, no limits, no log and no chunked coding: the cost of a real gateway above it is the price of these. It is a measure, not a proxy to run.
//!
//! With `bytes` it forwards connections and not requests: the same for gateways of TCP.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

const HEAD_LIMIT: usize = 16 * 1024;
/// Bytes copied at once when a body does not fit in the buffer of its head.
const COPY_SIZE: usize = 128 * 1024;
const MAX_HEADERS: usize = 64;
/// Bytes of either direction that are copied at once where nothing is read of them.
const RELAY_SIZE: usize = 64 * 1024;

/// Idle upstream connections, the last used first: its memory is the warmest.
struct Pool {
    origin: SocketAddr,
    idle: RefCell<Vec<TcpStream>>,
}

impl Pool {
    async fn take(&self) -> io::Result<TcpStream> {
        let idle = self.idle.borrow_mut().pop();
        if let Some(stream) = idle {
            return Ok(stream);
        }
        let stream = TcpStream::connect(self.origin).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// The framing of one head: its own length, its body's, and whether the connection lives on.
#[derive(Clone, Copy)]
struct Frame {
    head: usize,
    body: usize,
    keep: bool,
}

/// Bytes of one connection that were read and not yet forwarded.
struct Inbox {
    bytes: Vec<u8>,
    filled: usize,
}

impl Inbox {
    fn new() -> Self {
        Self { bytes: vec![0; HEAD_LIMIT], filled: 0 }
    }

    /// Reads until `parse` finds a whole head and writes its rewritten form to `out`. `None`: the peer closed.
    async fn head(
        &mut self,
        stream: &mut TcpStream,
        out: &mut Vec<u8>,
        parse: impl Fn(&[u8], &mut Vec<u8>) -> io::Result<Option<Frame>>,
    ) -> io::Result<Option<Frame>> {
        loop {
            if self.filled > 0 {
                if let Some(frame) = parse(&self.bytes[..self.filled], out)? {
                    return Ok(Some(frame));
                }
                if self.filled == self.bytes.len() {
                    return Err(malformed());
                }
            }
            match stream.read(&mut self.bytes[self.filled..]).await? {
                0 if self.filled == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.filled += count,
            }
        }
    }

    /// Moves the message described by `frame` from `from` to `to`; `out` holds the rewritten head.
    async fn forward(
        &mut self,
        frame: Frame,
        out: &mut Vec<u8>,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> io::Result<()> {
        let end = self.filled.min(frame.head + frame.body);
        out.extend_from_slice(&self.bytes[frame.head..end]);
        to.write_all(out).await?;
        let mut missing = frame.head + frame.body - end;
        self.bytes.copy_within(end..self.filled, 0);
        self.filled -= end;
        if missing > 0 {
            let mut part = vec![0; COPY_SIZE];
            while missing > 0 {
                let room = missing.min(COPY_SIZE);
                let count = from.read(&mut part[..room]).await?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                to.write_all(&part[..count]).await?;
                missing -= count;
            }
        }
        Ok(())
    }
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The framing that the headers of a message announce.
struct Meaning<'h> {
    /// The length of the body.
    body: usize,
    keep: bool,
    host: &'h [u8],
}

/// Copies end-to-end headers to `out` and reads the framing from them; refuses unsupported messages.
fn copy_headers<'h>(headers: &[httparse::Header<'h>], out: &mut Vec<u8>) -> io::Result<Meaning<'h>> {
    let mut meaning = Meaning { body: 0, keep: true, host: b"" };
    for header in headers {
        if header.name.eq_ignore_ascii_case("connection") {
            meaning.keep = !header.value.eq_ignore_ascii_case(b"close");
            continue;
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(malformed());
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).map_err(|_| malformed())?;
            meaning.body = text.parse().map_err(|_| malformed())?;
        }
        if header.name.eq_ignore_ascii_case("host") {
            meaning.host = header.value;
        }
        out.extend_from_slice(header.name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(header.value);
        out.extend_from_slice(b"\r\n");
    }
    Ok(meaning)
}

/// The forwarding fields of a connection, made once for all of its requests; the value of the last is the request's.
fn forwarding_fields(peer: SocketAddr, port: u16) -> String {
    let ip = peer.ip();
    format!(
        "X-Real-IP: {ip}\r\nX-Forwarded-For: {ip}\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Port: {port}\r\n\
         X-Forwarded-Host: "
    )
}

/// Rewrites a request head; `forwarding` is what [`forwarding_fields`] made for its connection.
fn rewrite_request(bytes: &[u8], forwarding: &str, out: &mut Vec<u8>) -> io::Result<Option<Frame>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head) = request.parse(bytes).map_err(io::Error::other)? else {
        return Ok(None);
    };
    out.clear();
    out.extend_from_slice(request.method.unwrap_or_default().as_bytes());
    out.push(b' ');
    out.extend_from_slice(request.path.unwrap_or_default().as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let Meaning { body, keep, host } = copy_headers(request.headers, out)?;
    out.extend_from_slice(forwarding.as_bytes());
    out.extend_from_slice(host);
    out.extend_from_slice(b"\r\n\r\n");
    Ok(Some(Frame { head, body, keep }))
}

/// Rewrites a response head for a connection that closes afterwards unless `keep`.
fn rewrite_response(bytes: &[u8], keep: bool, out: &mut Vec<u8>) -> io::Result<Option<Frame>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes).map_err(io::Error::other)? else {
        return Ok(None);
    };
    out.clear();
    out.extend_from_slice(format!("HTTP/1.1 {} ", response.code.unwrap_or_default()).as_bytes());
    out.extend_from_slice(response.reason.unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    let Meaning { body, keep: upstream_keeps, .. } = copy_headers(response.headers, out)?;
    out.extend_from_slice(if keep { b"\r\n".as_slice() } else { b"Connection: close\r\n\r\n" });
    Ok(Some(Frame { head, body, keep: upstream_keeps }))
}

/// Forwards the requests of one client connection, one after the other.
async fn converse(mut client: TcpStream, forwarding: String, pool: Rc<Pool>) -> io::Result<()> {
    let (mut requests, mut responses) = (Inbox::new(), Inbox::new());
    let mut out = Vec::with_capacity(1024);
    loop {
        let parse = |bytes: &[u8], out: &mut Vec<u8>| rewrite_request(bytes, &forwarding, out);
        let Some(request) = requests.head(&mut client, &mut out, parse).await? else { return Ok(()) };
        let mut upstream = pool.take().await?;
        requests.forward(request, &mut out, &mut client, &mut upstream).await?;
        let parse = |bytes: &[u8], out: &mut Vec<u8>| rewrite_response(bytes, request.keep, out);
        let Some(response) = responses.head(&mut upstream, &mut out, parse).await? else {
            return Err(malformed());
        };
        responses.forward(response, &mut out, &mut upstream, &mut client).await?;
        if response.keep {
            pool.idle.borrow_mut().push(upstream);
        }
        if !request.keep {
            return Ok(());
        }
    }
}

/// Forwards the requests of one client connection.
async fn relay(mut client: TcpStream, origin: SocketAddr) -> io::Result<()> {
    let mut upstream = TcpStream::connect(origin).await?;
    upstream.set_nodelay(true)?;
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut upstream, RELAY_SIZE, RELAY_SIZE).await?;
    Ok(())
}

async fn accept(port: u16, origin_port: u16, bytes: bool) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(4096)?;
    let listener = TcpListener::from_std(socket.into())?;
    let pool = Rc::new(Pool { origin: (Ipv4Addr::LOCALHOST, origin_port).into(), idle: RefCell::default() });
    loop {
        let (client, peer) = listener.accept().await?;
        client.set_nodelay(true)?;
        if bytes {
            let origin = pool.origin;
            tokio::task::spawn_local(async move { drop(relay(client, origin).await) });
            continue;
        }
        let pool = Rc::clone(&pool);
        let forwarding = forwarding_fields(peer, port);
        // A broken exchange closes its connection; the load generator counts it.
        tokio::task::spawn_local(async move { drop(converse(client, forwarding, pool).await) });
    }
}

fn main() -> io::Result<()> {
    let bytes = std::env::args().nth(3).is_some_and(|word| word == "bytes");
    let ports: Vec<u16> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [port, origin_port] = ports[..] else {
        return Err(io::Error::other("usage: bench-floor PORT ORIGIN_PORT [bytes]"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(LocalSet::new().run_until(accept(port, origin_port, bytes)))
}
