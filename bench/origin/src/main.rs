//! The origin of the benchmarks: `bench-origin PORT`.
//!
//! It must cost far less per request than any gateway in front of it, or the benchmark measures the
//! origin. So it looks for the end of the head, the first two words and `Content-Length`, and nothing else.
//!
//! - `GET /1m` answers 1 MiB, `GET /1k` 1 KiB, whatever its query; `POST /v1/data/…` allows everybody, as a policy of
//!   an Open Policy Agent does; every other path returns 128 bytes, head included.
//! - A body framed by `Content-Length` is read and dropped before the response.
//! - A chunked body is refused with 501, so that a gateway which re-frames shows up as errors.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// Bytes read at once: large, so that uploads cost few system calls.
const READ_SIZE: usize = 256 * 1024;
/// Longest head that is accepted.
const HEAD_LIMIT: usize = 16 * 1024;
const LARGE_BODY: usize = 1024 * 1024;
const KIBIBYTE: usize = 1024;
/// The small response's length on the wire, head included.
const SMALL_ANSWER: usize = 128;

const REFUSED: &[u8] = b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The responses, built once.
struct Answers {
    small: Vec<u8>,
    decision: Vec<u8>,
    kibibyte: Vec<u8>,
    large: Vec<u8>,
}

impl Answers {
    fn build() -> Self {
        let head = |length: usize| {
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n")
        };
        let small_body = SMALL_ANSWER - head(10).len();
        let mut small = head(small_body).into_bytes();
        small.resize(SMALL_ANSWER, b'x');
        let filled = |length: usize| [head(length).into_bytes(), vec![b'x'; length]].concat();
        let text = r#"{"result":{"allow":true}}"#;
        let decision = [head(text.len()).as_bytes(), text.as_bytes()].concat();
        Self { small, decision, kibibyte: filled(KIBIBYTE), large: filled(LARGE_BODY) }
    }
}

/// The fields of a request head that the origin uses.
struct Head {
    /// Bytes up to and with the empty line.
    length: usize,
    body: usize,
    asked: Asked,
    chunked: bool,
}

/// Which of the [`Answers`] a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Small,
    Decision,
    Kibibyte,
    Large,
}

impl Asked {
    fn of(line: &[u8]) -> Self {
        match line {
            [b'G', b'E', b'T', b' ', b'/', b'1', b'm', b' ', ..] => Self::Large,
            [b'G', b'E', b'T', b' ', b'/', b'1', b'k', b' ' | b'?', ..] => Self::Kibibyte,
            _ if line.starts_with(b"POST /v1/data/") => Self::Decision,
            _ => Self::Small,
        }
    }
}

/// Reads the head at the start of `bytes`; `None` until it is complete.
fn read_head(bytes: &[u8]) -> Option<Head> {
    let length = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let mut lines = bytes[..length].split(|&byte| byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let mut head = Head { length, body: 0, asked: Asked::of(line), chunked: false };
    for line in lines {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            head.body = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            head.chunked = true;
        }
    }
    Some(head)
}

/// Responds to requests on one connection until the peer closes it.
async fn converse(mut stream: TcpStream, answers: Rc<Answers>) -> io::Result<()> {
    // Grows to `READ_SIZE` with the first body, so that thousands of small connections stay small.
    let mut buffer = vec![0; HEAD_LIMIT];
    let mut filled = 0;
    loop {
        let head = loop {
            if let Some(head) = read_head(&buffer[..filled]) {
                break head;
            }
            if filled == buffer.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                count => filled += count,
            }
        };
        if head.chunked {
            return stream.write_all(REFUSED).await;
        }
        let wanted = head.length + head.body;
        if filled >= wanted {
            buffer.copy_within(wanted..filled, 0);
            filled -= wanted;
        } else {
            let mut missing = wanted - filled;
            buffer.resize(READ_SIZE, 0);
            while missing > 0 {
                let room = missing.min(READ_SIZE);
                match stream.read(&mut buffer[..room]).await? {
                    0 => return Ok(()),
                    count => missing -= count,
                }
            }
            filled = 0;
        }
        let answer = match head.asked {
            Asked::Small => &answers.small,
            Asked::Decision => &answers.decision,
            Asked::Kibibyte => &answers.kibibyte,
            Asked::Large => &answers.large,
        };
        stream.write_all(answer).await?;
    }
}

async fn accept(port: u16) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(4096)?;
    let listener = TcpListener::from_std(socket.into())?;
    let answers = Rc::new(Answers::build());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = Rc::clone(&answers);
        // A broken connection is the gateway's business; the load generator counts it.
        tokio::task::spawn_local(async move { drop(converse(stream, answers).await) });
    }
}

fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let Some(port) = port else {
        return Err(io::Error::other("usage: bench-origin PORT"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(LocalSet::new().run_until(accept(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_whole_or_not_at_all() {
        let check = |text: &str, expected: Option<(usize, Asked, bool)>| {
            let head = read_head(text.as_bytes()).map(|head| (head.body, head.asked, head.chunked));
            assert_eq!(head, expected, "{text:?}");
        };
        check("GET / HTTP/1.1\r\nHost: a\r\n", None);
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Some((0, Asked::Small, false)));
        check("GET /1m HTTP/1.1\r\n\r\n", Some((0, Asked::Large, false)));
        check("GET /1k?7 HTTP/1.1\r\n\r\n", Some((0, Asked::Kibibyte, false)));
        check("GET /1kg HTTP/1.1\r\n\r\n", Some((0, Asked::Small, false)));
        check("POST / HTTP/1.1\r\ncontent-length: 7\r\n\r\n", Some((7, Asked::Small, false)));
        check("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Some((0, Asked::Small, true)));
    }

    #[test]
    fn the_small_answer_has_its_stated_length() {
        let answers = Answers::build();
        let text = String::from_utf8(answers.small).expect("the answer is ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head ends with an empty line");
        assert_eq!(text.len(), SMALL_ANSWER);
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
    }
}
