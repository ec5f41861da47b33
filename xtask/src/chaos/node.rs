//! A node that responds with the path of the request, as its mood lets it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// How a node behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mood {
    Good,
    /// It takes requests and answers none.
    Hang,
    /// It closes connections that have sent a request.
    Reset,
    /// It returns 500.
    Broken,
    /// It answers after a while.
    Slow,
}

impl Mood {
    pub(super) const BAD: [Mood; 4] = [Mood::Hang, Mood::Reset, Mood::Broken, Mood::Slow];
}

/// A node; it serves until the process ends.
pub(super) struct Node {
    pub(super) port: u16,
    mood: Arc<AtomicU8>,
}

impl Node {
    pub(super) fn start() -> anyhow::Result<Node> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let mood = Arc::new(AtomicU8::new(Mood::Good as u8));
        let seen = Arc::clone(&mood);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mood = Arc::clone(&seen);
                // The gateway has to cope with one that breaks off.
                std::thread::spawn(move || drop(serve(&stream, &mood)));
            }
        });
        Ok(Node { port, mood })
    }

    pub(super) fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::Relaxed);
    }

    pub(super) fn mood(&self) -> Mood {
        read(&self.mood)
    }
}

fn read(mood: &AtomicU8) -> Mood {
    let word = mood.load(Ordering::Relaxed);
    Mood::BAD.into_iter().find(|bad| *bad as u8 == word).unwrap_or(Mood::Good)
}

fn serve(stream: &TcpStream, mood: &AtomicU8) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if lines.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut line = String::new();
        while lines.read_line(&mut line)? > 2 {
            line.clear();
        }
        let status = match read(mood) {
            Mood::Good => "200 OK",
            Mood::Broken => "500 Broken",
            Mood::Reset => return stream.shutdown(Shutdown::Both),
            Mood::Slow => {
                std::thread::sleep(Duration::from_millis(200));
                "200 OK"
            }
            Mood::Hang => {
                while read(mood) == Mood::Hang {
                    std::thread::sleep(Duration::from_millis(10));
                }
                return stream.shutdown(Shutdown::Both);
            }
        };
        let path = first.split(' ').nth(1).unwrap_or_default();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{path}", path.len());
        (&*stream).write_all(answer.as_bytes())?;
    }
}
