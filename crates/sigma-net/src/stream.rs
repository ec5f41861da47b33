//! One connected stream over any transport.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sigma_buffer::Chunk;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::dial_pace;
use crate::tls::{Facts, TlsStream};
use crate::uring::{self, Family, UringStream};

/// A connected byte stream. All operations are polled, so that one task can drive both sides of an exchange without
/// splitting either.
#[derive(Debug)]
pub enum Stream {
    /// TCP
    Tcp(TcpStream),
    /// Unix domain
    Unix(UnixStream),
    /// TCP or Unix domain, by io_uring.
    Uring(UringStream),
    /// Encrypted, over another stream. Boxed, so that plain streams stay small.
    Tls(Box<TlsStream>),
    /// Simulated by a test
    #[cfg(feature = "simulation")]
    Simulated(Box<dyn crate::simulation::Wire>),
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A TCP peer; IPv4-mapped addresses are unwrapped
    Ip(SocketAddr),
    /// A process on this machine
    Unix,
}

impl Peer {
    /// Returns the peer of a socket address; `::ffff:a.b.c.d` becomes `a.b.c.d`.
    pub fn from_tcp(addr: SocketAddr) -> Peer {
        Peer::Ip(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
    }

    /// Returns the port, if it has one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Peer::Ip(addr) => Some(addr.port()),
            Peer::Unix => None,
        }
    }

    /// Returns the address, if it has one.
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
    /// Returns the error of the operating system.
    pub async fn connect_tcp(addr: SocketAddr) -> io::Result<Stream> {
        #[cfg(feature = "simulation")]
        if let Some(dialling) = crate::simulation::dial(addr) {
            return dialling.await.map(Stream::Simulated);
        }
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    }

    /// As [`Stream::connect_tcp`], for traffic: it leaves the reserve of descriptors to operators and health checks
    /// ([`crate::limits::Descriptors`]).
    ///
    /// # Errors
    /// Returns the error of the operating system, or an error for too many open files if only the reserve is left.
    pub async fn dial_tcp(addr: SocketAddr) -> io::Result<Stream> {
        #[cfg(feature = "simulation")]
        if let Some(dialling) = crate::simulation::dial(addr) {
            return dialling.await.map(Stream::Simulated);
        }
        let stream = connect(addr).await?;
        stream.set_nodelay(true)?;
        if uring::is_chosen() {
            return Ok(Stream::Uring(UringStream::adopt(stream.into_std()?.into(), Family::Tcp)?));
        }
        Ok(Stream::Tcp(stream))
    }

    /// As [`Stream::connect_unix`], for traffic, like [`Stream::dial_tcp`].
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub async fn dial_unix(path: &Path) -> io::Result<Stream> {
        let mut stream = UnixStream::connect(path).await?;
        if crate::limits::is_for_clients_alone(&stream) {
            let moved = crate::limits::of_node(stream.into_std()?.into())?;
            stream = UnixStream::from_std(moved.into())?;
        }
        crate::limits::leave_reserve(&stream)?;
        if uring::is_chosen() {
            return Ok(Stream::Uring(UringStream::adopt(stream.into_std()?.into(), Family::Unix)?));
        }
        Ok(Stream::Unix(stream))
    }

    /// Connects to a Unix domain socket.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub async fn connect_unix(path: &Path) -> io::Result<Stream> {
        UnixStream::connect(path).await.map(Stream::Unix)
    }

    /// Reads into `buf`; 0 is the end of the stream.
    ///
    /// After a read that does not fill `buf`, the socket counts as drained, so the next call waits for the kernel's
    /// event instead of a system call.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    #[inline]
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        let ready = match self {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, &mut buf),
            Stream::Unix(s) => Pin::new(s).poll_read(cx, &mut buf),
            Stream::Uring(s) => return s.poll_read(cx, buf.initialized_mut()),
            #[cfg(feature = "simulation")]
            Stream::Simulated(s) => Pin::new(s).poll_read(cx, &mut buf),
            Stream::Tls(s) => return s.poll_read(cx, buf.initialized_mut()),
        };
        ready.map_ok(|()| buf.filled().len())
    }

    /// Reads to the end of `chunk`, into its own memory; 0 is the end of the stream. A chunk without memory gets some
    /// only when there are bytes to read, so a wait holds none; a full one grows.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, chunk: &mut Chunk) -> Poll<io::Result<usize>> {
        if chunk.is_empty() && chunk.spare().is_empty() {
            // A wait takes no memory.
            let mut taken = Chunk::take();
            let read = self.poll_read(cx, taken.spare());
            if let Poll::Ready(Ok(n)) = read
                && n > 0
            {
                taken.filled(n);
                *chunk = taken;
            }
            return read;
        }
        chunk.make_room(0);
        let read = self.poll_read(cx, chunk.spare());
        if let Poll::Ready(Ok(n)) = read {
            chunk.filled(n);
        }
        read
    }

    /// Writes some of `buf`.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Uring(s) => s.poll_write(cx, buf),
            #[cfg(feature = "simulation")]
            Stream::Simulated(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Tls(s) => s.poll_write(cx, buf),
        }
    }

    /// Sends as many bytes as the socket takes without waiting, and ignores errors: the last words of a connection that
    /// ends.
    pub(crate) fn send_now(&mut self, bytes: &[u8]) {
        let _ = self.poll_write(&mut Context::from_waker(Waker::noop()), bytes);
    }

    /// Writes some of `bufs`, in order.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    #[inline]
    pub fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Uring(s) => s.poll_write_vectored(cx, bufs),
            #[cfg(feature = "simulation")]
            Stream::Simulated(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Tls(s) => s.poll_write_vectored(cx, bufs),
        }
    }

    /// Ready when all written bytes have been passed to the system, or leave with the worker's turn. An encrypted
    /// stream may hold bytes back: it encrypts at once, and the socket may have no room. So may an io_uring stream.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Uring(s) => s.poll_flush(cx),
            #[cfg(feature = "simulation")]
            Stream::Simulated(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => s.poll_flush(cx),
        }
    }

    /// Closes the sending side; an encrypted stream sends the closing alert, without which its peer must assume a
    /// truncation.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Uring(s) => s.poll_shutdown(cx),
            #[cfg(feature = "simulation")]
            Stream::Simulated(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => s.poll_shutdown(cx),
        }
    }

    /// Returns true if a drop of the stream ends it for its peer as [`Stream::poll_shutdown`] does, provided that all
    /// received bytes were read.
    pub fn ends_when_dropped(&self) -> bool {
        matches!(self, Stream::Tcp(_) | Stream::Unix(_))
    }

    /// Resets the stream: unsent bytes are dropped, and the peer learns that its data is incomplete (RFC 9293
    /// §3.10.5).
    pub fn reset(self) {
        self.be_abrupt();
    }

    fn be_abrupt(&self) {
        let abrupt = |socket: BorrowedFd<'_>| {
            // A broken socket needs no option.
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        };
        match self {
            Stream::Tcp(s) => abrupt(s.as_fd()),
            Stream::Uring(s) => drop(s.with_socket(abrupt)),
            Stream::Tls(s) => s.socket().be_abrupt(),
            Stream::Unix(_) => {}
            #[cfg(feature = "simulation")]
            Stream::Simulated(s) => s.be_abrupt(),
        }
    }

    /// Returns true if an idle stream is still usable: open, without bytes to read. Unsolicited bytes make it
    /// unusable too.
    pub fn is_quiet(&mut self) -> bool {
        let mut probe = [0];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        self.poll_read(&mut cx, &mut probe).is_pending()
    }

    /// As [`Stream::is_quiet`], with a query to the kernel: the event loop may not know of an end yet. It costs a
    /// system call, for streams whose next request cannot be sent again.
    pub fn is_quiet_now(&mut self) -> bool {
        self.is_quiet() && self.is_silent()
    }

    /// Whether the kernel has neither bytes nor an end to be read.
    pub(crate) fn is_silent(&self) -> bool {
        let is_silent = |socket: BorrowedFd<'_>| {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            matches!(rustix::net::recv(socket, &mut [0_u8], flags), Err(Errno::AGAIN))
        };
        match self {
            Stream::Tcp(s) => is_silent(s.as_fd()),
            Stream::Unix(s) => is_silent(s.as_fd()),
            Stream::Uring(s) => s.with_socket(is_silent).unwrap_or(false),
            #[cfg(feature = "simulation")]
            Stream::Simulated(_) => true,
            Stream::Tls(s) => s.socket().is_silent(),
        }
    }

    /// Returns true if this client connection has the last descriptor of the clients' share.
    pub fn is_last_for_clients(&self) -> bool {
        match self {
            Stream::Tcp(s) => crate::limits::is_last_for_clients(s.as_fd()),
            Stream::Unix(s) => crate::limits::is_last_for_clients(s.as_fd()),
            Stream::Uring(s) => s.with_socket(crate::limits::is_last_for_clients).unwrap_or(false),
            #[cfg(feature = "simulation")]
            Stream::Simulated(_) => false,
            Stream::Tls(s) => s.socket().is_last_for_clients(),
        }
    }

    /// Returns the local address, if it is an IP address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(s) => s.local_addr().ok(),
            Stream::Unix(_) => None,
            Stream::Uring(s) => s.local_addr(),
            #[cfg(feature = "simulation")]
            Stream::Simulated(_) => None,
            Stream::Tls(s) => s.socket().local_addr(),
        }
    }

    /// Returns the address and port that the client has connected to, before a redirection of the kernel
    /// (`SO_ORIGINAL_DST`); None if the kernel does not know it. Without a redirection it may be the local address.
    pub fn original_destination(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(s) => crate::original_destination::of(s),
            Stream::Unix(_) => None,
            Stream::Uring(s) => s.original_destination(),
            #[cfg(feature = "simulation")]
            Stream::Simulated(_) => None,
            Stream::Tls(s) => s.socket().original_destination(),
        }
    }

    /// Returns the result of the handshake, if the stream is encrypted.
    pub fn tls(&self) -> Option<&Facts> {
        match self {
            Stream::Tls(s) => Some(s.facts()),
            Stream::Tcp(_) | Stream::Unix(_) | Stream::Uring(_) => None,
            #[cfg(feature = "simulation")]
            Stream::Simulated(_) => None,
        }
    }
}

/// Connects, and reads the socket error only if an event reports one: this saves one system call for each connection
/// to a node.
async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(addr), kind, Some(Protocol::TCP))?;
    let socket = Socket::from(crate::limits::of_node(socket.into())?);
    let turn = dial_pace::turn().await?;
    let connected = socket.connect(&addr.into());
    drop(turn);
    match connected {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => return Err(error),
        _ => {}
    }
    let stream = TcpStream::from_std(socket.into())?;
    let ready = stream.ready(Interest::WRITABLE | Interest::ERROR).await?;
    // An established connection is writable, and has no other event.
    if (ready.is_error() || ready.is_write_closed() || ready.is_read_closed())
        && let Some(error) = stream.take_error()?
    {
        return Err(error);
    }
    Ok(stream)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Uring(s) => {
                let n = ready!(s.poll_read(cx, buf.initialize_unfilled()))?;
                buf.advance(n);
                Poll::Ready(Ok(()))
            }
            #[cfg(feature = "simulation")]
            Stream::Simulated(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => {
                let n = ready!(s.poll_read(cx, buf.initialize_unfilled()))?;
                buf.advance(n);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Stream::poll_write(self.get_mut(), cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Stream::poll_write_vectored(self.get_mut(), cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_flush(self.get_mut(), cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_shutdown(self.get_mut(), cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_fill_takes_memory_only_for_bytes_and_grows_a_full_chunk() {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let (mut near, mut chunk) = (Stream::Unix(near), Chunk::empty());
        let mut noop = Context::from_waker(std::task::Waker::noop());
        assert!(near.poll_fill(&mut noop, &mut chunk).is_pending());
        assert!(chunk.spare().is_empty(), "a wait holds no memory");

        far.write_all(b"hello").await.expect("write");
        assert_eq!(poll_fn(|cx| near.poll_fill(cx, &mut chunk)).await.expect("read"), 5);
        assert_eq!(&chunk[..], b"hello");

        let rest = chunk.spare().len();
        chunk.filled(rest);
        far.write_all(b" world").await.expect("write");
        let before = chunk.len();
        while chunk.len() < before + 6 {
            assert_ne!(poll_fn(|cx| near.poll_fill(cx, &mut chunk)).await.expect("read"), 0);
        }
        assert_eq!((&chunk[..5], &chunk[before..]), (&b"hello"[..], &b" world"[..]));

        drop(far);
        assert_eq!(poll_fn(|cx| near.poll_fill(cx, &mut chunk)).await.expect("read"), 0);
        assert_eq!(chunk.len(), before + 6);
    }

    /// Within one turn of the event loop, which gets no events meanwhile.
    #[tokio::test]
    async fn the_kernel_knows_of_an_end_before_the_event_loop_does() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let mut near = Stream::dial_tcp(addr).await.expect("a connection");
        let (far, _) = listener.accept().expect("a connection");
        // It has found nothing to read, and waits for an event.
        assert!(near.is_quiet() && near.is_quiet_now());
        drop(far);
        assert!(near.is_quiet() && !near.is_quiet_now());
    }

    #[tokio::test]
    async fn connection_errors_have_a_reason() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        for _ in 0..20 {
            assert!(Stream::dial_tcp(addr).await.is_ok_and(|stream| stream.local_addr().is_some()));
        }
        drop(listener);
        for _ in 0..20 {
            let error = Stream::dial_tcp(addr).await.expect_err("nobody listens");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        }
    }
}
