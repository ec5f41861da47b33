//! Clients that request their own path each time and look whether the response is for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use sigma_plugin::random::Random as Bits;

/// The observations of clients.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) gets: AtomicU64,
    pub(super) gets_failed: AtomicU64,
    pub(super) posts: AtomicU64,
    pub(super) posts_failed: AtomicU64,
    pub(super) wrong: AtomicU64,
}

/// For what takes a loaded machine a while.
const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that look random.
pub(super) struct Random(Bits);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(Bits::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.0.bits()) * u128::from(bound)) >> 64) as u64
    }
}

/// Sends requests one after another until the end; every tenth is a POST.
pub(super) fn run(port: u16, number: u32, end: Instant, tally: &Tally) {
    let random = Random::new(u64::from(number) + 2);
    let mut kept = None;
    for request in 0u64.. {
        if Instant::now() >= end {
            return;
        }
        let path = format!("/{number}/{request}");
        let is_post = random.below(10) == 0;
        let (asked, failed) = match is_post {
            true => (&tally.posts, &tally.posts_failed),
            false => (&tally.gets, &tally.gets_failed),
        };
        asked.fetch_add(1, Ordering::Relaxed);
        match ask(&mut kept, port, is_post, &path) {
            Ok((200, body)) if body == path => {}
            Ok((200, _)) => drop(tally.wrong.fetch_add(1, Ordering::Relaxed)),
            Ok(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
            Err(_) => {
                kept = None;
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(random.below(40)));
    }
}

fn ask(
    kept: &mut Option<BufReader<TcpStream>>,
    port: u16,
    is_post: bool,
    path: &str,
) -> anyhow::Result<(u16, String)> {
    if kept.is_none() {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        *kept = Some(BufReader::new(stream));
    }
    let connection = kept.as_mut().context("a connection")?;
    let method = if is_post { "POST" } else { "GET" };
    let request = format!("{method} {path} HTTP/1.1\r\nHost: chaos\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut first = String::new();
    connection.read_line(&mut first)?;
    let status = first.split(' ').nth(1).context("a status")?.parse()?;
    let (mut length, mut closes) = (0, false);
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line)? <= 2 {
            break;
        }
        let line = line.trim_end().to_ascii_lowercase();
        closes |= line == "connection: close";
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse()?;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    if closes {
        *kept = None;
    }
    Ok((status, String::from_utf8(body)?))
}

/// One of the gateway's own counters.
pub(super) fn counter(port: u16, name: &str) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /status/counters HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let prefix = format!("sigma_{name}_total ");
    let value = page.lines().find_map(|line| line.strip_prefix(&prefix));
    value.and_then(|value| value.trim().parse().ok()).with_context(|| format!("no counter {name}"))
}
