//! The nodes: a server of HTTP/1 that reads bodies and has a large response, and one of UDP that is silent to the flood.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

/// The largest head that is read.
const HEAD_BYTES: u64 = 64 * 1024;
/// The response to `/large`.
const LARGE_BYTES: usize = 4 << 20;
/// The first byte of a datagram of the flood.
pub(super) const FLOOD: u8 = b'!';

pub(super) struct Origin {
    pub(super) http: u16,
    pub(super) udp: u16,
}

impl Origin {
    /// Starts the servers, which serve until the process ends.
    pub(super) fn start() -> anyhow::Result<Origin> {
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let udp = datagrams.local_addr()?.port();
        std::thread::spawn(move || {
            let mut bytes = [0; 2_048];
            while let Ok((len, from)) = datagrams.recv_from(&mut bytes) {
                if bytes[..len].first() != Some(&FLOOD) {
                    // A client that has gone needs no reply.
                    drop(datagrams.send_to(&bytes[..len], from));
                }
            }
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let http = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || drop(serve(&stream)));
            }
        });
        Ok(Origin { http, udp })
    }
}

/// Serves a connection until its end. It has one descriptor: there may be thousands at once.
fn serve(stream: &TcpStream) -> std::io::Result<()> {
    // Head and body of a response leave at once.
    stream.set_nodelay(true)?;
    let (mut writer, mut reader) = (stream, BufReader::new(stream));
    loop {
        let (mut head, mut path, mut length) = (reader.by_ref().take(HEAD_BYTES), String::new(), 0);
        let mut line = String::new();
        while head.read_line(&mut line)? > 2 {
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            }
            let line = std::mem::take(&mut line).to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        if path.is_empty() {
            return Ok(());
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        let body = if path == "/large" { vec![b'x'; LARGE_BYTES] } else { path.into_bytes() };
        let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        response.extend(body);
        writer.write_all(&response)?;
    }
}
