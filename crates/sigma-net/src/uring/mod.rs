//! Bytes by io_uring: a worker asks the kernel for everything at once, and is told of everything at once.
//!
//! Each worker has a ring of its own ([`ring`]). The kernel receives small messages into buffers that all
//! connections share ([`buffers`]); small writes wait for the end of the worker's turn and leave together.
//! So a turn costs one system call, whatever the number of connections that had something to do in it.
//! What is large is read and written by the stream itself once the kernel says that the socket is ready,
//! which spares it a copy: that is what the worker does with epoll.
//!
//! A task of its own takes the turns ([`run`]): after all others have run, and before the worker sleeps. The
//! runtime still sleeps in epoll, where the ring's alarm wakes it.
//!
//! Memory that the kernel may use is kept until the operation has completed, however a stream ends.

mod buffers;
mod connection;
mod kernel;
mod ring;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop::poll_proceed;

use ring::Ring;

/// Sizes of a ring and of the buffers that its connections share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Operations that are submitted in one system call.
    pub entries: u32,
    /// Buffers that the kernel receives into: a power of two, at most 32,768.
    pub buffers: u16,
    /// Bytes of each.
    pub buffer_bytes: u32,
    /// Whether the kernel refuses operations that streams do not need: a filter of system calls does not see those of a
    /// ring, which can open files and start connections as well.
    pub is_restricted: bool,
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
    /// That of this thread's ring, while it has one.
    static IDENTITY: Cell<Option<Identity>> = const { Cell::new(None) };
}

/// Tells rings apart: those of several threads, and those that a thread has one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    thread: ThreadId,
    number: u32,
}

/// Gives the calling thread a ring; its runtime has to [`run`] it.
///
/// # Errors
/// Returns the error of the operating system, for example of a kernel before 6.1, or of one that forbids it.
pub(crate) fn start(sizes: Sizes) -> io::Result<()> {
    begin(sizes, 0)
}

fn begin(sizes: Sizes, number: u32) -> io::Result<()> {
    RING.set(Some(Ring::new(sizes)?));
    IDENTITY.set(Some(Identity { thread: std::thread::current().id(), number }));
    Ok(())
}

/// Takes the turns of the calling thread's ring until the runtime ends. A ring that fails takes its
/// connections with it, and is replaced by one of the same sizes.
pub(crate) async fn run(sizes: Sizes) {
    loop {
        let alarm = with_own(|ring| ring.alarm().try_clone_to_owned());
        let error = match alarm.unwrap_or_else(|| Err(gone())).and_then(watch) {
            Ok(alarm) => poll_fn(|cx| poll_turns(&alarm, cx)).await,
            Err(error) => error,
        };
        tracing::error!(%error, "io_uring has failed: a worker's connections end, and it starts anew");
        let number = end();
        tokio::time::sleep(PAUSE).await;
        while let Err(error) = begin(sizes, number.wrapping_add(1)) {
            if error.kind() == io::ErrorKind::PermissionDenied {
                // By the filter of system calls, or by the system: it will not change its mind.
                tracing::error!(%error, "io_uring may not be started again: the worker goes on with epoll");
                return;
            }
            tracing::error!(%error, "io_uring cannot be started anew");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Takes the calling thread's ring away; its number. Streams see that it is gone, and those that wait are
/// woken to look.
fn end() -> u32 {
    let identity = IDENTITY.take();
    if let Some(mut ring) = RING.take() {
        ring.wake_all();
    }
    identity.map_or(0, |identity| identity.number)
}

fn poll_turns(alarm: &AsyncFd<OwnedFd>, cx: &mut Context<'_>) -> Poll<io::Error> {
    loop {
        match with_own(Ring::turn).unwrap_or_else(|| Err(gone())) {
            Ok(true) => {
                // Behind all tasks that were woken.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(false) => {}
            Err(error) => return Poll::Ready(error),
        }
        let asleep = with_own(|ring| ring.sleep(cx.waker())).unwrap_or(true);
        match alarm.poll_read_ready(cx) {
            Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
            // The runtime ends.
            Poll::Ready(Err(_)) => return Poll::Pending,
            Poll::Pending if asleep => return Poll::Pending,
            Poll::Pending => {}
        }
    }
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// Registers a file with the runtime, to be told when it can be read.
///
/// # Errors
/// Returns the error of the operating system.
pub(crate) fn watch(file: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    crate::descriptors::watch(file, Interest::READABLE)
}

/// Pause before a ring that has failed is replaced: it may do so again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether the connections of the calling thread go by a ring.
pub(crate) fn is_active() -> bool {
    IDENTITY.get().is_some()
}

/// How long a worker that ends waits for bytes that its last connections have written.
const SETTLE: Duration = Duration::from_secs(1);

/// Waits until what connections have written has left, or [`SETTLE`] is over.
pub(crate) async fn settle() {
    let deserted = async {
        while !with_own(|ring| ring.is_deserted()).unwrap_or(true) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // What is not gone by then is cancelled with the ring.
    let _ = tokio::time::timeout(SETTLE, deserted).await;
}

fn with_own<R>(f: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    // None while the thread ends.
    RING.try_with(|ring| ring.borrow_mut().as_mut().map(f)).ok().flatten()
}

/// A connection of the ring of the thread that has made it. Elsewhere all operations fail.
#[derive(Debug)]
pub struct UringStream {
    ring: Identity,
    slot: u32,
}

impl UringStream {
    /// Takes a connected socket.
    ///
    /// # Errors
    /// Returns an error if the calling thread has no ring, or a full one.
    pub(crate) fn adopt(socket: OwnedFd) -> io::Result<UringStream> {
        let ring = IDENTITY.get().ok_or_else(gone)?;
        let slot = with_own(|ring| ring.adopt(socket)).unwrap_or_else(|| Err(gone()))?;
        Ok(UringStream { ring, slot })
    }

    fn with<R>(&self, f: impl FnOnce(&mut Ring, u32) -> R) -> io::Result<R> {
        let own = IDENTITY.try_with(Cell::get).is_ok_and(|ring| ring == Some(self.ring));
        let done = if own { with_own(|ring| f(ring, self.slot)) } else { None };
        done.ok_or_else(|| io::Error::other("the connection is of another worker, or its ring has failed"))
    }

    /// Reads into `buf`; 0 is the end of the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let turn = ready!(poll_proceed(cx));
        let read = ready!(self.with(|ring, slot| ring.read(slot, cx, buf))?);
        turn.made_progress();
        Poll::Ready(read)
    }

    /// Writes some of `buf`.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// Writes some of `bufs`, in order.
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let turn = ready!(poll_proceed(cx));
        let written = ready!(self.with(|ring, slot| ring.write(slot, cx, bufs))?);
        turn.made_progress();
        Poll::Ready(written)
    }

    /// Ready unless the socket has no room for what was written.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|ring, slot| ring.flush(slot, cx))?
    }

    /// Closes the sending side behind what was written.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|ring, slot| ring.shutdown(slot, cx))?
    }

    /// What `f` makes of the socket.
    pub(crate) fn with_socket<R>(&self, f: impl FnOnce(BorrowedFd<'_>) -> R) -> io::Result<R> {
        self.with(|ring, slot| ring.socket(slot).map(f))?
    }

    /// The local address, if it is an IP one.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let addr = self.with_socket(|socket| socket2::SockRef::from(&socket).local_addr());
        addr.ok()?.ok()?.as_socket()
    }
}

impl Drop for UringStream {
    fn drop(&mut self) {
        // Without its ring nothing is left to do: the ring has closed the socket.
        let _ = self.with(|ring, slot| ring.leave(slot));
    }
}
