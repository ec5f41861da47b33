//! Sends datagrams through a gateway to its own node: `bench-datagrams PORT NODE COUNT`.
//!
//! The node, at the port NODE, echoes datagrams. Each of the clients has a few datagrams on their way at a time,
//! so that the gateway always has something to do. `done LOST MICROSECONDS` is printed when COUNT of them were
//! answered or lost.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

/// Clients, and what each has on its way: no more than the buffers of one socket hold.
const CLIENTS: usize = 32;
const ON_THE_WAY: usize = 4;

/// The payload of a datagram: a DNS query, or a log line.
const BYTES: usize = 100;

/// A datagram without a response by then counts as lost.
const PATIENCE: Duration = Duration::from_secs(1);

fn serve(node: &UdpSocket) {
    let mut bytes = [0; 2 * BYTES];
    while let Ok((len, from)) = node.recv_from(&mut bytes) {
        let _ = node.send_to(&bytes[..len], from);
    }
}

fn client(port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn main() -> io::Result<()> {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [port, node, count] = numbers[..] else {
        return Err(io::Error::other("usage: bench-datagrams PORT NODE COUNT"));
    };
    let [port, node] = [port, node].map(|port| u16::try_from(port).map_err(io::Error::other));
    let node = UdpSocket::bind((Ipv4Addr::LOCALHOST, node?))?;
    std::thread::spawn(move || serve(&node));
    let port = port?;
    let clients: Vec<UdpSocket> = (0..CLIENTS).map(|_| client(port)).collect::<io::Result<_>>()?;
    let (sent, mut answer) = ([b'x'; BYTES], [0; 2 * BYTES]);
    let (begun, mut lost) = (Instant::now(), 0);
    for client in clients.iter().cycle().take(CLIENTS * ON_THE_WAY) {
        client.send(&sent)?;
    }
    for client in clients.iter().cycle().take(count as usize) {
        lost += u32::from(client.recv(&mut answer).ok() != Some(BYTES));
        client.send(&sent)?;
    }
    println!("done {lost} {}", begun.elapsed().as_micros());
    Ok(())
}
