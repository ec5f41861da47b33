//! The bytes that wait to be written to one connection: its queue, and after it a part of a body in a pipe.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, ready};

use sigma_http::h1::{BodyReader, Framing, Output};
use sigma_net::Stream;
use sigma_net::splice::Pipe;

use super::flush;

/// The length of a body, or of its rest, from which on a pipe is used: less fits into one or two reads, which cost as
/// much as the system calls of a pipe.
const SPLICED_FROM: u64 = 64 * 1024;

/// A connection whose queue takes bytes of a body from a pipe.
pub(crate) trait SpliceTarget {
    /// Moves bytes from the stream of another connection into a pipe; see [`Outgoing::poll_splice`].
    fn poll_splice_from(
        &mut self,
        from: &mut Stream,
        reader: &mut BodyReader,
        cx: &mut Context<'_>,
    ) -> Option<Poll<io::Result<u64>>>;
}

/// The outgoing side of one connection. It is full while a pipe has bytes.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    queue: Output,
    /// Bytes of the current body, which leave after the queue. Never empty; boxed, since few connections have one.
    pipe: Option<Box<Pipe>>,
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.pipe.is_none()
    }

    pub(super) fn has_room(&self) -> bool {
        self.queue.has_room() && self.pipe.is_none()
    }

    /// Returns the bytes of memory, also of the kernel's for a pipe.
    pub(super) fn memory(&self) -> usize {
        self.queue.memory() + self.pipe.as_ref().map_or(0, |pipe| pipe.held())
    }

    /// Writes all bytes to `stream`; ready when none is left.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses the bytes.
    pub(super) fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(flush(stream, &mut self.queue, cx))?;
        while let Some(pipe) = &mut self.pipe {
            let written = ready!(stream.poll_splice_from(cx, pipe))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.queue.bypassed(written);
            if pipe.held() == 0 {
                self.pipe = None;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Moves bytes of a file in memory into a pipe; returns their number. None if they have to be read: the queue has
    /// bytes, the stream is encrypted, few bytes are left, or all pipes are in use.
    pub(super) fn queue_file(
        &mut self,
        to: &Stream,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Option<u64> {
        let is_suited = length >= SPLICED_FROM && self.is_empty() && self.queue.framing == Framing::Plain;
        if !is_suited || !to.can_splice() {
            return None;
        }
        let mut pipe = Pipe::take()?;
        let most = usize::try_from(length).unwrap_or(usize::MAX);
        let moved = pipe.fill(file, offset, most).ok().filter(|moved| *moved > 0)?;
        self.pipe = Some(Box::new(pipe));
        Some(moved as u64)
    }

    /// Moves bytes of a body of known length from the stream that they arrive on into a pipe, past the memory of this
    /// process; returns their number, which is 0 at the end of the stream. None if the bytes have to be read: `input`
    /// has some, either stream is encrypted, few bytes are left, or all pipes are in use.
    ///
    /// Call it only while the queue is empty; a wait holds no pipe.
    pub(super) fn poll_splice(
        &mut self,
        to: &Stream,
        from: &mut Stream,
        reader: &mut BodyReader,
        cx: &mut Context<'_>,
    ) -> Option<Poll<io::Result<u64>>> {
        let BodyReader::Known(left) = reader else { return None };
        let is_suited = *left >= SPLICED_FROM && self.is_empty() && self.queue.framing == Framing::Plain;
        if !(is_suited && from.can_splice() && to.can_splice()) {
            return None;
        }
        let mut pipe = Pipe::take()?;
        let most = usize::try_from(*left).unwrap_or(usize::MAX);
        Some(match from.poll_splice_into(cx, &mut pipe, most) {
            Poll::Ready(Ok(n)) => {
                *left -= n as u64;
                if *left == 0 {
                    *reader = BodyReader::Done;
                }
                if n > 0 {
                    self.pipe = Some(Box::new(pipe));
                }
                Poll::Ready(Ok(n as u64))
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Unsupported => return None,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        })
    }
}

impl Deref for Outgoing {
    type Target = Output;

    fn deref(&self) -> &Output {
        &self.queue
    }
}

impl DerefMut for Outgoing {
    fn deref_mut(&mut self) -> &mut Output {
        &mut self.queue
    }
}
