//! One end of a connection that the test itself holds: sends raw bytes, reads strictly.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::DEADLINE;
use crate::message::{Framing, Head, Message, parse_field};
use crate::socket::{Address, Socket};

/// A raw client, or the origin's end of a connection.
#[derive(Debug)]
pub struct Peer {
    socket: Socket,
    buffer: Vec<u8>,
    limit: Duration,
}

impl Peer {
    /// Connects to `address`.
    pub fn connect(address: &Address) -> Result<Peer> {
        let socket = Socket::connect(address, DEADLINE).with_context(|| format!("connect to {address}"))?;
        Ok(Peer::over(socket))
    }

    /// Takes a connected socket.
    pub fn over(socket: Socket) -> Peer {
        Peer { socket, buffer: Vec::new(), limit: DEADLINE }
    }

    /// Returns its socket, to continue with another protocol.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Changes the deadline of every later step.
    #[must_use]
    pub fn with_deadline(mut self, limit: Duration) -> Peer {
        self.limit = limit;
        self
    }

    /// Returns the local port; 0 for Unix sockets.
    pub fn local_port(&self) -> u16 {
        self.socket.local_port()
    }

    /// Sends bytes unchanged.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.socket.set_timeout(self.limit)?;
        self.socket.write_all(bytes.as_ref()).context("send")
    }

    /// Sends a request and reads its final response, skipping interim ones.
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Result<Message> {
        let request = request.as_ref();
        self.send(request)?;
        let method = request.split(|&b| b == b' ').next().unwrap_or_default();
        let method = String::from_utf8_lossy(method).into_owned();
        loop {
            let answer = self.read_response(&method)?;
            if answer.status() == 101 || answer.status() >= 200 {
                return Ok(answer);
            }
        }
    }

    /// Sends `GET target` with `Host: localhost`; reads the final response.
    pub fn get(&mut self, target: &str) -> Result<Message> {
        self.ask(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// Reads one response, interim ones included, to the request of `method`.
    pub fn read_response(&mut self, method: &str) -> Result<Message> {
        let head = self.read_head()?;
        let status = head.status()?;
        let framing = if status < 200 {
            ensure!(head.framing()?.is_none(), "status {status} with framing fields");
            Framing::None
        } else if status == 204 {
            ensure!(head.framing()?.is_none(), "204 with framing fields");
            Framing::None
        } else if method == "HEAD" || status == 304 {
            head.framing()?;
            Framing::None
        } else {
            head.framing()?.unwrap_or(Framing::UntilClose)
        };
        self.read_body(head, framing)
    }

    /// Reads one request with its body.
    pub fn read_request(&mut self) -> Result<Message> {
        let head = self.read_head()?;
        head.request_line()?;
        let framing = head.framing()?.unwrap_or(Framing::None);
        self.read_body(head, framing)
    }

    /// Reads a head and leaves the body.
    pub fn read_head(&mut self) -> Result<Head> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Head::parse(&head);
            }
            ensure!(self.fill()? > 0, "connection closed within a head: {:?}", text(&self.buffer));
        }
    }

    fn read_body(&mut self, head: Head, framing: Framing) -> Result<Message> {
        let mut trailers = Vec::new();
        let body = match framing {
            Framing::None => Vec::new(),
            Framing::Length(n) => self.read_exactly(usize::try_from(n)?)?,
            Framing::UntilClose => {
                while self.fill()? > 0 {}
                std::mem::take(&mut self.buffer)
            }
            Framing::Chunked => self.read_chunks(&mut trailers)?,
        };
        Ok(Message { head, framing, body, trailers })
    }

    fn read_chunks(&mut self, trailers: &mut Vec<(String, String)>) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line()?;
            let size = line.split(';').next().unwrap_or_default();
            ensure!(!size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit()), "chunk size {line:?}");
            let size = usize::from_str_radix(size, 16)?;
            if size == 0 {
                break;
            }
            body.extend(self.read_exactly(size)?);
            ensure!(self.read_exactly(2)? == b"\r\n", "chunk of {size} bytes without its line end");
        }
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok(body);
            }
            trailers.push(parse_field(&line)?);
        }
    }

    /// Reads a line that ends with CRLF.
    pub fn read_line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(text(&line[..end]));
            }
            ensure!(self.fill()? > 0, "connection closed within a line: {:?}", text(&self.buffer));
        }
    }

    /// Reads exactly `n` bytes.
    pub fn read_exactly(&mut self, n: usize) -> Result<Vec<u8>> {
        while self.buffer.len() < n {
            if self.fill()? == 0 {
                bail!("connection closed after {} of {n} bytes: {:?}", self.buffer.len(), text(&self.buffer));
            }
        }
        let rest = self.buffer.split_off(n);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads until the connection ends, in order or by reset.
    pub fn read_to_close(&mut self) -> Result<Vec<u8>> {
        loop {
            match self.fill_io() {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if is_close(&e) => break,
                Err(e) => return Err(e).context("the peer did not close"),
            }
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Requires that the connection is reset, and does not end in order.
    pub fn expect_reset(&mut self) -> Result<()> {
        loop {
            match self.fill_io() {
                Ok(0) => bail!("the connection ended in order after {:?}", text(&self.buffer)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error).context("the connection was not reset"),
            }
        }
    }

    /// Requires that the connection ends without another byte.
    pub fn expect_closed(&mut self) -> Result<()> {
        let rest = self.read_to_close()?;
        ensure!(rest.is_empty(), "bytes before the close: {:?}", text(&rest));
        Ok(())
    }

    /// Returns true if the connection is open and silent at this moment.
    pub fn is_idle(&mut self) -> bool {
        let limit = std::mem::replace(&mut self.limit, Duration::from_millis(1));
        let result = self.fill_io();
        self.limit = limit;
        matches!(result, Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Closes the sending direction.
    pub fn half_close(&mut self) -> Result<()> {
        Ok(self.socket.shutdown(Shutdown::Write)?)
    }

    /// Closes with a reset.
    pub fn reset(self) -> Result<()> {
        Ok(self.socket.reset_on_close()?)
    }

    fn fill(&mut self) -> Result<usize> {
        let limit = self.limit;
        self.fill_io().with_context(|| format!("nothing within {limit:?} after {:?}", text(&self.buffer)))
    }

    /// Reads more into the buffer before the deadline.
    fn fill_io(&mut self) -> io::Result<usize> {
        let end = Instant::now() + self.limit;
        let mut chunk = [0; 64 * 1024];
        loop {
            self.socket.set_timeout(end.saturating_duration_since(Instant::now()))?;
            match self.socket.read(&mut chunk) {
                Ok(n) => {
                    self.buffer.extend_from_slice(&chunk[..n]);
                    return Ok(n);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn is_close(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected)
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|w| w == needle)
}

/// Returns the first 300 bytes as text, for messages only.
fn text(bytes: &[u8]) -> String {
    bytes.iter().take(300).map(|&b| b as char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn reader(bytes: &[u8]) -> Peer {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(bytes).unwrap();
        Peer::over(Socket::Unix(near))
    }

    #[test]
    fn responses() {
        fn check(method: &str, bytes: &str, expected: Option<(u16, &str)>) {
            let got = reader(bytes.as_bytes()).read_response(method);
            let got = got.map(|m| (m.status(), m.text()));
            match expected {
                Some((status, body)) => assert_eq!(got.unwrap(), (status, body.to_string()), "{bytes:?}"),
                None => assert!(got.is_err(), "{bytes:?}: {got:?}"),
            }
        }
        check("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Some((200, "ok")));
        check("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", Some((200, "")));
        check("GET", "HTTP/1.1 200 OK\r\n\r\nall", Some((200, "all")));
        check("GET", "HTTP/1.1 103 Early\r\nLink: a\r\n\r\n", Some((103, "")));
        check(
            "GET",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n\r\n",
            Some((200, "ok")),
        );
        check("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokk\r\n0\r\n\r\n", None);
        check("GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", None);
        check("GET", "HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", None);
    }
}
