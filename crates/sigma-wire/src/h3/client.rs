//! One exchange on a shared connection.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_buffer::held::Account;
use sigma_http::h1::frame_request;
use sigma_http::h3::{ErrorCode, Event, Message, RequestLine, recycle_response};
use sigma_http::{BodyLength, CarriedBytes, Fault, FaultKind, Frame, Method, RequestHead, ResponseHead};
use sigma_net::Deadline;
use sigma_net::quic::ConnectionLost;

use super::body::{Cut, Receiving};
use super::common::Running;
use super::sending::{Sending, Unwanted};
use super::shared::{SharedConnection, Stream};
use crate::h2::Reused;
use crate::rest::Rest;
use crate::rules::{self, bad_response, field_bytes, sendable, terminated};

/// Bytes of a response that are read ahead of the client.
const AHEAD_BYTES: usize = 64 * 1024;

/// The scheme of all requests: QUIC is always encrypted.
const SCHEME: &[u8] = b"https";

/// The two halves of an open stream.
#[derive(Debug)]
struct Halves {
    running: Rc<Running>,
    sending: Sending,
    receiving: Receiving,
}

/// A stream to a node, from the request's head to the response's end.
#[derive(Debug)]
pub struct ClientStream {
    connection: Rc<SharedConnection>,
    pub(crate) deadline: Deadline,
    reused: Reused,
    /// The stream of the request, until its head is queued.
    stream: Option<Stream>,
    /// None until the request head is queued.
    halves: Option<Halves>,
    response: StreamResponse,
    /// Bytes of the head, to measure progress.
    head_bytes: u64,
    /// The bytes received on the connection before the request.
    read_before: u64,
    /// The node reports that it did not process the request.
    unprocessed: bool,
    /// The reason why the request failed.
    failed: Option<Fault>,
}

/// The received part of the response.
#[derive(Debug)]
struct StreamResponse {
    length: BodyLength,
    interims: u8,
    /// A head was taken.
    answered: bool,
    /// A head that was read and not taken.
    head: Option<ResponseHead>,
    /// Frames that were read and not taken.
    ahead: VecDeque<Frame>,
    /// Bytes of the heads and the body.
    received: u64,
}

impl StreamResponse {
    fn new() -> StreamResponse {
        StreamResponse {
            length: BodyLength::None,
            interims: 0,
            answered: false,
            head: None,
            ahead: VecDeque::new(),
            received: 0,
        }
    }

    /// Moves the head that was read into `head`.
    fn take_head(&mut self, head: &mut ResponseHead) -> Result<(), Fault> {
        let received = self.head.take().ok_or_else(terminated)?;
        recycle_response(std::mem::replace(head, received));
        self.answered = true;
        self.received += field_bytes(&head.headers);
        Ok(())
    }

    fn count(&mut self, frame: &Frame) {
        self.received += match frame {
            Frame::Data(data) => data.len() as u64,
            Frame::Trailers(fields) => field_bytes(fields),
            Frame::End => 0,
        };
    }
}

impl ClientStream {
    /// Takes a place on a connection. `reused`: it may have become stale since its last exchange.
    pub(crate) fn new(connection: Rc<SharedConnection>, reused: Reused) -> ClientStream {
        let stream = connection.enter();
        let read_before = connection.common.connection.bytes_received();
        ClientStream {
            connection,
            deadline: Deadline::new(),
            reused,
            stream,
            halves: None,
            response: StreamResponse::new(),
            head_bytes: 0,
            read_before,
            unprocessed: false,
            failed: None,
        }
    }

    pub(crate) fn send_head(
        &mut self,
        head: &mut RequestHead,
        rewritten: Option<&[u8]>,
        length: BodyLength,
        upgrade: Option<&[u8]>,
    ) {
        if upgrade.is_some() {
            // Callers that need an upgrade dial a version that supports it.
            self.failed = Some(Fault::new(FaultKind::Internal, "HTTP/3 has no Upgrade field"));
            return;
        }
        let Some((send, recv)) = self.stream.take().filter(|_| !self.connection.is_retired()) else {
            // No byte was sent: the connection had ended, or was full.
            self.unprocessed = true;
            self.failed = Some(terminated());
            return;
        };
        frame_request(&mut head.headers, length);
        self.head_bytes = field_bytes(&head.headers);
        let target = sendable(rewritten.unwrap_or_else(|| head.path_and_query()));
        let line = RequestLine { scheme: SCHEME, target: &target };
        // A client opens the bidirectional streams: each fourth number.
        let id = send.id().index() * 4;
        let common = &self.connection.common;
        let mut sending = Sending::new(id, send);
        sending.head(|out| common.with(|codec| codec.put_request(id, head, line, out)));
        common.with(|codec| codec.note_sent(0, 1));
        sending.begin_body(length, length.is_empty());
        let running = common.begin(id, Account::lasting());
        if common.active() == 1 {
            // It watches for silence from now on.
            common.wake_driver();
        }
        let message = Message::new(id, head.method == Method::Head);
        self.halves = Some(Halves { running, sending, receiving: Receiving::new(message, recv) });
    }

    pub(crate) fn has_room(&self) -> bool {
        self.halves.as_ref().is_none_or(|halves| halves.sending.has_room())
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if let Some(halves) = &mut self.halves {
            halves.sending.queue(frame);
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.check(cx) {
            return Poll::Ready(Err(fault));
        }
        let Some(halves) = &mut self.halves else { return Poll::Ready(Ok(())) };
        match halves.sending.poll_flush(cx, &self.connection.common) {
            Poll::Ready(Err(Unwanted::Stopped)) => {
                // RFC 9114 §4.1: the response does not need the rest of the request.
                halves.sending.discard();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(Unwanted::Lost)) => Poll::Ready(Err(self.fail(Cut::Lost))),
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns the fault of a request that has failed.
    fn check(&mut self, cx: &Context<'_>) -> Option<Fault> {
        if let Some(halves) = &self.halves
            && self.failed.is_none()
        {
            halves.running.wait(cx);
            if halves.running.is_excluded.get() && !self.response.answered {
                self.unprocessed = true;
                self.failed = Some(terminated());
            }
        }
        self.failed
    }

    /// Returns the next response head. The limits of the connection apply to it.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        match self.poll_answer(cx) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
        Poll::Ready(self.response.take_head(head).and_then(|()| self.accept_head(method, head)))
    }

    /// See [`crate::Connection::poll_answer`].
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if self.response.head.is_some() {
            return Poll::Ready(Ok(()));
        }
        if let Some(fault) = self.check(cx) {
            return Poll::Ready(Err(fault));
        }
        let Some(halves) = &mut self.halves else { return Poll::Ready(Err(terminated())) };
        let common = &self.connection.common;
        match halves.receiving.fill_first(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(cut)) => return Poll::Ready(Err(self.fail(cut))),
            Poll::Pending => return Poll::Pending,
        }
        match halves.receiving.poll_event(cx, common) {
            Poll::Ready(Ok(Event::Response(head))) => {
                self.response.head = Some(head);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(_)) => Poll::Ready(Err(bad_response("a response without a header block"))),
            Poll::Ready(Err(cut)) => Poll::Ready(Err(self.fail(cut))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn accept_head(&mut self, method: Method, head: &ResponseHead) -> Result<(), Fault> {
        if head.is_interim() {
            return rules::count_interim(&mut self.response.interims);
        }
        let declared = sigma_http::h1::response_body(head, method).map_err(bad_response)?;
        let is_complete = self.halves.as_ref().is_some_and(|halves| halves.receiving.is_complete());
        self.response.length = match declared {
            // Without a length and without a body: a version that needs a length gets 0.
            BodyLength::UntilClose if is_complete => BodyLength::Known(0),
            BodyLength::UntilClose => BodyLength::Streamed,
            length => length,
        };
        Ok(())
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.response.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        if let Some(frame) = self.response.ahead.pop_front() {
            return Poll::Ready(Ok(frame));
        }
        let Some(halves) = &mut self.halves else { return Poll::Ready(Err(terminated())) };
        match halves.receiving.poll_frame(cx, &self.connection.common) {
            Poll::Ready(Ok(frame)) => {
                self.response.count(&frame);
                Poll::Ready(Ok(frame))
            }
            Poll::Ready(Err(cut)) => {
                tracing::debug!(?cut, "a node ended its response early");
                Poll::Ready(Err(match cut {
                    Cut::Broken(broken) => bad_response(broken.reason),
                    Cut::Reset(_) | Cut::Lost => {
                        Fault::new(FaultKind::ResponseIncomplete, "the node ended its response early")
                    }
                }))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// See [`crate::Connection::poll_rest`].
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Rest> {
        let memory = |frame: &Frame| if let Frame::Data(data) = frame { data.memory() } else { 0 };
        let mut held: usize = self.response.ahead.iter().map(memory).sum();
        let is_last = |frame: &Frame| !matches!(frame, Frame::Data(_));
        while !self.response.ahead.back().is_some_and(is_last) {
            if held >= AHEAD_BYTES {
                return Poll::Pending;
            }
            // A frame that was read ahead is the first to be taken later.
            let mut ahead = std::mem::take(&mut self.response.ahead);
            let next = self.poll_frame(cx);
            match next {
                Poll::Ready(Ok(frame)) => {
                    held += memory(&frame);
                    ahead.push_back(frame);
                    self.response.ahead = ahead;
                }
                Poll::Ready(Err(_)) | Poll::Pending => {
                    // A fault is seen again by the next read.
                    self.response.ahead = ahead;
                    return Poll::Pending;
                }
            }
        }
        let mut frames = std::mem::take(&mut self.response.ahead);
        Poll::Ready(Rest::collect(|| frames.pop_front()))
    }

    pub(crate) fn may_be_stale(&self) -> bool {
        self.reused == Reused::Yes && !self.response.answered
    }

    pub(crate) fn is_unsent(&self) -> bool {
        self.unprocessed
    }

    /// See [`crate::Connection::carried`].
    pub(crate) fn carried(&self) -> CarriedBytes {
        CarriedBytes { sent: self.bytes_written(), received: self.response.received }
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.head_bytes + self.halves.as_ref().map_or(0, |halves| halves.sending.taken())
    }

    /// Returns the fault for a stream that ended before the response. RFC 9114 §4.1.1: a request that the node
    /// rejected was not processed at all.
    fn fail(&mut self, cut: Cut) -> Fault {
        tracing::debug!(?cut, "a request to a node failed");
        let lost = self.connection.common.connection.lost();
        if lost.is_some() {
            self.connection.read_last_frames();
            let is_excluded = self.halves.as_ref().is_some_and(|halves| halves.running.is_excluded.get());
            self.unprocessed |= is_excluded && !self.response.answered;
        }
        let fault = match (cut, lost) {
            (Cut::Broken(broken), _) if broken.code == ErrorCode::EXCESSIVE_LOAD => {
                Fault::new(FaultKind::ResponseHeadTooLarge, broken.reason)
            }
            (Cut::Broken(broken), _) => bad_response(broken.reason),
            (Cut::Reset(ErrorCode::REQUEST_REJECTED), _) => {
                self.unprocessed = true;
                terminated()
            }
            (_, Some(ConnectionLost::Local(code))) if code != ErrorCode::NO_ERROR.0 => {
                bad_response("the node violates the HTTP/3 protocol")
            }
            _ => terminated(),
        };
        self.failed = Some(fault);
        fault
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        let common = &self.connection.common;
        if let Some(halves) = &mut self.halves {
            halves.receiving.stop(common, ErrorCode::REQUEST_CANCELLED);
            if !halves.sending.is_complete() {
                halves.sending.reset(ErrorCode::REQUEST_CANCELLED);
            }
            common.end(&halves.running);
        }
        if let Some(stream) = self.stream.take() {
            self.connection.keep(stream);
        }
        // A connection without a received byte during the whole wait may be dead; later requests get a new one.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let timed_out = !self.response.answered && self.deadline.poll_expired(&mut cx).is_ready();
        if timed_out && common.connection.bytes_received() == self.read_before {
            self.connection.retire();
        }
        self.connection.leave();
    }
}
