//! The two halves of a stream.

use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use quinn_proto::{ReadError, ReadableError, StreamId, WriteError};
use sigma_buffer::Chunk;
use sigma_buffer::held::Loan;

use super::state::{Inner, Shared, register};
use super::{ConnectionLost, code};

/// A chunk is copied if less than this part of its memory is used, because sent bytes are kept until the peer
/// acknowledges them.
const USED_PART: usize = 4;

/// The least memory of a new chunk.
const LEAST_CHUNK_BYTES: usize = 4 * 1024;

/// A chunk that is sent; it returns to its thread's list when the peer has acknowledged it.
struct Sent<T> {
    bytes: T,
    /// Their part of the connection's account.
    _loan: Loan,
}

impl<T: Deref<Target = [u8]>> AsRef<[u8]> for Sent<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The reason why a stream sends no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// The peer wants no more of it, with this code
    Stopped(u64),
    /// It was finished or reset here
    Closed,
    /// The connection has ended
    Lost(ConnectionLost),
}

/// The reason why a stream is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvError {
    /// The peer has reset it, with this code
    Reset(u64),
    /// It was stopped here
    Stopped,
    /// The connection has ended
    Lost(ConnectionLost),
}

/// The end of a sending half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The peer wants no more of it, with this code
    Code(u64),
    /// The peer has acknowledged all of it
    Finished,
    /// The connection has ended
    Lost(ConnectionLost),
}

/// The sending half of a stream. A drop before [`SendStream::finish`] resets it.
pub struct SendStream {
    shared: Rc<Shared>,
    id: StreamId,
    /// It was finished or reset.
    is_over: bool,
}

impl std::fmt::Debug for SendStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendStream({})", self.id)
    }
}

impl SendStream {
    pub(super) fn new(shared: Rc<Shared>, id: StreamId) -> SendStream {
        SendStream { shared, id, is_over: false }
    }

    /// Returns the id of the stream.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Takes all of `chunk` at once. Ready when the windows have taken all of it; until then the next chunk has to
    /// wait, and an empty one only waits.
    ///
    /// # Errors
    /// Returns an error if the stream or the connection has ended.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, chunk: &mut Chunk) -> Poll<Result<(), SendError>> {
        let mut inner = self.shared.inner.borrow_mut();
        if let Err(error) = self.check(&inner) {
            *chunk = Chunk::empty();
            return Poll::Ready(Err(error));
        }
        if !chunk.is_empty() {
            let chunk = std::mem::take(chunk);
            let bytes = match chunk.len() * USED_PART < chunk.memory() {
                true => {
                    Bytes::from_owner(Sent { _loan: inner.account.lend(chunk.len()), bytes: chunk.to_vec() })
                }
                false => Bytes::from_owner(Sent { _loan: inner.account.lend(chunk.memory()), bytes: chunk }),
            };
            inner.hold(self.id, bytes);
        }
        let priority = inner.streams.get(&self.id).map_or(0, |stream| stream.priority);
        let mut wakers = Vec::new();
        if inner.is_any_above(priority) {
            inner.flush_above(Some(priority), &mut wakers);
        }
        let flushed = inner.flush(self.id);
        match flushed {
            Ok(is_empty) => {
                if !is_empty && let Some(stream) = inner.streams.get_mut(&self.id) {
                    register(&mut stream.write, cx);
                }
                drop(inner);
                wakers.into_iter().for_each(Waker::wake);
                self.shared.touch();
                if is_empty { Poll::Ready(Ok(())) } else { Poll::Pending }
            }
            Err(WriteError::Stopped(code)) => Poll::Ready(Err(SendError::Stopped(code.into_inner()))),
            Err(WriteError::Blocked | WriteError::ClosedStream) => {
                Poll::Ready(Err(self.check(&inner).err().unwrap_or(SendError::Closed)))
            }
        }
    }

    /// Returns an error if nothing can be sent.
    fn check(&self, inner: &Inner) -> Result<(), SendError> {
        if let Some(lost) = inner.lost {
            return Err(SendError::Lost(lost));
        }
        match inner.streams.get(&self.id).and_then(|stream| stream.stopped) {
            Some(code) => Err(SendError::Stopped(code)),
            None if self.is_over => Err(SendError::Closed),
            None => Ok(()),
        }
    }

    /// Returns true if nothing is held back.
    pub fn has_room(&self) -> bool {
        self.shared.inner.borrow().streams.get(&self.id).is_none_or(|stream| stream.held.is_empty())
    }

    /// Returns the bytes that are held back.
    pub fn held_bytes(&self) -> usize {
        let inner = self.shared.inner.borrow();
        inner.streams.get(&self.id).map_or(0, |stream| stream.held.iter().map(Bytes::len).sum())
    }

    /// Queues `bytes`, such as the head of a frame. It never waits; the caller keeps them few.
    pub fn put(&mut self, bytes: Vec<u8>) {
        let mut inner = self.shared.inner.borrow_mut();
        if bytes.is_empty() || self.check(&inner).is_err() {
            return;
        }
        inner.hold(self.id, Bytes::from(bytes));
        // An error is seen by the next call that returns one.
        let _ = inner.flush(self.id);
        drop(inner);
        self.shared.touch();
    }

    /// Ends the stream after all queued bytes.
    pub fn finish(&mut self) {
        let mut inner = self.shared.inner.borrow_mut();
        if self.check(&inner).is_err() {
            return;
        }
        self.is_over = true;
        if let Some(stream) = inner.streams.get_mut(&self.id) {
            stream.finishes = true;
        }
        let _ = inner.flush(self.id);
        drop(inner);
        self.shared.touch();
    }

    /// Aborts the stream; queued bytes are dropped.
    pub fn reset(&mut self, error_code: u64) {
        self.is_over = true;
        let mut inner = self.shared.inner.borrow_mut();
        inner.drop_held(self.id);
        if inner.lost.is_none() && inner.machine.send_stream(self.id).reset(code(error_code)).is_ok() {
            drop(inner);
            self.shared.touch();
        }
    }

    /// Ready when the peer wants no more, or has acknowledged everything up to the end.
    pub fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Stopped> {
        let mut inner = self.shared.inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(Stopped::Lost(lost));
        }
        let Some(stream) = inner.streams.get_mut(&self.id) else { return Poll::Ready(Stopped::Finished) };
        if let Some(code) = stream.stopped {
            return Poll::Ready(Stopped::Code(code));
        }
        if stream.is_acknowledged {
            return Poll::Ready(Stopped::Finished);
        }
        register(&mut stream.stop, cx);
        Poll::Pending
    }

    /// Sets the priority: streams of a higher one go first, equal ones share.
    pub fn set_priority(&mut self, priority: i32) {
        let mut inner = self.shared.inner.borrow_mut();
        if let Some(stream) = inner.streams.get_mut(&self.id) {
            stream.priority = priority;
        }
        // The machine does not know a stream that has ended.
        let _ = inner.machine.send_stream(self.id).set_priority(priority);
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.is_over {
            self.reset(self.shared.default_code.get());
        }
        release(&self.shared, self.id);
    }
}

/// Drops a handle of a stream; its state goes with the last one, unless bytes are held back.
fn release(shared: &Shared, id: StreamId) {
    let mut inner = shared.inner.borrow_mut();
    if let Some(stream) = inner.streams.get_mut(&id) {
        stream.handles = stream.handles.saturating_sub(1);
        if stream.handles == 0 && stream.held.is_empty() {
            inner.forget(id);
        }
    }
}

/// The end of a receiving half.
#[derive(Debug, Clone, Copy)]
enum End {
    /// All bytes were read.
    Finished,
    /// There are no more bytes for this reason.
    Failed(RecvError),
}

/// The receiving half of a stream. A drop before its end stops it.
pub struct RecvStream {
    shared: Rc<Shared>,
    id: StreamId,
    end: Option<End>,
}

impl std::fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecvStream({})", self.id)
    }
}

impl RecvStream {
    pub(super) fn new(shared: Rc<Shared>, id: StreamId) -> RecvStream {
        RecvStream { shared, id, end: None }
    }

    /// Returns the id of the stream.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns at most `max` bytes, without a copy; None at the end. They keep the memory of their datagram.
    ///
    /// # Errors
    /// Returns an error if the stream was reset or stopped, or the connection has ended.
    pub fn poll_bytes(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Result<Option<Bytes>, RecvError>> {
        let mut taken = None;
        match self.read(cx, max, |bytes| taken = Some(bytes)) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(taken)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Copies bytes to the end of `chunk`, as many as there are and fit; 0 is the end. A chunk without memory gets
    /// some only when there are bytes.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`RecvStream::poll_bytes`].
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, chunk: &mut Chunk) -> Poll<Result<usize, RecvError>> {
        chunk.make_room(0);
        let mut total = 0;
        loop {
            // A chunk without memory has room for the least size of one.
            let room = match chunk.spare().len() {
                0 if !chunk.is_empty() => return Poll::Ready(Ok(total)),
                0 => LEAST_CHUNK_BYTES,
                room => room,
            };
            let mut got = 0;
            let read = self.read(cx, room, |bytes| {
                if chunk.spare().is_empty() {
                    *chunk = Chunk::take();
                }
                got = bytes.len();
                chunk.try_append(&bytes);
            });
            match read {
                Poll::Ready(Ok(())) if got > 0 => total += got,
                // Bytes come before the end.
                _ if total > 0 => return Poll::Ready(Ok(total)),
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(0)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads one piece; ready without one at the end.
    fn read(
        &mut self,
        cx: &Context<'_>,
        max: usize,
        take: impl FnOnce(Bytes),
    ) -> Poll<Result<(), RecvError>> {
        match self.end {
            Some(End::Finished) => return Poll::Ready(Ok(())),
            Some(End::Failed(error)) => return Poll::Ready(Err(error)),
            None => {}
        }
        let mut inner = self.shared.inner.borrow_mut();
        let lost = inner.lost;
        let (read, sends) = match inner.machine.recv_stream(self.id).read(true) {
            Ok(mut chunks) => (chunks.next(max), chunks.finalize().should_transmit()),
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                let error = lost.map_or(RecvError::Stopped, RecvError::Lost);
                self.end = Some(End::Failed(error));
                return Poll::Ready(Err(error));
            }
        };
        let result = match read {
            Ok(Some(chunk)) => {
                inner.unread.took(chunk.bytes.len());
                drop(inner);
                take(chunk.bytes);
                Poll::Ready(Ok(()))
            }
            Ok(None) => {
                self.end = Some(End::Finished);
                drop(inner);
                Poll::Ready(Ok(()))
            }
            Err(ReadError::Blocked) => {
                if let Some(lost) = lost {
                    let error = RecvError::Lost(lost);
                    self.end = Some(End::Failed(error));
                    return Poll::Ready(Err(error));
                }
                if let Some(stream) = inner.streams.get_mut(&self.id) {
                    register(&mut stream.read, cx);
                }
                drop(inner);
                Poll::Pending
            }
            Err(ReadError::Reset(code)) => {
                let error = RecvError::Reset(code.into_inner());
                self.end = Some(End::Failed(error));
                drop(inner);
                Poll::Ready(Err(error))
            }
        };
        if sends {
            self.shared.touch();
        }
        result
    }

    /// Ready when the peer has reset the stream or the connection has ended; unread bytes do not matter.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<RecvError> {
        if let Some(End::Failed(error)) = self.end {
            return Poll::Ready(error);
        }
        let mut inner = self.shared.inner.borrow_mut();
        if let Some(lost) = inner.lost {
            return Poll::Ready(RecvError::Lost(lost));
        }
        if self.end.is_none()
            && let Ok(Some(code)) = inner.machine.recv_stream(self.id).received_reset()
        {
            let error = RecvError::Reset(code.into_inner());
            self.end = Some(End::Failed(error));
            drop(inner);
            self.shared.touch();
            return Poll::Ready(error);
        }
        if let Some(stream) = inner.streams.get_mut(&self.id) {
            register(&mut stream.read, cx);
        }
        Poll::Pending
    }

    /// Asks the peer to send no more; later bytes are dropped.
    pub fn stop(&mut self, error_code: u64) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(End::Failed(RecvError::Stopped));
        let mut inner = self.shared.inner.borrow_mut();
        if inner.lost.is_none() && inner.machine.recv_stream(self.id).stop(code(error_code)).is_ok() {
            drop(inner);
            self.shared.touch();
        }
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.stop(self.shared.default_code.get());
        release(&self.shared, self.id);
    }
}
