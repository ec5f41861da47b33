//! Connections of the simulated network: they move bytes in pieces of any size, make both ends wait, and break.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sigma_net::simulation::Wire;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::world::World;

/// The behaviour of a connection at the gateway's end.
#[derive(Debug, Clone, Copy)]
pub struct Mood {
    /// Largest piece that is read or written at once.
    pub piece: usize,
    /// The percentage of reads and writes that have to wait.
    pub delayed: usize,
    /// Bytes that are on their way at most, in each direction.
    pub room: usize,
    /// The read or write at which it breaks.
    pub breaks_at: Option<usize>,
}

/// Bytes in one direction.
#[derive(Debug, Default)]
struct Lane {
    bytes: VecDeque<u8>,
    /// The writer has closed.
    ended: bool,
    /// The reader is gone.
    deaf: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Debug, Default)]
struct Link {
    to_gateway: Lane,
    to_peer: Lane,
    /// Reset: the bytes in flight are lost.
    broken: bool,
    /// The gateway's end resets it when it is dropped.
    is_abrupt: bool,
}

impl Link {
    fn wake_all(&mut self) {
        for lane in [&mut self.to_gateway, &mut self.to_peer] {
            lane.reader.take().into_iter().chain(lane.writer.take()).for_each(Waker::wake);
        }
    }

    fn break_off(&mut self) {
        self.broken = true;
        self.wake_all();
    }
}

impl Lane {
    /// Takes up to `most` bytes; 0 at the end.
    fn read(&mut self, cx: &Context<'_>, most: usize, mut each: impl FnMut(&[u8])) -> Poll<usize> {
        if self.bytes.is_empty() && !self.ended {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = most.min(self.bytes.len());
        let (first, second) = self.bytes.as_slices();
        let of_first = n.min(first.len());
        each(&first[..of_first]);
        each(&second[..n - of_first]);
        self.bytes.drain(..n);
        self.writer.take().into_iter().for_each(Waker::wake);
        Poll::Ready(n)
    }

    fn write(&mut self, cx: &Context<'_>, bytes: &[u8], room: usize) -> Poll<usize> {
        let n = bytes.len().min(room.saturating_sub(self.bytes.len()));
        if n == 0 && !bytes.is_empty() {
            self.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.bytes.extend(&bytes[..n]);
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(n)
    }

    fn end(&mut self) {
        self.ended = true;
        self.reader.take().into_iter().for_each(Waker::wake);
    }
}

fn locked(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    // Each change of a link is whole before anything can panic.
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection: the end that the gateway gets, and the other one.
pub fn connection(world: &World, mood: Mood) -> (GatewayEnd, PeerEnd) {
    let link = Arc::new(Mutex::new(Link::default()));
    let peer = PeerEnd { link: Arc::clone(&link), world: world.clone(), room: mood.room };
    (GatewayEnd { link, world: world.clone(), mood, acts: 0, paused: [None, None] }, peer)
}

/// The gateway's end of a connection.
#[derive(Debug)]
pub struct GatewayEnd {
    link: Arc<Mutex<Link>>,
    world: World,
    mood: Mood,
    acts: usize,
    /// The times until which the next read and the next write wait.
    paused: [Option<u64>; 2],
}

impl GatewayEnd {
    /// Makes the next read (0) or write (1) wait, or the connection break.
    fn act(&mut self, side: usize, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let now_ms = self.world.now_ms();
        match self.paused[side] {
            // A poll without a waker sees the received bytes.
            _ if cx.waker().data().is_null() => {}
            Some(until_ms) if until_ms > now_ms => {
                self.world.wake_at(until_ms, cx.waker());
                return Poll::Pending;
            }
            Some(_) => self.paused[side] = None,
            None if self.world.chance(self.mood.delayed) => {
                // Nothing but a turn of the scheduler, as a rule.
                let until_ms = now_ms + self.world.one_of(&[1, 1, 1, 5, 60]);
                self.paused[side] = Some(until_ms);
                self.world.wake_at(until_ms, cx.waker());
                return Poll::Pending;
            }
            None => {}
        }
        self.acts += 1;
        let mut link = locked(&self.link);
        if self.mood.breaks_at == Some(self.acts) {
            link.break_off();
        }
        if link.broken {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        } else {
            Poll::Ready(Ok(()))
        }
    }

    fn piece(&self) -> usize {
        1 + self.world.pick(0..self.mood.piece)
    }
}

impl AsyncRead for GatewayEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.act(0, cx))?;
        let most = self.piece().min(buf.remaining());
        let mut link = locked(&self.link);
        link.to_gateway.read(cx, most, |bytes| buf.put_slice(bytes)).map(|_| Ok(()))
    }
}

impl AsyncWrite for GatewayEnd {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.act(1, cx))?;
        let most = self.piece().min(bytes.len());
        let mut link = locked(&self.link);
        if link.to_peer.deaf {
            // As in a kernel: these bytes are accepted, and their receiver responds with a reset.
            link.break_off();
            return Poll::Ready(Ok(most));
        }
        link.to_peer.write(cx, &bytes[..most], self.mood.room).map(Ok)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.poll_write(cx, &all)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        locked(&self.link).to_peer.end();
        Poll::Ready(Ok(()))
    }
}

impl Wire for GatewayEnd {
    fn be_abrupt(&self) {
        locked(&self.link).is_abrupt = true;
    }
}

impl Drop for GatewayEnd {
    fn drop(&mut self) {
        let mut link = locked(&self.link);
        link.to_gateway.deaf = true;
        // A kernel that closes with unread bytes resets the connection.
        if link.is_abrupt || !link.to_gateway.bytes.is_empty() {
            link.break_off();
        }
        link.to_peer.end();
        link.wake_all();
    }
}

/// The other end: a client's or a node's.
#[derive(Debug)]
pub struct PeerEnd {
    link: Arc<Mutex<Link>>,
    world: World,
    room: usize,
}

impl PeerEnd {
    /// Reads at most `most` bytes behind those in `into`; 0 is the end.
    ///
    /// # Errors
    /// Returns an error if the connection was reset.
    pub async fn read(&mut self, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        poll_fn(|cx| {
            let mut link = locked(&self.link);
            if link.broken {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            link.to_peer.read(cx, most, |bytes| into.extend_from_slice(bytes)).map(Ok)
        })
        .await
    }

    /// Writes all of it, in pieces by chance, with pauses between some of them.
    ///
    /// # Errors
    /// Returns an error if the connection was reset or the other end is gone.
    pub async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = 1 + self.world.pick(0..bytes.len());
            if self.world.chance(10) {
                self.world.sleep(self.world.one_of(&[1, 20, 200])).await;
            }
            let n = poll_fn(|cx| {
                let mut link = locked(&self.link);
                if link.broken || link.to_gateway.deaf {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionReset)));
                }
                link.to_gateway.write(cx, &bytes[..piece], self.room).map(Ok)
            })
            .await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Writes all of it at once, whatever room there is.
    pub fn write_at_once(&mut self, bytes: &[u8]) {
        let mut link = locked(&self.link);
        link.to_gateway.bytes.extend(bytes);
        link.wake_all();
    }

    /// Closes the sending direction.
    pub fn finish(&mut self) {
        locked(&self.link).to_gateway.end();
    }

    /// Resets the connection.
    pub fn reset(&mut self) {
        locked(&self.link).break_off();
    }

    /// Returns true if the connection was reset, by either end.
    pub fn is_reset(&self) -> bool {
        locked(&self.link).broken
    }
}

/// For code that needs a stream, such as TLS: it reads and writes at once as much as possible.
impl AsyncRead for PeerEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut link = locked(&self.link);
        if link.broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        link.to_peer.read(cx, buf.remaining(), |bytes| buf.put_slice(bytes)).map(|_| Ok(()))
    }
}

impl AsyncWrite for PeerEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut link = locked(&self.link);
        if link.broken || link.to_gateway.deaf {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        link.to_gateway.write(cx, bytes, self.room).map(Ok)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

impl Wire for PeerEnd {}

impl Drop for PeerEnd {
    fn drop(&mut self) {
        let mut link = locked(&self.link);
        link.to_peer.deaf = true;
        if !link.to_peer.bytes.is_empty() {
            link.break_off();
        }
        link.to_gateway.end();
        link.wake_all();
    }
}
