//! UDP sockets on a worker: datagrams are received and sent in batches, one system call for up to [`BATCH`] of them.
//!
//! A [`Batch`] has the receive buffers. A worker needs only one: received datagrams are handled before any other, and
//! copied where they are kept. Sockets are the same on workers with epoll and io_uring: readiness comes from epoll,
//! which costs a system call for a batch, not for each datagram.

mod control;
mod kernel;

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use socket2::{SockRef, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use kernel::Batch;
pub(crate) use kernel::tell_local_addr;

/// The largest number of datagrams in one system call.
pub const BATCH: usize = 32;

/// One received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received<'b> {
    /// Its source; None on a connected socket, or if it is not an internet address.
    pub from: Option<SocketAddr>,
    /// Its destination, on a socket that is bound to all addresses.
    pub to: Option<IpAddr>,
    /// Its content, or the beginning of it if it was cut.
    pub bytes: &'b [u8],
    /// It is larger than the buffers of the batch.
    pub is_cut: bool,
}

/// The addresses of a datagram on an unconnected socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramAddresses {
    /// The other end.
    pub peer: SocketAddr,
    /// The local address, if the socket has several.
    pub local: Option<IpAddr>,
}

/// A UDP socket of a worker.
#[derive(Debug)]
pub struct DatagramSocket(AsyncFd<OwnedFd>);

impl DatagramSocket {
    /// Takes a bound, non-blocking socket.
    pub(crate) fn adopt(socket: OwnedFd) -> io::Result<DatagramSocket> {
        // For reading only: a datagram without room is dropped, so no task waits to write, and the kernel would
        // report every sent datagram.
        crate::uring::watch(socket).map(DatagramSocket)
    }

    /// Returns a socket for a client's session with `peer`, which receives from no other peer.
    ///
    /// # Errors
    /// Returns the error of the operating system. No datagram was sent yet: an absent peer is reported by the first
    /// ICMP response, as an error of sending or receiving.
    pub fn connect(peer: SocketAddr) -> io::Result<DatagramSocket> {
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            crate::limits::of_node(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?)?;
        match rustix::net::connect(&socket, &peer) {
            // All ports of this machine are in use: TCP has another error for that.
            Err(Errno::AGAIN) => Err(Errno::ADDRNOTAVAIL.into()),
            connected => {
                connected?;
                DatagramSocket::adopt(socket)
            }
        }
    }

    /// Takes a socket that another process has connected to `peer`. Call it within a runtime.
    ///
    /// # Errors
    /// Returns an error if it has another peer, or the error of the operating system.
    pub fn connected(socket: OwnedFd, peer: SocketAddr) -> io::Result<DatagramSocket> {
        let options = SockRef::from(&socket);
        if options.r#type()? != Type::DGRAM || options.peer_addr()?.as_socket() != Some(peer) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the socket is connected to another peer",
            ));
        }
        options.set_nonblocking(true)?;
        DatagramSocket::adopt(socket)
    }

    /// Returns another handle of the same socket, for another process.
    ///
    /// # Errors
    /// Returns an error if there are too many open files.
    pub fn another_handle(&self) -> io::Result<OwnedFd> {
        self.0.get_ref().try_clone()
    }

    /// Returns a number that identifies this socket among all sockets of the machine, for all handles in all
    /// processes; None if the system does not report it.
    pub fn number(&self) -> Option<u64> {
        number_of(self)
    }

    /// Returns the address that it is bound to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        SockRef::from(self.0.get_ref()).local_addr().ok()?.as_socket()
    }

    /// Receives waiting datagrams into `batch`, at least one. The batch is borrowed only during the receive call, not
    /// during the wait.
    ///
    /// # Errors
    /// Returns the error of the operating system; on a connected socket also the ICMP response to an earlier
    /// datagram, such as port unreachable.
    pub async fn receive(&self, batch: &RefCell<Batch>) -> io::Result<()> {
        // An ICMP response does not make a socket readable.
        let interest = Interest::READABLE.add(Interest::ERROR);
        self.0.async_io(interest, |socket| batch.borrow_mut().receive(socket.as_fd())).await
    }

    /// As [`DatagramSocket::receive`], for a caller with its own batch. An ICMP response does not wake it: the next
    /// send reports it.
    ///
    /// # Errors
    /// Returns an error in the same cases.
    pub fn poll_receive(&self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            if let Ok(received) = ready.try_io(|socket| batch.receive(socket.get_ref().as_fd())) {
                return Poll::Ready(received);
            }
        }
    }

    /// Sends datagrams, to the peer of a connected socket or along `way`; returns the number sent, which is lower if
    /// there is no room.
    ///
    /// # Errors
    /// Returns the error of the operating system for the first one.
    pub fn send<'d>(
        &self,
        way: Option<DatagramAddresses>,
        datagrams: impl IntoIterator<Item = &'d [u8]>,
    ) -> io::Result<usize> {
        kernel::send(self.as_fd(), way, datagrams)
    }
}

/// Returns the inode number of a socket.
pub(crate) fn number_of(socket: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|stat| stat.st_ino)
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::listen::{BoundSocket, Claim, Opened};

    fn bound(addr: &str) -> (DatagramSocket, SocketAddr) {
        let bound = BoundSocket::udp(addr.parse().unwrap(), Claim::First).unwrap();
        let addr = bound.local_addr().unwrap();
        match bound.open().unwrap() {
            Opened::Datagrams(socket) => (socket, addr),
            other => panic!("{other:?}"),
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(30), test).await.expect("in time");
        });
    }

    #[test]
    fn datagrams_arrive_in_batches_with_their_bounds() {
        run(async {
            let (socket, addr) = bound("127.0.0.1:0");
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            let sent: Vec<Vec<u8>> = (0..BATCH + 3).map(|n| vec![n as u8; n]).collect();
            for datagram in &sent {
                client.send_to(datagram, addr).unwrap();
            }
            let (batch, mut seen) = (RefCell::new(Batch::new(16)), Vec::new());
            while seen.len() < sent.len() {
                socket.receive(&batch).await.unwrap();
                let batch = batch.borrow();
                assert!((1..=BATCH).contains(&batch.len()));
                for received in batch.iter() {
                    assert_eq!((received.from, received.to), (client.local_addr().ok(), None));
                    seen.push((received.bytes.to_vec(), received.is_cut));
                }
            }
            let expected: Vec<_> =
                sent.iter().map(|sent| (sent[..sent.len().min(16)].to_vec(), sent.len() > 16)).collect();
            assert_eq!(seen, expected);
            // More than one call sends, and one datagram is empty.
            let way = DatagramAddresses { peer: client.local_addr().unwrap(), local: None };
            assert_eq!(socket.send(Some(way), sent.iter().map(Vec::as_slice)).unwrap(), sent.len());
            for sent in &sent {
                let mut bytes = [0; 64];
                let (n, from) = client.recv_from(&mut bytes).unwrap();
                assert_eq!((&bytes[..n], from), (&sent[..], addr));
            }
        });
    }

    /// Responses must have the queried address as their source: clients accept no other.
    #[test]
    fn a_socket_of_all_addresses_responds_from_the_queried_one() {
        run(async {
            for (everywhere, asked) in [("0.0.0.0:0", "127.0.0.2"), ("[::]:0", "::1")] {
                let (socket, addr) = bound(everywhere);
                let asked: IpAddr = asked.parse().unwrap();
                let client =
                    UdpSocket::bind(if asked.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).unwrap();
                client.connect((asked, addr.port())).unwrap();
                client.send(b"who?").unwrap();
                let batch = RefCell::new(Batch::new(100));
                socket.receive(&batch).await.unwrap();
                let batch = batch.borrow();
                let received = batch.iter().next().unwrap();
                assert_eq!((received.bytes, received.to), (&b"who?"[..], Some(asked)));
                let way = DatagramAddresses { peer: received.from.unwrap(), local: received.to };
                assert_eq!(socket.send(Some(way), [&b"me"[..]]).unwrap(), 1);
                let mut bytes = [0; 8];
                // It is connected: the kernel drops datagrams from elsewhere.
                assert_eq!(client.recv(&mut bytes).unwrap(), 2);
            }
        });
    }

    #[test]
    fn a_socket_passes_to_another_process() {
        run(async {
            let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let addr = peer.local_addr().unwrap();
            let first = DatagramSocket::connect(addr).unwrap();
            first.send(None, [&b"to whom?"[..]]).unwrap();
            let (_, from) = peer.recv_from(&mut [0; 9]).unwrap();
            peer.send_to(b"to either", from).unwrap();
            let second = DatagramSocket::connected(first.another_handle().unwrap(), addr).unwrap();
            assert!(first.number().is_some() && first.number() == second.number());
            drop(first);
            let batch = RefCell::new(Batch::new(100));
            second.receive(&batch).await.unwrap();
            assert_eq!(batch.borrow().iter().next().unwrap().bytes, b"to either");
            let stranger = DatagramSocket::connect(addr).unwrap();
            assert_ne!(stranger.number(), second.number());
            let port = ([127, 0, 0, 1], addr.port() ^ 1).into();
            assert!(DatagramSocket::connected(stranger.another_handle().unwrap(), port).is_err());
            let unconnected = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            assert!(DatagramSocket::connected(unconnected.into(), addr).is_err());
        });
    }

    #[test]
    fn a_connected_socket_gets_port_unreachable() {
        run(async {
            let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let nobody = free.local_addr().unwrap();
            drop(free);
            let socket = DatagramSocket::connect(nobody).unwrap();
            assert_eq!(socket.send(None, [&b"hello"[..]]).unwrap(), 1);
            let error = socket.receive(&RefCell::new(Batch::new(100))).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            assert!(socket.send(None, [&[0; 65_508][..]]).is_err(), "no datagram is so large");
            assert_eq!(socket.send(None, []).unwrap(), 0);
        });
    }
}
