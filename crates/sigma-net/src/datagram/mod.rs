//! Sockets of UDP on a worker: datagrams come and go in batches, one system call for up to [`BATCH`] of them.
//!
//! A [`Batch`] is the room that they are received into. A worker needs one only: what is received is looked at
//! before anything else is, and copied by whoever wants to keep it. Sockets are the same on workers of epoll and of
//! io_uring: readiness comes by epoll, which costs a system call for a batch and not for a datagram.

mod kernel;

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use socket2::{SockRef, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use kernel::Batch;
pub(crate) use kernel::tell_local_addr;

/// Datagrams that one system call receives or sends at most.
pub const BATCH: usize = 32;

/// One datagram as it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received<'b> {
    /// Where it came from; None on a connected socket, or if it is no address of the internet.
    pub from: Option<SocketAddr>,
    /// Where it came to, on a socket that is bound to all addresses.
    pub to: Option<IpAddr>,
    /// What it carries; the beginning of it, if it was cut.
    pub bytes: &'b [u8],
    /// It is larger than the batch has room for.
    pub is_cut: bool,
}

/// The way of a datagram through a socket that is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Way {
    /// The other end.
    pub peer: SocketAddr,
    /// The address at this end, where the socket has several.
    pub local: Option<IpAddr>,
}

/// A socket of UDP that a worker receives from and sends by.
#[derive(Debug)]
pub struct DatagramSocket(AsyncFd<OwnedFd>);

impl DatagramSocket {
    /// One that is bound already and does not block.
    pub(crate) fn adopt(socket: OwnedFd) -> io::Result<DatagramSocket> {
        // For reading only: what finds no room is dropped, so nobody waits to write, and the kernel would tell of
        // every datagram that has left.
        crate::uring::watch(socket).map(DatagramSocket)
    }

    /// A socket for a client's session with `peer`, which no other peer reaches.
    ///
    /// # Errors
    /// Returns the error of the operating system. Nobody has been asked yet: a peer that is not there is told of
    /// by the first answers of the network, as an error of sending or receiving.
    pub fn connect(peer: SocketAddr) -> io::Result<DatagramSocket> {
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        crate::limits::leave_reserve(&socket)?;
        match rustix::net::connect(&socket, &peer) {
            // All ports of this machine are in use: what TCP says by another error.
            Err(Errno::AGAIN) => Err(Errno::ADDRNOTAVAIL.into()),
            connected => {
                connected?;
                DatagramSocket::adopt(socket)
            }
        }
    }

    /// A socket that another process has connected to `peer`. Within a runtime.
    ///
    /// # Errors
    /// Returns an error if it is another one, or the error of the operating system.
    pub fn connected(socket: OwnedFd, peer: SocketAddr) -> io::Result<DatagramSocket> {
        let options = SockRef::from(&socket);
        if options.r#type()? != Type::DGRAM || options.peer_addr()?.as_socket() != Some(peer) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is connected to somebody else"));
        }
        options.set_nonblocking(true)?;
        DatagramSocket::adopt(socket)
    }

    /// Another handle of the same socket, for another process.
    ///
    /// # Errors
    /// Returns an error if there are too many open files.
    pub fn another_handle(&self) -> io::Result<OwnedFd> {
        self.0.get_ref().try_clone()
    }

    /// A number that all handles of this socket have and no other socket of the machine, in this process and others;
    /// None if the system does not tell.
    pub fn number(&self) -> Option<u64> {
        number_of(self)
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        SockRef::from(self.0.get_ref()).local_addr().ok()?.as_socket()
    }

    /// Receives what has come into `batch`, at least one datagram. It is borrowed for the call that receives, and not
    /// while there is nothing.
    ///
    /// # Errors
    /// Returns the error of the operating system; on a connected socket also what the network answered to a
    /// datagram that was sent before, such as that nobody listens there.
    pub async fn receive(&self, batch: &RefCell<Batch>) -> io::Result<()> {
        // What the network answers makes no socket readable.
        let interest = Interest::READABLE.add(Interest::ERROR);
        self.0.async_io(interest, |socket| batch.borrow_mut().receive(socket.as_fd())).await
    }

    /// Sends datagrams, to the peer of a connected socket or along `way`; the number that has left, which is less
    /// than all where there is no room for more.
    ///
    /// # Errors
    /// Returns the error of the operating system about the first one.
    pub fn send<'d>(
        &self,
        way: Option<Way>,
        datagrams: impl IntoIterator<Item = &'d [u8]>,
    ) -> io::Result<usize> {
        kernel::send(self.as_fd(), way, datagrams)
    }
}

/// The number of a socket's inode.
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
    fn datagrams_come_in_batches_with_their_bounds() {
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
            // More than one call sends, an empty one among them.
            let way = Way { peer: client.local_addr().unwrap(), local: None };
            assert_eq!(socket.send(Some(way), sent.iter().map(Vec::as_slice)).unwrap(), sent.len());
            for sent in &sent {
                let mut bytes = [0; 64];
                let (n, from) = client.recv_from(&mut bytes).unwrap();
                assert_eq!((&bytes[..n], from), (&sent[..], addr));
            }
        });
    }

    /// Answers have to leave from where the question came to: clients take them from nobody else.
    #[test]
    fn a_socket_of_all_addresses_answers_by_the_one_that_was_asked() {
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
                let way = Way { peer: received.from.unwrap(), local: received.to };
                assert_eq!(socket.send(Some(way), [&b"me"[..]]).unwrap(), 1);
                let mut bytes = [0; 8];
                // It is connected: the kernel lets nothing in from elsewhere.
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
    fn a_connected_socket_hears_that_nobody_is_there() {
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
