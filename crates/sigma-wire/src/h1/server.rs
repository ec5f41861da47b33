//! The server side of HTTP/1.

mod ending;
mod splice;
mod state;

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use sigma_buffer::held::{self, EXCHANGE_BYTES};
use sigma_http::h1::{self, BodyReader, Framing, HeadLimits, HeadScanner};
use sigma_http::h2::REVOKED;
use sigma_http::h2::frame::PREFACE;
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, HeaderId, RequestHead, ResponseHead, Version};
use sigma_net::{Deadline, Stream};

use self::state::{ConnectionMemory, CurrentRequest, Lifespan, SendingSide, Truncation};
use super::outgoing::Outgoing;
use crate::rules::{NO_ROOM, announce, frame_final};
use crate::traffic::SentResponse;

/// The limit of bytes of further requests that are read during a request.
const AHEAD_BYTES: usize = 64 * 1024;

/// The limits of a client's connection.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// The head of a request.
    pub head: HeadLimits,
    /// Bytes of a request body; 0 for no limit.
    pub body_bytes: u64,
    /// Requests on one connection.
    pub requests: u32,
    /// Until the first request, and for the rest of a head.
    pub head_ms: u64,
    /// Until the next request.
    pub idle_ms: u64,
    /// How long a client that has closed its sending side is served without a byte to it.
    pub half_close_ms: u64,
    /// The value of `Alt-Svc` in responses (RFC 7838); unset where nothing is announced.
    pub alternative: Option<Box<str>>,
}

/// The reason why there is no request.
#[derive(Debug)]
pub enum NoRequest {
    /// The connection has ended; no response is due.
    Closed,
    /// A head that gets an error response.
    Refused(Fault),
}

/// A client's connection, with at most one request on it.
#[derive(Debug)]
pub struct Server {
    stream: Stream,
    input: Chunk,
    output: Outgoing,
    reader: BodyReader,
    pub(crate) deadline: Deadline,
    /// From the time of the accept; shared with other connections of that time.
    limits: Rc<ServerLimits>,
    memory: ConnectionMemory,
    lifespan: Lifespan,
    current: CurrentRequest,
    /// Another request may follow.
    persists: bool,
    sending_side: SendingSide,
    truncation: Truncation,
    sent: SentResponse,
}

impl Server {
    /// Returns a connection with the bytes `input` already read, from a listener that accepts as long as `listens` is
    /// set.
    pub fn new(stream: Stream, input: Chunk, limits: Rc<ServerLimits>, listens: Rc<Cell<bool>>) -> Server {
        Server {
            stream,
            input,
            output: Outgoing::default(),
            reader: BodyReader::Done,
            deadline: Deadline::new(),
            memory: ConnectionMemory::new(),
            lifespan: Lifespan { requests: 0, left_ms: u32::MAX, listens },
            current: CurrentRequest::new(limits.body_bytes),
            limits,
            persists: true,
            sending_side: SendingSide::Open,
            truncation: Truncation::None,
            sent: SentResponse::default(),
        }
    }

    /// Sets the time until the greatest age of the connection, which ends the wait for a request; None without one.
    pub fn set_left_ms(&mut self, left_ms: Option<u32>) {
        self.lifespan.left_ms = left_ms.unwrap_or(u32::MAX);
    }

    /// Waits for the next request; holds no buffer until its first byte. `closing` decides whether an idle connection
    /// ends; it gets true if the connection has served a request and its listener is gone.
    ///
    /// # Errors
    /// Returns an error if there are no more requests.
    pub async fn wait(&mut self, closing: impl Fn(bool) -> bool) -> Result<(), NoRequest> {
        if !self.input.is_empty() {
            return Ok(());
        }
        let first = self.lifespan.is_first();
        let idle_ms = if first { self.limits.head_ms } else { self.limits.idle_ms };
        self.deadline.set(idle_ms.min(self.lifespan.left_ms.into()));
        poll_fn(|cx| {
            match self.stream.poll_fill(cx, &mut self.input) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(NoRequest::Closed)),
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(())),
                Poll::Pending => {}
            }
            let is_left = !first && !self.lifespan.listens.get();
            if self.deadline.poll_expired(cx).is_ready() || closing(is_left) {
                return Poll::Ready(Err(NoRequest::Closed));
            }
            Poll::Pending
        })
        .await
    }

    /// Returns true if the first bytes may be the HTTP/2 preface.
    pub fn may_be_preface(&self) -> bool {
        let seen = self.input.len().min(PREFACE.len());
        self.lifespan.is_first() && self.input[..seen] == PREFACE[..seen]
    }

    /// Returns true if the bytes of a rejected first head are a ClientHello of TLS (RFC 8446 §5.1).
    pub fn begins_tls(&self) -> bool {
        self.lifespan.is_first() && self.input.starts_with(&[22, 3])
    }

    /// Returns true if the bytes after [`Server::wait`] are the HTTP/2 preface.
    pub async fn is_preface(&mut self) -> bool {
        self.deadline.set(self.limits.head_ms);
        poll_fn(|cx| {
            loop {
                let seen = self.input.len().min(PREFACE.len());
                if self.input[..seen] != PREFACE[..seen] || seen == PREFACE.len() {
                    return Poll::Ready(seen == PREFACE.len() && self.input[..seen] == PREFACE[..]);
                }
                if self.deadline.poll_expired(cx).is_ready() {
                    return Poll::Ready(false);
                }
                if !ready!(self.poll_more(PREFACE.len(), cx)) {
                    return Poll::Ready(false);
                }
            }
        })
        .await
    }

    /// Returns the connection and its unread bytes, for another version to continue.
    pub fn into_parts(self) -> (Stream, Chunk) {
        (self.stream, self.input)
    }

    /// Reads the head whose beginning [`Server::wait`] has seen.
    ///
    /// # Errors
    /// Returns an error if it is not a valid request; `head` then has its known part.
    pub async fn read_head(&mut self, head: &mut RequestHead) -> Result<(), NoRequest> {
        self.current.restart();
        self.sent = SentResponse::default();
        if let Some(result) = self.try_parse(head) {
            return result;
        }
        self.deadline.set(self.limits.head_ms);
        self.memory.account.begin(self.input.memory(), self.moved());
        // Bytes that the parser has seen are not parsed again until the head is complete.
        let mut scanner = HeadScanner::default();
        scanner.ready(&self.input);
        poll_fn(|cx| {
            loop {
                if self.deadline.poll_expired(cx).is_ready() {
                    let fault =
                        Fault::new(FaultKind::RequestHeadTimeout, "the request head did not arrive in time");
                    return Poll::Ready(Err(self.refuse_head(head, fault)));
                }
                if self.memory.account.is_revoked() {
                    return Poll::Ready(Err(self.refuse_head(head, REVOKED)));
                }
                if !ready!(self.poll_more(self.limits.head.head_bytes + 1, cx)) {
                    return Poll::Ready(Err(NoRequest::Closed));
                }
                let over = self.input.len() > self.limits.head.line_bytes;
                if (scanner.ready(&self.input) || over)
                    && let Some(result) = self.try_parse(head)
                {
                    return Poll::Ready(result);
                }
            }
        })
        .await
    }

    /// Reads more of a head; returns true if there is more. A client with a half-sent head takes little more memory
    /// than its bytes.
    fn poll_more(&mut self, room: usize, cx: &mut Context<'_>) -> Poll<bool> {
        self.input.make_room(room);
        match self.stream.poll_fill(cx, &mut self.input) {
            Poll::Ready(read) => Poll::Ready(matches!(read, Ok(n) if n > 0)),
            Poll::Pending => {
                self.input.shrink();
                self.memory.account.set(self.input.memory());
                Poll::Pending
            }
        }
    }

    fn try_parse(&mut self, head: &mut RequestHead) -> Option<Result<(), NoRequest>> {
        match h1::parse_request(&self.input, &self.limits.head, head) {
            Ok(None) => None,
            Ok(Some(len)) => {
                self.input.advance(len);
                self.current.received.head_bytes = len as u64;
                Some(self.accept(head).map_err(NoRequest::Refused))
            }
            Err(error) => {
                self.refuse();
                Some(Err(self.refuse_head(head, error.of_request())))
            }
        }
    }

    /// Leaves the known part of a rejected head in `head`, for logs.
    fn refuse_head(&self, head: &mut RequestHead, fault: Fault) -> NoRequest {
        h1::parse_known(&self.input, &self.limits.head, head);
        NoRequest::Refused(fault)
    }

    /// After an invalid head, the connection has no valid position.
    fn refuse(&mut self) {
        self.current.version = Version::Http11;
        self.current.form.bodiless = false;
        self.persists = false;
        self.reader = BodyReader::Done;
    }

    fn accept(&mut self, head: &RequestHead) -> Result<(), Fault> {
        self.lifespan.requests += 1;
        self.current.begin(head);
        self.persists = h1::connection_persists(head.version, &head.headers)
            && self.lifespan.requests < self.limits.requests;
        match h1::request_body(head) {
            Ok(length) => {
                self.current.received.length = length;
                self.reader = BodyReader::new(length);
            }
            Err(reason) => {
                self.refuse();
                return Err(Fault::new(FaultKind::BadRequest, reason));
            }
        }
        if !self.memory.account.may_begin() {
            self.persists = false;
            held::refused();
            return Err(NO_ROOM);
        }
        self.memory.account.begin(EXCHANGE_BYTES + head.headers.memory(), self.moved());
        self.current.received.body_limit = self.limits.body_bytes;
        self.current.received.check_length()
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.current.received.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        loop {
            match self.reader.next(&mut self.input) {
                Ok(Some(Frame::Data(data))) => {
                    let checked = self.current.receive(data.len());
                    return Poll::Ready(checked.map(|()| Frame::Data(data)));
                }
                Ok(Some(end)) => return Poll::Ready(Ok(end)),
                Ok(None) => {}
                Err(reason) => {
                    self.persists = false;
                    return Poll::Ready(Err(Fault::new(FaultKind::BadRequest, reason)));
                }
            }
            let Poll::Ready(filled) = self.stream.poll_fill(cx, &mut self.input) else {
                self.memory.account.moved(self.moved());
                return if self.memory.is_revoked() { Poll::Ready(Err(REVOKED)) } else { Poll::Pending };
            };
            match filled {
                Ok(0) => {
                    self.sending_side.close();
                    return Poll::Ready(self.reader.end_of_stream().map_err(|_| gone()));
                }
                Ok(_) => {}
                Err(_) => return Poll::Ready(Err(gone())),
            }
        }
    }

    /// Ready when the client is gone: after a reset, or when it has closed its sending side and the limit without
    /// bytes to it has ended. It may still read, so a response on its way is no reason to end.
    pub(crate) fn poll_departure(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.sending_side.is_open() {
            return self.poll_patience(cx);
        }
        // A pipelined request is read ahead up to one buffer; the kernel holds further bytes back.
        while self.input.len() < AHEAD_BYTES {
            self.input.make_room(AHEAD_BYTES);
            let Poll::Ready(filled) = self.stream.poll_fill(cx, &mut self.input) else {
                if !self.input.is_empty() {
                    self.input.shrink();
                    self.count_buffers();
                }
                return if self.memory.is_revoked() { Poll::Ready(()) } else { Poll::Pending };
            };
            match filled {
                Ok(0) => {
                    self.sending_side.close();
                    return self.poll_patience(cx);
                }
                Ok(_) => {}
                Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }

    pub(crate) fn send_interim(&mut self, head: &mut ResponseHead) {
        // HTTP/1.0 has no interim responses (RFC 9110 §15.2).
        if self.current.version == Version::Http10 && !(self.current.form.connects && head.status == 101) {
            return;
        }
        self.current.expects &= head.status != 100;
        let protocol = head.headers.get(HeaderId::Upgrade).map(<[u8]>::to_vec);
        head.headers.remove_nominated();
        h1::frame_response(head, BodyLength::None, false);
        if self.current.form.connects && head.status == 101 {
            head.status = 200;
        }
        let out = self.output.front();
        h1::encode::response_head(head, out);
        if let (101, Some(protocol)) = (head.status, protocol) {
            h1::encode::upgrade(&protocol, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    pub(crate) fn send_head(&mut self, head: &mut ResponseHead, length: BodyLength, date: &[u8]) {
        announce(self.limits.alternative.as_deref(), head);
        // The last chance to announce the end of the connection.
        self.persists &= self.lifespan.listens.get() && self.may_discard_rest();
        self.sending_side.clear_deadline();
        let offered = offered_upgrade(head);
        let follows = frame_final(head, length, self.current.form);
        self.current.form.bodiless |= follows == BodyLength::None;
        let framing = match follows {
            BodyLength::Streamed | BodyLength::UntilClose if self.current.version == Version::Http10 => {
                self.persists = false;
                Framing::Plain
            }
            follows => Framing::from(follows),
        };
        let had_date = head.headers.has(HeaderId::Date);
        let out = self.output.front();
        let before = out.len();
        h1::encode::response_head(head, out);
        if framing == Framing::Chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if !had_date {
            out.extend_from_slice(b"Date: ");
            out.extend_from_slice(date);
            out.extend_from_slice(b"\r\n");
        }
        match (self.persists, self.current.version) {
            (true, Version::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
            (true, _) => {}
        }
        if let Some(protocols) = offered {
            h1::encode::upgrade(&protocols, out);
        }
        out.extend_from_slice(b"\r\n");
        self.sent.head_bytes += (out.len() - before) as u64;
        self.output.framing = framing;
    }

    pub(crate) fn has_room(&self) -> bool {
        self.output.has_room()
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        if self.current.form.bodiless {
            return;
        }
        if let Frame::Data(data) = &frame {
            self.sent.body_bytes += data.len() as u64;
        }
        self.sending_side.clear_deadline();
        self.output.push(frame);
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let flushed = self.output.poll_flush(&mut self.stream, cx).map_err(|_| gone());
        if flushed.is_pending() || self.memory.buffers > 0 {
            self.count_buffers();
            if flushed.is_pending() && self.memory.is_revoked() {
                return Poll::Ready(Err(REVOKED));
            }
        }
        flushed
    }

    /// Counts the bytes that wait, for the client or for the next exchange.
    fn count_buffers(&mut self) {
        let output = if self.output.is_empty() { 0 } else { self.output.memory() };
        let moved = self.moved();
        self.memory.count_buffers(output + self.input.memory(), moved);
    }

    pub(crate) fn hold(&mut self, bytes: usize) {
        self.memory.hold_bodies(bytes);
    }

    pub(crate) fn limit_body(&mut self, bytes: u64) {
        self.current.received.limit_body(bytes);
    }

    /// Releases the memory of the finished exchange.
    pub fn rest(&mut self) {
        self.memory.release();
    }

    /// Returns the bytes moved in both directions.
    fn moved(&self) -> u64 {
        self.output.total() + self.current.received.body_bytes
    }

    pub(crate) fn upgrade(&mut self) {
        self.persists = false;
        self.current.form.bodiless = false;
        self.reader = BodyReader::UntilClose;
        self.output.framing = Framing::Plain;
        self.current.received.body_limit = 0;
        // Most of the memory of an exchange is free in a tunnel, which may last for days.
        self.memory.account.shrink(EXCHANGE_BYTES);
    }

    pub(crate) fn abort(&mut self) {
        let is_delimited_by_close = self.current.version == Version::Http10
            && self.sent.head_bytes > 0
            && self.output.framing == Framing::Plain;
        self.truncation = if is_delimited_by_close { Truncation::Reset } else { Truncation::Close };
        self.persists = false;
        self.reader = BodyReader::Done;
        self.input = Chunk::empty();
        self.output = Outgoing::default();
    }

    pub(crate) fn close_after(&mut self) {
        self.persists = false;
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.output.total()
    }

    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        self.sent.bytes()
    }

    pub(crate) fn bytes_received(&self) -> u64 {
        self.current.received.bytes()
    }

    pub(crate) fn requests(&self) -> u32 {
        self.lifespan.requests
    }

    /// Returns true if the last exchange is completely done.
    pub fn is_between_requests(&self) -> bool {
        self.reader.is_done()
    }

    /// Returns true if another request may follow on this connection.
    pub fn continues(&self) -> bool {
        self.persists && self.reader.is_done() && self.output.is_empty() && self.sending_side.is_open()
    }
}

/// Returns the protocols that a 426 names (RFC 9110 §15.5.22).
fn offered_upgrade(head: &ResponseHead) -> Option<Vec<u8>> {
    let protocols = head.headers.get(HeaderId::Upgrade).filter(|_| head.status == 426);
    protocols.map(<[u8]>::to_vec)
}

fn gone() -> Fault {
    Fault::new(FaultKind::ClientGone, "the client closed the connection")
}
