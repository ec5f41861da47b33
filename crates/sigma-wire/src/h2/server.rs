//! The client's side of one exchange: a stream of its connection.

use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_http::h1::frame_response;
use sigma_http::h2::{Arrival, ErrorCode, Fate, StreamKey, recycle_request};
use sigma_http::{BodyLength, Fault, Frame, HeaderId, Headers, RequestHead, ResponseHead, Side};
use sigma_net::Deadline;

use super::mux::Mux;
use crate::rules::{ResponseForm, announce, client_gone, field_bytes, frame_final};
use crate::traffic::{ReceivedRequest, SentResponse};
use crate::tunnel::Tunnel;

/// State that the streams of a connection share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) mux: Rc<Mux>,
    /// Bytes of a request body; 0 for no limit.
    pub(super) body_bytes: u64,
    /// The value of `Alt-Svc` in responses (RFC 7838).
    pub(super) alternative: Option<Box<str>>,
}

/// A stream opened by the client, with the head of its request.
#[derive(Debug)]
pub struct Incoming {
    pub(super) stream: ServerStream,
    pub(super) head: RequestHead,
    pub(super) length: Result<BodyLength, Fault>,
}

/// The progress of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseProgress {
    /// Its head is not sent.
    Awaited,
    /// The head is sent, the body follows.
    Begun,
    /// The client is gone.
    Lost,
}

/// One stream with its one exchange.
#[derive(Debug)]
pub struct ServerStream {
    shared: Rc<Shared>,
    key: StreamKey,
    number: u32,
    answer: ResponseProgress,
    request: ReceivedRequest,
    tunnel: Tunnel,
    pub(crate) deadline: Deadline,
    form: ResponseForm,
    /// Bytes of bodies that the exchange has in memory.
    bodies_held: usize,
    sent: SentResponse,
}

impl ServerStream {
    pub(super) fn new(shared: Rc<Shared>, key: StreamKey, number: u32) -> ServerStream {
        let request = ReceivedRequest::new(shared.body_bytes);
        ServerStream {
            shared,
            key,
            number,
            answer: ResponseProgress::Awaited,
            request,
            tunnel: Tunnel::None,
            deadline: Deadline::new(),
            form: ResponseForm::default(),
            bodies_held: 0,
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
        let Incoming { mut stream, head: received, length } = incoming;
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
        self.tunnel.check_answer(head)
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.request.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        let mux = &self.shared.mux;
        match mux.with(|codec| codec.take_frame(self.key)) {
            Arrival::Frame(Frame::Data(data)) => {
                let received = self.request.receive(data.len());
                // A tunnel has no length.
                let is_valid = if let Tunnel::Open = self.tunnel { Ok(()) } else { received };
                Poll::Ready(is_valid.map(|()| Frame::Data(data)))
            }
            Arrival::Frame(end) => Poll::Ready(Ok(end)),
            Arrival::Cut(fate) => Poll::Ready(Err(fate.broken().unwrap_or_else(client_gone))),
            Arrival::Nothing => {
                mux.wait(self.key, cx);
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.answer == ResponseProgress::Lost || self.is_cut() {
            return Poll::Ready(());
        }
        self.shared.mux.wait(self.key, cx);
        Poll::Pending
    }

    fn is_cut(&self) -> bool {
        self.shared.mux.look(|codec| codec.fate(self.key).is_some())
    }

    pub(crate) fn send_interim(&mut self, head: &mut ResponseHead) {
        if head.status == 101 {
            // RFC 8441 §5: the response to an upgrade in HTTP/1.1 is a plain success here.
            head.headers.remove_name(b"sec-websocket-accept");
            head.headers.remove(HeaderId::ContentLength);
            self.respond(200, &head.headers, b"", BodyLength::Streamed);
            return;
        }
        if self.answer == ResponseProgress::Awaited {
            frame_response(head, BodyLength::None, false);
            self.shared.mux.with(|codec| codec.send_interim(self.key, head.status, &head.headers));
        }
    }

    pub(crate) fn send_head(&mut self, head: &mut ResponseHead, length: BodyLength, date: &[u8]) {
        announce(self.shared.alternative.as_deref(), head);
        self.form.bodiless = frame_final(head, length, self.form).is_empty();
        self.respond(head.status, &head.headers, date, length);
    }

    fn respond(&mut self, status: u16, headers: &Headers, date: &[u8], length: BodyLength) {
        if self.answer != ResponseProgress::Awaited {
            return;
        }
        self.answer = ResponseProgress::Begun;
        self.sent.head_bytes = field_bytes(headers);
        let bodiless = self.form.bodiless;
        self.shared.mux.with(|codec| codec.send_answer(self.key, status, headers, date, length, bodiless));
    }

    pub(crate) fn has_room(&self) -> bool {
        self.answer != ResponseProgress::Begun || self.shared.mux.look(|codec| codec.has_room(self.key))
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if self.form.bodiless || self.answer != ResponseProgress::Begun {
            return;
        }
        if let Frame::Data(data) = &frame {
            self.sent.body_bytes += data.len() as u64;
        }
        self.shared.mux.with(|codec| codec.queue(self.key, frame));
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        match self.answer {
            ResponseProgress::Awaited => return Poll::Ready(Ok(())),
            ResponseProgress::Lost => return Poll::Ready(Err(client_gone())),
            ResponseProgress::Begun => {}
        }
        let mux = &self.shared.mux;
        let flushed = mux.with(|codec| {
            codec.flush(self.key);
            codec.fate(self.key).map_or_else(|| Ok(codec.is_flushed(self.key)), |fate| Err(cut(fate)))
        });
        match flushed {
            Ok(false) => {
                mux.wait(self.key, cx);
                Poll::Pending
            }
            Ok(true) => Poll::Ready(Ok(())),
            Err(fault) => Poll::Ready(Err(fault)),
        }
    }

    pub(crate) fn upgrade(&mut self) {
        self.tunnel = Tunnel::Open;
    }

    pub(crate) fn abort(&mut self) {
        self.shared.mux.with(|codec| codec.reset(self.key, ErrorCode::INTERNAL_ERROR));
        self.answer = ResponseProgress::Lost;
    }

    pub(crate) fn hold(&mut self, bytes: usize) {
        if bytes != self.bodies_held {
            self.bodies_held = bytes;
            self.shared.mux.with(|codec| codec.hold(self.key, bytes));
        }
    }

    pub(crate) fn limit_body(&mut self, bytes: u64) {
        self.request.limit_body(bytes);
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.sent.head_bytes + self.shared.mux.look(|codec| codec.taken(self.key))
    }

    /// Counts heads before compression: their compressed size depends on all earlier heads.
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
        self.shared.mux.release(self.key);
    }
}

/// Returns the fault of a response whose stream ended early.
fn cut(fate: Fate) -> Fault {
    fate.broken().filter(|fault| fault.side() == Side::Gateway).unwrap_or_else(client_gone)
}
