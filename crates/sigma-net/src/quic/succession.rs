//! Packets for a process that is being replaced.
//!
//! Both processes have handles of the same UDP sockets. The new one reads; the old one only sends, and gets the packets
//! of its connections over a Unix datagram socket. The name of that socket follows from the keys, so no descriptor has
//! to pass. It is abstract: it needs no file, and ends with its process. Another process that finds the name could
//! send packets, as every client can over UDP.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram as StdUnixDatagram};
use std::task::{Context, Poll};

use bytes::BytesMut;
use quinn_proto::EcnCodepoint;
use tokio::io::ReadBuf;
use tokio::net::UnixDatagram;

use super::ids::{ConnectionOwner, QuicKeys};
use super::socket::Packet;

/// The addresses before a packet: ECN, source address and port, destination address or zeros.
const HEAD_BYTES: usize = 1 + 16 + 2 + 16;

/// The largest forwarded packet; a UDP datagram has no more.
const PACKET_MAX: usize = 64 * 1024;

/// Returns the socket name of a worker of a process, for the listener on `addr`.
fn name_of(keys: &QuicKeys, place: ConnectionOwner, addr: SocketAddr) -> io::Result<UnixAddr> {
    let text = format!("sigma-quic {} {} {addr}", place.generation, place.worker);
    let tag = aws_lc_rs::hmac::sign(&keys.reset(), text.as_bytes());
    UnixAddr::from_abstract_name(tag.as_ref())
}

/// The sender of packets to processes before this one.
pub(super) struct Predecessors {
    socket: StdUnixDatagram,
}

impl Predecessors {
    pub(super) fn open() -> io::Result<Predecessors> {
        let socket = StdUnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Predecessors { socket })
    }

    /// Forwards a packet.
    pub(super) fn forward(
        &self,
        keys: &QuicKeys,
        place: ConnectionOwner,
        addr: SocketAddr,
        packet: &Packet,
    ) -> Forwarding {
        let Ok(name) = name_of(keys, place, addr) else { return Forwarding::Gone };
        match self.socket.send_to_addr(&encode(packet), &name) {
            Ok(_) => Forwarding::Done,
            // No socket has the name any more.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Forwarding::Gone,
            // The queue is full: it has room for few packets (`net.unix.max_dgram_qlen`).
            Err(_) => Forwarding::Lost,
        }
    }
}

/// The result of forwarding a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forwarding {
    /// Its owner gets it.
    Done,
    /// Its owner does not keep up. The packet is lost, and its sender sends it again.
    Lost,
    /// Its owner does not exist any more.
    Gone,
}

fn encode(packet: &Packet) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let mut bytes = Vec::with_capacity(HEAD_BYTES + packet.bytes.len());
    bytes.push(packet.ecn.map_or(0, |ecn| ecn as u8));
    bytes.extend_from_slice(&octets(packet.from.ip()));
    bytes.extend_from_slice(&packet.from.port().to_be_bytes());
    bytes.extend_from_slice(&packet.to.map_or([0; 16], octets));
    bytes.extend_from_slice(&packet.bytes);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Packet> {
    let (head, content) = bytes.split_at_checked(HEAD_BYTES)?;
    let ip = |octets: &[u8]| {
        let octets: [u8; 16] = octets.try_into().ok()?;
        Some(Ipv6Addr::from(octets).to_canonical())
    };
    let from = SocketAddr::new(ip(&head[1..17])?, u16::from_be_bytes([head[17], head[18]]));
    let to = ip(&head[19..]).filter(|ip| !ip.is_unspecified());
    Some(Packet { from, to, ecn: EcnCodepoint::from_bits(head[0]), bytes: BytesMut::from(content) })
}

/// The packets that the next process forwards.
pub(super) struct Forwarded {
    socket: UnixDatagram,
    buffer: Box<[u8]>,
}

impl Forwarded {
    /// Begins to receive. Call it before the next process reads the UDP socket.
    pub(super) fn open(keys: &QuicKeys, place: ConnectionOwner, addr: SocketAddr) -> io::Result<Forwarded> {
        let socket = StdUnixDatagram::bind_addr(&name_of(keys, place, addr)?)?;
        socket.set_nonblocking(true)?;
        let buffer = vec![0; HEAD_BYTES + PACKET_MAX].into();
        Ok(Forwarded { socket: UnixDatagram::from_std(socket)?, buffer })
    }

    /// Returns the next packet.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Packet>>> {
        let mut buffer = ReadBuf::new(&mut self.buffer);
        self.socket.poll_recv(cx, &mut buffer).map_ok(|()| decode(buffer.filled()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lost packet must not end its connection, as a packet for a process that is gone does.
    #[test]
    fn only_a_process_without_a_socket_is_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let keys = QuicKeys::random().unwrap();
        let place = ConnectionOwner { generation: 1, worker: 0 };
        let addr = "127.0.0.1:443".parse().unwrap();
        let packet = Packet { from: addr, to: None, ecn: None, bytes: BytesMut::from(&b"packet"[..]) };
        let predecessors = Predecessors::open().unwrap();
        let forward = || predecessors.forward(&keys, place, addr, &packet);
        assert_eq!(forward(), Forwarding::Gone);
        let old = Forwarded::open(&keys, place, addr).unwrap();
        assert_eq!(forward(), Forwarding::Done);
        let full = (0..100_000).map(|_| forward()).find(|forwarding| *forwarding != Forwarding::Done);
        assert_eq!(full, Some(Forwarding::Lost));
        drop(old);
        assert_eq!(forward(), Forwarding::Gone);
    }

    #[test]
    fn packets_keep_their_addresses() {
        let check = |from: &str, to: Option<&str>, ecn| {
            let to = to.map(|to| to.parse().unwrap());
            let bytes = BytesMut::from(&b"packet"[..]);
            let packet = Packet { from: from.parse().unwrap(), to, ecn, bytes };
            let read = decode(&encode(&packet)).unwrap();
            assert_eq!((read.from, read.to, read.ecn), (packet.from, packet.to, packet.ecn));
            assert_eq!(read.bytes, packet.bytes);
        };
        check("192.0.2.1:443", Some("192.0.2.2"), Some(EcnCodepoint::Ect0));
        check("[2001:db8::1]:1", Some("2001:db8::2"), None);
        check("192.0.2.1:65535", None, Some(EcnCodepoint::Ce));
        assert!(decode(&[0; HEAD_BYTES - 1]).is_none());
    }
}
