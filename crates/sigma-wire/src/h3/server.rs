//! The client's side of one exchange: a stream of its connection.

use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_buffer::held::Account;
use sigma_http::h1::frame_response;
use sigma_http::h2::REVOKED;
use sigma_http::h3::{ErrorCode, Glitch, Priority, Scope, recycle_request, send_order};
use sigma_http::{BodyLength, Fault, FaultKind, Frame, HeaderId, Headers, RequestHead, ResponseHead};
use sigma_net::Deadline;

use super::body::{Cut, Receiving};
use super::common::{Common, Running};
use super::datagrams::Capsules;
use super::sending::Sending;
use crate::rules::{ResponseForm, client_gone, field_bytes, frame_final};
use crate::traffic::{ReceivedRequest, SentResponse};
use crate::tunnel::Tunnel;

/// Bytes that an exchange moves before its account records them.
const NOTED_BYTES: u64 = 16 * 1024;

/// A limit of a client for field sections from which on it is not checked: no node may send such a head.
const UNLIMITED: u64 = 1 << 24;

/// The counted overhead of a field (RFC 9114 §4.2.2).
const FIELD_OVERHEAD: u64 = 32;

/// A stream opened by the client, with the head of its request.
#[derive(Debug)]
pub struct Incoming {
    pub(super) stream: ServerStream,
    pub(super) head: RequestHead,
    pub(super) length: Result<BodyLength, Fault>,
    pub(super) is_early: bool,
}

impl Incoming {
    /// Returns true if the request came before the end of the handshake: it may be a replay.
    pub fn is_early(&self) -> bool {
        self.is_early
    }
}

/// The progress of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Its head is not sent.
    Awaited,
    /// The head is sent, the body follows.
    Begun,
    /// The client is gone, or the response was aborted.
    Lost,
}

/// Facts about a new stream.
pub(super) struct Origin {
    /// The number of the request on its connection, from 1.
    pub(super) number: u32,
    /// The limit of the request body in bytes; 0 for no limit.
    pub(super) body_bytes: u64,
    /// The head broke a rule.
    pub(super) malformed: bool,
}

/// One stream with its one exchange.
#[derive(Debug)]
pub struct ServerStream {
    common: Rc<Common>,
    running: Rc<Running>,
    receiving: Receiving,
    sending: Sending,
    number: u32,
    state: ResponseState,
    request: ReceivedRequest,
    tunnel: Tunnel,
    /// The tunnel carries capsules, and datagrams of QUIC in their place.
    capsules: Option<Capsules>,
    pub(crate) deadline: Deadline,
    form: ResponseForm,
    account: AccountEntries,
    sent: SentResponse,
}

/// The state of the response, and the end of the stream.
#[derive(Debug)]
struct ResponseState {
    progress: Progress,
    /// The rule that the client broke.
    fault: Option<Fault>,
    /// The head of the request broke a rule.
    malformed: bool,
}

impl ResponseState {
    /// Ends the stream; returns false if it had already ended.
    fn end(&mut self) -> bool {
        let lives = self.progress != Progress::Lost;
        self.progress = Progress::Lost;
        lives
    }
}

/// The numbers of an exchange at their last entry in its memory account.
#[derive(Debug, Default)]
struct AccountEntries {
    /// Bytes of bodies that the exchange has in memory.
    bodies_held: usize,
    /// Bytes moved in both directions.
    moved: u64,
}

impl AccountEntries {
    fn hold(&mut self, bytes: usize, account: &Account) {
        if bytes != self.bodies_held {
            account.change(self.bodies_held, bytes);
            self.bodies_held = bytes;
        }
    }

    /// Records progress; small steps wait.
    fn note(&mut self, moved: u64, account: &Account) {
        if moved - self.moved >= NOTED_BYTES {
            self.moved = moved;
            account.moved(moved);
        }
    }
}

impl ServerStream {
    pub(super) fn new(
        common: Rc<Common>,
        running: Rc<Running>,
        receiving: Receiving,
        sending: Sending,
        origin: Origin,
    ) -> ServerStream {
        let Origin { number, body_bytes, malformed } = origin;
        ServerStream {
            common,
            running,
            receiving,
            sending,
            number,
            state: ResponseState { progress: Progress::Awaited, fault: None, malformed },
            request: ReceivedRequest::new(body_bytes),
            tunnel: Tunnel::None,
            capsules: None,
            deadline: Deadline::new(),
            form: ResponseForm::default(),
            account: AccountEntries::default(),
            sent: SentResponse::default(),
        }
    }

    /// Moves the request of a stream into `head`; a fault in it becomes the response on the stream. `random` is for
    /// the key of a WebSocket handshake that the gateway makes for the client.
    pub fn accept(
        incoming: Incoming,
        random: [u64; 2],
        head: &mut RequestHead,
    ) -> (ServerStream, Result<(), Fault>) {
        let Incoming { mut stream, head: received, length, .. } = incoming;
        recycle_request(std::mem::replace(head, received));
        stream.form = ResponseForm::of(head.method);
        stream.request.head_bytes = field_bytes(&head.headers) + head.path_and_query().len() as u64;
        let accepted = length.and_then(|length| {
            // Other requests have no such field in this version.
            if head.headers.has(HeaderId::Upgrade) {
                stream.tunnel = Tunnel::ask(random, head);
                return Ok(());
            }
            stream.request.length = length;
            stream.request.check_length()
        });
        (stream, accepted)
    }

    pub(crate) fn asks_tunnel(&self) -> bool {
        self.tunnel.is_asked()
    }

    /// Checks that the final head of a node is a valid response to this client.
    pub(crate) fn check_answer(&self, head: &ResponseHead) -> Result<(), Fault> {
        self.tunnel.check_answer(head)?;
        let limit = self.common.look(|codec| codec.peer().field_section_bytes);
        if limit < UNLIMITED && section_bytes(&head.headers) > limit {
            // RFC 9114 §4.2.2: the client would reject it.
            let reason = "the response head exceeds the client's limit";
            return Err(Fault::new(FaultKind::ResponseHeadTooLarge, reason));
        }
        Ok(())
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.request.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        if let Some(fault) = self.poll_end(cx) {
            return Poll::Ready(Err(fault));
        }
        if let Some(capsule) =
            self.capsules.as_mut().and_then(|capsules| capsules.next_received(&self.running))
        {
            self.request.body_bytes += capsule.len() as u64;
            return Poll::Ready(Ok(Frame::Data(capsule)));
        }
        match self.receiving.poll_frame(cx, &self.common) {
            Poll::Ready(Ok(Frame::Data(data))) => {
                if let Some(capsules) = &mut self.capsules {
                    capsules.pass_received(&data);
                }
                let received = self.request.receive(data.len());
                self.note();
                // A tunnel has no length.
                let is_valid = if let Tunnel::Open = self.tunnel { Ok(()) } else { received };
                Poll::Ready(is_valid.map(|()| Frame::Data(data)))
            }
            Poll::Ready(Ok(end)) => Poll::Ready(Ok(end)),
            Poll::Ready(Err(cut)) => Poll::Ready(Err(self.end_input(cut))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns the fault of a stream that has ended early.
    fn poll_end(&mut self, cx: &Context<'_>) -> Option<Fault> {
        if self.state.fault.is_none() && self.running.is_revoked.get() {
            self.break_off(ErrorCode::EXCESSIVE_LOAD, REVOKED);
        }
        if let Some(fault) = self.state.fault {
            return Some(fault);
        }
        self.running.wait(cx);
        (self.state.progress == Progress::Lost).then(client_gone)
    }

    /// Ends the stream because its request is cut.
    fn end_input(&mut self, cut: Cut) -> Fault {
        match cut {
            Cut::Reset(_) | Cut::Lost => {
                self.lose();
                client_gone()
            }
            Cut::Broken(broken) => {
                let fault = Fault::new(FaultKind::BadRequest, broken.reason);
                if broken.scope == Scope::Stream {
                    self.common.spend(Glitch::StreamError);
                }
                self.break_off(broken.code, fault);
                fault
            }
        }
    }

    /// Aborts both directions with a fault.
    fn break_off(&mut self, code: ErrorCode, fault: Fault) {
        self.state.fault = Some(fault);
        self.state.end();
        self.sending.reset(code);
        self.receiving.stop(&self.common, code);
    }

    /// Handles a client that has cancelled the request.
    fn lose(&mut self) {
        if self.state.end() {
            self.sending.reset(ErrorCode::REQUEST_CANCELLED);
            self.receiving.stop(&self.common, ErrorCode::REQUEST_CANCELLED);
            if self.common.connection.lost().is_none() {
                self.common.spend(Glitch::Reset);
            }
        }
    }

    pub(crate) fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.poll_end(cx).is_some() {
            return Poll::Ready(());
        }
        if self.receiving.poll_reset(cx).is_ready() || self.sending.poll_stopped(cx).is_ready() {
            self.lose();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    pub(crate) fn send_interim(&mut self, head: &mut ResponseHead) {
        if head.status == 101 {
            // RFC 9220 §3: the response to an upgrade in HTTP/1.1 is a plain success here.
            head.headers.remove_name(b"sec-websocket-accept");
            head.headers.remove(HeaderId::ContentLength);
            if head.headers.find(b"capsule-protocol").is_some_and(|value| value == b"?1") {
                self.capsules = Some(Capsules::begin(self.receiving.message.id(), &self.running));
            }
            self.respond(200, &head.headers, b"", BodyLength::Streamed);
            return;
        }
        if self.state.progress == Progress::Awaited {
            frame_response(head, BodyLength::None, false);
            let id = self.receiving.message.id();
            let Self { common, sending, .. } = self;
            sending.head(|out| {
                common.with(|codec| codec.put_response(id, head.status, &head.headers, b"", out))
            });
            sending.push();
        }
    }

    pub(crate) fn send_head(&mut self, head: &mut ResponseHead, length: BodyLength, date: &[u8]) {
        self.form.bodiless = frame_final(head, length, self.form).is_empty();
        self.respond(head.status, &head.headers, date, length);
    }

    fn respond(&mut self, status: u16, headers: &Headers, date: &[u8], length: BodyLength) {
        if self.state.progress != Progress::Awaited {
            return;
        }
        self.state.progress = Progress::Begun;
        self.sent.head_bytes = field_bytes(headers);
        self.running.account.grow(headers.memory());
        if let Some(value) = headers.find(b"priority") {
            let id = self.receiving.message.id();
            self.sending.set_order(send_order(Priority::parse(value), id));
        }
        let id = self.receiving.message.id();
        let Self { common, sending, .. } = self;
        sending.head(|out| common.with(|codec| codec.put_response(id, status, headers, date, out)));
        sending.begin_body(length, self.form.bodiless);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.state.progress != Progress::Begun || self.sending.has_room()
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if self.form.bodiless || self.state.progress != Progress::Begun {
            return;
        }
        if let Frame::Data(data) = &frame {
            self.sent.body_bytes += data.len() as u64;
        }
        let frame = match (frame, &mut self.capsules) {
            (Frame::Data(data), Some(capsules)) => match capsules.send(&self.common, data) {
                Some(rest) => Frame::Data(rest),
                None => return,
            },
            (frame, _) => frame,
        };
        self.sending.queue(frame);
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(order) = self.running.order.take() {
            self.sending.set_order(order);
        }
        if self.state.progress == Progress::Awaited {
            return Poll::Ready(Ok(()));
        }
        if let Some(fault) = self.poll_end(cx) {
            return Poll::Ready(Err(fault));
        }
        match self.sending.poll_flush(cx, &self.common) {
            Poll::Ready(Ok(())) => {
                self.note();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => {
                self.lose();
                Poll::Ready(Err(client_gone()))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Records the progress of the exchange.
    fn note(&mut self) {
        let moved = self.request.body_bytes + self.sent.body_bytes;
        self.account.note(moved, &self.running.account);
    }

    pub(crate) fn upgrade(&mut self) {
        self.tunnel = Tunnel::Open;
    }

    pub(crate) fn abort(&mut self) {
        self.state.end();
        self.sending.reset(ErrorCode::INTERNAL_ERROR);
        self.receiving.stop(&self.common, ErrorCode::INTERNAL_ERROR);
    }

    pub(crate) fn hold(&mut self, bytes: usize) {
        self.account.hold(bytes, &self.running.account);
    }

    pub(crate) fn limit_body(&mut self, bytes: u64) {
        self.request.limit_body(bytes);
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.sent.head_bytes + self.sending.taken()
    }

    /// Counts heads before compression, as in HTTP/2.
    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        self.sent.bytes()
    }

    pub(crate) fn bytes_received(&self) -> u64 {
        self.request.bytes()
    }

    pub(crate) fn requests(&self) -> u32 {
        self.number
    }
}

impl Drop for ServerStream {
    fn drop(&mut self) {
        let code = match () {
            () if self.state.malformed => ErrorCode::MESSAGE_ERROR,
            // RFC 9114 §4.1: the rest of the request is not needed.
            () if self.sending.is_complete() => ErrorCode::NO_ERROR,
            () => ErrorCode::INTERNAL_ERROR,
        };
        if self.sending.is_complete() {
            if let Some(sent) = self.sending.take_sent() {
                self.common.linger(sent);
            }
        } else {
            self.sending.reset(code);
        }
        self.receiving.stop(&self.common, code);
        self.common.end(&self.running);
    }
}

/// Returns the size of the field section of a response, as the limit of the client counts it.
fn section_bytes(headers: &Headers) -> u64 {
    let status = b":status".len() as u64 + 3 + FIELD_OVERHEAD;
    let fields = headers.iter().count() as u64;
    status + field_bytes(headers) + fields * FIELD_OVERHEAD
}
