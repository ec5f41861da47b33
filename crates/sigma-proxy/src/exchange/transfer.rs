//! Both directions of an exchange, driven by one task: the request body to the node, and the response to the
//! client, from a node or from the gateway itself.
//!
//! Each side holds at most one piece of body; a slow receiver slows its sender down. A deadline runs only for the
//! side that is awaited: a client that uploads or reads slowly does not use up the node's time.

use std::task::{self, Poll};

use sigma_config::settings;
use sigma_http::websocket::Sender;
use sigma_http::{Fault, FaultKind, Frame, Method};
use sigma_net::{Deadline, deadline};
use sigma_plugin::Context;
use sigma_plugin::pace::Direction;
use sigma_wire::{Connection, HeadLimits, Rest};

use super::delivery::{Delivered, Delivery, FarEnd, OwnBody, Source};
use super::read_ahead::ReadAhead;
use super::upload::RequestBody;
use super::websocket::{Client, OpenSocket};
use crate::attempt::attempts::Progress;
use crate::snapshot::Timeouts;

/// The progress of the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upload {
    /// More frames follow.
    Running,
    /// All frames were queued on the connection.
    Done,
    /// The node accepts no more; it may still have sent a response.
    Refused,
}

/// The event that a side is awaited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Nothing,
    Send,
    Receive,
}

/// The timeouts of a response that no node sends.
static NO_NODE: Timeouts = Timeouts { connect_ms: 0, send_ms: 0, read_ms: 0 };

/// A response in transfer, together with the rest of its request.
pub(super) struct Transfer<'t, 'c, S> {
    pub(super) down: &'t mut Client<'c>,
    pub(super) up: &'t mut S,
    /// The timeouts towards the node.
    timeouts: &'t Timeouts,
    /// The timeouts towards the client.
    settings: &'t settings::Timeouts,
    upload: Upload,
    waits: TransferWaits,
    answered: bool,
    informed: bool,
    socket: Option<Box<OpenSocket<'c>>>,
    /// The gateway ends a tunnel whose protocol has no closing message.
    leaving: bool,
    /// The part of the response that was read ahead; None if nothing may be. Boxed, as few routes read ahead.
    ahead: Option<Box<ReadAhead>>,
}

/// The progress of both sides, as their deadlines know it.
struct TransferWaits {
    up: Wait,
    down: Wait,
    progressed: bool,
    /// Bytes written to both sides at the last check of the deadlines.
    written: u64,
    /// Bytes written to the client when it last made enough progress.
    down_written: u64,
}

impl TransferWaits {
    fn new() -> TransferWaits {
        TransferWaits {
            up: Wait::Nothing,
            down: Wait::Nothing,
            progressed: true,
            written: 0,
            down_written: 0,
        }
    }

    /// Returns true if a frame has passed or bytes were written since the last call.
    fn take_progress(&mut self, written: u64) -> bool {
        let progressed = std::mem::take(&mut self.progressed) || written != self.written;
        self.written = written;
        progressed
    }
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
            waits: TransferWaits::new(),
            answered: false,
            informed: false,
            socket: None,
            leaving: false,
            ahead: None,
        }
    }

    /// Transfers the body of the response; ready when the client has all of it. `up_pending` says that the source
    /// has yet to accept some of the request.
    fn poll_delivery(
        &mut self,
        task: &mut task::Context<'_>,
        up_pending: bool,
        delivery: &mut Delivery,
        ctx: &mut Context,
    ) -> Poll<Result<(), Fault>> {
        let delivered = match &mut self.ahead {
            None => delivery.poll(self.up, self.down, ctx, &mut self.waits.progressed, task),
            Some(ahead) => {
                delivery.poll(&mut ahead.of(self.up), self.down, ctx, &mut self.waits.progressed, task)
            }
        };
        let down_pending = match delivered {
            Ok(Delivered::Whole) => return Poll::Ready(Ok(())),
            Ok(delivered) => delivered == Delivered::ClientSlow,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        if self.upload != Upload::Running && self.down.poll_departure(task).is_ready() {
            return Poll::Ready(Err(client_gone()));
        }
        // No deadline runs while bytes wait for a rate limit.
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
        // A peer that accepts its bytes slowly but steadily is not stalled.
        let down_written = self.down.bytes_written();
        let written = self.up.bytes_written() + down_written;
        let progressed = self.waits.take_progress(written);
        if progressed || up != self.waits.up {
            self.waits.up = up;
            match (up, self.up.deadline()) {
                (Wait::Send, Some(deadline)) => deadline.set(self.timeouts.send_ms),
                (Wait::Receive, Some(deadline)) => deadline.set(self.timeouts.read_ms),
                (Wait::Nothing, Some(deadline)) => deadline.clear(),
                (_, None) => {}
            }
        }
        // One that accepts only a few bytes at a time is: it could keep its response here forever.
        let takes = down_written - self.waits.down_written >= self.settings.response_send_bytes.into();
        if down != self.waits.down || if down == Wait::Send { takes } else { progressed } {
            self.waits.down = down;
            match down {
                Wait::Send => {
                    self.waits.down_written = down_written;
                    self.down.deadline().set(self.settings.response_send_ms.into());
                }
                Wait::Receive => self.down.deadline().set(receive_ms),
                Wait::Nothing => {}
            }
        }
        if self.up.deadline().is_some_and(|deadline| deadline.poll_expired(task).is_ready()) {
            return Poll::Ready(Err(match up {
                Wait::Send => {
                    Fault::new(FaultKind::UpstreamSendTimeout, "the node does not accept the request")
                }
                _ => Fault::new(FaultKind::ResponseTimeout, "the response did not arrive in time"),
            }));
        }
        // The deadline of the client's last wait does not count while it is not awaited.
        if down != Wait::Nothing && self.down.deadline().poll_expired(task).is_ready() {
            return Poll::Ready(Err(match down {
                Wait::Receive => Fault::new(FaultKind::RequestBodyTimeout, "the request body stalled"),
                _ => Fault::new(FaultKind::ResponseSendTimeout, "the client does not read its response"),
            }));
        }
        Poll::Pending
    }
}

impl<'t, 'c> Transfer<'t, 'c, OwnBody> {
    /// Begins a response of the gateway itself, whose head is already queued.
    pub(super) fn own(
        down: &'t mut Client<'c>,
        body: &'t mut OwnBody,
        settings: &'t settings::Timeouts,
    ) -> Transfer<'t, 'c, OwnBody> {
        // The rest of the request body is discarded.
        Transfer::new(down, body, &NO_NODE, settings, Upload::Done)
    }

    /// Transfers the body; ready when the client has all of it.
    pub(super) fn poll_body(
        &mut self,
        task: &mut task::Context<'_>,
        delivery: &mut Delivery,
        ctx: &mut Context,
    ) -> Poll<Result<(), Fault>> {
        self.poll_delivery(task, false, delivery, ctx)
    }

    /// Notifies the source that the gateway is about to stop.
    pub(super) fn tell_source(&mut self) {
        if let OwnBody::Made(source) = self.up {
            source.say_goodbye();
        }
    }
}

impl<'t, 'c, S: FarEnd> Transfer<'t, 'c, S> {
    /// Begins a connection that belongs to the other side after the head, which is already queued.
    pub(super) fn handed_over(
        down: &'t mut Client<'c>,
        up: &'t mut S,
        settings: &'t settings::Timeouts,
    ) -> Transfer<'t, 'c, S> {
        Transfer::new(down, up, &NO_NODE, settings, Upload::Done)
    }

    /// Opens the tunnel after a 101: from here on both connections carry plain bytes.
    pub(super) fn open_tunnel(&mut self) {
        self.socket = self.down.upgrade();
        self.up.upgrade();
        if let Some(deadline) = self.up.deadline() {
            deadline.clear();
        }
        self.waits.progressed = true;
    }

    /// Ends the tunnel: with the closing message of its protocol if that is known, or else after the bytes that
    /// are already here. `mask` is for frames to a node.
    pub(super) fn say_goodbye(&mut self, mask: [u8; 4]) {
        match &mut self.socket {
            Some(socket) => socket.say_goodbye(mask),
            None => self.leaving = true,
        }
    }

    /// Carries plain bytes in both directions after an upgrade; ready when either side has closed and its last
    /// bytes were forwarded, or when both have exchanged closing messages.
    pub(super) fn poll_tunnel(
        &mut self,
        task: &mut task::Context<'_>,
        ctx: &mut Context,
    ) -> Poll<Result<(), Fault>> {
        let mut open = true;
        let mut up_pending = self.up.poll_flush(task)?.is_pending();
        while !up_pending && open {
            match ctx
                .paced(Direction::ToNode, task, |ctx, task| self.poll_tunnelled(Sender::Client, ctx, task))
            {
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
            match ctx
                .paced(Direction::ToClient, task, |ctx, task| self.poll_tunnelled(Sender::Server, ctx, task))
            {
                Poll::Ready(Ok(Frame::Data(data))) => {
                    self.down.send(Frame::Data(data));
                    down_pending = self.down.poll_flush(task)?.is_pending();
                }
                Poll::Ready(Ok(_)) => {
                    // Where the tunnel is a stream, the end is a frame in it (RFC 8441 §5).
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
        if std::mem::take(&mut self.waits.progressed) || is_slowed(ctx) {
            self.down.deadline().set(self.settings.tunnel_idle_ms.into());
        }
        self.down.deadline().poll_expired(task).map(|()| Ok(()))
    }

    /// Returns the next frame to forward in the direction of `sender`'s bytes.
    fn poll_tunnelled(
        &mut self,
        sender: Sender,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        loop {
            if let Some(word) = self.socket.as_mut().and_then(|socket| socket.last_word(sender)) {
                return Poll::Ready(Ok(Frame::Data(word)));
            }
            let frame = task::ready!(match sender {
                Sender::Client => self.down.poll_frame(task),
                Sender::Server => self.up.poll_frame(ctx, task),
            })?;
            let Frame::Data(data) = frame else { return Poll::Ready(Ok(frame)) };
            self.waits.progressed = true;
            let Some(socket) = &mut self.socket else { return Poll::Ready(Ok(Frame::Data(data))) };
            let data = socket.pass(sender, data);
            if !data.is_empty() {
                return Poll::Ready(Ok(Frame::Data(data)));
            }
        }
    }
}

impl<'t, 'c> Transfer<'t, 'c, Connection> {
    /// Begins an attempt whose head is already queued, with the timeouts for the node and for the client.
    pub(super) fn begin(
        down: &'t mut Client<'c>,
        up: &'t mut Connection,
        timeouts: &'t Timeouts,
        settings: &'t settings::Timeouts,
        has_body: bool,
    ) -> Transfer<'t, 'c, Connection> {
        let upload = if has_body { Upload::Running } else { Upload::Done };
        Transfer::new(down, up, timeouts, settings, upload)
    }

    /// Handles a client that waits for permission to send its body (RFC 9110 §10.1.1): the node gives it, or
    /// after a time without a response the gateway.
    pub(super) fn await_invitation(&self, body: &mut RequestBody) {
        if self.upload == Upload::Running && !body.is_invited && self.settings.continue_ms > 0 {
            let deadline = Deadline::new();
            deadline.set(self.settings.continue_ms.into());
            body.invitation = Some(deadline);
        }
    }

    /// Invites the body if the time has come.
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

    /// Allows up to `limit` bytes of the response to be read ahead of the client.
    pub(super) fn read_ahead(&mut self, limit: usize) {
        self.ahead = (limit > 0).then(|| Box::new(ReadAhead::new(limit)));
    }

    /// Notes that the head of a response has arrived.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }

    /// Returns true if the client has received nothing of this response yet.
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

    /// Returns the final head, or the head of a 101; interim responses are forwarded.
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

    /// Returns the next response head, while the request body is sent.
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

    /// Transfers the rest of the response; ready when the client has all of it.
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

    /// Returns the rest of the response, if the node has sent all of it while the client is the slower one.
    /// Boxed, as few exchanges have any. Call it after [`Transfer::poll_body`] was pending.
    pub(super) fn poll_rest(
        &mut self,
        task: &mut task::Context<'_>,
        ctx: &mut Context,
        body: &RequestBody,
    ) -> Poll<Box<Rest>> {
        let is_client_slow = self.upload != Upload::Running && self.waits.up == Wait::Nothing;
        let rest = match &mut self.ahead {
            _ if !is_client_slow => Poll::Pending,
            Some(ahead) if !ahead.has_ended() => ahead.poll_fill(self.up, ctx, task),
            _ => self.up.poll_rest(task),
        };
        if let Some(ahead) = &self.ahead {
            self.down.hold(body.held(ctx) + ahead.memory());
        }
        rest.map(Box::new)
    }

    /// Moves frames of the request body; returns true if the node has yet to accept some.
    fn poll_upload(
        &mut self,
        task: &mut task::Context<'_>,
        ctx: &mut Context,
        body: &mut RequestBody,
    ) -> Result<bool, Fault> {
        loop {
            // As in `Delivery::poll`: after a flush the client is polled again before it is awaited.
            let mut starved = false;
            while self.upload == Upload::Running && self.up.has_room() {
                match body.poll_splice(self.down, self.up, ctx, task) {
                    Some(Poll::Ready(Ok(()))) => {
                        self.waits.progressed = true;
                        continue;
                    }
                    Some(Poll::Ready(Err(fault))) => return Err(fault),
                    Some(Poll::Pending) => {
                        starved = true;
                        break;
                    }
                    None => {}
                }
                match body.poll_frame(self.down, ctx, task) {
                    Poll::Ready(Ok(frame)) => {
                        body.invitation = None;
                        if !matches!(frame, Frame::Data(_)) {
                            self.upload = Upload::Done;
                        }
                        self.up.send(frame);
                        self.waits.progressed = true;
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
                    // A response, if the node sent one, is worth more than the reason of the write error.
                    self.upload = Upload::Refused;
                    return Ok(false);
                }
                Poll::Pending => return Ok(true),
            }
        }
    }
}

/// Returns true if bytes wait for a rate limit.
fn is_slowed(ctx: &Context) -> bool {
    ctx.is_slowed(Direction::ToNode) || ctx.is_slowed(Direction::ToClient)
}

pub(super) fn client_gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client closed the connection")
}
