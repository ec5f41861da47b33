//! Zero-copy transfer between sockets: the kernel moves their pages through a pipe (splice(2)).
//!
//! A pipe is taken only for data to move, and is empty when it is given back, so an idle connection holds none.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;

use crate::Stream;

/// The capacity of a pipe in bytes: as much as a busy socket has at a time.
const PIPE_BYTES: usize = 256 * 1024;

/// The limit of pipes of a worker, each of which takes two descriptors. Without a pipe, data is copied.
const PIPES_MAX: usize = 64;

/// The number of empty pipes that are kept.
const PIPES_KEPT: usize = 16;

/// The pipes of one worker.
#[derive(Debug, Default)]
struct Pipes {
    /// The number of pipes, in use or not.
    count: usize,
    /// The system does not allow splicing.
    is_forbidden: bool,
    idle: Vec<Ends>,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

thread_local! {
    static PIPES: RefCell<Pipes> = RefCell::default();
}

/// A pipe between two sockets.
#[derive(Debug)]
pub struct Pipe {
    /// None only while it is given back.
    ends: Option<Ends>,
    held: usize,
}

impl Pipe {
    /// Returns an empty pipe of this worker; None if all are in use, or there is no descriptor for another one.
    pub fn take() -> Option<Pipe> {
        PIPES.with_borrow_mut(|pipes| {
            let ends = match pipes.idle.pop() {
                Some(ends) => ends,
                None if pipes.count >= PIPES_MAX || pipes.is_forbidden => return None,
                None => {
                    let ends = Ends::new().ok()?;
                    pipes.count += 1;
                    ends
                }
            };
            Some(Pipe { ends: Some(ends), held: 0 })
        })
    }

    /// Returns the bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }
}

impl Pipe {
    /// Moves bytes of a file in memory from `offset` on into an empty pipe, at most `most`; returns their number.
    ///
    /// # Errors
    /// Returns the error of the operating system. Without support it is [`io::ErrorKind::Unsupported`].
    pub fn fill(&mut self, file: BorrowedFd<'_>, mut offset: u64, most: usize) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Err(cannot()) };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        loop {
            match splice(file, Some(&mut offset), &ends.write, None, most.min(PIPE_BYTES), flags) {
                Err(Errno::INTR) => {}
                Err(error) if is_refusal(&error.into()) => return Err(cannot()),
                moved => {
                    let moved = moved?;
                    self.held += moved;
                    return Ok(moved);
                }
            }
        }
    }
}

impl Ends {
    fn new() -> io::Result<Ends> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        crate::limits::leave_reserve(&read)?;
        crate::limits::leave_reserve(&write)?;
        // If that is not allowed, the pipe is smaller and works as well.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        Ok(Ends { read, write })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let (ends, is_empty) = (self.ends.take(), self.held == 0);
        // The thread may be ending.
        let _ = PIPES.try_with(|pipes| {
            let mut pipes = pipes.borrow_mut();
            match ends {
                // Its content belongs to this connection alone.
                Some(ends) if is_empty && pipes.idle.len() < PIPES_KEPT => pipes.idle.push(ends),
                _ => pipes.count -= 1,
            }
        });
    }
}

impl Stream {
    /// Returns true if a [`Pipe`] can move bytes from it and to it.
    pub fn can_splice(&self) -> bool {
        match self {
            Stream::Tcp(_) => true,
            Stream::Uring(stream) => stream.is_tcp(),
            _ => false,
        }
    }

    /// Moves available bytes into an empty pipe, at most `most`; 0 is the end of the stream.
    ///
    /// # Errors
    /// Returns the error of the operating system. Without support it is [`io::ErrorKind::Unsupported`], and nothing
    /// was read.
    pub fn poll_splice_into(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let Some(ends) = &pipe.ends else { return Poll::Ready(Err(cannot())) };
        let most = most.min(PIPE_BYTES);
        let moved = match self {
            Stream::Tcp(socket) => loop {
                ready!(socket.poll_read_ready(cx))?;
                // The pipe is empty: only the socket can make it wait.
                match socket.try_io(Interest::READABLE, || pass(&*socket, &ends.write, most)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    moved => break moved,
                }
            },
            Stream::Uring(stream) if stream.is_tcp() => {
                let write =
                    |bytes: &[u8]| Ok(rustix::io::write(&ends.write, &bytes[..bytes.len().min(most)])?);
                ready!(stream.poll_move_out(cx, write, |socket| pass(socket, &ends.write, most)))
            }
            _ => return Poll::Ready(Err(cannot())),
        };
        match moved {
            Ok(n) => pipe.held += n,
            Err(error) if is_refusal(&error) => {
                PIPES.with_borrow_mut(|pipes| {
                    pipes.is_forbidden = true;
                    pipes.count -= pipes.idle.drain(..).count();
                });
                return Poll::Ready(Err(cannot()));
            }
            Err(_) => {}
        }
        Poll::Ready(moved)
    }

    /// Moves bytes from a pipe to the stream.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Stream::poll_splice_into`].
    pub fn poll_splice_from(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let Some(ends) = &pipe.ends else { return Poll::Ready(Err(cannot())) };
        let held = pipe.held;
        let moved = match self {
            Stream::Tcp(socket) => loop {
                ready!(socket.poll_write_ready(cx))?;
                match socket.try_io(Interest::WRITABLE, || pass(&ends.read, &*socket, held)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    moved => break moved,
                }
            },
            Stream::Uring(stream) if stream.is_tcp() => {
                ready!(stream.poll_move_in(cx, |socket| pass(&ends.read, socket, held)))
            }
            _ => return Poll::Ready(Err(cannot())),
        };
        if let Ok(n) = &moved {
            pipe.held = held.saturating_sub(*n);
        }
        Poll::Ready(moved)
    }
}

fn pass(from: impl AsFd, to: impl AsFd, bytes: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        match splice(&from, None, &to, None, bytes, flags) {
            Err(Errno::INTR) => {}
            passed => return Ok(passed?),
        }
    }
}

/// Returns true if the system does not support splicing, or forbids it, for example by a filter of system calls.
fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::NOSYS, Errno::PERM, Errno::INVAL, Errno::ACCESS];
    refusals.iter().any(|refusal| error.raw_os_error() == Some(refusal.raw_os_error()))
}

fn cannot() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let far = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        (Stream::Tcp(listener.accept().await.expect("a connection").0), far)
    }

    #[tokio::test]
    async fn bytes_pass_and_an_empty_pipe_is_reused() {
        let ((mut from, mut sender), (mut to, mut reader)) = (pair().await, pair().await);
        let mut noop = Context::from_waker(std::task::Waker::noop());
        let mut pipe = Pipe::take().expect("a pipe");
        assert!(from.poll_splice_into(&mut noop, &mut pipe, PIPE_BYTES).is_pending());
        sender.write_all(b"hello").await.expect("write");
        assert_eq!(poll_fn(|cx| from.poll_splice_into(cx, &mut pipe, PIPE_BYTES)).await.expect("read"), 5);
        assert_eq!(pipe.held(), 5);
        let mut other = Pipe::take().expect("another one");
        drop(pipe);
        assert_eq!(
            PIPES.with_borrow(|pipes| (pipes.count, pipes.idle.len())),
            (1, 0),
            "what it held is gone"
        );
        sender.write_all(b" world").await.expect("write");
        assert_eq!(poll_fn(|cx| from.poll_splice_into(cx, &mut other, PIPE_BYTES)).await.expect("read"), 6);
        while other.held() > 0 {
            poll_fn(|cx| to.poll_splice_from(cx, &mut other)).await.expect("write");
        }
        let mut read = [0; 6];
        reader.read_exact(&mut read).await.expect("read");
        assert_eq!(&read, b" world");
        drop(sender);
        assert_eq!(
            poll_fn(|cx| from.poll_splice_into(cx, &mut other, PIPE_BYTES)).await.expect("the end"),
            0
        );
        drop(other);
        assert_eq!(PIPES.with_borrow(|pipes| (pipes.count, pipes.idle.len())), (1, 1));
    }

    #[test]
    fn a_worker_has_a_limit_of_pipes() {
        let held: Vec<Pipe> = std::iter::from_fn(Pipe::take).take(PIPES_MAX + 1).collect();
        assert_eq!(held.len(), PIPES_MAX);
        drop(held);
        assert_eq!(PIPES.with_borrow(|pipes| (pipes.count, pipes.idle.len())), (PIPES_KEPT, PIPES_KEPT));
        assert!(Pipe::take().is_some());
    }

    #[tokio::test]
    async fn other_streams_report_unsupported() {
        let (near, _far) = tokio::net::UnixStream::pair().expect("a pair of sockets");
        let (mut stream, mut pipe) = (Stream::Unix(near), Pipe::take().expect("a pipe"));
        assert!(!stream.can_splice());
        let error =
            poll_fn(|cx| stream.poll_splice_into(cx, &mut pipe, PIPE_BYTES)).await.expect_err("it cannot");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
