//! Responses that the processor streams.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll, ready};

use sigma_http::{BodyLength, Chunk};
use sigma_plugin::{BodySource, StreamBody};
use tokio::time::Sleep;

use super::{Failure, Fate, Session, timer};
use crate::Shared;
use crate::events::Event;
use crate::immediate;
use crate::messages::{HttpHeaders, StreamedImmediateResponse, StreamedPart};
use crate::rules::Invalid;

/// The body of a response that the processor streams.
#[derive(Default)]
pub(super) struct StreamedReply {
    pieces: VecDeque<Vec<u8>>,
    pub(super) bytes: usize,
    /// The last piece is here; an error if the processor broke off.
    pub(super) end: Option<Result<(), &'static str>>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Session {
    /// Returns the next piece of a response that the processor streams, and None after the last one.
    pub(crate) fn poll_streamed(
        &mut self,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Option<Vec<u8>>, &'static str>> {
        self.advance(task);
        let streamed = &mut self.response.streamed;
        if let Some(piece) = streamed.pieces.pop_front() {
            streamed.bytes -= piece.len();
            // The clock runs while the gateway waits.
            streamed.timer = None;
            return Poll::Ready(Ok(Some(piece)));
        }
        if let Some(end) = streamed.end {
            self.stream = None;
            return Poll::Ready(end.map(|()| None));
        }
        let idle = streamed.timer.get_or_insert_with(|| timer(self.config.duplex_idle_timeout));
        if idle.as_mut().poll(task).is_ready() {
            self.tally.count(Event::Timeout);
            streamed.end = Some(Err("the processor's response timed out"));
            self.stream = None;
            return Poll::Ready(Err("the processor's response timed out"));
        }
        Poll::Pending
    }

    /// Accepts a part of a response that the processor streams.
    pub(super) fn receive_streamed(&mut self, message: StreamedImmediateResponse) {
        let is_begun = matches!(self.fate, Some(Fate::Stream(_)));
        match message.response {
            Some(StreamedPart::Headers(headers)) if !is_begun => self.begin_streamed(&headers),
            Some(StreamedPart::Body(piece)) if is_begun => {
                self.response.streamed.bytes += piece.body.len();
                if !piece.body.is_empty() {
                    self.response.streamed.pieces.push_back(piece.body);
                }
                if piece.end_of_stream {
                    self.response.streamed.end = Some(Ok(()));
                }
            }
            // The client gets no trailers of such a response.
            Some(StreamedPart::Trailers(_)) if is_begun => self.response.streamed.end = Some(Ok(())),
            _ if is_begun => self.break_streamed("the processor's streamed response is out of order"),
            _ => self.fail(Failure::Broken, "the processor's streamed response does not begin with headers"),
        }
    }

    fn begin_streamed(&mut self, headers: &HttpHeaders) {
        if self.config.disable_immediate_response {
            return self.fail(Failure::Broken, "the processor responds itself, which is disabled");
        }
        match immediate::head(headers, &self.config.mutation_rules) {
            Ok((reply, rejected)) => {
                self.reject(rejected);
                self.tally.count(Event::Immediate);
                if headers.end_of_stream {
                    return self.end(Fate::Reply(reply.text(Vec::new())));
                }
                // Bytes that wait for the processor are not sent any more.
                self.sides.iter_mut().for_each(|side| (side.queued, side.timer) = (None, None));
                self.fate.get_or_insert(Fate::Stream(reply));
            }
            Err(Invalid(reason)) => self.fail(Failure::Broken, reason),
        }
    }

    /// Cuts a response off that the processor streams.
    pub(crate) fn break_streamed(&mut self, reason: &'static str) {
        self.tally.count(Event::Failure);
        self.response.streamed.end.get_or_insert(Err(reason));
        self.stream = None;
    }
}

/// Pieces of the processor, as fast as the client reads them.
struct Streamed {
    session: Shared,
    piece: Vec<u8>,
    taken: usize,
}

/// Returns the body of a response whose head is here.
pub(crate) fn body(session: &Shared) -> StreamBody {
    let source = Streamed { session: Rc::clone(session), piece: Vec::new(), taken: 0 };
    StreamBody { length: BodyLength::Streamed, source: Box::new(source) }
}

impl BodySource for Streamed {
    fn poll_piece(&mut self, task: &mut task::Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if let Some(chunk) = Chunk::next_of(&self.piece, &mut self.taken) {
                return Poll::Ready(Ok(Some(chunk)));
            }
            match ready!(self.session.borrow_mut().poll_streamed(task)).map_err(io::Error::other)? {
                Some(piece) => (self.piece, self.taken) = (piece, 0),
                None => return Poll::Ready(Ok(None)),
            }
        }
    }
}
