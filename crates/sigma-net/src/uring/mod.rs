//! I/O by io_uring: a worker submits all operations at once, and gets all results at once.
//!
//! Each worker has its own ring ([`ring`]). The kernel receives small messages into buffers that all connections
//! share ([`buffers`]); small writes wait for the end of the worker's turn and are sent together. So a turn costs one
//! system call, for any number of active connections. Large data is read and written by the stream itself when the
//! kernel reports that the socket is ready, which saves a copy: that is the way of epoll.
//!
//! A separate task takes the turns ([`run`]): after all other tasks, and before the worker sleeps. The runtime still
//! sleeps in epoll, where the ring's alarm wakes it.
//!
//! Memory in use by the kernel is kept until the operation has completed, however a stream ends.

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
    /// Operations submitted in one system call.
    pub entries: u32,
    /// The number of receive buffers: a power of two, at most 32,768.
    pub buffers: u16,
    /// The size of each buffer.
    pub buffer_bytes: u32,
    /// The kernel rejects operations that streams do not need: a filter of system calls does not see operations of a
    /// ring, which can also open files and start connections.
    pub is_restricted: bool,
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
    /// The identity of this thread's ring, while it has one.
    static IDENTITY: Cell<Option<Identity>> = const { Cell::new(None) };
    /// Whether new connections of this thread use its ring.
    static CHOICE: Cell<Choice> = const { Cell::new(Choice::Always) };
}

/// The number of open client connections of a worker from which on a ring takes less CPU time than epoll. Measured; see
/// docs/io-uring.md.
const PAYS_FROM: u32 = 16;

/// Which new connections of a worker use its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// All.
    Always,
    /// Connections that open while the worker has many clients; the value is the present state.
    WhilePaying(bool),
}

/// Uses the calling thread's ring only for connections that come while many are open.
pub(crate) fn use_while_paying() {
    CHOICE.set(Choice::WhilePaying(false));
}

/// Takes note of the number of open client connections of the calling worker. It decides whether further connections,
/// to clients and to nodes, use io_uring.
pub fn note_connections(open: u32) {
    if let Choice::WhilePaying(_) = CHOICE.get() {
        CHOICE.set(Choice::WhilePaying(open >= PAYS_FROM));
    }
}

/// Returns true if a new connection of the calling thread is to use its ring.
pub(crate) fn is_chosen() -> bool {
    is_active() && CHOICE.get() != Choice::WhilePaying(false)
}

/// Identifies a ring among several threads, and among successive rings of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    thread: ThreadId,
    number: u32,
}

/// Gives the calling thread a ring; its runtime must [`run`] it.
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

/// Takes the turns of the calling thread's ring until the runtime ends. A failed ring loses its connections, and is
/// replaced by one of the same sizes.
pub(crate) async fn run(sizes: Sizes) {
    loop {
        let alarm = with_own(|ring| ring.alarm().try_clone_to_owned());
        let error = match alarm.unwrap_or_else(|| Err(gone())).and_then(watch) {
            Ok(alarm) => poll_fn(|cx| poll_turns(&alarm, cx)).await,
            Err(error) => error,
        };
        tracing::error!(%error, "io_uring failed: a worker's connections end, and io_uring restarts");
        let number = end();
        tokio::time::sleep(PAUSE).await;
        while let Err(error) = begin(sizes, number.wrapping_add(1)) {
            if error.kind() == io::ErrorKind::PermissionDenied {
                // Forbidden by the filter of system calls, or by the system: a retry is useless.
                tracing::error!(%error, "io_uring cannot restart: the worker uses epoll");
                return;
            }
            tracing::error!(%error, "cannot restart io_uring; the worker retries");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Removes the calling thread's ring; returns its number. Its streams fail, and waiting ones are woken.
fn end() -> u32 {
    let identity = IDENTITY.take();
    if let Some(mut ring) = RING.take() {
        ring.wake_all();
    }
    identity.map_or(0, |identity| identity.number)
}

fn poll_turns(alarm: &AsyncFd<OwnedFd>, cx: &mut Context<'_>) -> Poll<io::Error> {
    let asleep = with_own(|ring| match ring.turn()? {
        true => Ok(false),
        false => ring.sleep(cx.waker()),
    });
    match asleep.unwrap_or_else(|| Err(gone())) {
        Ok(true) => {}
        Ok(false) => {
            // After all tasks that were woken.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Err(error) => return Poll::Ready(error),
    }
    // Each readiness is a turn of its own, so that no other task waits for this one.
    if let Poll::Ready(Ok(mut guard)) = alarm.poll_read_ready(cx) {
        guard.clear_ready();
        cx.waker().wake_by_ref();
    }
    Poll::Pending
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// Registers a file with the runtime, for readable events.
///
/// # Errors
/// Returns the error of the operating system.
pub(crate) fn watch(file: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    crate::descriptors::watch(file, Interest::READABLE)
}

/// The pause before a failed ring is replaced: the new one may fail at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns true if the calling thread has a ring.
pub(crate) fn is_active() -> bool {
    IDENTITY.get().is_some()
}

/// How long a worker at its end waits for the last written bytes of its connections.
const SETTLE: Duration = Duration::from_secs(1);

/// Waits until all written bytes are sent, or for [`SETTLE`].
pub(crate) async fn settle() {
    let deserted = async {
        while !with_own(|ring| ring.is_deserted()).unwrap_or(true) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // The rest is cancelled with the ring.
    let _ = tokio::time::timeout(SETTLE, deserted).await;
}

fn with_own<R>(f: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    // None at the end of the thread.
    RING.try_with(|ring| ring.borrow_mut().as_mut().map(f)).ok().flatten()
}

/// A connection in the ring of the thread that made it. All operations on other threads fail.
#[derive(Debug)]
pub struct UringStream {
    ring: Identity,
    slot: u32,
    family: Family,
}

/// The family of a connection's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Tcp,
    Unix,
}

impl UringStream {
    /// Takes a connected socket.
    ///
    /// # Errors
    /// Returns an error if the calling thread has no ring, or a full one.
    pub(crate) fn adopt(socket: OwnedFd, family: Family) -> io::Result<UringStream> {
        let ring = IDENTITY.get().ok_or_else(gone)?;
        let slot = with_own(|ring| ring.adopt(socket)).unwrap_or_else(|| Err(gone()))?;
        Ok(UringStream { ring, slot, family })
    }

    /// Returns true for TCP.
    pub(crate) fn is_tcp(&self) -> bool {
        self.family == Family::Tcp
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

    /// Moves available bytes into an empty pipe: received bytes by `write`, and bytes in the socket by `pass`. Returns
    /// their number; 0 is the end of the stream.
    pub(crate) fn poll_move_out(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
        pass: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let turn = ready!(poll_proceed(cx));
        let moved = ready!(self.with(|ring, slot| ring.move_out(slot, cx, write, pass))?);
        turn.made_progress();
        Poll::Ready(moved)
    }

    /// Moves bytes of a pipe to the socket by `pass`, after all written bytes.
    pub(crate) fn poll_move_in(
        &mut self,
        cx: &mut Context<'_>,
        pass: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let turn = ready!(poll_proceed(cx));
        let moved = ready!(self.with(|ring, slot| ring.move_in(slot, cx, pass))?);
        turn.made_progress();
        Poll::Ready(moved)
    }

    /// Ready unless the socket has no room for written bytes.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|ring, slot| ring.flush(slot, cx))?
    }

    /// Closes the sending side after the written bytes.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|ring, slot| ring.shutdown(slot, cx))?
    }

    /// Calls `f` with the socket.
    pub(crate) fn with_socket<R>(&self, f: impl FnOnce(BorrowedFd<'_>) -> R) -> io::Result<R> {
        self.with(|ring, slot| ring.socket(slot).map(f))?
    }

    /// Returns the local address, if it is an IP address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let addr = self.with_socket(|socket| socket2::SockRef::from(&socket).local_addr());
        addr.ok()?.ok()?.as_socket()
    }

    /// See [`crate::Stream::original_destination`].
    pub(crate) fn original_destination(&self) -> Option<SocketAddr> {
        self.with_socket(|socket| crate::original_destination::of(&socket)).ok()?
    }
}

impl Drop for UringStream {
    fn drop(&mut self) {
        // Without its ring nothing is left to do: the ring has closed the socket.
        let _ = self.with(|ring, slot| ring.leave(slot));
    }
}
