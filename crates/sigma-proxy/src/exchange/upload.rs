//! The body of a request on its way to nodes, over all attempts.

use std::task::{self, Poll, ready};

use sigma_buffer::held::{self, CountedBytes};
use sigma_http::{BodyLength, Chunk, Fault, Frame};
use sigma_net::Deadline;
use sigma_plugin::body::poll_filtered;
use sigma_plugin::pace::Direction;
use sigma_plugin::{BodyFilter, Context, Frames};
use sigma_wire::{Connection, Downstream, splice};

use super::intake::Intake;
use super::sanitize;

/// Memory of a body that is kept for another exchange.
const KEPT_BYTES: usize = 16 * 1024;

/// The request body that is sent, with the part that is kept for another attempt; recycled.
///
/// A body that a plugin has read to its end is in [`Context::body`] only.
#[derive(Default)]
pub(super) struct RequestBody {
    /// The part that a plugin has read of a body, without its end.
    read: Vec<u8>,
    /// Bytes that were taken of `read`, or of the body in memory.
    taken: usize,
    in_memory: bool,
    filters: Vec<Box<dyn BodyFilter>>,
    /// The bytes that have left the filters and may have to be sent again.
    sent: Vec<u8>,
    /// Memory of `sent`.
    sent_held: CountedBytes,
    /// The time that the client has taken.
    pub(super) intake: Intake,
    /// The time at which the gateway itself sends the 100 that its client waits for. None if it does not wait.
    pub(super) invitation: Option<Deadline>,
    /// The client has been asked to send it.
    pub(super) is_invited: bool,
    /// Bytes of `sent` that this attempt was given.
    repeated: usize,
    /// Most bytes of `sent`.
    limit: usize,
    /// The end has left the filters.
    ended: bool,
    /// The bytes sent so far cannot be sent again.
    lost: bool,
}

impl RequestBody {
    /// Prepares it for another exchange, keeping its memory.
    pub(super) fn clear(&mut self) {
        self.read.clear();
        self.filters.clear();
        self.sent.clear();
        self.sent_held.set(0);
        self.intake = Intake::default();
        (self.taken, self.repeated, self.limit) = (0, 0, 0);
        (self.in_memory, self.ended, self.lost) = (false, false, false);
        (self.invitation, self.is_invited) = (None, false);
    }

    /// Frees the memory that another exchange does not need.
    pub(super) fn let_go(&mut self) {
        self.clear();
        if self.read.capacity() > KEPT_BYTES {
            self.read = Vec::new();
        }
        if self.sent.capacity() > KEPT_BYTES {
            self.sent = Vec::new();
        }
    }

    /// Returns the buffer that a plugin reads the body into; see [`RequestBody::take_read`].
    pub(super) fn reading(&mut self) -> &mut Vec<u8> {
        &mut self.read
    }

    /// Returns the part that a plugin has read of a body whose end it has not seen.
    pub(super) fn read(&self) -> &[u8] {
        &self.read
    }

    /// Returns the memory of the bodies of an exchange: of this one as far as a plugin has read it, and of the one in
    /// `ctx`.
    pub(super) fn held(&self, ctx: &Context) -> usize {
        let read = if self.read.is_empty() { 0 } else { self.read.capacity() };
        read + ctx.body.as_ref().map_or(0, Vec::capacity)
    }

    /// Takes the body that was read to its end.
    pub(super) fn take_read(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.read)
    }

    /// Begins to send it: from memory if it was read to its end, through `filters`. Up to `limit` bytes that are
    /// not in memory anyway are kept for another attempt. `length` is the incoming length; returns the outgoing one.
    pub(super) fn open(
        &mut self,
        in_memory: bool,
        filters: Vec<Box<dyn BodyFilter>>,
        limit: usize,
        length: BodyLength,
    ) -> BodyLength {
        (self.in_memory, self.filters, self.limit) = (in_memory, filters, limit);
        self.filters.iter().fold(length, |length, filter| filter.length(length))
    }

    /// Begins another attempt, which sends the same bytes again.
    pub(super) fn rewind(&mut self, ctx: &mut Context) {
        self.repeated = 0;
        if self.stands() {
            (self.taken, self.ended) = (0, false);
            if let Some(paces) = &mut ctx.paces {
                paces.forget(Direction::ToNode);
            }
        }
    }

    /// Returns true if all bytes sent so far can be sent again.
    pub(super) fn is_repeatable(&self) -> bool {
        !self.lost
    }

    /// Returns true if it is sent unchanged from memory, so that nothing need be kept.
    fn stands(&self) -> bool {
        self.in_memory && self.filters.is_empty()
    }

    /// Returns the next frame for the node.
    pub(super) fn poll_frame(
        &mut self,
        down: &mut Downstream<'_>,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        if let Some(piece) = Chunk::next_of(&self.sent, &mut self.repeated) {
            return Poll::Ready(Ok(Frame::Data(piece)));
        }
        if self.ended {
            return Poll::Ready(Ok(Frame::End));
        }
        let RequestBody { read, taken, in_memory, filters, .. } = self;
        let mut source = Incoming { read, taken, in_memory: *in_memory, down };
        let frame =
            ready!(ctx.paced(Direction::ToNode, task, |ctx, task| {
                poll_filtered(filters, &mut source, ctx, task)
            }))?;
        self.keep(&frame);
        Poll::Ready(Ok(frame))
    }

    /// Moves bytes of the client to the queue of `up` without reading them; None if they have to be read
    /// ([`splice::poll_request`]), or something needs to see or to keep them.
    pub(super) fn poll_splice(
        &mut self,
        down: &mut Downstream<'_>,
        up: &mut Connection,
        ctx: &Context,
        task: &mut task::Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        let is_read = self.in_memory || self.taken < self.read.len() || !self.filters.is_empty();
        let is_seen = ctx.paces.is_some() || ctx.request_copy.is_some();
        if is_read || is_seen || self.ended || !self.lost {
            None
        } else {
            splice::poll_request(down, up, task)
        }
    }

    fn keep(&mut self, frame: &Frame) {
        match frame {
            Frame::End => self.ended = true,
            Frame::Data(_) if self.stands() => {}
            Frame::Data(data)
                if !self.lost
                    && self.sent.len() + data.len() <= self.limit
                    && data.len() <= held::body_room() =>
            {
                self.sent.extend_from_slice(data);
                self.sent_held.set(self.sent.capacity());
                self.repeated = self.sent.len();
            }
            Frame::Data(_) => {
                self.lost = true;
                self.sent = Vec::new();
                self.sent_held.set(0);
                self.repeated = 0;
            }
            // Trailers are rare; a message that has some is not repeated.
            Frame::Trailers(_) => self.lost = true,
        }
    }
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBody")
            .field("ended", &self.ended)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// The body as it comes from the client or from memory.
struct Incoming<'i, 'd, 'c> {
    read: &'i [u8],
    taken: &'i mut usize,
    in_memory: bool,
    down: &'d mut Downstream<'c>,
}

impl Frames for Incoming<'_, '_, '_> {
    fn poll_frame(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        if self.in_memory {
            let body = ctx.body.as_deref().unwrap_or_default();
            let piece = Chunk::next_of(body, self.taken);
            return Poll::Ready(Ok(piece.map_or(Frame::End, Frame::Data)));
        }
        if let Some(piece) = Chunk::next_of(self.read, self.taken) {
            return Poll::Ready(Ok(Frame::Data(piece)));
        }
        let mut frame = ready!(self.down.poll_frame(task))?;
        match &mut frame {
            Frame::Data(data) => {
                if let Some(copy) = &ctx.request_copy {
                    copy.see(data);
                }
            }
            Frame::Trailers(trailers) => sanitize::clear_trailers(trailers, ctx),
            Frame::End => {}
        }
        Poll::Ready(Ok(frame))
    }
}
