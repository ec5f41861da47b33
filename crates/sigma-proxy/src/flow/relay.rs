//! Moves bytes between two streams, both ways, in one task. One that ends its sending is told to the other
//! side, and the other direction goes on: protocols count on it.

use std::io;
use std::task::{Context, Poll, ready};

use sigma_http::Chunk;
use sigma_net::Stream;

/// Pieces that one direction moves before others get their turn.
const TURNS: usize = 16;

/// The side that broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    Downstream,
    Upstream,
}

/// Two streams, and what is on its way between them.
pub(super) struct Relay {
    down: Stream,
    up: Stream,
    to_up: Way,
    to_down: Way,
}

/// One direction.
#[derive(Default)]
struct Way {
    /// Read and not yet written.
    chunk: Chunk,
    ended: bool,
    /// It ends when there is nothing to move.
    leaving: bool,
    /// The end was passed on.
    closed: bool,
    /// Bytes that were written.
    moved: u64,
}

impl Relay {
    /// Between a client, of whom `early` was read, and a node.
    pub(super) fn new(down: Stream, up: Stream, early: Chunk) -> Relay {
        Relay { down, up, to_up: Way { chunk: early, ..Way::default() }, to_down: Way::default() }
    }

    /// Bytes that have moved: to the node, and to the client.
    pub(super) fn moved(&self) -> (u64, u64) {
        (self.to_up.moved, self.to_down.moved)
    }

    /// Ready when both sides have ended, or one is broken.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let up = self.to_up.poll(&mut self.down, &mut self.up, cx).map_err(|_| Broken::Downstream)?;
        let down = self.to_down.poll(&mut self.up, &mut self.down, cx).map_err(|_| Broken::Upstream)?;
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// The gateway ends the session. The node is told first: what it has still to say reaches the client.
    pub(super) fn say_goodbye(&mut self) {
        self.to_up.leaving = true;
    }

    /// Ends the session between two pieces of the node's bytes; false if it does not come to that.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) -> bool {
        self.to_down.leaving = true;
        matches!(self.poll(cx), Poll::Ready(Ok(())))
    }

    /// Takes nothing more from either side, and tells both the end; false if something is on its way that finds no
    /// room now.
    pub(super) fn part(&mut self, cx: &mut Context<'_>) -> bool {
        (self.to_up.ended, self.to_down.ended) = (true, true);
        matches!(self.poll(cx), Poll::Ready(Ok(())))
    }

    /// The client's side, after the end.
    pub(super) fn into_down(self) -> Stream {
        self.down
    }

    /// Ends both sides as broken.
    pub(super) fn reset(self) {
        self.down.reset();
        self.up.reset();
    }
}

impl Way {
    /// Moves what there is. Ready when the end was passed on, or nobody is there to take more: what the
    /// one who does not take has sent before still reaches the other.
    ///
    /// # Errors
    /// Returns the error of reading.
    fn poll(&mut self, from: &mut Stream, to: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..TURNS {
            if self.closed {
                return Poll::Ready(Ok(()));
            }
            while !self.chunk.is_empty() {
                match ready!(to.poll_write(cx, &self.chunk)) {
                    Ok(written) if written > 0 => {
                        self.chunk.advance(written);
                        self.moved += written as u64;
                    }
                    _ => {
                        self.closed = true;
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            if self.ended {
                // A peer that has left has all that it wanted.
                let _ = ready!(to.poll_flush(cx));
                let _ = ready!(to.poll_shutdown(cx));
                self.closed = true;
                continue;
            }
            // A wait holds no memory.
            self.chunk = Chunk::empty();
            match from.poll_fill(cx, &mut self.chunk) {
                Poll::Ready(n) => self.ended = n? == 0,
                // Who sends more nevertheless is told by the kernel that nobody has read it.
                Poll::Pending if self.leaving => self.ended = true,
                Poll::Pending => {
                    // Whether it has left or not, there is nothing to do but to wait.
                    self.closed = matches!(to.poll_flush(cx), Poll::Ready(Err(_)));
                    return if self.closed { Poll::Ready(Ok(())) } else { Poll::Pending };
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
