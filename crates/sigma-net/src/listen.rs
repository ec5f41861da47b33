//! Listening sockets: bound once on the control side, accepted from on the workers.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

use crate::stream::{Peer, Stream};

/// A bound, listening socket on its way to a worker.
#[derive(Debug)]
pub enum BoundSocket {
    /// One of the sockets that share a TCP port.
    Tcp(std::net::TcpListener),
    /// A Unix socket; all workers accept from the same one.
    Unix(StdUnixListener),
}

impl BoundSocket {
    /// Binds one of several TCP sockets that share `addr`: the kernel spreads connections over
    /// them (SO_REUSEPORT), so that no two workers contend for one.
    ///
    /// # Errors
    /// The operating system's, such as the address being in use by another program.
    pub fn tcp(addr: SocketAddr, backlog: u32) -> io::Result<BoundSocket> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        // Small answers must not wait for an acknowledgement of the last one. Accepted sockets
        // inherit it, which saves a system call for each.
        socket.set_tcp_nodelay(true)?;
        socket.bind(&addr.into())?;
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(BoundSocket::Tcp(socket.into()))
    }

    /// Binds a Unix socket. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// The operating system's, such as another process listening there.
    pub fn unix(path: &Path) -> io::Result<BoundSocket> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on this socket"));
        }
        if path.exists() {
            std::fs::remove_file(path)?;
        }
        let listener = StdUnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(BoundSocket::Unix(listener))
    }

    /// Another handle of the same socket.
    ///
    /// # Errors
    /// The operating system's.
    pub fn try_clone(&self) -> io::Result<BoundSocket> {
        Ok(match self {
            BoundSocket::Tcp(socket) => BoundSocket::Tcp(socket.try_clone()?),
            BoundSocket::Unix(socket) => BoundSocket::Unix(socket.try_clone()?),
        })
    }

    /// The address it is bound to, with the port the kernel chose.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            BoundSocket::Tcp(socket) => socket.local_addr().ok(),
            BoundSocket::Unix(_) => None,
        }
    }

    /// Registers it with the calling worker's runtime.
    ///
    /// # Errors
    /// The operating system's.
    pub fn into_listening(self) -> io::Result<Listening> {
        Ok(match self {
            BoundSocket::Tcp(socket) => Listening::Tcp(TcpListener::from_std(socket)?),
            BoundSocket::Unix(socket) => Listening::Unix(UnixListener::from_std(socket)?),
        })
    }
}

/// A socket that a worker accepts from.
#[derive(Debug)]
pub enum Listening {
    /// TCP
    Tcp(TcpListener),
    /// Unix domain
    Unix(UnixListener),
}

impl Listening {
    /// The one address that connections arrive at; `None` if it differs between them.
    pub fn fixed_addr(&self) -> Option<SocketAddr> {
        match self {
            Listening::Tcp(listener) => listener.local_addr().ok().filter(|addr| !addr.ip().is_unspecified()),
            Listening::Unix(_) => None,
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The operating system's; the caller pauses on exhaustion and goes on.
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
        }
    }
}

/// Removes a socket file on drop.
#[derive(Debug)]
pub struct SocketFile(pub PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Already gone is as good as removed.
        let _ = std::fs::remove_file(&self.0);
    }
}
