//! Opens short sessions: `bench-sessions PORT COUNT`.
//!
//! Each session is a connection with one request and its response, after which the client closes. So many of them are
//! open at a time that the gateway always has something to do. `done FAILED` is printed at the end, where FAILED
//! counts those that could not be opened or were not responded with 200.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.local\r\n\r\n";
/// The length of the origin's small response, head included.
const ANSWER_BYTES: usize = 128;
/// Sessions at a time.
const AT_ONCE: u32 = 16;

fn session(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(REQUEST)?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer)?;
    if answer.starts_with(b"HTTP/1.1 200 ") { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn main() -> io::Result<()> {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [port, count] = numbers[..] else {
        return Err(io::Error::other("usage: bench-sessions PORT COUNT"));
    };
    let port = u16::try_from(port).map_err(io::Error::other)?;
    let (begun, failed) = (AtomicU32::new(0), AtomicU32::new(0));
    let work = || {
        while begun.fetch_add(1, Ordering::Relaxed) < count {
            if session(port).is_err() {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    println!("done {}", failed.into_inner());
    Ok(())
}
