//! One exchange on a shared connection.

use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_http::h1::frame_request;
use sigma_http::h2::{Arrival, Codec, ErrorCode, Fate, RequestLine, StreamKey, recycle_response};
use sigma_http::{BodyLength, CarriedBytes, Fault, FaultKind, Frame, Method, RequestHead, ResponseHead};
use sigma_net::Deadline;

use super::shared::{Reused, SharedConnection};
use crate::rest::Rest;
use crate::rules::{self, bad_response, field_bytes, sendable, terminated};

/// A stream to a node, from the request's head to the response's end.
#[derive(Debug)]
pub struct ClientStream {
    connection: Rc<SharedConnection>,
    pub(crate) deadline: Deadline,
    reused: Reused,
    /// None until the request head is sent.
    key: Option<StreamKey>,
    length: BodyLength,
    interims: u8,
    /// Bytes of the head, to measure progress.
    head_bytes: u64,
    /// Bytes of the response's heads and body.
    received: u64,
    /// The read counter of the connection when the request was sent.
    read_before: u64,
    answered: bool,
    /// The node reports that it did not process the request.
    unprocessed: bool,
    /// The reason why the request could not be sent.
    refused: Option<Fault>,
}

impl ClientStream {
    /// Takes a stream on a connection. `reused`: it may have become stale since its last exchange.
    pub(crate) fn new(connection: Rc<SharedConnection>, reused: Reused) -> ClientStream {
        connection.enter();
        let read_before = connection.mux().read();
        ClientStream {
            connection,
            deadline: Deadline::new(),
            reused,
            key: None,
            length: BodyLength::None,
            interims: 0,
            head_bytes: 0,
            received: 0,
            read_before,
            answered: false,
            unprocessed: false,
            refused: None,
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
            self.refused = Some(Fault::new(FaultKind::Internal, "HTTP/2 has no Upgrade field"));
            return;
        }
        frame_request(&mut head.headers, length);
        self.head_bytes = field_bytes(&head.headers);
        let target = sendable(rewritten.unwrap_or_else(|| head.path_and_query()));
        let line = RequestLine { scheme: self.connection.scheme(), target: &target };
        self.key = self.connection.mux().with(|codec| codec.open(head, line, length));
        if self.key.is_none() {
            // No byte was sent: the connection had ended, or was full.
            self.unprocessed = true;
            self.refused = Some(terminated());
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.key.is_none_or(|key| self.connection.mux().look(|codec| codec.has_room(key)))
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if let Some(key) = self.key {
            self.connection.mux().with(|codec| codec.queue(key, frame));
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.refused {
            return Poll::Ready(Err(fault));
        }
        let Some(key) = self.key else { return Poll::Ready(Ok(())) };
        let mux = self.connection.mux();
        let (flushed, fate) = mux.with(|codec| {
            codec.flush(key);
            (codec.is_flushed(key), codec.fate(key))
        });
        match (flushed, fate) {
            (_, Some(fate)) => Poll::Ready(Err(self.fault(fate))),
            (true, None) => Poll::Ready(Ok(())),
            (false, None) => {
                mux.wait(key, cx);
                Poll::Pending
            }
        }
    }

    /// Returns the next response head. The limits of the connection apply to it.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.refused {
            return Poll::Ready(Err(fault));
        }
        let Some(key) = self.key else { return Poll::Ready(Err(terminated())) };
        match self.connection.mux().with(|codec| codec.take_head(key)) {
            Ok(Some(received)) => {
                recycle_response(std::mem::replace(head, received));
                self.answered = true;
                self.received += field_bytes(&head.headers);
                Poll::Ready(self.accept_head(key, method, head))
            }
            Ok(None) => {
                self.connection.mux().wait(key, cx);
                Poll::Pending
            }
            Err(fate) => Poll::Ready(Err(self.fault(fate))),
        }
    }

    /// See [`crate::Connection::poll_answer`].
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.refused {
            return Poll::Ready(Err(fault));
        }
        let Some(key) = self.key else { return Poll::Ready(Err(terminated())) };
        let mux = self.connection.mux();
        match mux.look(|codec| (codec.has_head(key), codec.fate(key))) {
            (_, Some(fate)) => Poll::Ready(Err(self.fault(fate))),
            (true, None) => Poll::Ready(Ok(())),
            (false, None) => {
                mux.wait(key, cx);
                Poll::Pending
            }
        }
    }

    fn accept_head(&mut self, key: StreamKey, method: Method, head: &ResponseHead) -> Result<(), Fault> {
        if head.is_interim() {
            return rules::count_interim(&mut self.interims);
        }
        let declared = sigma_http::h1::response_body(head, method).map_err(bad_response)?;
        self.length = match declared {
            // Without a length and without a body: a version that needs a length gets 0.
            BodyLength::UntilClose if self.is_input_complete(key) => BodyLength::Known(0),
            BodyLength::UntilClose => BodyLength::Streamed,
            length => length,
        };
        Ok(())
    }

    fn is_input_complete(&self, key: StreamKey) -> bool {
        self.connection.mux().look(|codec| codec.is_input_complete(key))
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        let Some(key) = self.key else { return Poll::Ready(Err(terminated())) };
        match self.connection.mux().with(|codec| codec.take_frame(key)) {
            Arrival::Frame(frame) => {
                self.received += match &frame {
                    Frame::Data(data) => data.len() as u64,
                    Frame::Trailers(fields) => field_bytes(fields),
                    _ => 0,
                };
                Poll::Ready(Ok(frame))
            }
            Arrival::Cut(fate) => {
                tracing::debug!(?fate, "a node ended its response early");
                let cut = Fault::new(FaultKind::ResponseIncomplete, "the node ended its response early");
                Poll::Ready(Err(fate.broken().unwrap_or(cut)))
            }
            Arrival::Nothing => {
                self.connection.mux().wait(key, cx);
                Poll::Pending
            }
        }
    }

    /// See [`crate::Connection::poll_rest`].
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Rest> {
        let Some(key) = self.key else { return Poll::Pending };
        if !self.connection.mux().look(|codec| codec.has_come_whole(key)) {
            self.connection.mux().wait(key, cx);
            return Poll::Pending;
        }
        Poll::Ready(Rest::collect(|| match self.poll_frame(cx) {
            Poll::Ready(frame) => frame.ok(),
            Poll::Pending => None,
        }))
    }

    pub(crate) fn may_be_stale(&self) -> bool {
        self.reused == Reused::Yes && !self.answered
    }

    pub(crate) fn is_unsent(&self) -> bool {
        self.unprocessed
    }

    /// See [`crate::Connection::carried`].
    pub(crate) fn carried(&self) -> CarriedBytes {
        CarriedBytes { sent: self.bytes_written(), received: self.received }
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.head_bytes + self.key.map_or(0, |key| self.connection.mux().look(|codec| codec.taken(key)))
    }

    /// Returns the fault for a stream that ended before the response. RFC 9113 §8.7: a stream that the node refused,
    /// or beyond the last one of its GOAWAY, was not processed at all.
    fn fault(&mut self, fate: Fate) -> Fault {
        tracing::debug!(?fate, "a request to a node failed");
        match fate {
            Fate::Broken(fault) => return fault,
            Fate::Unprocessed => self.unprocessed = true,
            Fate::Reset(_) | Fate::Cancelled | Fate::Lost => {}
        }
        match self.connection.mux().look(Codec::failure) {
            Some((code, _)) if code != ErrorCode::NO_ERROR => {
                bad_response("the node violates the HTTP/2 protocol")
            }
            _ => terminated(),
        }
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.connection.mux().release(key);
        }
        self.connection.leave();
        // A connection without a received byte during the whole wait may be dead; later requests get a new one.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let timed_out = !self.answered && self.deadline.poll_expired(&mut cx).is_ready();
        if timed_out && self.connection.mux().read() == self.read_before {
            self.connection.retire();
        }
    }
}
