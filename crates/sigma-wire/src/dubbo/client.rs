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
use crate::traffic::RequestTraffic;

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
    call: CurrentCall,
    /// Replies to heartbeats, which wait for the end of the frame.
    replies: Vec<u8>,
    frames: Option<Frames>,
    response: CallResponse,
    /// The provider accepts no further calls.
    leaving: bool,
    pub(crate) deadline: Deadline,
    traffic: RequestTraffic,
}

/// The call of the current request.
#[derive(Debug)]
struct CurrentCall {
    form: Form,
    /// The call, until the whole request body has arrived.
    question: Option<DubboRequest>,
    /// The frame of the call.
    frame: PieceQueue,
    /// The reason why the request cannot be sent.
    unfit: Option<Fault>,
    /// The whole call is ready to be sent.
    asked: bool,
    /// The client waits for `100 Continue`, which providers never send.
    leave_awaited: bool,
}

impl CurrentCall {
    fn new(form: Form, leave_awaited: bool) -> CurrentCall {
        CurrentCall {
            form,
            question: None,
            frame: PieceQueue::default(),
            unfit: None,
            asked: false,
            leave_awaited,
        }
    }

    /// Handles the end of the body of the request with this number.
    fn end(&mut self, number: u64) {
        match self.question.take().map(|question| question.end(number)) {
            Some(Ok(frame)) => {
                self.frame = PieceQueue::new(frame);
                self.asked = true;
            }
            Some(Err(reason)) => self.unfit = Some(unfit(reason)),
            None => {}
        }
    }
}

/// The response to the current call.
#[derive(Debug)]
struct CallResponse {
    /// Its status and values, before its head is read.
    answered: Option<(u8, Vec<u8>)>,
    body: PieceQueue,
    length: BodyLength,
}

impl CallResponse {
    fn new() -> CallResponse {
        CallResponse { answered: None, body: PieceQueue::default(), length: BodyLength::None }
    }
}

/// Bytes that are taken in pieces.
#[derive(Debug, Default)]
struct PieceQueue {
    bytes: Vec<u8>,
    taken: usize,
}

impl PieceQueue {
    fn new(bytes: Vec<u8>) -> PieceQueue {
        PieceQueue { bytes, taken: 0 }
    }

    /// Returns the next piece. The memory of the bytes is free after the last one.
    fn next(&mut self) -> Option<Chunk> {
        let piece = Chunk::next_of(&self.bytes, &mut self.taken);
        if piece.is_none() {
            *self = PieceQueue::default();
        }
        piece
    }

    fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
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
            call: CurrentCall::new(Form::Map, false),
            replies: Vec::new(),
            frames: None,
            response: CallResponse::new(),
            leaving: false,
            deadline,
            traffic: RequestTraffic::default(),
        }
    }

    /// See [`crate::Connection::describe`].
    pub(crate) fn describe(&mut self, call: Call) {
        self.described = Some(call);
    }

    pub(crate) fn send_head(&mut self, head: &mut RequestHead, length: BodyLength) {
        self.traffic.begin(self.output.total());
        self.response = CallResponse::new();
        h1::frame_request(&mut head.headers, length);
        let leave_awaited = head.headers.has(HeaderId::Expect);
        head.headers.remove(HeaderId::Expect);
        let Some(call) = self.described.take() else {
            self.call = CurrentCall::new(Form::Map, leave_awaited);
            self.call.unfit = Some(Fault::new(FaultKind::Internal, "the request has no Dubbo call"));
            return;
        };
        self.frames = Some(call.frames(self.traffic.requests.into()));
        self.call = CurrentCall::new(call.form.clone(), leave_awaited);
        if let BodyLength::Known(bytes) = length
            && bytes > call.body_bytes_max as u64
        {
            self.call.unfit = Some(unfit(Unfit::TooLarge));
            return;
        }
        // The body gets a length in the end, and connection framing is not forwarded.
        head.headers.remove(HeaderId::TransferEncoding);
        self.call.question = Some(DubboRequest::begin(call, &head.headers));
        if length.is_empty() {
            self.ask();
        }
    }

    /// Handles the end of the body.
    fn ask(&mut self) {
        self.call.end(self.traffic.requests.into());
        if self.call.asked {
            self.push();
        }
    }

    /// Queues as much of the frame as there is room for, and then the delayed replies.
    fn push(&mut self) {
        while self.output.has_room() {
            match self.call.frame.next() {
                Some(piece) => self.output.push(Frame::Data(piece)),
                None => break,
            }
        }
        if self.call.frame.is_empty() && !self.replies.is_empty() && self.output.has_room() {
            self.output.front().append(&mut self.replies);
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.call.unfit.is_none()
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        match (frame, &mut self.call.question) {
            (_, None) => {}
            (Frame::Data(data), Some(question)) => {
                if let Err(reason) = question.body(&data) {
                    self.call.unfit = Some(unfit(reason));
                    self.call.question = None;
                }
            }
            (Frame::End | Frame::Trailers(_), Some(_)) => self.ask(),
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.call.unfit {
            return Poll::Ready(Err(fault));
        }
        loop {
            if ready!(flush(&mut self.stream, &mut self.output, cx)).is_err() {
                return Poll::Ready(Err(terminated()));
            }
            if self.call.frame.is_empty() && self.replies.is_empty() {
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
        if let Some(fault) = self.call.unfit {
            return Poll::Ready(Err(fault));
        }
        if std::mem::take(&mut self.call.leave_awaited) && !self.call.asked {
            head.start(100);
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_answer(cx))?;
        let (status, values) = self.response.answered.take().unwrap_or_default();
        let said = read_answer(&self.call.form, status, &values, limits, head).map_err(bad_response)?;
        let DubboResponse { body, complaint } = said;
        if let Some(complaint) = complaint {
            complaints::log("a provider", &self.node, &complaint);
        }
        if method == Method::Head || matches!(head.status, 204 | 304) {
            self.response.length = BodyLength::None;
        } else {
            self.response.length = BodyLength::Known(body.len() as u64);
            self.response.body = PieceQueue::new(body);
        }
        Poll::Ready(Ok(()))
    }

    /// See [`crate::Connection::poll_answer`]: the response is available only as a whole.
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.call.unfit {
            return Poll::Ready(Err(fault));
        }
        for _ in 0..READS_MAX {
            if self.response.answered.is_some() {
                if !self.replies.is_empty() {
                    // If they are not sent at once, the connection is not reused.
                    let _ = self.poll_flush(cx);
                }
                return Poll::Ready(Ok(()));
            }
            match self.next_piece() {
                Ok(None) => {}
                Ok(Some(Piece::Answer { status, body })) => {
                    self.response.answered = Some((status, body));
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
                Ok(n) => self.traffic.received += n as u64,
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
        self.response.length
    }

    pub(crate) fn poll_frame(&mut self) -> Poll<Result<Frame, Fault>> {
        Poll::Ready(Ok(self.response.body.next().map_or(Frame::End, Frame::Data)))
    }

    /// See [`crate::Connection::poll_rest`]: a response is read whole before its head.
    pub(crate) fn take_rest(&mut self) -> Rest {
        Rest::collect(|| match self.poll_frame() {
            Poll::Ready(frame) => frame.ok(),
            Poll::Pending => None,
        })
    }

    pub(crate) fn may_be_stale(&self) -> bool {
        self.traffic.is_reused() && self.traffic.received == 0
    }

    /// See [`crate::Connection::carried`].
    pub(crate) fn carried(&self) -> CarriedBytes {
        self.traffic.carried(self.output.total())
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.output.total()
    }

    pub(crate) fn is_unsent(&self) -> bool {
        // As with HTTP/1: queued bytes do not count.
        self.traffic.is_unsent(self.output.total())
    }

    pub(crate) fn is_reusable(&self, requests_max: u32) -> bool {
        self.call.asked
            && !self.leaving
            && self.frames.as_ref().is_some_and(Frames::is_over)
            && self.response.answered.is_none()
            && self.input.is_empty()
            && self.call.frame.is_empty()
            && self.replies.is_empty()
            && self.output.is_empty()
            && self.traffic.requests < requests_max
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
