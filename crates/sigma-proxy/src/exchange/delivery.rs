//! The body of a response on its way to the client, from any source: one loop for all.

use std::task::{self, Poll};

use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame};
use sigma_net::Deadline;
use sigma_plugin::body::poll_filtered;
use sigma_plugin::pace::Direction;
use sigma_plugin::{BodyFilter, BodySource, Context, Frames, Reply};
use sigma_wire::{Connection, Downstream, Rest, splice};

use super::grpc;

/// The source of a response body.
pub(super) trait Source {
    /// Returns the next frame of the body.
    fn poll_frame(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>>;

    /// Moves bytes of the body to the client's queue without reading them; None if they have to be read
    /// ([`splice::poll_response`]).
    fn poll_splice_to(
        &mut self,
        _down: &mut Downstream<'_>,
        _task: &mut task::Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        None
    }

    /// Returns the bytes written to the source.
    fn bytes_written(&self) -> u64 {
        0
    }

    /// Returns the deadline of waiting for it, if there is one.
    fn deadline(&self) -> Option<&Deadline> {
        None
    }
}

impl Source for Connection {
    fn poll_frame(&mut self, _: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        Connection::poll_frame(self, task)
    }

    fn poll_splice_to(
        &mut self,
        down: &mut Downstream<'_>,
        task: &mut task::Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        splice::poll_response(self, down, task)
    }

    fn bytes_written(&self) -> u64 {
        Connection::bytes_written(self)
    }

    fn deadline(&self) -> Option<&Deadline> {
        Some(Connection::deadline(self))
    }
}

/// The far end of a tunnel.
pub(super) trait FarEnd: Source {
    /// Switches it to plain bytes.
    fn upgrade(&mut self);

    /// Queues bytes of the client. Call it only after the last flush.
    fn send(&mut self, frame: Frame);

    /// Forwards the queue; ready when it is empty.
    fn poll_flush(&mut self, task: &mut task::Context<'_>) -> Poll<Result<(), Fault>>;
}

impl FarEnd for Connection {
    fn upgrade(&mut self) {
        Connection::upgrade(self);
    }

    fn send(&mut self, frame: Frame) {
        Connection::send(self, frame);
    }

    fn poll_flush(&mut self, task: &mut task::Context<'_>) -> Poll<Result<(), Fault>> {
        Connection::poll_flush(self, task)
    }
}

/// The body of a response without a node.
pub(super) enum OwnBody {
    /// It is in memory; the number is the length of the part already taken
    Bytes(Vec<u8>, usize),
    /// It is made while it is sent
    Made(Box<dyn BodySource>),
    /// The node has sent all of it
    Rest(Rest),
}

impl OwnBody {
    /// A body without bytes.
    pub(super) const EMPTY: OwnBody = OwnBody::Bytes(Vec::new(), 0);

    /// Returns the size of a node's response that waits here.
    pub(super) fn rest_memory(&self) -> usize {
        if let OwnBody::Rest(rest) = self { rest.memory() } else { 0 }
    }
}

impl Source for OwnBody {
    fn poll_splice_to(
        &mut self,
        down: &mut Downstream<'_>,
        _task: &mut task::Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        let OwnBody::Made(source) = self else { return None };
        let part = source.file_part()?;
        let moved = splice::queue_file(down, part.file, part.offset, part.length)?;
        source.pass(moved);
        Some(Poll::Ready(Ok(())))
    }

    fn poll_frame(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        match self {
            OwnBody::Bytes(bytes, taken) => {
                let piece = Chunk::next_of(bytes, taken);
                Poll::Ready(Ok(piece.map_or(Frame::End, Frame::Data)))
            }
            OwnBody::Rest(rest) => Poll::Ready(Ok(rest.next_frame())),
            OwnBody::Made(source) => source.poll_piece_with(ctx, task).map(|piece| match piece {
                Ok(piece) => Ok(piece.map_or(Frame::End, Frame::Data)),
                Err(error) => {
                    tracing::warn!(%error, "cannot read a response body to its end");
                    Err(Fault::new(FaultKind::Internal, "the body of a reply is incomplete"))
                }
            }),
        }
    }
}

/// The reason for a wait in the delivery of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivered {
    /// The client has all of it
    Whole,
    /// The client cannot take more at the moment
    ClientSlow,
    /// The source has no more at the moment, or its bytes wait for their pace
    SourceSlow,
}

/// Permission for filters to hold a head back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Filters that need it may
    WhereAsked,
    /// No filter may: the body replaces a response that a filter has rejected already
    Never,
}

/// A head that waits for the body: the length of the body, and the date.
type HeldHead = Box<(BodyLength, [u8; 29])>;

/// A response with its head: its body passes through the plugins' filters to the client.
pub(super) struct Delivery {
    filters: Box<[Box<dyn BodyFilter>]>,
    /// The head is not sent: a filter must return a frame first.
    head: Option<HeldHead>,
    /// The source has ended.
    exhausted: bool,
    /// The end was queued for the client.
    ended: bool,
    /// The body is cut after the bytes so far.
    fault: Option<Fault>,
    /// The status code in the received trailers.
    code: Option<grpc::Code>,
}

impl Delivery {
    /// Returns a delivery of a body of `length` from its source. An empty one is not polled; filters may still add
    /// bytes.
    pub(super) fn new(filters: Vec<Box<dyn BodyFilter>>, length: BodyLength) -> Delivery {
        let filters = filters.into();
        Delivery { filters, head: None, exhausted: length.is_empty(), ended: false, fault: None, code: None }
    }

    /// Queues the head in `ctx` of a response whose body will have `length`; one held back by a filter is queued
    /// before the first frame.
    pub(super) fn begin(
        &mut self,
        down: &mut Downstream<'_>,
        ctx: &mut Context,
        length: BodyLength,
        date: &[u8; 29],
        hold: Hold,
    ) {
        match hold == Hold::WhereAsked && self.filters.iter().any(|filter| filter.holds_head()) {
            true => self.head = Some(Box::new((length, *date))),
            false => send_head(down, ctx, length, date),
        }
    }

    /// Returns true if a filter holds the head back.
    pub(super) fn holds_head(&self) -> bool {
        self.head.is_some()
    }

    /// Returns true if the source has ended.
    pub(super) fn has_all(&self) -> bool {
        self.exhausted
    }

    /// Returns the reply that replaces an aborted body, if no byte was sent to the client.
    pub(super) fn refusal(&self, ctx: &mut Context) -> Option<Reply> {
        let instead = ctx.instead.take()?;
        self.head.is_some().then_some(*instead)
    }

    /// Returns the gRPC status in the received trailers, if there is one.
    pub(super) fn code(&self) -> Option<grpc::Code> {
        self.code
    }

    /// Moves frames as far as possible. A cut body is an error after the bytes before the cut are sent.
    pub(super) fn poll(
        &mut self,
        source: &mut impl Source,
        down: &mut Downstream<'_>,
        ctx: &mut Context,
        progressed: &mut bool,
        task: &mut task::Context<'_>,
    ) -> Result<Delivered, Fault> {
        loop {
            // It may wait only for a side that was polled in this call: otherwise earlier output may have just left,
            // and no task is registered for the source's next bytes.
            let mut starved = false;
            while !self.ended && self.fault.is_none() && down.has_room() {
                match self.poll_splice(source, down, ctx, task) {
                    Some(Poll::Ready(Ok(()))) => {
                        *progressed = true;
                        continue;
                    }
                    Some(Poll::Ready(Err(fault))) => {
                        self.fault = Some(fault);
                        continue;
                    }
                    Some(Poll::Pending) => {
                        starved = true;
                        break;
                    }
                    None => {}
                }
                match self.poll_frame(source, ctx, progressed, task) {
                    Poll::Ready(Ok(Frame::Data(data))) if data.is_empty() => {}
                    Poll::Ready(Ok(frame)) => {
                        if let Some(head) = self.head.take() {
                            send_head(down, ctx, head.0, &head.1);
                        }
                        self.ended = !matches!(frame, Frame::Data(_));
                        down.send(frame);
                    }
                    Poll::Ready(Err(fault)) => self.fault = Some(fault),
                    Poll::Pending => {
                        starved = true;
                        break;
                    }
                }
            }
            match (down.poll_flush(task), self.fault) {
                (Poll::Pending, _) => return Ok(Delivered::ClientSlow),
                (Poll::Ready(_), Some(fault)) => return Err(fault),
                (Poll::Ready(Err(fault)), None) => return Err(fault),
                (Poll::Ready(Ok(())), None) if self.ended => return Ok(Delivered::Whole),
                (Poll::Ready(Ok(())), None) if starved => return Ok(Delivered::SourceSlow),
                (Poll::Ready(Ok(())), None) => {}
            }
        }
    }

    /// Moves bytes past the memory of this process, if nothing needs to see them.
    fn poll_splice(
        &self,
        source: &mut impl Source,
        down: &mut Downstream<'_>,
        ctx: &Context,
        task: &mut task::Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        let is_seen = !self.filters.is_empty() || self.head.is_some() || ctx.paces.is_some();
        if is_seen || self.exhausted { None } else { source.poll_splice_to(down, task) }
    }

    fn poll_frame(
        &mut self,
        source: &mut impl Source,
        ctx: &mut Context,
        progressed: &mut bool,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        let Delivery { filters, exhausted, code, .. } = self;
        let mut outgoing = Outgoing { source, exhausted, progressed, code };
        ctx.paced(Direction::ToClient, task, |ctx, task| match filters.is_empty() {
            true => outgoing.poll_frame(ctx, task),
            false => poll_filtered(filters, &mut outgoing, ctx, task),
        })
    }
}

/// Queues the head in `ctx`.
fn send_head(down: &mut Downstream<'_>, ctx: &mut Context, length: BodyLength, date: &[u8; 29]) {
    ctx.record.status = ctx.response.status;
    down.send_head(&mut ctx.response, length, date);
}

/// The source of a body, with its progress recorded.
struct Outgoing<'o, S> {
    source: &'o mut S,
    exhausted: &'o mut bool,
    progressed: &'o mut bool,
    code: &'o mut Option<grpc::Code>,
}

impl<S: Source> Frames for Outgoing<'_, S> {
    #[inline]
    fn poll_frame(&mut self, ctx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        if *self.exhausted {
            return Poll::Ready(Ok(Frame::End));
        }
        let frame = task::ready!(self.source.poll_frame(ctx, task))?;
        *self.progressed = true;
        match &frame {
            Frame::Data(_) => {}
            Frame::End => *self.exhausted = true,
            Frame::Trailers(fields) => (*self.exhausted, *self.code) = (true, grpc::ended_with(fields)),
        }
        Poll::Ready(Ok(frame))
    }
}
