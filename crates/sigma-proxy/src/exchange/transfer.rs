//! Both directions of an exchange, driven by one task.
//!
//! Each side holds at most one piece of body; a side that does not take it holds the other back.
//! The deadlines follow what is being waited for: a client that uploads slowly does not use up
//! the node's time, a client that reads slowly neither.

use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_http::{Chunk, Fault, FaultKind, Frame, Method, ResponseHead};
use sigma_plugin::Context as ExchangeContext;
use sigma_plugin::context::BodyCopy;
use sigma_upstream::connection::{Connection, HeadLimits};

use super::entrance;
use super::response::BodyRow;
use super::retry::Progress;
use super::websocket::{Client, OpenSocket};
use crate::downstream::{Departure, Downstream};
use crate::snapshot::Timeouts;

/// How far the request's body has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upload {
    /// Frames are still to come.
    Running,
    /// All frames were handed to the connection.
    Done,
    /// The node takes no more; its answer may be there all the same.
    Refused,
}

/// What a side is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Nothing,
    Send,
    Receive,
    HalfClosed,
}

/// Deadlines of the client's side.
#[derive(Debug, Clone, Copy)]
pub(super) struct DownTimeouts {
    pub(super) body_ms: u64,
    pub(super) send_ms: u64,
    pub(super) half_close_ms: u64,
    pub(super) tunnel_ms: u64,
}

/// The last stretch of a response body: through the plugins' filters to the client.
pub(super) struct Outlet<'o> {
    /// The node has sent all of it.
    pub(super) ended: bool,
    pub(super) row: BodyRow,
    pub(super) cx: &'o mut ExchangeContext,
}

impl Outlet<'_> {
    /// Passes on what the filters have ready; whether another frame of the node is wanted.
    fn flows_into(&mut self, down: &mut Downstream<'_>) -> bool {
        while down.has_room() {
            match self.row.pop() {
                Some(frame) => down.send(frame),
                None => return !self.ended,
            }
        }
        false
    }

    /// Whether a filter gave the response up.
    fn is_broken(&self) -> bool {
        self.row.fault().is_some()
    }

    /// Takes a frame of the node. To be called only while the client's side has room.
    fn pass(&mut self, frame: Frame, down: &mut Downstream<'_>) {
        self.ended = !matches!(frame, Frame::Data(_));
        if self.row.is_empty() {
            down.send(frame);
        } else {
            self.row.push(frame, self.cx);
        }
    }

    /// The response has no body; filters may still give it one.
    pub(super) fn end(&mut self, down: &mut Downstream<'_>) {
        self.pass(Frame::End, down);
    }

    /// Whether everything was handed to the client's side.
    fn is_dry(&self) -> bool {
        self.ended && self.row.is_dry()
    }
}

/// Body bytes kept for another attempt.
#[derive(Debug)]
pub(super) struct Replay<'s> {
    pub(super) bytes: &'s mut Vec<u8>,
    /// More than this is not kept.
    pub(super) limit: usize,
    /// All that was sent is kept.
    pub(super) complete: bool,
    /// The end of the body was seen.
    pub(super) ended: bool,
    /// What a plugin wants to see of the body.
    pub(super) copy: Option<Rc<BodyCopy>>,
}

impl Replay<'_> {
    fn record(&mut self, frame: &Frame) {
        if let (Some(copy), Frame::Data(data)) = (&self.copy, frame) {
            copy.see(data);
        }
        match frame {
            Frame::Data(data) if self.complete && self.bytes.len() + data.len() <= self.limit => {
                self.bytes.extend_from_slice(data);
            }
            Frame::Data(_) => {
                self.complete = false;
                self.bytes.clear();
            }
            // Trailers are rare; a message that has some is not repeated.
            Frame::Trailers(_) => self.complete = false,
            Frame::End => self.ended = true,
        }
    }
}

/// One attempt in flight.
pub(super) struct Transfer<'t, 'c> {
    pub(super) down: &'t mut Client<'c>,
    pub(super) up: &'t mut Connection,
    pub(super) timeouts: Timeouts,
    pub(super) down_timeouts: DownTimeouts,
    upload: Upload,
    up_wait: Wait,
    down_wait: Wait,
    progressed: bool,
    /// Bytes written to both sides when the deadlines were last looked at.
    written: u64,
    half_closed: bool,
    answered: bool,
    socket: Option<OpenSocket<'c>>,
}

impl<'t, 'c> Transfer<'t, 'c> {
    /// Begins an attempt whose head is queued already; queues what an earlier one had sent.
    pub(super) fn begin(
        down: &'t mut Client<'c>,
        up: &'t mut Connection,
        timeouts: Timeouts,
        down_timeouts: DownTimeouts,
        replay: &Replay<'_>,
    ) -> Transfer<'t, 'c> {
        let mut upload = if down.body_length().is_empty() { Upload::Done } else { Upload::Running };
        if !replay.bytes.is_empty() {
            up.send(Frame::Data(Chunk::copy_of(replay.bytes)));
        }
        if replay.ended {
            up.send(Frame::End);
            upload = Upload::Done;
        }
        Transfer {
            down,
            up,
            timeouts,
            down_timeouts,
            upload,
            up_wait: Wait::Nothing,
            down_wait: Wait::Nothing,
            progressed: true,
            written: 0,
            half_closed: false,
            answered: false,
            socket: None,
        }
    }

    pub(super) fn upload(&self) -> Upload {
        self.upload
    }

    pub(super) fn answered(&mut self) {
        self.answered = true;
    }

    pub(super) fn progress(&self, replayable: bool) -> Progress {
        Progress {
            unsent: self.up.is_unsent(),
            stale: self.up.may_be_stale(),
            replayable,
            answered: self.answered,
        }
    }

    /// The next response head, while the request's body goes up.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
        replay: &mut Replay<'_>,
    ) -> Poll<Result<(), Fault>> {
        let up_pending = match self.poll_upload(cx, replay) {
            Ok(pending) => pending,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        // An interim response may still be on its way down; the next one waits for it.
        if self.down.poll_flush(cx)?.is_ready()
            && let Poll::Ready(result) = self.up.poll_head(cx, method, limits, head)
        {
            return Poll::Ready(result);
        }
        let mut down_wait =
            if self.upload == Upload::Running && !up_pending { Wait::Receive } else { Wait::Nothing };
        if self.upload != Upload::Running {
            match self.down.poll_departure(cx) {
                Poll::Ready(Departure::Gone) => return Poll::Ready(Err(client_gone())),
                Poll::Ready(Departure::HalfClosed) => down_wait = Wait::HalfClosed,
                Poll::Pending => {}
            }
        }
        let up_wait = match (up_pending, self.upload) {
            (true, _) => Wait::Send,
            (false, Upload::Running) => Wait::Nothing,
            (false, _) => Wait::Receive,
        };
        self.poll_deadlines(cx, up_wait, down_wait)
    }

    /// The rest of the response; ready when the client has all of it.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        replay: &mut Replay<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Poll<Result<(), Fault>> {
        let up_pending = match self.poll_upload(cx, replay) {
            Ok(pending) => pending,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        let down_pending = loop {
            // To wait is allowed only for a side that was asked in this very poll: what an earlier
            // one queued may have left just now, with nobody registered for the node's next bytes.
            let mut starved = false;
            while !outlet.is_broken() && outlet.flows_into(self.down) {
                match self.up.poll_frame(cx) {
                    Poll::Ready(Ok(frame)) => {
                        outlet.pass(frame, self.down);
                        self.progressed = true;
                    }
                    Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                    Poll::Pending => {
                        starved = true;
                        break;
                    }
                }
            }
            let flushed = self.down.poll_flush(cx);
            if let Some(fault) = outlet.row.fault() {
                return Poll::Ready(Err(fault));
            }
            match flushed {
                Poll::Ready(Ok(())) if outlet.is_dry() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) if starved => break false,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                Poll::Pending => break true,
            }
        };
        if self.upload != Upload::Running
            && matches!(self.down.poll_departure(cx), Poll::Ready(Departure::Gone))
        {
            return Poll::Ready(Err(client_gone()));
        }
        let up_wait = if up_pending {
            Wait::Send
        } else if down_pending {
            Wait::Nothing
        } else {
            Wait::Receive
        };
        self.poll_deadlines(cx, up_wait, if down_pending { Wait::Send } else { Wait::Nothing })
    }

    /// After a 101: from here on both connections carry plain bytes.
    pub(super) fn open_tunnel(&mut self) {
        self.socket = self.down.upgrade();
        self.up.upgrade();
        self.up.deadline().clear();
        self.progressed = true;
    }

    /// Plain bytes both ways after an upgrade; ready when either side has closed and what it
    /// sent before was passed on.
    pub(super) fn poll_tunnel(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let mut open = true;
        let mut up_pending = self.up.poll_flush(cx)?.is_pending();
        while !up_pending && open {
            match self.down.poll_frame(cx) {
                Poll::Ready(Ok(Frame::Data(data))) => {
                    self.progressed = true;
                    if let Some(socket) = &self.socket {
                        socket.received(data.len());
                    }
                    self.up.send(Frame::Data(data));
                    up_pending = self.up.poll_flush(cx)?.is_pending();
                }
                Poll::Ready(_) => open = false,
                Poll::Pending => break,
            }
        }
        let mut down_pending = self.down.poll_flush(cx)?.is_pending();
        while !down_pending && open {
            match self.up.poll_frame(cx) {
                Poll::Ready(Ok(Frame::Data(data))) => {
                    self.progressed = true;
                    if let Some(socket) = &self.socket {
                        socket.sent(data.len());
                    }
                    self.down.send(Frame::Data(data));
                    down_pending = self.down.poll_flush(cx)?.is_pending();
                }
                Poll::Ready(Ok(_)) => {
                    // Where the tunnel is a stream, an orderly end is said in it (RFC 8441 §5).
                    self.down.send(Frame::End);
                    down_pending = self.down.poll_flush(cx)?.is_pending();
                    open = false;
                }
                Poll::Ready(Err(_)) => open = false,
                Poll::Pending => break,
            }
        }
        if !open && !up_pending && !down_pending {
            return Poll::Ready(Ok(()));
        }
        if std::mem::take(&mut self.progressed) {
            self.down.deadline().set(self.down_timeouts.tunnel_ms);
        }
        self.down.deadline().poll_expired(cx).map(|()| Ok(()))
    }

    /// Moves frames of the request's body; returns whether the node has yet to take some.
    fn poll_upload(&mut self, cx: &mut Context<'_>, replay: &mut Replay<'_>) -> Result<bool, Fault> {
        loop {
            // As in `poll_body`: after a flush the client is asked again before it is waited for.
            let mut starved = false;
            while self.upload == Upload::Running && self.up.has_room() {
                match self.down.poll_frame(cx) {
                    Poll::Ready(Ok(mut frame)) => {
                        if !matches!(frame, Frame::Data(_)) {
                            self.upload = Upload::Done;
                        }
                        if let Frame::Trailers(trailers) = &mut frame {
                            entrance::clear_trailers(trailers);
                        }
                        replay.record(&frame);
                        self.up.send(frame);
                        self.progressed = true;
                    }
                    Poll::Ready(Err(fault)) => return Err(fault),
                    Poll::Pending => {
                        starved = true;
                        break;
                    }
                }
            }
            match self.up.poll_flush(cx) {
                Poll::Ready(Ok(())) if !starved && self.upload == Upload::Running => {}
                Poll::Ready(Ok(())) => return Ok(false),
                Poll::Ready(Err(_)) => {
                    // Its answer, if it gave one, is worth more than the reason of the write error.
                    self.upload = Upload::Refused;
                    return Ok(false);
                }
                Poll::Pending => return Ok(true),
            }
        }
    }

    fn poll_deadlines(&mut self, cx: &mut Context<'_>, up: Wait, down: Wait) -> Poll<Result<(), Fault>> {
        // A peer that takes its bytes slowly but steadily is not stalled.
        let written = self.up.bytes_written() + self.down.bytes_written();
        let progressed = std::mem::take(&mut self.progressed) || written != self.written;
        self.written = written;
        if progressed || up != self.up_wait {
            self.up_wait = up;
            match up {
                Wait::Send => self.up.deadline().set(self.timeouts.send_ms),
                Wait::Receive => self.up.deadline().set(self.timeouts.read_ms),
                Wait::Nothing | Wait::HalfClosed => self.up.deadline().clear(),
            }
        }
        if progressed || down != self.down_wait {
            self.down_wait = down;
            match down {
                Wait::Send => self.down.deadline().set(self.down_timeouts.send_ms),
                Wait::Receive => self.down.deadline().set(self.down_timeouts.body_ms),
                Wait::HalfClosed if !self.half_closed => {
                    self.half_closed = true;
                    self.down.deadline().set(self.down_timeouts.half_close_ms);
                }
                Wait::HalfClosed => {}
                Wait::Nothing => self.down.deadline().clear(),
            }
        }
        if self.up.deadline().poll_expired(cx).is_ready() {
            return Poll::Ready(Err(match up {
                Wait::Send => {
                    Fault::new(FaultKind::UpstreamSendTimeout, "the node does not take the request")
                }
                _ => Fault::new(FaultKind::ResponseTimeout, "the response did not arrive in time"),
            }));
        }
        if self.down.deadline().poll_expired(cx).is_ready() {
            return Poll::Ready(Err(match down {
                Wait::Receive => Fault::new(FaultKind::RequestBodyTimeout, "the request body stalled"),
                Wait::HalfClosed => client_gone(),
                _ => Fault::new(FaultKind::ResponseSendTimeout, "the client does not read its answer"),
            }));
        }
        Poll::Pending
    }
}

pub(super) fn client_gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client closed the connection")
}
