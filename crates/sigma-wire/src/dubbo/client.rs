//! A connection to a provider.

use std::task::{Context, Poll, ready};

use sigma_http::dubbo::{Call, DubboRequest, DubboResponse, Form, Frames, Piece, Unfit, read_answer};
use sigma_http::h1::{self, HeadLimits, Output};
use sigma_http::{
    BodyLength, CarriedBytes, Chunk, Fault, FaultKind, Frame, HeaderId, Method, RequestHead, ResponseHead,
};
use sigma_net::{Deadline, Stream};

use crate::complaints;
use crate::h1::flush;
use crate::rest::Rest;
use crate::rules::bad_response;

/// The limit of reads without a response in one poll, before other tasks run.
const READS_MAX: u32 = 16;

/// A connection to a provider, with at most one call on it.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    /// The name of the provider in logs.
    node: Box<str>,
    input: Chunk,
    output: Output,
    /// The call of the next request.
    described: Option<Call>,
    /// The form of the current call.
    form: Form,
    /// The call, until the whole request body has arrived.
    question: Option<DubboRequest>,
    /// The part of the call's frame that is not queued yet.
    wire: Vec<u8>,
    queued: usize,
    /// Replies to heartbeats, which wait for the end of the frame.
    replies: Vec<u8>,
    /// The reason why the request cannot be sent.
    unfit: Option<Fault>,
    /// The whole call is ready to be sent.
    asked: bool,
    /// The client waits for `100 Continue`, which providers never send.
    leave_awaited: bool,
    frames: Option<Frames>,
    /// The response before its head is read: its status and values.
    answered: Option<(u8, Vec<u8>)>,
    body: Vec<u8>,
    given: usize,
    length: BodyLength,
    /// The provider accepts no further calls.
    leaving: bool,
    pub(crate) deadline: Deadline,
    requests: u32,
    /// Bytes written before the current request.
    sent_before: u64,
    /// Bytes of the current response.
    received: u64,
}

impl Client {
    /// Returns a new connection to the provider, named `node` in logs.
    pub fn new(stream: Stream, deadline: Deadline, node: &str) -> Client {
        Client {
            stream,
            node: node.into(),
            input: Chunk::empty(),
            output: Output::default(),
            described: None,
            form: Form::Map,
            question: None,
            wire: Vec::new(),
            queued: 0,
            replies: Vec::new(),
            unfit: None,
            asked: false,
            leave_awaited: false,
            frames: None,
            answered: None,
            body: Vec::new(),
            given: 0,
            length: BodyLength::None,
            leaving: false,
            deadline,
            requests: 0,
            sent_before: 0,
            received: 0,
        }
    }

    /// See [`crate::Connection::describe`].
    pub(crate) fn describe(&mut self, call: Call) {
        self.described = Some(call);
    }

    pub(crate) fn send_head(&mut self, head: &mut RequestHead, length: BodyLength) {
        self.requests += 1;
        self.sent_before = self.output.total();
        self.received = 0;
        (self.wire, self.queued, self.body, self.given) = (Vec::new(), 0, Vec::new(), 0);
        (self.unfit, self.answered, self.question, self.asked) = (None, None, None, false);
        h1::frame_request(&mut head.headers, length);
        self.leave_awaited = head.headers.has(HeaderId::Expect);
        head.headers.remove(HeaderId::Expect);
        let Some(call) = self.described.take() else {
            self.unfit = Some(Fault::new(FaultKind::Internal, "the request has no Dubbo call"));
            return;
        };
        self.frames = Some(call.frames(self.requests.into()));
        self.form = call.form.clone();
        if let BodyLength::Known(bytes) = length
            && bytes > call.body_bytes_max as u64
        {
            self.unfit = Some(unfit(Unfit::TooLarge));
            return;
        }
        // The body gets a length in the end, and connection framing is not forwarded.
        head.headers.remove(HeaderId::TransferEncoding);
        self.question = Some(DubboRequest::begin(call, &head.headers));
        if length.is_empty() {
            self.ask();
        }
    }

    /// Handles the end of the body.
    fn ask(&mut self) {
        let Some(question) = self.question.take() else { return };
        match question.end(self.requests.into()) {
            Ok(wire) => {
                (self.wire, self.asked) = (wire, true);
                self.push();
            }
            Err(reason) => self.unfit = Some(unfit(reason)),
        }
    }

    /// Queues as much of the frame as there is room for, and then the delayed replies.
    fn push(&mut self) {
        while self.output.has_room() {
            match Chunk::next_of(&self.wire, &mut self.queued) {
                Some(piece) => self.output.push(Frame::Data(piece)),
                None => break,
            }
        }
        if self.queued == self.wire.len() {
            (self.wire, self.queued) = (Vec::new(), 0);
            if !self.replies.is_empty() && self.output.has_room() {
                self.output.front().append(&mut self.replies);
            }
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.unfit.is_none()
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        match (frame, &mut self.question) {
            (_, None) => {}
            (Frame::Data(data), Some(question)) => {
                if let Err(reason) = question.body(&data) {
                    self.unfit = Some(unfit(reason));
                    self.question = None;
                }
            }
            (Frame::End | Frame::Trailers(_), Some(_)) => self.ask(),
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.unfit {
            return Poll::Ready(Err(fault));
        }
        loop {
            if ready!(flush(&mut self.stream, &mut self.output, cx)).is_err() {
                return Poll::Ready(Err(terminated()));
            }
            if self.wire.is_empty() && self.replies.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.push();
        }
    }

    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.unfit {
            return Poll::Ready(Err(fault));
        }
        if std::mem::take(&mut self.leave_awaited) && !self.asked {
            head.start(100);
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_answer(cx))?;
        let (status, values) = self.answered.take().unwrap_or_default();
        let said = read_answer(&self.form, status, &values, limits, head).map_err(bad_response)?;
        let DubboResponse { body, complaint } = said;
        if let Some(complaint) = complaint {
            complaints::log("a provider", &self.node, &complaint);
        }
        if method == Method::Head || matches!(head.status, 204 | 304) {
            self.length = BodyLength::None;
        } else {
            self.length = BodyLength::Known(body.len() as u64);
            self.body = body;
        }
        Poll::Ready(Ok(()))
    }

    /// See [`crate::Connection::poll_answer`]: the response is available only as a whole.
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.unfit {
            return Poll::Ready(Err(fault));
        }
        for _ in 0..READS_MAX {
            if self.answered.is_some() {
                if !self.replies.is_empty() {
                    // If they are not sent at once, the connection is not reused.
                    let _ = self.poll_flush(cx);
                }
                return Poll::Ready(Ok(()));
            }
            match self.next_piece() {
                Ok(None) => {}
                Ok(Some(Piece::Answer { status, body })) => {
                    self.answered = Some((status, body));
                    continue;
                }
                Ok(Some(Piece::Leaving)) => {
                    self.leaving = true;
                    continue;
                }
                Ok(Some(Piece::Heartbeat(reply))) => {
                    self.replies.extend_from_slice(&reply);
                    continue;
                }
                Err(reason) => return Poll::Ready(Err(bad_response(reason))),
            }
            if !self.replies.is_empty()
                && let Poll::Ready(Err(fault)) = self.poll_flush(cx)
            {
                return Poll::Ready(Err(fault));
            }
            match ready!(self.stream.poll_fill(cx, &mut self.input)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(terminated())),
                Ok(n) => self.received += n as u64,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn next_piece(&mut self) -> Result<Option<Piece>, &'static str> {
        match &mut self.frames {
            Some(frames) => frames.next(&mut self.input),
            None => Ok(None),
        }
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.length
    }

    pub(crate) fn poll_frame(&mut self) -> Poll<Result<Frame, Fault>> {
        let piece = Chunk::next_of(&self.body, &mut self.given);
        Poll::Ready(Ok(piece.map_or_else(
            || {
                self.body = Vec::new();
                Frame::End
            },
            Frame::Data,
        )))
    }

    /// See [`crate::Connection::poll_rest`]: a response is read whole before its head.
    pub(crate) fn take_rest(&mut self) -> Rest {
        Rest::collect(|| match self.poll_frame() {
            Poll::Ready(frame) => frame.ok(),
            Poll::Pending => None,
        })
    }

    pub(crate) fn may_be_stale(&self) -> bool {
        self.requests > 1 && self.received == 0
    }

    /// See [`crate::Connection::carried`].
    pub(crate) fn carried(&self) -> CarriedBytes {
        CarriedBytes { sent: self.output.total() - self.sent_before, received: self.received }
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.output.total()
    }

    pub(crate) fn is_unsent(&self) -> bool {
        // As with HTTP/1: queued bytes do not count.
        self.output.total() == self.sent_before
    }

    pub(crate) fn is_reusable(&self, requests_max: u32) -> bool {
        self.asked
            && !self.leaving
            && self.frames.as_ref().is_some_and(Frames::is_over)
            && self.answered.is_none()
            && self.input.is_empty()
            && self.wire.is_empty()
            && self.replies.is_empty()
            && self.output.is_empty()
            && self.requests < requests_max
    }

    pub(crate) fn is_quiet(&mut self) -> bool {
        self.stream.is_quiet()
    }
}

fn unfit(reason: Unfit) -> Fault {
    match reason {
        Unfit::TooLarge => {
            Fault::new(FaultKind::RequestBodyTooLarge, "the body exceeds the limit of a Dubbo call")
        }
        Unfit::Unsayable(reason) => Fault::new(FaultKind::Untranslatable, reason),
    }
}

fn terminated() -> Fault {
    Fault::new(
        FaultKind::ConnectionTerminated,
        "the Dubbo provider closed the connection before its response",
    )
}
