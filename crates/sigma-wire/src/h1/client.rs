//! The client side of HTTP/1.1.

use std::io;
use std::task::{Context, Poll, ready};

use sigma_http::h1::{self, BodyReader, Framing, HeadLimits};
use sigma_http::{
    BodyLength, CarriedBytes, Chunk, Fault, FaultKind, Frame, Method, RequestHead, ResponseHead,
};
use sigma_net::{Deadline, Stream};

use super::outgoing::{Outgoing, SpliceTarget};
use crate::rest::Rest;
use crate::rules::{self, bad_response};
use crate::traffic::RequestTraffic;

const BROKEN_WITHIN_BODY: &str = "the connection broke during the body";

/// A connection to a node, with at most one request on it.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    input: Chunk,
    output: Outgoing,
    reader: BodyReader,
    length: BodyLength,
    pub(crate) deadline: Deadline,
    traffic: RequestTraffic,
    interims: u8,
    /// A byte of the current response has arrived.
    answered: bool,
    /// The final head has arrived.
    headed: bool,
    /// The node keeps the connection open after this response.
    persists: bool,
    /// The end of the stream, if a read for the end of the response found it.
    ended: Option<Ended>,
    /// A read for the end of the response found more of its body.
    looked: bool,
}

/// The end of the node's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    InOrder,
    Broken,
}

impl Client {
    /// Returns a new connection.
    pub fn new(stream: Stream, deadline: Deadline) -> Client {
        Client {
            stream,
            input: Chunk::empty(),
            output: Outgoing::default(),
            reader: BodyReader::Done,
            length: BodyLength::None,
            deadline,
            traffic: RequestTraffic::default(),
            interims: 0,
            answered: false,
            headed: false,
            persists: true,
            ended: None,
            looked: false,
        }
    }

    pub(crate) fn send_head(
        &mut self,
        head: &mut RequestHead,
        rewritten: Option<&[u8]>,
        length: BodyLength,
        upgrade: Option<&[u8]>,
    ) {
        self.traffic.begin(self.output.total());
        self.interims = 0;
        self.answered = false;
        self.headed = false;
        self.looked = false;
        self.output.framing = Framing::from(length);
        h1::encode::request_head(head, rewritten, length, upgrade, self.output.front());
    }

    pub(crate) fn has_room(&self) -> bool {
        self.output.has_room()
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        self.output.push(frame);
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.output.poll_flush(&mut self.stream, cx).map_err(|_| terminated())
    }

    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        loop {
            if !self.input.is_empty() {
                self.answered = true;
                match h1::parse_response(&self.input, limits, head) {
                    Ok(Some(len)) => {
                        self.input.advance(len);
                        return Poll::Ready(self.accept_head(method, head));
                    }
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(error.of_response())),
                }
            }
            self.input.make_room(limits.head_bytes + 1);
            match ready!(self.stream.poll_fill(cx, &mut self.input)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(terminated())),
                Ok(n) => self.traffic.received += n as u64,
            }
        }
    }

    /// See [`crate::Connection::poll_answer`].
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        limits: &HeadLimits,
    ) -> Poll<Result<(), Fault>> {
        if !self.input.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.input.make_room(limits.head_bytes + 1);
        match ready!(self.stream.poll_fill(cx, &mut self.input)) {
            Ok(0) | Err(_) => Poll::Ready(Err(terminated())),
            Ok(n) => {
                self.traffic.received += n as u64;
                Poll::Ready(Ok(()))
            }
        }
    }

    fn accept_head(&mut self, method: Method, head: &ResponseHead) -> Result<(), Fault> {
        let length = h1::response_body(head, method).map_err(bad_response)?;
        if head.is_interim() && head.status != 101 {
            return rules::count_interim(&mut self.interims);
        }
        self.headed = true;
        self.persists = h1::response_persists(head) && length != BodyLength::UntilClose;
        self.length = length;
        self.reader = BodyReader::of_response(length);
        Ok(())
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        loop {
            match self.reader.next(&mut self.input) {
                Ok(Some(frame)) => return Poll::Ready(Ok(frame)),
                Ok(None) => {}
                Err(reason) => return Poll::Ready(Err(bad_response(reason))),
            }
            match self.poll_more(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(Ended::InOrder)) => {
                    return Poll::Ready(self.reader.end_of_stream().map_err(incomplete));
                }
                Poll::Ready(Err(Ended::Broken)) => {
                    return Poll::Ready(Err(incomplete(BROKEN_WITHIN_BODY)));
                }
                Poll::Pending => {
                    // The client is the faster one again.
                    self.looked = false;
                    return Poll::Pending;
                }
            }
        }
    }

    /// Reads more bytes to the end of the input.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        if let Some(ended) = self.ended {
            return Poll::Ready(Err(ended));
        }
        match ready!(self.stream.poll_fill(cx, &mut self.input)) {
            Ok(0) => self.ended = Some(Ended::InOrder),
            Ok(n) => self.traffic.received += n as u64,
            Err(_) => self.ended = Some(Ended::Broken),
        }
        Poll::Ready(self.ended.map_or(Ok(()), Err))
    }

    /// See [`crate::splice::poll_response`].
    pub(crate) fn poll_splice_to(
        &mut self,
        client: &mut impl SpliceTarget,
        cx: &mut Context<'_>,
    ) -> Option<Poll<Result<(), Fault>>> {
        if !self.input.is_empty() || self.ended.is_some() {
            return None;
        }
        Some(match client.poll_splice_from(&mut self.stream, &mut self.reader, cx)? {
            Poll::Ready(Ok(0)) => {
                self.ended = Some(Ended::InOrder);
                Poll::Ready(self.reader.end_of_stream().map(|_| ()).map_err(incomplete))
            }
            Poll::Ready(Ok(n)) => {
                self.traffic.received += n;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => {
                self.ended = Some(Ended::Broken);
                Poll::Ready(Err(incomplete(BROKEN_WITHIN_BODY)))
            }
            Poll::Pending => {
                self.looked = false;
                Poll::Pending
            }
        })
    }

    /// See [`crate::Connection::poll_rest`]. The end of a body often arrives separately, as a last chunk or the end
    /// of the stream. So one small read looks for it each time the client is the slower one.
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Rest> {
        while !self.reader.completes_with(&self.input) {
            if !self.input.is_empty() || self.looked {
                return Poll::Pending;
            }
            let mut little = Chunk::take_small();
            if matches!(self.reader, BodyReader::Known(left) if left > little.spare().len() as u64) {
                return Poll::Pending;
            }
            std::mem::swap(&mut self.input, &mut little);
            let more = self.poll_more(cx);
            if self.input.is_empty() {
                // A wait needs no memory.
                self.input = Chunk::empty();
            }
            match ready!(more) {
                Ok(()) => self.looked = true,
                Err(Ended::InOrder) if self.reader.end_of_stream().is_ok() => {}
                Err(_) => return Poll::Pending,
            }
        }
        Poll::Ready(Rest::collect(|| self.reader.next(&mut self.input).ok().flatten()))
    }

    pub(crate) fn upgrade(&mut self) {
        self.persists = false;
        self.reader = BodyReader::UntilClose;
        self.output.framing = Framing::Plain;
    }

    /// See [`crate::Connection::begin_bytes`].
    pub(crate) fn begin_bytes(&mut self) {
        self.traffic.begin(self.output.total());
        (self.answered, self.headed) = (false, false);
        self.output.framing = Framing::Plain;
        self.reader = BodyReader::UntilClose;
    }

    /// See [`crate::Connection::poll_bytes`].
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Chunk, Fault>> {
        Poll::Ready(match ready!(self.poll_frame(cx)) {
            Ok(Frame::Data(data)) => {
                self.answered = true;
                Ok(data)
            }
            Ok(_) | Err(_) if !self.answered => Err(terminated()),
            Ok(_) => Err(incomplete("the node closed the connection during its response")),
            Err(fault) => Err(fault),
        })
    }

    /// See [`crate::Connection::end_bytes`].
    pub(crate) fn end_bytes(&mut self) {
        self.headed = true;
        self.reader = BodyReader::Done;
    }

    pub(crate) fn may_be_stale(&self) -> bool {
        self.traffic.is_reused() && !self.answered
    }

    /// See [`crate::Connection::carried`].
    pub(crate) fn carried(&self) -> CarriedBytes {
        self.traffic.carried(self.output.total())
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.output.total()
    }

    pub(crate) fn is_unsent(&self) -> bool {
        // Queued bytes do not count: after the first flush the queue is empty again.
        self.traffic.is_unsent(self.output.total())
    }

    pub(crate) fn is_reusable(&self, requests_max: u32) -> bool {
        self.headed
            && self.persists
            && self.reader.is_done()
            && self.input.is_empty()
            && self.output.is_empty()
            && self.traffic.requests < requests_max
    }

    pub(crate) fn is_quiet(&mut self) -> bool {
        self.stream.is_quiet()
    }
}

impl SpliceTarget for Client {
    fn poll_splice_from(
        &mut self,
        from: &mut Stream,
        reader: &mut BodyReader,
        cx: &mut Context<'_>,
    ) -> Option<Poll<io::Result<u64>>> {
        self.output.poll_splice(&self.stream, from, reader, cx)
    }
}

fn terminated() -> Fault {
    Fault::new(FaultKind::ConnectionTerminated, "the node closed the connection before its response")
}

fn incomplete(reason: &'static str) -> Fault {
    Fault::new(FaultKind::ResponseIncomplete, reason)
}
