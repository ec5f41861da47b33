//! A small blocking HTTP/1.1 client: requests of a suite to a gateway in addition to the load generator's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};

/// How long one response may take: a configuration of 100,000 routes is one request.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// Longest line of a head; these are answers of gateways that we started.
const LINE_LIMIT: u64 = 64 << 10;

/// A connection to a loopback port.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    /// Whom it asks.
    host: String,
}

/// A response with its body.
#[derive(Debug)]
pub(super) struct BenchResponse {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl BenchResponse {
    /// The body for a message: its start, on one line.
    pub(super) fn text(&self) -> String {
        const LONGEST: usize = 200;
        let text = String::from_utf8_lossy(&self.body);
        text.chars().take(LONGEST).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
    }
}

impl Client {
    /// Connects to `port`.
    pub(super) fn connect(port: u16) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self { stream: BufReader::new(stream), host: address.to_string() })
    }

    /// Sends one request and reads its response; the connection can be used again.
    ///
    /// `fields` are whole header lines, each with its line end.
    pub(super) fn ask(
        &mut self,
        method: &str,
        target: &str,
        fields: &str,
        body: &[u8],
    ) -> anyhow::Result<BenchResponse> {
        let length = body.len();
        // The Host that load generators send: a cache keeps answers apart by it.
        let mut request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\n{fields}Content-Length: {length}\r\n\r\n",
            self.host
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        read_answer(&mut self.stream)
    }

    /// A GET without fields.
    pub(super) fn get(&mut self, target: &str) -> anyhow::Result<BenchResponse> {
        self.ask("GET", target, "", b"")
    }
}

/// Reads a response to anything but HEAD.
fn read_answer(from: &mut impl BufRead) -> anyhow::Result<BenchResponse> {
    let line = read_line(from)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status: u16 = status.with_context(|| format!("{line:?} is not a status line"))?;
    let (mut length, mut chunked) = (0, false);
    loop {
        let line = read_line(from)?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().context("content-length")?,
            "transfer-encoding" => chunked = true,
            _ => {}
        }
    }
    let mut body = Vec::new();
    if !chunked {
        from.take(length).read_to_end(&mut body)?;
        ensure!(body.len() as u64 == length, "the answer ended after {} of {length} bytes", body.len());
        return Ok(BenchResponse { status, body });
    }
    loop {
        let line = read_line(from)?;
        let size = line.split(';').next().unwrap_or_default();
        let size = u64::from_str_radix(size, 16).with_context(|| format!("{line:?} is not a chunk size"))?;
        from.take(size).read_to_end(&mut body)?;
        read_line(from)?;
        if size == 0 {
            return Ok(BenchResponse { status, body });
        }
    }
}

/// A line without its end.
fn read_line(from: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    let read = from.take(LINE_LIMIT).read_line(&mut line)?;
    ensure!(read > 0 && line.ends_with('\n'), "the connection ended within a head");
    Ok(line.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_to_their_end() {
        let check = |text: &str, expected: Option<(u16, &str)>| {
            let answer = read_answer(&mut text.as_bytes()).ok();
            let got = answer.map(|answer| (answer.status, answer.text()));
            assert_eq!(got, expected.map(|(status, body)| (status, body.to_owned())), "{text:?}");
        };
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP", Some((200, "ok")));
        check("HTTP/1.1 204 No Content\r\n\r\n", Some((204, "")));
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n1\r\n!\r\n0\r\n\r\n",
            Some((200, "ok!")),
        );
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", None);
        check("HTTP/1.1 200 OK\r\nContent-Le", None);
        check("200 OK\r\n\r\n", None);
    }
}
