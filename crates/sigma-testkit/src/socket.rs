//! A stream socket of either family, for the harness.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The address of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IPv4 or IPv6 address.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// Returns a TCP port on 127.0.0.1.
    pub fn loopback(port: u16) -> Address {
        Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Returns the TCP port.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Tcp(addr) => Some(addr.port()),
            Address::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(addr) => write!(f, "{addr}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connected stream.
#[derive(Debug)]
pub enum Socket {
    /// Over IP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// Connects within `limit`.
    pub fn connect(address: &Address, limit: Duration) -> io::Result<Socket> {
        match address {
            Address::Tcp(addr) => {
                let stream = TcpStream::connect_timeout(addr, limit)?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            Address::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
        }
    }

    /// Returns a second handle on the same stream.
    pub fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(s) => s.try_clone().map(Socket::Tcp),
            Socket::Unix(s) => s.try_clone().map(Socket::Unix),
        }
    }

    /// Limits each read and write.
    pub fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        // Zero would mean "no limit" to the standard library.
        let limit = Some(limit.max(Duration::from_millis(1)));
        match self {
            Socket::Tcp(s) => s.set_read_timeout(limit).and(s.set_write_timeout(limit)),
            Socket::Unix(s) => s.set_read_timeout(limit).and(s.set_write_timeout(limit)),
        }
    }

    /// Closes one or both directions.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Socket::Tcp(s) => s.shutdown(how),
            Socket::Unix(s) => s.shutdown(how),
        }
    }

    /// Makes the coming close a reset instead of an orderly end (TCP only).
    pub fn reset_on_close(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(s) => socket2::SockRef::from(s).set_linger(Some(Duration::ZERO)),
            Socket::Unix(_) => Ok(()),
        }
    }

    /// Returns the local port; 0 for Unix sockets.
    pub fn local_port(&self) -> u16 {
        match self {
            Socket::Tcp(s) => s.local_addr().map(|a| a.port()).unwrap_or(0),
            Socket::Unix(_) => 0,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.read(buf),
            Socket::Unix(s) => s.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.write(buf),
            Socket::Unix(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
