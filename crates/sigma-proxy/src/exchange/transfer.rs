//! Both directions of an exchange, driven by one task: the request's body to the node, and the answer
//! to the client, from a node or from the gateway itself.
//!
//! Each side holds at most one piece of body; a side that does not take it holds the other back.
//! The deadlines follow what is being waited for: a client that uploads slowly does not use up
//! the node's time, a client that reads slowly neither.

use std::task::{self, Poll};

use sigma_config::settings;
use sigma_http::websocket::Sender;
use sigma_http::{Fault, FaultKind, Frame, Method};
use sigma_net::{Deadline, deadline};
use sigma_plugin::Context;
use sigma_plugin::pace::Direction;
use sigma_wire::{Connection, HeadLimits, Rest};

use super::delivery::{Delivered, Delivery, FarEnd, OwnBody, Source};
use super::upload::RequestBody;
use super::websocket::{Client, OpenSocket};
use crate::attempts::Progress;
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
}

/// Nobody waits for a node where there is none.
static NO_NODE: Timeouts = Timeouts { connect_ms: 0, send_ms: 0, read_ms: 0 };

/// An answer on its way, with the request that it is for as long as that is on its own.
pub(super) struct Transfer<'t, 'c, S> {
    pub(super) down: &'t mut Client<'c>,
    pub(super) up: &'t mut S,
    /// Towards the node.
    timeouts: &'t Timeouts,
    /// Towards the client.
    settings: &'t settings::Timeouts,
    upload: Upload,
    up_wait: Wait,
    down_wait: Wait,
    progressed: bool,
    /// Bytes written to both sides when the deadlines were last looked at.
    written: u64,
    /// Bytes written to the client when it last had enough.
    down_written: u64,
    answered: bool,
    informed: bool,
    socket: Option<Box<OpenSocket<'c>>>,
    /// The gateway ends the tunnel, which knows no good-bye.
    leaving: bool,
}

impl<'t, 'c, S: Source> Transfer<'t, 'c, S> {
    fn new(
        down: &'t mut Client<'c>,
        up: &'t mut S,
        timeouts: &'t Timeouts,
        settings: &'t settings::Timeouts,
        upload: Upload,
    ) -> Transfer<'t, 'c, S> {
        Transfer {
            down,
            up,
            timeouts,
            settings,
            upload,
            up_wait: Wait::Nothing,
            down_wait: Wait::Nothing,
            progressed: true,
            written: 0,
            down_written: 0,
            answered: false,
            informed: false,
            socket: None,
            leaving: false,
        }
    }

    /// The body of the answer; ready when the client has all of it. `up_pending` says that the
    /// source has yet to take some of the request.
    fn poll_delivery(
        &mut self,
        task: &mut task::Context<'_>,
        up_pending: bool,
        delivery: &mut Delivery,
        ctx: &mut Context,
    ) -> Poll<Result<(), Fault>> {
        let down_pending = match delivery.poll(self.up, self.down, ctx, &mut self.progressed, task) {
            Ok(Delivered::Whole) => return Poll::Ready(Ok(())),
            Ok(delivered) => delivered == Delivered::ClientSlow,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        if self.upload != Upload::Running && self.down.poll_departure(task).is_ready() {
            return Poll::Ready(Err(client_gone()));
        }
        // Nobody is late while bytes wait for their pace.
        let up_wait = if up_pending {
            Wait::Send
        } else if down_pending || is_slowed(ctx) {
            Wait::Nothing
        } else {
            Wait::Receive
        };
        self.poll_deadlines(task, up_wait, if down_pending { Wait::Send } else { Wait::Nothing }, 0)
    }

    fn poll_deadlines(
        &mut self,
        task: &mut task::Context<'_>,
        up: Wait,
        down: Wait,
        receive_ms: u64,
    ) -> Poll<Result<(), Fault>> {
        // A peer that takes its bytes slowly but steadily is not stalled.
        let down_written = self.down.bytes_written();
        let written = self.up.bytes_written() + down_written;
        let progressed = std::mem::take(&mut self.progressed) || written != self.written;
        self.written = written;
        if progressed || up != self.up_wait {
            self.up_wait = up;
            match (up, self.up.deadline()) {
                (Wait::Send, Some(deadline)) => deadline.set(self.timeouts.send_ms),
                (Wait::Receive, Some(deadline)) => deadline.set(self.timeouts.read_ms),
                (Wait::Nothing, Some(deadline)) => deadline.clear(),
                (_, None) => {}
            }
        }
        // One that takes a few bytes at a time is: it would keep its answer here for as long as it likes.
        let takes = down_written - self.down_written >= self.settings.response_send_bytes.into();
        if down != self.down_wait || if down == Wait::Send { takes } else { progressed } {
            self.down_wait = down;
            match down {
                Wait::Send => {
                    self.down_written = down_written;
                    self.down.deadline().set(self.settings.response_send_ms.into());
                }
                Wait::Receive => self.down.deadline().set(receive_ms),
                Wait::Nothing => {}
            }
        }
        if self.up.deadline().is_some_and(|deadline| deadline.poll_expired(task).is_ready()) {
            return Poll::Ready(Err(match up {
                Wait::Send => {
                    Fault::new(FaultKind::UpstreamSendTimeout, "the node does not take the request")
                }
                _ => Fault::new(FaultKind::ResponseTimeout, "the response did not arrive in time"),
            }));
        }
        // What was set when the client was waited for last is of no account while it is not.
        if down != Wait::Nothing && self.down.deadline().poll_expired(task).is_ready() {
            return Poll::Ready(Err(match down {
                Wait::Receive => Fault::new(FaultKind::RequestBodyTimeout, "the request body stalled"),
                _ => Fault::new(FaultKind::ResponseSendTimeout, "the client does not read its answer"),
            }));
        }
        Poll::Pending
    }
}

impl<'t, 'c> Transfer<'t, 'c, OwnBody> {
    /// An answer of the gateway's own, whose head is queued already.
    pub(super) fn own(
        down: &'t mut Client<'c>,
        body: &'t mut OwnBody,
        settings: &'t settings::Timeouts,
    ) -> Transfer<'t, 'c, OwnBody> {
        // Whatever comes up of the request now, nobody is there to take it.
        Transfer::new(down, body, &NO_NODE, settings, Upload::Done)
    }

    /// Ready when the client has all of it.
    pub(super) fn poll_body(
        &mut self,
        task: &mut task::Context<'_>,
        delivery: &mut Delivery,
        ctx: &mut Context,
    ) -> Poll<Result<(), Fault>> {
        self.poll_delivery(task, false, delivery, ctx)
    }

    /// The gateway is about to stop.
    pub(super) fn tell_source(&mut self) {
        if let OwnBody::Made(source) = self.up {
            source.say_goodbye();
        }
    }
}

impl<'t, 'c, S: FarEnd> Transfer<'t, 'c, S> {
    /// A connection that is the other side's from the head on that is queued already.
    pub(super) fn handed_over(
        down: &'t mut Client<'c>,
        up: &'t mut S,
        settings: &'t settings::Timeouts,
    ) -> Transfer<'t, 'c, S> {
        Transfer::new(down, up, &NO_NODE, settings, Upload::Done)
    }

    /// After a 101: from here on both connections carry plain bytes.
    pub(super) fn open_tunnel(&mut self) {
        self.socket = self.down.upgrade();
        self.up.upgrade();
        if let Some(deadline) = self.up.deadline() {
            deadline.clear();
        }
        self.progressed = true;
    }

    /// The gateway ends the tunnel: in the way of its protocol if that is known, or else after what is there.
    /// `mask` is for frames to a node.
    pub(super) fn say_goodbye(&mut self, mask: [u8; 4]) {
        match &mut self.socket {
            Some(socket) => socket.say_goodbye(mask),
            None => self.leaving = true,
        }
    }

    /// Plain bytes both ways after an upgrade; ready when either side has closed and what it
    /// sent before was passed on, or when both have taken leave.
    pub(super) fn poll_tunnel(
        &mut self,
        task: &mut task::Context<'_>,
        ctx: &mut Context,
    ) -> Poll<Result<(), Fault>> {
        let mut open = true;
        let mut up_pending = self.up.poll_flush(task)?.is_pending();
        while !up_pending && open {
            match ctx.paced(Direction::ToNode, task, |_, task| self.poll_tunnelled(Sender::Client, task)) {
                Poll::Ready(Ok(Frame::Data(data))) => {
                    self.up.send(Frame::Data(data));
                    up_pending = self.up.poll_flush(task)?.is_pending();
                }
                Poll::Ready(_) => open = false,
                Poll::Pending => break,
            }
        }
        let mut down_pending = self.down.poll_flush(task)?.is_pending();
        while !down_pending && open {
            match ctx.paced(Direction::ToClient, task, |_, task| self.poll_tunnelled(Sender::Server, task)) {
                Poll::Ready(Ok(Frame::Data(data))) => {
                    self.down.send(Frame::Data(data));
                    down_pending = self.down.poll_flush(task)?.is_pending();
                }
                Poll::Ready(Ok(_)) => {
                    // Where the tunnel is a stream, an orderly end is said in it (RFC 8441 §5).
                    self.down.send(Frame::End);
                    down_pending = self.down.poll_flush(task)?.is_pending();
                    open = false;
                }
                Poll::Ready(Err(_)) => open = false,
                Poll::Pending => break,
            }
        }
        let left = self.leaving || self.socket.as_ref().is_some_and(|socket| socket.has_taken_leave());
        let holds = ctx.paces.as_ref().is_some_and(|paces| paces.is_holding());
        if left && open && !up_pending && !down_pending && !holds {
            self.down.send(Frame::End);
            down_pending = self.down.poll_flush(task)?.is_pending();
            open = false;
        }
        if !open && !up_pending && !down_pending {
            return Poll::Ready(Ok(()));
        }
        if std::mem::take(&mut self.progressed) || is_slowed(ctx) {
            self.down.deadline().set(self.settings.tunnel_idle_ms.into());
        }
        self.down.deadline().poll_expired(task).map(|()| Ok(()))
    }

    /// What goes on next in the direction of `sender`'s bytes.
    fn poll_tunnelled(&mut self, sender: Sender, task: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        loop {
            if let Some(word) = self.socket.as_mut().and_then(|socket| socket.last_word(sender)) {
                return Poll::Ready(Ok(Frame::Data(word)));
            }
            let frame = task::ready!(match sender {
                Sender::Client => self.down.poll_frame(task),
                Sender::Server => self.up.poll_frame(task),
            })?;
            let Frame::Data(data) = frame else { return Poll::Ready(Ok(frame)) };
            self.progressed = true;
            let Some(socket) = &mut self.socket else { return Poll::Ready(Ok(Frame::Data(data))) };
            let data = socket.pass(sender, data);
            if !data.is_empty() {
                return Poll::Ready(Ok(Frame::Data(data)));
            }
        }
    }
}

impl<'t, 'c> Transfer<'t, 'c, Connection> {
    /// An attempt whose head is queued already, with the times for the node and for the client.
    pub(super) fn begin(
        down: &'t mut Client<'c>,
        up: &'t mut Connection,
        (timeouts, settings): (&'t Timeouts, &'t settings::Timeouts),
        has_body: bool,
    ) -> Transfer<'t, 'c, Connection> {
        let upload = if has_body { Upload::Running } else { Upload::Done };
        Transfer::new(down, up, timeouts, settings, upload)
    }

    /// The client waits for permission to send its body (RFC 9110 §10.1.1): it gets that of the node, or after a time
    /// without a word of it the gateway's.
    pub(super) fn await_invitation(&self, body: &mut RequestBody) {
        if self.upload == Upload::Running && !body.is_invited && self.settings.continue_ms > 0 {
            let deadline = Deadline::new();
            deadline.set(self.settings.continue_ms.into());
            body.invitation = Some(deadline);
        }
    }

    /// Invites the body if its time has come.
    fn poll_invitation(&mut self, task: &mut task::Context<'_>, ctx: &mut Context, body: &mut RequestBody) {
        if body.invitation.as_ref().is_some_and(|deadline| deadline.poll_expired(task).is_ready()) {
            (body.invitation, body.is_invited) = (None, true);
            ctx.response.start(100);
            self.down.send_interim(&mut ctx.response);
        }
    }

    pub(super) fn upload(&self) -> Upload {
        self.upload
    }

    /// A head of an answer has come.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }

    /// Whether the client was told nothing of this answer yet.
    pub(super) fn has_told_nothing(&self) -> bool {
        !self.informed
    }

    pub(super) fn progress(&self, replayable: bool) -> Progress {
        Progress {
            unsent: self.up.is_unsent(),
            stale: self.up.may_be_stale(),
            replayable,
            answered: self.answered,
        }
    }

    /// The final head, or that of a 101; interim ones are passed on.
    pub(super) fn poll_final_head(
        &mut self,
        task: &mut task::Context<'_>,
        method: Method,
        limits: &HeadLimits,
        ctx: &mut Context,
        body: &mut RequestBody,
    ) -> Poll<Result<(), Fault>> {
        loop {
            task::ready!(self.poll_head(task, method, limits, ctx, body))?;
            if !ctx.response.is_interim() || ctx.response.status == 101 {
                return Poll::Ready(Ok(()));
            }
            if ctx.response.status == 100 {
                body.invitation = None;
                if std::mem::replace(&mut body.is_invited, true) {
                    continue;
                }
            }
            self.down.send_interim(&mut ctx.response);
            (self.answered, self.informed) = (true, true);
        }
    }

    /// The next response head, while the request's body goes up.
    fn poll_head(
        &mut self,
        task: &mut task::Context<'_>,
        method: Method,
        limits: &HeadLimits,
        ctx: &mut Context,
        body: &mut RequestBody,
    ) -> Poll<Result<(), Fault>> {
        let up_pending = match self.poll_upload(task, ctx, body) {
            Ok(pending) => pending,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        self.poll_invitation(task, ctx, body);
        // An interim response may still be on its way down; the next one waits for it.
        if self.down.poll_flush(task)?.is_ready()
            && let Poll::Ready(result) = self.up.poll_head(task, method, limits, &mut ctx.response)
        {
            return Poll::Ready(result);
        }
        let starves = self.upload == Upload::Running && !up_pending && !ctx.is_slowed(Direction::ToNode);
        let down_wait = if starves { Wait::Receive } else { Wait::Nothing };
        if self.upload != Upload::Running && self.down.poll_departure(task).is_ready() {
            return Poll::Ready(Err(client_gone()));
        }
        let up_wait = match (up_pending, self.upload) {
            (true, _) => Wait::Send,
            (false, Upload::Running) => Wait::Nothing,
            (false, _) => Wait::Receive,
        };
        let now_ms = deadline::now_ms();
        let receive_ms = match down_wait {
            Wait::Receive => body.intake.wait(now_ms, self.down.bytes_received(), self.settings)?,
            _ => {
                body.intake.pause(now_ms);
                0
            }
        };
        self.poll_deadlines(task, up_wait, down_wait, receive_ms)
    }

    /// The rest of the response; ready when the client has all of it.
    pub(super) fn poll_body(
        &mut self,
        task: &mut task::Context<'_>,
        delivery: &mut Delivery,
        ctx: &mut Context,
        body: &mut RequestBody,
    ) -> Poll<Result<(), Fault>> {
        match self.poll_upload(task, ctx, body) {
            Ok(up_pending) => self.poll_delivery(task, up_pending, delivery, ctx),
            Err(fault) => Poll::Ready(Err(fault)),
        }
    }

    /// The rest of the response, if the node has sent all of it while the client is the slower one. Boxed, as few
    /// exchanges have any. To be called after [`Transfer::poll_body`] was pending.
    pub(super) fn poll_rest(&mut self, task: &mut task::Context<'_>) -> Poll<Box<Rest>> {
        if self.upload == Upload::Running || self.up_wait != Wait::Nothing {
            return Poll::Pending;
        }
        self.up.poll_rest(task).map(Box::new)
    }

    /// Moves frames of the request's body; returns whether the node has yet to take some.
    fn poll_upload(
        &mut self,
        task: &mut task::Context<'_>,
        ctx: &mut Context,
        body: &mut RequestBody,
    ) -> Result<bool, Fault> {
        loop {
            // As in `Delivery::poll`: after a flush the client is asked again before it is waited for.
            let mut starved = false;
            while self.upload == Upload::Running && self.up.has_room() {
                match body.poll_frame(self.down, ctx, task) {
                    Poll::Ready(Ok(frame)) => {
                        body.invitation = None;
                        if !matches!(frame, Frame::Data(_)) {
                            self.upload = Upload::Done;
                        }
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
            match self.up.poll_flush(task) {
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
}

/// Whether bytes wait for their pace.
fn is_slowed(ctx: &Context) -> bool {
    ctx.is_slowed(Direction::ToNode) || ctx.is_slowed(Direction::ToClient)
}

pub(super) fn client_gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client closed the connection")
}
