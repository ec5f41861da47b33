//! A connection to an application.

use std::task::{Context, Poll, ready};

use sigma_http::fcgi::{self, EndKind, Piece, Records};
use sigma_http::h1::{self, HeadLimits, Output};
use sigma_http::{
    BodyLength, CarriedBytes, Chunk, Fault, FaultKind, Frame, HeaderId, Method, RequestHead, ResponseHead,
};
use sigma_net::{Deadline, Stream};

use super::Terms;
use crate::complaints::Complaint;
use crate::h1::flush;
use crate::rules::bad_response;
use crate::traffic::RequestTraffic;

/// The limit of fruitless reads in one poll, before other tasks run: an application may write log messages without
/// end.
const READS_MAX: u32 = 16;

/// A connection to an application, with at most one request on it.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    /// The name of the application in logs.
    node: Box<str>,
    input: Chunk,
    output: Output,
    terms: Terms,
    /// The terms belong to the next request, not the last one.
    described: bool,
    request: ApplicationRequest,
    records: Records,
    response: ApplicationResponse,
    pub(crate) deadline: Deadline,
    /// The received part of its log message.
    complaint: Complaint,
    traffic: RequestTraffic,
}

/// The progress of the current request.
#[derive(Debug, Default)]
struct ApplicationRequest {
    /// The received part of a body of unknown length.
    held: Option<Vec<u8>>,
    /// The part of a piece beyond a record.
    pending: Chunk,
    /// The reason why the request cannot be sent.
    unfit: Option<Fault>,
    /// The end of the request body is queued.
    asked: bool,
    /// The client waits for `100 Continue`, which applications never send.
    leave_awaited: bool,
}

/// The received part of the response to the current request.
#[derive(Debug)]
struct ApplicationResponse {
    /// The received part of the head.
    text: Vec<u8>,
    /// The length of `text` that was searched for its end.
    looked_at: usize,
    /// Bytes of the body that arrived with the head.
    rest: Chunk,
    length: BodyLength,
    /// The missing bytes of the declared length.
    left: u64,
    phase: ResponsePhase,
}

impl ApplicationResponse {
    fn new() -> ApplicationResponse {
        ApplicationResponse {
            text: Vec::new(),
            looked_at: 0,
            rest: Chunk::empty(),
            length: BodyLength::None,
            left: 0,
            phase: ResponsePhase::Awaited,
        }
    }

    /// Begins the wait for another response.
    fn restart(&mut self) {
        self.text.clear();
        self.looked_at = 0;
        self.rest = Chunk::empty();
        self.phase = ResponsePhase::Awaited;
    }

    /// Adds bytes of the head; returns true when it is complete.
    fn take_head(
        &mut self,
        mut data: Chunk,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Result<bool, Fault> {
        let before = self.text.len();
        self.text.extend_from_slice(&data);
        let Some(end) = fcgi::head_end(&self.text, self.looked_at) else {
            self.looked_at = self.text.len();
            if self.text.len() > limits.head_bytes {
                return Err(h1::ParseError::HeadTooLarge.of_response());
            }
            return Ok(false);
        };
        let declared =
            fcgi::parse_head(&self.text[..end], limits, head).map_err(|error| error.of_response())?;
        self.text = Vec::new();
        data.advance(end - before);
        self.phase = ResponsePhase::Headed;
        self.length = fcgi::body_length(declared, head.status, method);
        self.left = match self.length {
            BodyLength::None => 0,
            BodyLength::Known(bytes) => bytes,
            BodyLength::Streamed | BodyLength::UntilClose => u64::MAX,
        };
        if !self.length.is_empty() {
            self.rest = data;
        }
        Ok(true)
    }

    /// Returns the next frame of the body bytes that are here.
    fn next_data(&mut self) -> Option<Frame> {
        let mut data = std::mem::take(&mut self.rest);
        // Bytes beyond the declared length are dropped.
        data.truncate(usize::try_from(self.left).map_or(data.len(), |left| left.min(data.len())));
        if self.length != BodyLength::Streamed {
            self.left -= data.len() as u64;
        }
        (!data.is_empty()).then_some(Frame::Data(data))
    }

    /// Returns the end of the body, or an error if it is truncated.
    fn end(&self) -> Result<Frame, Fault> {
        match self.length {
            BodyLength::Known(_) if self.left > 0 => Err(incomplete()),
            _ => Ok(Frame::End),
        }
    }
}

/// The progress of the response to the current request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ResponsePhase {
    /// No byte has arrived.
    Awaited,
    /// A part of the head has arrived.
    Begun,
    /// The head has arrived.
    Headed,
    /// The application has sent all of it, but not the end of the request.
    Said,
    /// It is complete.
    Over,
}

impl Client {
    /// Returns a new connection to the application, named `node` in logs.
    pub fn new(stream: Stream, deadline: Deadline, node: &str) -> Client {
        Client {
            stream,
            node: node.into(),
            input: Chunk::empty(),
            output: Output::default(),
            terms: Terms::default(),
            described: false,
            request: ApplicationRequest::default(),
            records: Records::default(),
            response: ApplicationResponse::new(),
            deadline,
            complaint: Complaint::default(),
            traffic: RequestTraffic::default(),
        }
    }

    /// See [`crate::Connection::describe`].
    pub(crate) fn describe(&mut self, terms: Terms) {
        (self.terms, self.described) = (terms, true);
    }

    pub(crate) fn send_head(&mut self, head: &mut RequestHead, rewritten: Option<&[u8]>, length: BodyLength) {
        if !std::mem::take(&mut self.described) {
            self.terms = Terms::default();
        }
        self.traffic.begin(self.output.total());
        self.records = Records::default();
        self.response.restart();
        h1::frame_request(&mut head.headers, length);
        self.request = ApplicationRequest {
            leave_awaited: head.headers.has(HeaderId::Expect),
            ..ApplicationRequest::default()
        };
        head.headers.remove(HeaderId::Expect);
        tell_head(head, rewritten, &mut self.terms);
        match length {
            BodyLength::Streamed | BodyLength::UntilClose => self.request.held = Some(Vec::new()),
            BodyLength::None => self.begin(None),
            BodyLength::Known(bytes) => self.begin(Some(bytes)),
        }
        if length.is_empty() {
            self.end_body();
        }
    }

    /// Queues everything before the body, with the number of its bytes.
    fn begin(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            self.terms.params.set(b"CONTENT_LENGTH", bytes.to_string().as_bytes());
        }
        let front = self.output.front();
        fcgi::begin(self.terms.keep, front);
        if self.terms.params.write(front).is_err() {
            let reason = "a header field of the request is too long for FastCGI";
            self.request.unfit = Some(Fault::new(FaultKind::RequestHeadTooLarge, reason));
            // None of it is sent.
            front.clear();
        }
    }

    fn end_body(&mut self) {
        if self.request.unfit.is_none() {
            fcgi::body(0, self.output.front());
            self.request.asked = true;
        }
    }

    /// Queues as many records of the body as there is room for: the last of them may be a large one.
    fn push_body(&mut self) {
        while !self.request.pending.is_empty() && self.output.has_room() {
            let piece = self.request.pending.split_to(fcgi::CONTENT_MAX);
            fcgi::body(piece.len(), self.output.front());
            self.output.push(Frame::Data(piece));
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.request.unfit.is_none() && self.request.pending.is_empty() && self.output.has_room()
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        let Some(held) = &mut self.request.held else {
            match frame {
                Frame::Data(_) if self.request.unfit.is_some() => {}
                Frame::Data(data) => {
                    self.request.pending = data;
                    self.push_body();
                }
                Frame::End | Frame::Trailers(_) => self.end_body(),
            }
            return;
        };
        match frame {
            Frame::Data(data) if held.len() + data.len() > self.terms.unsized_body_bytes => {
                let reason = "a request body without Content-Length exceeds the limit for FastCGI";
                self.request.unfit = Some(Fault::new(FaultKind::RequestBodyTooLarge, reason));
                self.request.held = None;
            }
            Frame::Data(data) => held.extend_from_slice(&data),
            Frame::End | Frame::Trailers(_) => {
                let body = std::mem::take(held);
                self.request.held = None;
                self.begin(Some(body.len() as u64));
                if self.request.unfit.is_none() {
                    let front = self.output.front();
                    for piece in body.chunks(fcgi::CONTENT_MAX) {
                        fcgi::body(piece.len(), front);
                        front.extend_from_slice(piece);
                    }
                }
                self.end_body();
            }
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.request.unfit {
            return Poll::Ready(Err(fault));
        }
        loop {
            if ready!(flush(&mut self.stream, &mut self.output, cx)).is_err() {
                return Poll::Ready(Err(terminated()));
            }
            if self.request.pending.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.push_body();
        }
    }

    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: Method,
        limits: &HeadLimits,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.request.unfit {
            return Poll::Ready(Err(fault));
        }
        if std::mem::take(&mut self.request.leave_awaited) && !self.request.asked {
            head.start(100);
            return Poll::Ready(Ok(()));
        }
        loop {
            let piece = match ready!(self.poll_piece(cx)) {
                Ok(Some(piece)) => piece,
                Ok(None) => return Poll::Ready(Err(terminated())),
                Err(fault) => return Poll::Ready(Err(fault)),
            };
            match piece {
                Piece::Stdout(data) => match self.response.take_head(data, method, limits, head) {
                    Ok(true) => {
                        if self.response.length.is_empty() {
                            // There is no body to read, so the end of the request is read now.
                            self.skip_to_end();
                        }
                        return Poll::Ready(Ok(()));
                    }
                    Ok(false) => {}
                    Err(fault) => return Poll::Ready(Err(fault)),
                },
                Piece::End(EndKind::Overloaded) if self.response.text.is_empty() => {
                    // The HTTP status for an overloaded server.
                    head.start(503);
                    self.response.length = BodyLength::None;
                    return Poll::Ready(Ok(()));
                }
                Piece::End(EndKind::Refused) => {
                    return Poll::Ready(Err(bad_response(
                        "the FastCGI application does not support this role",
                    )));
                }
                Piece::StdoutEnd | Piece::End(_) => {
                    return Poll::Ready(Err(bad_response(
                        "the FastCGI application ended its response without a header",
                    )));
                }
                Piece::Stderr(_) => {}
            }
        }
    }

    /// Reads the bytes after a response without a body.
    fn skip_to_end(&mut self) {
        while let Ok(Some(piece)) = self.records.next(&mut self.input) {
            self.note(&piece);
            if matches!(piece, Piece::End(_)) {
                self.response.phase = ResponsePhase::Over;
                return;
            }
        }
    }

    /// Writes log messages of the application line by line.
    fn note(&mut self, piece: &Piece) {
        const WHO: &str = "an application";
        match piece {
            Piece::Stderr(text) => self.complaint.say(WHO, &self.node, text),
            Piece::Stdout(_) | Piece::StdoutEnd | Piece::End(_) => self.complaint.end(WHO, &self.node),
        }
    }

    /// Returns the next piece; None if the application closed the connection. Its log messages are written to the
    /// log.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, Fault>> {
        for _ in 0..READS_MAX {
            loop {
                let piece = match self.records.next(&mut self.input) {
                    Ok(Some(piece)) => piece,
                    Ok(None) => break,
                    Err(reason) => return Poll::Ready(Err(bad_response(reason))),
                };
                self.note(&piece);
                match piece {
                    Piece::Stderr(_) => {}
                    Piece::End(kind) => {
                        self.response.phase = ResponsePhase::Over;
                        return Poll::Ready(Ok(Some(Piece::End(kind))));
                    }
                    piece => return Poll::Ready(Ok(Some(piece))),
                }
            }
            match ready!(self.stream.poll_fill(cx, &mut self.input)) {
                Ok(0) | Err(_) => return Poll::Ready(Ok(None)),
                Ok(n) => {
                    self.traffic.received += n as u64;
                    self.response.phase = self.response.phase.max(ResponsePhase::Begun);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// See [`crate::Connection::poll_answer`].
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(fault) = self.request.unfit {
            return Poll::Ready(Err(fault));
        }
        if !self.input.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match ready!(self.stream.poll_fill(cx, &mut self.input)) {
            Ok(0) | Err(_) => Poll::Ready(Err(terminated())),
            Ok(n) => {
                self.traffic.received += n as u64;
                self.response.phase = self.response.phase.max(ResponsePhase::Begun);
                Poll::Ready(Ok(()))
            }
        }
    }

    pub(crate) fn body_length(&self) -> BodyLength {
        self.response.length
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Fault>> {
        loop {
            if let Some(data) = self.response.next_data() {
                return Poll::Ready(Ok(data));
            }
            // A connection that is not kept is done: it need not wait for the application's end.
            if self.response.phase == ResponsePhase::Over || (self.response.left == 0 && !self.terms.keep) {
                return Poll::Ready(self.response.end());
            }
            match ready!(self.poll_piece(cx)) {
                Ok(Some(Piece::Stdout(_))) if self.response.phase == ResponsePhase::Said => {
                    return Poll::Ready(Err(bad_response(
                        "the FastCGI application sent data after the end of its response",
                    )));
                }
                Ok(Some(Piece::Stdout(data))) => self.response.rest = data,
                Ok(Some(Piece::StdoutEnd)) => {
                    self.response.phase = self.response.phase.max(ResponsePhase::Said)
                }
                Ok(Some(Piece::End(EndKind::Complete))) => {}
                Ok(Some(Piece::End(_))) => return Poll::Ready(Err(incomplete())),
                Ok(Some(Piece::Stderr(_))) => {}
                // The application may close the connection instead of sending the last record.
                Ok(None) if self.response.phase == ResponsePhase::Said || self.response.left == 0 => {
                    return Poll::Ready(self.response.end());
                }
                Ok(None) => return Poll::Ready(Err(incomplete())),
                Err(fault) => return Poll::Ready(Err(fault)),
            }
        }
    }

    pub(crate) fn may_be_stale(&self) -> bool {
        self.traffic.is_reused() && self.response.phase == ResponsePhase::Awaited
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
        self.terms.keep
            && self.request.asked
            && self.response.phase == ResponsePhase::Over
            && self.response.rest.is_empty()
            && self.records.is_over()
            && self.input.is_empty()
            && self.request.pending.is_empty()
            && self.output.is_empty()
            && self.traffic.requests < requests_max
    }

    pub(crate) fn is_quiet(&mut self) -> bool {
        self.stream.is_quiet()
    }
}

/// Adds the parameters of a request head to the given ones.
fn tell_head(head: &RequestHead, rewritten: Option<&[u8]>, terms: &mut Terms) {
    let params = &mut terms.params;
    let target = rewritten.unwrap_or(head.path_and_query());
    let query = target.iter().position(|byte| *byte == b'?').map_or(&b""[..], |at| &target[at + 1..]);
    params.set_default(b"GATEWAY_INTERFACE", b"CGI/1.1");
    params.set_default(b"REQUEST_METHOD", head.method_token());
    params.set_default(b"REQUEST_URI", target);
    params.set_default(b"QUERY_STRING", query);
    params.set_default(b"SERVER_PROTOCOL", head.version.as_str().as_bytes());
    if let Some(value) = head.headers.get(HeaderId::ContentType) {
        params.set_default(b"CONTENT_TYPE", value);
    }
    params.add_fields(&head.headers);
}

fn terminated() -> Fault {
    Fault::new(
        FaultKind::ConnectionTerminated,
        "the FastCGI application closed the connection before its response",
    )
}

fn incomplete() -> Fault {
    Fault::new(FaultKind::ResponseIncomplete, "the FastCGI application ended its response early")
}
