//! Inherited sockets, for connections and datagrams, bound by the previous process or a service manager.
//!
//! A socket knows its own address, so no configuration is needed, and sockets cannot be confused.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockRef, Type};

use crate::datagram;
use crate::listen::BoundSocket;
use crate::tcp_options::TcpOptions;

/// The address of a socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SocketLocation {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A UDP port.
    Udp(SocketAddr),
    /// The file of a Unix socket
    Unix(PathBuf),
}

impl SocketLocation {
    /// Returns the address of `socket`.
    ///
    /// # Errors
    /// Returns an error if it does not listen, or is of an unsupported kind.
    pub fn of(socket: impl AsFd) -> io::Result<SocketLocation> {
        let other = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
        let socket = SockRef::from(&socket);
        let (addr, kind) = (socket.local_addr()?, socket.r#type()?);
        if let (Type::DGRAM, Some(addr), Err(_)) = (kind, addr.as_socket(), socket.peer_addr()) {
            return Ok(SocketLocation::Udp(addr));
        }
        if kind != Type::STREAM || !socket.is_listener()? {
            return Err(other("the descriptor is not a listening socket"));
        }
        if let (Domain::IPV4 | Domain::IPV6, Some(addr)) = (socket.domain()?, addr.as_socket()) {
            return Ok(SocketLocation::Tcp(addr));
        }
        match addr.as_pathname() {
            Some(path) => Ok(SocketLocation::Unix(path.to_owned())),
            None => Err(other("the socket is neither TCP nor a Unix socket with a path")),
        }
    }
}

impl fmt::Display for SocketLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketLocation::Tcp(addr) => addr.fmt(f),
            SocketLocation::Udp(addr) => write!(f, "udp:{addr}"),
            SocketLocation::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Inherited sockets, by their address. They are closed on drop; copied handles stay open.
#[derive(Debug, Default)]
pub struct Sockets(HashMap<SocketLocation, Vec<OwnedFd>>);

impl Sockets {
    /// Adds sockets. Other descriptors are closed, with a log message.
    pub fn add(&mut self, sockets: impl IntoIterator<Item = OwnedFd>) {
        for socket in sockets {
            match SocketLocation::of(&socket) {
                Ok(place) => self.0.entry(place).or_default().push(socket),
                Err(error) => tracing::warn!(%error, "an inherited descriptor is not used"),
            }
        }
    }

    /// Returns handles of the sockets on a TCP port, with a queue of this length and these options.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn tcp(
        &self,
        addr: SocketAddr,
        backlog: Option<u32>,
        options: &TcpOptions,
    ) -> io::Result<Vec<BoundSocket>> {
        self.handles(&SocketLocation::Tcp(addr), |socket| {
            if let Some(backlog) = backlog {
                SockRef::from(&socket).listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
            }
            options.apply(&socket)?;
            Ok(BoundSocket::Tcp(prepared(socket)?.into()))
        })
    }

    /// Returns handles of the sockets on a UDP port.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn udp(&self, addr: SocketAddr) -> io::Result<Vec<BoundSocket>> {
        self.handles(&SocketLocation::Udp(addr), |socket| {
            let options = SockRef::from(&socket);
            options.set_nonblocking(true)?;
            options.set_reuse_port(true)?;
            if addr.ip().is_unspecified() {
                datagram::tell_local_addr(&options, addr)?;
            }
            Ok(BoundSocket::Udp(socket.into()))
        })
    }

    /// Returns handles of the sockets on the file of a Unix socket.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn unix(&self, path: &Path) -> io::Result<Vec<BoundSocket>> {
        let path = std::path::absolute(path)?;
        let handle = |socket: OwnedFd| Ok(BoundSocket::Unix(prepared(socket)?.into()));
        let exact = self.handles(&SocketLocation::Unix(path.clone()), handle)?;
        if !exact.is_empty() {
            return Ok(exact);
        }
        // A socket bound by a relative path reports the relative path.
        let relative = std::env::current_dir()?;
        match path.strip_prefix(relative) {
            Ok(path) => self.handles(&SocketLocation::Unix(path.to_owned()), handle),
            Err(_) => Ok(exact),
        }
    }

    fn handles(
        &self,
        place: &SocketLocation,
        handle: impl Fn(OwnedFd) -> io::Result<BoundSocket>,
    ) -> io::Result<Vec<BoundSocket>> {
        let found = self.0.get(place).into_iter().flatten();
        found.map(|socket| handle(socket.try_clone()?)).collect()
    }
}

/// A service manager may have bound it with other options than Sigma's.
fn prepared(socket: OwnedFd) -> io::Result<OwnedFd> {
    let options = SockRef::from(&socket);
    options.set_nonblocking(true)?;
    if options.domain()? != Domain::UNIX {
        options.set_tcp_nodelay(true)?;
        options.set_reuse_port(true)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn sockets_are_found_by_address() {
        let mut sockets = Sockets::default();
        let (first, other) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("[::1]:0"));
        let (first, other) = (first.unwrap(), other.unwrap());
        let (addr, six) = (first.local_addr().unwrap(), other.local_addr().unwrap());
        let none = TcpOptions::default();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let unix = UnixListener::bind(&path).unwrap();
        sockets.add([first.try_clone().unwrap().into(), first.into(), other.into(), unix.into()]);
        assert_eq!(sockets.tcp(addr, Some(7), &none).unwrap().len(), 2);
        assert_eq!(sockets.tcp(six, None, &none).unwrap()[0].local_addr(), Some(six));
        assert_eq!(sockets.unix(&path).unwrap().len(), 1);
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = datagrams.local_addr().unwrap();
        sockets.add([datagrams.into()]);
        assert_eq!((sockets.udp(port).unwrap().len(), sockets.tcp(port, None, &none).unwrap().len()), (1, 0));
        assert!(sockets.tcp(([127, 0, 0, 1], six.port()).into(), None, &none).unwrap().is_empty());
        drop(sockets);
        assert!(std::net::TcpStream::connect(addr).is_err(), "nobody holds it any more");
    }

    #[test]
    fn other_descriptors_are_rejected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(SocketLocation::of(&connected).is_err());
        assert!(SocketLocation::of(UnixDatagram::pair().unwrap().0).is_err());
        assert!(SocketLocation::of(std::fs::File::open("/dev/null").unwrap()).is_err());
        let mut sockets = Sockets::default();
        sockets.add([connected.into(), std::fs::File::open("/dev/null").unwrap().into()]);
        assert!(sockets.0.is_empty());
    }
}
