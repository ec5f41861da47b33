//! Listening sockets: bound once on the control side; workers accept or receive from them.

use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::datagram::{self, DatagramSocket};
use crate::stream::{Peer, Stream};
use crate::tcp_options::TcpOptions;
use crate::uring::{self, Family, UringStream};

/// A bound, listening socket on its way to a worker.
#[derive(Debug)]
pub enum BoundSocket {
    /// One of the sockets that share a TCP port.
    Tcp(std::net::TcpListener),
    /// One of the sockets that share a UDP port, from which datagrams are received.
    Udp(UdpSocket),
    /// A Unix socket; all workers accept from the same one.
    Unix(StdUnixListener),
    /// A TCP port of a simulated network.
    #[cfg(feature = "simulation")]
    Simulated(crate::simulation::Port),
}

/// The transport of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP connections
    Tcp,
    /// UDP datagrams
    Udp,
}

/// The ownership of an address at bind time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Unowned: the bind fails if any other socket listens there, including another gateway's.
    First,
    /// Shared with the sockets of this user that listen there.
    Further,
}

impl BoundSocket {
    /// Binds one of several TCP sockets that share `addr`: the kernel spreads connections over them (SO_REUSEPORT),
    /// so that workers do not contend.
    ///
    /// # Errors
    /// Returns the error of the operating system, for example if another program uses the address.
    pub fn tcp(
        addr: SocketAddr,
        backlog: u32,
        claim: Claim,
        options: &TcpOptions,
    ) -> io::Result<BoundSocket> {
        #[cfg(feature = "simulation")]
        if let Some(port) = crate::simulation::bind(addr, claim) {
            return port.map(BoundSocket::Simulated);
        }
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if claim == Claim::Further {
            socket.set_reuse_port(true)?;
        }
        if addr.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        // Small responses must not wait for the acknowledgement of the previous one. Accepted sockets inherit it,
        // which saves a system call for each.
        socket.set_tcp_nodelay(true)?;
        options.apply(&socket)?;
        socket.bind(&addr.into())?;
        // The kernel has just proved that the address is free; later sockets may share it. Another gateway cannot
        // bind it in between.
        socket.set_reuse_port(true)?;
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(BoundSocket::Tcp(socket.into()))
    }

    /// Binds one of several UDP sockets that share `addr`: the kernel sends all datagrams between two addresses to
    /// the same socket, as long as the set of sockets is unchanged.
    ///
    /// # Errors
    /// Returns the error of the operating system, for example if another program uses the address.
    pub fn udp(addr: SocketAddr, claim: Claim) -> io::Result<BoundSocket> {
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        if claim == Claim::Further {
            socket.set_reuse_port(true)?;
        }
        if addr.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        if addr.ip().is_unspecified() {
            // Responses must have the destination of the request as their source.
            datagram::tell_local_addr(&socket, addr)?;
        }
        socket.bind(&addr.into())?;
        // As for TCP.
        socket.set_reuse_port(true)?;
        Ok(BoundSocket::Udp(socket.into()))
    }

    /// Binds a Unix socket. A socket file without a listener is replaced; any other file stays.
    ///
    /// # Errors
    /// Returns the error of the operating system, for example if another process listens there, or if the file is not
    /// a socket.
    pub fn unix(path: &Path) -> io::Result<BoundSocket> {
        remove_dead_socket(path)?;
        let listener = StdUnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(BoundSocket::Unix(listener))
    }

    /// Returns another handle of the same socket.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn try_clone(&self) -> io::Result<BoundSocket> {
        Ok(match self {
            BoundSocket::Tcp(socket) => BoundSocket::Tcp(socket.try_clone()?),
            BoundSocket::Udp(socket) => BoundSocket::Udp(socket.try_clone()?),
            BoundSocket::Unix(socket) => BoundSocket::Unix(socket.try_clone()?),
            #[cfg(feature = "simulation")]
            BoundSocket::Simulated(port) => BoundSocket::Simulated(port.clone()),
        })
    }

    /// Returns the address it is bound to, with the port chosen by the kernel.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            BoundSocket::Tcp(socket) => socket.local_addr().ok(),
            BoundSocket::Udp(socket) => socket.local_addr().ok(),
            BoundSocket::Unix(_) => None,
            #[cfg(feature = "simulation")]
            BoundSocket::Simulated(port) => Some(port.addr()),
        }
    }

    /// Returns a number that identifies the socket among all sockets of the machine, for all handles in all
    /// processes; None if the system does not report it.
    pub fn number(&self) -> Option<u64> {
        #[cfg(feature = "simulation")]
        if let BoundSocket::Simulated(_) = self {
            return None;
        }
        datagram::number_of(self)
    }

    /// Registers it with the calling worker's runtime.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn open(self) -> io::Result<Opened> {
        let socket: OwnedFd = match self {
            BoundSocket::Udp(socket) => {
                return Ok(Opened::Datagrams(DatagramSocket::adopt(socket.into())?));
            }
            BoundSocket::Tcp(socket) if !uring::is_active() => {
                return Ok(Opened::Connections(Listening::Tcp(TcpListener::from_std(socket)?)));
            }
            BoundSocket::Unix(socket) if !uring::is_active() => {
                return Ok(Opened::Connections(Listening::Unix(UnixListener::from_std(socket)?)));
            }
            BoundSocket::Tcp(socket) => socket.into(),
            BoundSocket::Unix(socket) => socket.into(),
            #[cfg(feature = "simulation")]
            BoundSocket::Simulated(port) => return Ok(Opened::Connections(Listening::Simulated(port))),
        };
        Ok(Opened::Connections(Listening::Either(uring::watch(socket)?)))
    }
}

/// A listener's socket on its worker.
#[derive(Debug)]
pub enum Opened {
    /// A socket to accept connections from
    Connections(Listening),
    /// A socket to receive datagrams from
    Datagrams(DatagramSocket),
}

/// A socket that a worker accepts from.
#[derive(Debug)]
pub enum Listening {
    /// TCP
    Tcp(TcpListener),
    /// Unix domain
    Unix(UnixListener),
    /// Either, on a worker with io_uring
    Either(AsyncFd<OwnedFd>),
    /// A TCP port of a simulated network
    #[cfg(feature = "simulation")]
    Simulated(crate::simulation::Port),
}

impl Listening {
    /// Returns the local address of all its connections; `None` if it differs between them.
    pub fn fixed_addr(&self) -> Option<SocketAddr> {
        let addr = match self {
            Listening::Tcp(listener) => listener.local_addr().ok(),
            Listening::Unix(_) => None,
            Listening::Either(listener) => {
                SockRef::from(listener.get_ref()).local_addr().ok().and_then(|addr| addr.as_socket())
            }
            #[cfg(feature = "simulation")]
            Listening::Simulated(port) => Some(port.addr()),
        };
        addr.filter(|addr| !addr.ip().is_unspecified())
    }

    /// Returns its descriptor; None for a simulated port.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Listening::Tcp(listener) => Some(listener.as_fd()),
            Listening::Unix(listener) => Some(listener.as_fd()),
            Listening::Either(listener) => Some(listener.get_ref().as_fd()),
            #[cfg(feature = "simulation")]
            Listening::Simulated(_) => None,
        }
    }

    /// Returns true if there is a descriptor for a client; see [`crate::limits::Descriptors`].
    pub fn has_room(&self) -> bool {
        self.descriptor().is_none_or(crate::limits::has_room_for_client)
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// Returns the error of the operating system; after exhaustion the caller pauses and continues.
    pub async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Listening::Tcp(listener) => {
                let (stream, addr) = listener.accept().await?;
                Ok((Stream::Tcp(stream), Peer::from_tcp(addr)))
            }
            Listening::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), Peer::Unix))
            }
            // The ring could accept too, but does not report the peer's address, which would cost the same system
            // call.
            Listening::Either(listener) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let accept = |socket: &OwnedFd| Ok(acceptfrom_with(socket, flags)?);
                let (socket, addr) = listener.async_io(Interest::READABLE, accept).await?;
                let addr = addr.and_then(|addr| SocketAddr::try_from(addr).ok());
                let stream = match (uring::is_chosen(), addr) {
                    (true, Some(_)) => Stream::Uring(UringStream::adopt(socket, Family::Tcp)?),
                    (true, None) => Stream::Uring(UringStream::adopt(socket, Family::Unix)?),
                    (false, Some(_)) => Stream::Tcp(TcpStream::from_std(socket.into())?),
                    (false, None) => Stream::Unix(UnixStream::from_std(socket.into())?),
                };
                Ok((stream, addr.map_or(Peer::Unix, Peer::from_tcp)))
            }
            #[cfg(feature = "simulation")]
            Listening::Simulated(port) => {
                let (wire, addr) = port.accept().await;
                Ok((Stream::Simulated(wire), Peer::from_tcp(addr)))
            }
        }
    }
}

/// A process that listens on an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// Finds the process that listens on `addr` or blocks it, as far as `/proc` shows it to this process. It reads much
/// of `/proc`: only for the message of a failed start.
pub fn occupant(addr: SocketAddr, transport: Transport) -> Option<Occupant> {
    let tables = match transport {
        Transport::Tcp => ["/proc/net/tcp", "/proc/net/tcp6"],
        Transport::Udp => ["/proc/net/udp", "/proc/net/udp6"],
    };
    let tables = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
    let sockets: Vec<String> =
        tables.iter().flat_map(|table| listening_on(table, addr.port(), transport)).collect();
    let own = std::process::id();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(open) = fs::read_dir(entry.path().join("fd")) else { continue };
        let holds = |file: fs::DirEntry| {
            fs::read_link(file.path())
                .is_ok_and(|link| sockets.iter().any(|socket| link.as_os_str() == &**socket))
        };
        if pid != own && open.flatten().any(holds) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(Occupant { pid, name: name.trim_end().to_owned() });
        }
    }
    None
}

/// Returns the listening sockets on `port` in one of the kernel's tables, by their names in `/proc/PID/fd`.
fn listening_on(table: &str, port: u16, transport: Transport) -> impl Iterator<Item = String> {
    let listen = match transport {
        Transport::Tcp => "0A",
        // Without a peer: a peer would mean a connected socket.
        Transport::Udp => "07",
    };
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let listens = *fields.get(3)? == listen && u16::from_str_radix(local_port, 16) == Ok(port);
        let inode = fields.get(9)?;
        listens.then(|| format!("socket:[{inode}]"))
    })
}

impl From<BoundSocket> for OwnedFd {
    fn from(socket: BoundSocket) -> OwnedFd {
        match socket {
            BoundSocket::Tcp(socket) => socket.into(),
            BoundSocket::Udp(socket) => socket.into(),
            BoundSocket::Unix(socket) => socket.into(),
            #[cfg(feature = "simulation")]
            BoundSocket::Simulated(port) => {
                panic!("{port:?} has no descriptor: no other process can have it")
            }
        }
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            BoundSocket::Tcp(socket) => socket.as_fd(),
            BoundSocket::Udp(socket) => socket.as_fd(),
            BoundSocket::Unix(socket) => socket.as_fd(),
            #[cfg(feature = "simulation")]
            BoundSocket::Simulated(port) => panic!("{port:?} has no descriptor"),
        }
    }
}

fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        let text = "the path exists and is not a socket; move the file, or use another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    // Non-blocking: a socket with a full queue has a listener.
    let probe = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match probe.connect(&socket2::SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(()) => Err(in_use()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(in_use()),
        Err(error) => Err(error),
    }
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another process listens on this socket")
}

/// The file of a Unix socket, which is removed on drop unless another file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Kept open so that its inode number is not reused meanwhile.
    file: Option<fs::File>,
}

impl SocketFile {
    /// Returns the file of a socket that was just bound.
    pub fn bound(path: &Path) -> SocketFile {
        let flags = (OFlags::PATH | OFlags::NOFOLLOW).bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok();
        SocketFile { path: path.to_owned(), file }
    }

    /// Keeps the file: another process continues with the socket.
    pub fn leave(mut self) {
        self.file = None;
    }

    fn is_still_there(&self) -> bool {
        let known = self.file.as_ref().and_then(|file| file.metadata().ok());
        let (Some(known), Ok(found)) = (known, fs::symlink_metadata(&self.path)) else { return false };
        (known.dev(), known.ino()) == (found.dev(), found.ino())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_still_there() {
            // A missing file is as good as a removed one.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(addr: SocketAddr, claim: Claim) -> io::Result<BoundSocket> {
        BoundSocket::tcp(addr, 16, claim, &TcpOptions::default())
    }

    #[test]
    fn an_address_has_one_owner_whose_sockets_share_it() {
        let first = tcp(SocketAddr::from(([127, 0, 0, 1], 0)), Claim::First).unwrap();
        let addr = first.local_addr().unwrap();
        let _second = tcp(addr, Claim::Further).unwrap();
        for taken in [addr, SocketAddr::from(([0, 0, 0, 0], addr.port()))] {
            assert_eq!(tcp(taken, Claim::First).unwrap_err().kind(), io::ErrorKind::AddrInUse, "{taken}");
        }
        drop(first);
        assert_eq!(tcp(addr, Claim::First).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    /// A UDP port is independent of the TCP port, and has one owner as well.
    #[test]
    fn ports_of_datagrams_have_one_owner() {
        let connections = tcp(SocketAddr::from(([127, 0, 0, 1], 0)), Claim::First).unwrap();
        let addr = connections.local_addr().unwrap();
        let udp = |claim| BoundSocket::udp(addr, claim);
        let first = match udp(Claim::First) {
            // Another process has the UDP port.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return,
            first => first.unwrap(),
        };
        assert_eq!(first.local_addr(), Some(addr));
        let _second = udp(Claim::Further).unwrap();
        assert_eq!(udp(Claim::First).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn listening_sockets_are_read_from_the_table() {
        const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2378 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0
   1: 0100007F:2378 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 23456 1 0 100 0 0 10 0
   2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 34567 1 0 100 0 0 10 0
";
        assert_eq!(listening_on(TABLE, 9_080, Transport::Tcp).collect::<Vec<_>>(), ["socket:[12345]"]);
        assert_eq!(listening_on(TABLE, 9_080, Transport::Udp).count(), 0);
        assert_eq!(listening_on(TABLE, 81, Transport::Tcp).count(), 0);
        assert_eq!(listening_on("", 80, Transport::Tcp).count(), 0);
        const DATAGRAMS: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 1100: 00000000:14E9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 45678 2 0000000000000000 0
 1101: 0100007F:14E9 0100007F:0035 01 00000000:00000000 00:00000000 00000000     0        0 56789 2 0000000000000000 0
";
        assert_eq!(listening_on(DATAGRAMS, 5_353, Transport::Udp).collect::<Vec<_>>(), ["socket:[45678]"]);
    }

    #[test]
    fn only_dead_sockets_are_replaced() {
        let dir = std::env::temp_dir().join(format!("sigma-listen-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (file, socket) = (dir.join("file"), dir.join("socket"));
        fs::write(&file, "kept").unwrap();
        assert_eq!(BoundSocket::unix(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        let bound = BoundSocket::unix(&socket).unwrap();
        let owner = SocketFile::bound(&socket);
        assert_eq!(BoundSocket::unix(&socket).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(bound);
        let _next = BoundSocket::unix(&socket).unwrap();
        // It is another socket's file by now.
        drop(owner);
        assert!(socket.exists());
        drop(SocketFile::bound(&socket));
        assert!(!socket.exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
