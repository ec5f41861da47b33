//! The client's side of a subrequest by another exchange of this gateway.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_buffer::held::{self, CountedBytes};
use sigma_http::h1::frame_response;
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, HeaderId, Headers, ResponseHead};
use sigma_net::Deadline;

use crate::rules::{check_body, lower};

/// Sends a body from memory, and reads the response into memory, up to a limit and a time.
#[derive(Debug)]
pub struct Subrequest {
    pub(crate) deadline: Deadline,
    /// The method is HEAD.
    is_head: bool,
    body: Vec<u8>,
    /// The limit of the body in bytes; 0 for no limit.
    body_limit: u64,
    taken: usize,
    /// Both bodies, and the bodies that the exchange has in memory.
    held: CountedBytes,
    bodies_held: CountedBytes,
    /// The total timeout.
    patience: Deadline,
    /// The caller has left.
    abandoned: Rc<Cell<bool>>,
    received: Received,
    limit: usize,
    end: End,
}

/// A response in memory.
#[derive(Debug, Default)]
pub struct Received {
    /// The status; 0 without a response.
    pub status: u16,
    /// The fields, without connection fields.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// The trailers.
    pub trailers: Headers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// More follows.
    Open,
    Whole,
    Broken,
    TooLong,
    TooLate,
}

impl Subrequest {
    /// Returns a subrequest that sends `body`, reads at most `limit` bytes of the response body, and leaves after
    /// `timeout_ms`, or at the next poll after `abandoned` is set.
    pub fn new(
        is_head: bool,
        body: Vec<u8>,
        limit: usize,
        timeout_ms: u64,
        abandoned: Rc<Cell<bool>>,
    ) -> Subrequest {
        let patience = Deadline::new();
        patience.set(timeout_ms);
        let mut subrequest = Subrequest {
            deadline: Deadline::new(),
            is_head,
            body,
            body_limit: 0,
            taken: 0,
            held: CountedBytes::default(),
            bodies_held: CountedBytes::default(),
            patience,
            abandoned,
            received: Received::default(),
            limit,
            end: End::Open,
        };
        subrequest.count();
        subrequest
    }

    fn count(&mut self) {
        self.held.set(self.body.capacity() + self.received.body.capacity());
    }

    /// Returns the response.
    ///
    /// # Errors
    /// Returns an error message if the response is incomplete.
    pub fn into_received(self) -> Result<Received, &'static str> {
        match self.end {
            End::Whole => Ok(self.received),
            End::Open | End::Broken => Err("the response is incomplete"),
            End::TooLong => Err("the response exceeds its limit"),
            End::TooLate => Err("no response in time"),
        }
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        if self.body.is_empty() { BodyLength::None } else { BodyLength::Known(self.body.len() as u64) }
    }

    pub(crate) fn poll_frame(&mut self, _cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        check_body(self.body.len() as u64, self.body_limit)?;
        let piece = Chunk::next_of(&self.body, &mut self.taken);
        Poll::Ready(Ok(piece.map_or(Frame::End, Frame::Data)))
    }

    /// Ends like a client whose patience has ended.
    pub(crate) fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.abandoned.get() || self.end == End::TooLong {
            return Poll::Ready(());
        }
        self.patience.poll_expired(cx).map(|()| self.end = End::TooLate)
    }

    pub(crate) fn send_interim(&mut self, _head: &mut ResponseHead) {}

    pub(crate) fn send_head(&mut self, head: &mut ResponseHead, length: BodyLength, date: &[u8]) {
        let follows = frame_response(head, length, self.is_head);
        self.received.status = head.status;
        self.received.headers.copy_from(&head.headers);
        if !self.received.headers.has(HeaderId::Date) {
            self.received.headers.add(HeaderId::Date, date);
        }
        match follows {
            BodyLength::Known(n) if n > self.limit as u64 => self.end = End::TooLong,
            BodyLength::None => self.end = End::Whole,
            _ => {}
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        true
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if matches!(self.end, End::TooLong | End::Whole) {
            return;
        }
        match frame {
            Frame::Data(data)
                if self.received.body.len() + data.len() > self.limit || data.len() > held::room() =>
            {
                self.end = End::TooLong;
            }
            Frame::Data(data) => {
                self.received.body.extend_from_slice(&data);
                self.count();
            }
            Frame::Trailers(fields) => {
                self.received.trailers = *fields;
                self.end = End::Whole;
            }
            Frame::End => self.end = End::Whole,
        }
    }

    pub(crate) fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let gone = |reason| Poll::Ready(Err(Fault::new(FaultKind::ClientGone, reason)));
        match self.end {
            End::TooLong => gone("the response exceeds the caller's limit"),
            _ if self.abandoned.get() => gone("the caller has ended"),
            _ => Poll::Ready(Ok(())),
        }
    }

    pub(crate) fn upgrade(&mut self) {
        // A change of protocol is not a valid response to a subrequest.
        self.end = End::Broken;
    }

    pub(crate) fn abort(&mut self) {
        if self.end == End::Open || self.end == End::Whole {
            self.end = End::Broken;
        }
    }

    pub(crate) fn hold(&mut self, bytes: usize) {
        self.bodies_held.set(bytes);
    }

    /// Lowers the limit as for a client; see [`crate::Downstream::limit_body`].
    pub fn limit_body(&mut self, bytes: u64) {
        self.body_limit = lower(self.body_limit, bytes);
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.received.body.len() as u64
    }

    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        (self.bytes_written(), self.bytes_written())
    }

    pub(crate) fn bytes_received(&self) -> u64 {
        self.body.len() as u64
    }

    pub(crate) fn requests(&self) -> u32 {
        0
    }
}
