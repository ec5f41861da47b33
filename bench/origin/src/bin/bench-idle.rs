//! Holds idle keep-alive connections: `bench-idle PORT COUNT`.
//!
//! Each connection makes one request, reads its response and stays open. `ready FAILED` is printed once all of them
//! idle, where FAILED counts those that could not be opened or were not responded with 200. The program ends when its
//! standard input closes, so it never outlives the benchmark that started it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.local\r\n\r\n";

/// Opens one connection and makes its only request.
fn open(port: u16) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while !complete(&answer) {
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => answer.extend_from_slice(&part[..count]),
        }
    }
    if answer.starts_with(b"HTTP/1.1 200 ") { Ok(stream) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Whether `answer` holds a head and as many body bytes as its `Content-Length` says.
fn complete(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    answer.len() >= end + 4 + length.unwrap_or(0)
}

fn main() -> io::Result<()> {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [port, count] = numbers[..] else {
        return Err(io::Error::other("usage: bench-idle PORT COUNT"));
    };
    let port = u16::try_from(port).map_err(io::Error::other)?;
    let held: Vec<TcpStream> = (0..count).filter_map(|_| open(port).ok()).collect();
    println!("ready {}", count as usize - held.len());
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    drop(held);
    Ok(())
}
