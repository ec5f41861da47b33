//! The origins of the gateway: a server of HTTP and WebSockets, one of gRPC, one that sends back its input,
//! and the same over UDP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

use super::http2;

/// Their ports.
pub(super) struct Origin {
    pub(super) http: u16,
    pub(super) grpc: u16,
    pub(super) tcp: u16,
    pub(super) udp: u16,
}

impl Origin {
    /// Starts them; they serve until the process ends.
    pub(super) fn start() -> anyhow::Result<Origin> {
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let udp = datagrams.local_addr()?.port();
        std::thread::spawn(move || {
            let mut bytes = [0; 2_048];
            while let Ok((len, from)) = datagrams.recv_from(&mut bytes) {
                // A client that has gone needs no response.
                drop(datagrams.send_to(&bytes[..len], from));
            }
        });
        Ok(Origin { http: listen(answer)?, grpc: listen(grpc)?, tcp: listen(echo)?, udp })
    }
}

/// Serves each connection on its own thread.
fn listen(serve: fn(TcpStream)) -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(port)
}

fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 2_048];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

fn grpc(stream: TcpStream) {
    // A connection that the gateway has left has ended.
    drop(http2::serve(stream));
}

/// Responds to each request with its path; a WebSocket gets back the bytes of its frames, unmasked.
fn answer(stream: TcpStream) {
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    loop {
        let (mut path, mut is_upgrade, mut line) = (String::new(), false, String::new());
        while reader.read_line(&mut line).is_ok_and(|len| len > 2) {
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            }
            is_upgrade |= line.to_ascii_lowercase().starts_with("upgrade:");
            line.clear();
        }
        if path.is_empty() {
            return;
        }
        if is_upgrade {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
            if writer.write_all(head.as_bytes()).is_ok() {
                frames(reader, writer);
            }
            return;
        }
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Sends each frame back; they are short.
fn frames(mut reader: BufReader<TcpStream>, mut writer: TcpStream) {
    let mut head = [0; 2];
    while reader.read_exact(&mut head).is_ok() {
        let (mut mask, mut text) = ([0; 4], vec![0; usize::from(head[1] & 0x7f)]);
        if reader.read_exact(&mut mask).and_then(|()| reader.read_exact(&mut text)).is_err() {
            return;
        }
        text.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        let mut frame = vec![head[0], head[1] & 0x7f];
        frame.extend(text);
        if writer.write_all(&frame).is_err() {
            return;
        }
    }
}
