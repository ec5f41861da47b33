//! One connected stream, whatever it runs over.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connected byte stream. All operations are polled, so that one task can drive both sides of
/// an exchange without splitting either.
#[derive(Debug)]
pub enum Stream {
    /// TCP
    Tcp(TcpStream),
    /// Unix domain
    Unix(UnixStream),
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A TCP peer, IPv4-mapped addresses unwrapped.
    Ip(SocketAddr),
    /// A process on this machine.
    Unix,
}

impl Peer {
    /// From a socket address; `::ffff:a.b.c.d` becomes `a.b.c.d`.
    pub fn from_tcp(addr: SocketAddr) -> Peer {
        Peer::Ip(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
    }

    /// The address, if it has one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Peer::Ip(addr) => Some(addr.ip()),
            Peer::Unix => None,
        }
    }
}

impl Stream {
    /// Connects over TCP, with Nagle's algorithm off.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn connect_tcp(addr: SocketAddr) -> io::Result<Stream> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    }

    /// Connects to a Unix domain socket.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn connect_unix(path: &Path) -> io::Result<Stream> {
        UnixStream::connect(path).await.map(Stream::Unix)
    }

    /// Reads into `buf`; 0 is the end of the stream.
    ///
    /// A read that does not fill `buf` also takes note that the socket is drained, so the next
    /// call waits for the kernel's word instead of asking it again.
    ///
    /// # Errors
    /// The operating system's.
    #[inline]
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        let ready = match self {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, &mut buf),
            Stream::Unix(s) => Pin::new(s).poll_read(cx, &mut buf),
        };
        ready.map_ok(|()| buf.filled().len())
    }

    /// Writes some of `buf`.
    ///
    /// # Errors
    /// The operating system's.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    /// Writes some of `bufs`, in order.
    ///
    /// # Errors
    /// The operating system's.
    #[inline]
    pub fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
        }
    }

    /// Closes the sending side.
    ///
    /// # Errors
    /// The operating system's.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
        }
    }

    /// Whether an idle stream is still usable: open, and silent. Bytes that nobody asked for make
    /// it unusable too.
    pub fn is_quiet(&mut self) -> bool {
        let mut probe = [0];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        self.poll_read(&mut cx, &mut probe).is_pending()
    }

    /// The local address, if it is an IP one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(s) => s.local_addr().ok(),
            Stream::Unix(_) => None,
        }
    }
}
