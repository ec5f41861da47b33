//! The body of an answer on its way to the client, wherever it comes from: one loop for all of them.

use std::task::{self, Poll};

use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame};
use sigma_net::Deadline;
use sigma_plugin::body::poll_filtered;
use sigma_plugin::pace::Direction;
use sigma_plugin::{BodyFilter, BodySource, Context, Frames, Reply};
use sigma_wire::{Connection, Downstream, Rest};

use super::grpc;

/// Where the body of an answer comes from.
pub(super) trait Source {
    /// The next frame of the body.
    fn poll_frame(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>>;

    /// Bytes written to where it comes from.
    fn bytes_written(&self) -> u64 {
        0
    }

    /// The deadline of waiting for it, if there is one.
    fn deadline(&self) -> Option<&Deadline> {
        None
    }
}

impl Source for Connection {
    fn poll_frame(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        Connection::poll_frame(self, task)
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
    /// From here on it carries plain bytes.
    fn upgrade(&mut self);

    /// Queues bytes of the client. To be called only when the last ones were flushed.
    fn send(&mut self, frame: Frame);

    /// Passes on what is queued; ready when all of it left.
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

/// The body of a response for which no node is read any more.
pub(super) enum OwnBody {
    /// It stands in memory; the number is how much of it was taken.
    Bytes(Vec<u8>, usize),
    /// It is made while it is sent.
    Made(Box<dyn BodySource>),
    /// The node has sent all of it.
    Rest(Rest),
}

impl OwnBody {
    /// A body without a byte.
    pub(super) const EMPTY: OwnBody = OwnBody::Bytes(Vec::new(), 0);

    /// Bytes of a node's response that wait here.
    pub(super) fn rest_memory(&self) -> usize {
        if let OwnBody::Rest(rest) = self { rest.memory() } else { 0 }
    }
}

impl Source for OwnBody {
    fn poll_frame(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        match self {
            OwnBody::Bytes(bytes, taken) => {
                let piece = Chunk::next_of(bytes, taken);
                Poll::Ready(Ok(piece.map_or(Frame::End, Frame::Data)))
            }
            OwnBody::Rest(rest) => Poll::Ready(Ok(rest.next_frame())),
            OwnBody::Made(source) => source.poll_piece(task).map(|piece| match piece {
                Ok(piece) => Ok(piece.map_or(Frame::End, Frame::Data)),
                Err(error) => {
                    tracing::warn!(%error, "a response body could not be read to its end");
                    Err(Fault::new(FaultKind::Internal, "the body of a reply broke off"))
                }
            }),
        }
    }
}

/// What the delivery of a body waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivered {
    /// The client has all of it.
    Whole,
    /// The client takes no more for the moment.
    ClientSlow,
    /// The source has no more for the moment, or what it has waits for its pace.
    SourceSlow,
}

/// Whether filters may hold a head back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Those that ask for it.
    WhereAsked,
    /// None: what is sent stands in the place of an answer that one has refused already.
    Never,
}

/// A head that waits for the body: how long that will be, and the date.
type HeldHead = Box<(BodyLength, [u8; 29])>;

/// An answer whose head is made: its body passes the plugins' filters to the client.
pub(super) struct Delivery {
    filters: Box<[Box<dyn BodyFilter>]>,
    /// The head has not left: a filter has to pass something on before.
    head: Option<HeldHead>,
    /// The source has given its end.
    exhausted: bool,
    /// The end was handed to the client's side.
    ended: bool,
    /// The body breaks off behind what has passed.
    fault: Option<Fault>,
    /// The code in the trailers that the source has given.
    code: Option<grpc::Code>,
}

impl Delivery {
    /// A body of `length` as it comes from its source. One that is empty is not asked for; filters
    /// may still make something of it.
    pub(super) fn new(filters: Vec<Box<dyn BodyFilter>>, length: BodyLength) -> Delivery {
        let filters = filters.into();
        Delivery { filters, head: None, exhausted: length.is_empty(), ended: false, fault: None, code: None }
    }

    /// Queues the head in `ctx`, of an answer whose body will leave with `length`; one that a filter holds back is
    /// queued before the first frame that leaves.
    pub(super) fn begin(
        &mut self,
        down: &mut Downstream<'_>,
        ctx: &mut Context,
        (length, date): (BodyLength, &[u8; 29]),
        hold: Hold,
    ) {
        match hold == Hold::WhereAsked && self.filters.iter().any(|filter| filter.holds_head()) {
            true => self.head = Some(Box::new((length, *date))),
            false => send_head(down, ctx, length, date),
        }
    }

    /// Whether a filter holds the head back.
    pub(super) fn holds_head(&self) -> bool {
        self.head.is_some()
    }

    /// The source has given all that it has.
    pub(super) fn has_all(&self) -> bool {
        self.exhausted
    }

    /// What the client is answered in place of a body that was given up, if it was told nothing of it.
    pub(super) fn refusal(&self, ctx: &mut Context) -> Option<Reply> {
        let instead = ctx.instead.take()?;
        self.head.is_some().then_some(*instead)
    }

    /// The code of gRPC in the trailers that have come, if it stands there.
    pub(super) fn code(&self) -> Option<grpc::Code> {
        self.code
    }

    /// Moves frames as far as they go. A body that breaks off is an error when what came before it
    /// has left.
    pub(super) fn poll(
        &mut self,
        source: &mut impl Source,
        down: &mut Downstream<'_>,
        ctx: &mut Context,
        progressed: &mut bool,
        task: &mut task::Context<'_>,
    ) -> Result<Delivered, Fault> {
        loop {
            // To wait is allowed only for a side that was asked in this very poll: what an earlier
            // one queued may have left just now, with nobody registered for the source's next bytes.
            let mut starved = false;
            while !self.ended && self.fault.is_none() && down.has_room() {
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

/// The source of a body, watched for its progress.
struct Outgoing<'o, S> {
    source: &'o mut S,
    exhausted: &'o mut bool,
    progressed: &'o mut bool,
    code: &'o mut Option<grpc::Code>,
}

impl<S: Source> Frames for Outgoing<'_, S> {
    #[inline]
    fn poll_frame(&mut self, _cx: &mut Context, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        if *self.exhausted {
            return Poll::Ready(Ok(Frame::End));
        }
        let frame = task::ready!(self.source.poll_frame(task))?;
        *self.progressed = true;
        match &frame {
            Frame::Data(_) => {}
            Frame::End => *self.exhausted = true,
            Frame::Trailers(fields) => (*self.exhausted, *self.code) = (true, grpc::ended_with(fields)),
        }
        Poll::Ready(Ok(frame))
    }
}
