//! Streams of gRPC messages to services.
//!
//! The handle of the caller owns the future that moves bytes, and polls it whenever it is polled itself: a stream
//! needs no task of its own, and ends when its handle is dropped.

use std::cell::{RefCell, RefMut};
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{self, Poll};

use sigma_buffer::held::{self, CountedBytes};
use sigma_http::{BodyLength, Chunk, Fault, FaultKind, Frame, Headers, Method, RequestHead, ResponseHead};
use sigma_net::{Deadline, Peer, deadline};
use sigma_plugin::outbound::{Call, CallError, MessageStream, Metadata, Missing, StreamCall, StreamError};
use sigma_upstream::balance::Outcome;
use sigma_upstream::endpoint::Endpoint;
use sigma_wire::Connection;

use super::{attempt, head, unlimited};
use crate::attempt::attempts::{Attempts, Decision, Failure, has_no_node_left, is_late};
use crate::attempt::target::{self, Demands};
use crate::edge::connection::Origin;
use crate::exchange::mark_pass;
use crate::snapshot::Upstream;
use crate::worker::{View, Worker};

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The future that moves bytes, to the end of the call.
type Running = Pin<Box<dyn Future<Output = Result<(), StreamError>>>>;

/// The caller's end of a stream.
pub(super) struct GrpcStream {
    /// None once it has ended.
    running: Option<Running>,
    end: Result<(), StreamError>,
    slots: Rc<RefCell<Slots>>,
}

impl GrpcStream {
    pub(super) fn new(worker: Weak<Worker>, call: StreamCall) -> GrpcStream {
        let slots = Rc::new(RefCell::new(Slots::new(call.limit)));
        let running = run(worker, call, Rc::clone(&slots));
        GrpcStream { running: Some(Box::pin(running)), end: Ok(()), slots }
    }

    fn drive(&mut self, task: &mut task::Context<'_>) {
        if let Some(running) = &mut self.running
            && let Poll::Ready(end) = running.as_mut().poll(task)
        {
            (self.running, self.end) = (None, end);
        }
    }
}

impl MessageStream for GrpcStream {
    fn poll_sent(&mut self, task: &mut task::Context<'_>) -> Poll<Result<(), StreamError>> {
        self.drive(task);
        match (&self.running, &self.end) {
            (None, end) => Poll::Ready(end.clone()),
            (Some(_), _) if self.slots.borrow().is_written => Poll::Ready(Ok(())),
            (Some(_), _) => Poll::Pending,
        }
    }

    fn send(&mut self, message: &[u8]) {
        if self.running.is_some() {
            self.slots.borrow_mut().put(message);
        }
    }

    fn finish(&mut self) {
        self.slots.borrow_mut().finish();
    }

    fn poll_message(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Option<Vec<u8>>, StreamError>> {
        self.drive(task);
        // Messages before the end count, even before an error.
        if let Some(message) = self.slots.borrow_mut().take() {
            return Poll::Ready(Ok(Some(message)));
        }
        match &self.running {
            Some(_) => Poll::Pending,
            None => Poll::Ready(self.end.clone().map(|()| None)),
        }
    }

    fn metadata(&self) -> Metadata {
        self.slots.borrow().metadata.clone()
    }
}

/// The messages on their way: one in each direction.
struct Slots {
    /// The message to send, with its prefix.
    out: Vec<u8>,
    /// Bytes of `out` that the connection has.
    taken: usize,
    /// Messages so far; the first one can be sent again.
    sent: usize,
    /// The connection has written all of `out`.
    is_written: bool,
    /// No further message follows.
    is_finished: bool,
    /// The end was queued.
    is_ended: bool,
    /// Received bytes, from the prefix of the next message on.
    received: Vec<u8>,
    metadata: Metadata,
    limit: usize,
    /// The memory of both.
    held: CountedBytes,
}

impl Slots {
    fn new(limit: usize) -> Slots {
        Slots {
            out: Vec::new(),
            taken: 0,
            sent: 0,
            is_written: true,
            is_finished: false,
            is_ended: false,
            received: Vec::new(),
            metadata: Metadata::default(),
            limit,
            held: CountedBytes::default(),
        }
    }

    fn put(&mut self, message: &[u8]) {
        self.out.clear();
        self.out.push(0);
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(message);
        (self.taken, self.sent, self.is_written) = (0, self.sent + 1, false);
        self.count();
    }

    fn finish(&mut self) {
        if !self.is_finished {
            (self.is_finished, self.is_written) = (true, false);
        }
    }

    /// Begins with the first message again, on another connection.
    fn rewind(&mut self) {
        (self.taken, self.is_ended, self.is_written) = (0, false, false);
        self.received.clear();
    }

    fn is_replayable(&self) -> bool {
        self.sent <= 1 && self.received.is_empty()
    }

    /// Returns the next frame for the connection.
    fn next_frame(&mut self) -> Option<Frame> {
        if let Some(piece) = Chunk::next_of(&self.out, &mut self.taken) {
            return Some(Frame::Data(piece));
        }
        (self.is_finished && !std::mem::replace(&mut self.is_ended, true)).then_some(Frame::End)
    }

    fn has_frame(&self) -> bool {
        self.taken < self.out.len() || self.is_finished && !self.is_ended
    }

    /// Returns the length of the next message with its prefix, once the prefix is here.
    fn next_length(&self) -> Option<usize> {
        let (prefix, _) = self.received.split_first_chunk::<PREFIX>()?;
        let [_, length @ ..] = prefix;
        Some(PREFIX + u32::from_be_bytes(*length) as usize)
    }

    fn has_message(&self) -> bool {
        self.next_length().is_some_and(|length| self.received.len() >= length)
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let length = self.next_length().filter(|length| self.received.len() >= *length)?;
        let message = self.received[PREFIX..length].to_vec();
        self.received.drain(..length);
        self.count();
        Some(message)
    }

    /// Accepts received bytes. Call it only without a whole message.
    fn receive(&mut self, data: &[u8]) -> Result<(), Fault> {
        if data.len() > held::room() {
            return Err(Fault::new(FaultKind::MemoryLimit, "the memory for messages of services is used up"));
        }
        self.received.extend_from_slice(data);
        self.count();
        if self.received.first().is_some_and(|flag| *flag != 0) {
            return Err(Fault::new(FaultKind::BadResponse, "a message of the service is compressed"));
        }
        if self.next_length().is_some_and(|length| length - PREFIX > self.limit) {
            return Err(Fault::new(
                FaultKind::ResponseBodyTooLarge,
                "a message of the service exceeds its limit",
            ));
        }
        Ok(())
    }

    /// Ends the call by a head or by trailers with these fields.
    fn end(&mut self, status: u16, fields: &Headers) -> StreamEnd {
        self.metadata.trailing = Some(fields.clone());
        StreamEnd::of(status, fields)
    }

    fn count(&mut self) {
        self.held.set(self.out.capacity() + self.received.capacity());
    }
}

/// Moves the messages of a call, to its end.
async fn run(worker: Weak<Worker>, call: StreamCall, slots: Rc<RefCell<Slots>>) -> Result<(), StreamError> {
    let lacks = |reason: &str| StreamError { reason: reason.to_owned(), missing: Missing::Node };
    let worker = worker.upgrade().ok_or_else(|| lacks("the worker ended"))?;
    let view = worker.view();
    let course = OutboundStream { worker: &worker, view: &view, call: &call, slots: &slots };
    course.run().await
}

/// One call under way.
struct OutboundStream<'c> {
    worker: &'c Worker,
    view: &'c View,
    call: &'c StreamCall,
    slots: &'c RefCell<Slots>,
}

impl OutboundStream<'_> {
    async fn run(&self) -> Result<(), StreamError> {
        let snapshot = &self.view.snapshot;
        let number = snapshot.upstream_number(&self.call.upstream);
        let Some((number, upstream)) = number.and_then(|number| Some((number, snapshot.upstream(number)?)))
        else {
            let reason = "the service is no longer part of the configuration".to_owned();
            return Err(StreamError { reason, missing: Missing::Node });
        };
        let mut head = self.head()?;
        let mut attempts = Attempts::new(self.worker, number, upstream, None, None);
        let mut marked = false;
        loop {
            let node = attempts.pick().map_err(failed)?;
            if !marked {
                marked = mark_pass(&mut head.headers, &self.worker.own_name, snapshot, &node.addr);
            }
            let in_flight = attempts.begin(&node);
            let mut decision = Decision::NextNode;
            let link_ms = attempts.link_ms(&node);
            let result = self.attempt(upstream, &node, link_ms, &mut head, &mut decision).await;
            in_flight.end(Outcome { latency_ms: None, now_ms: deadline::now_ms() });
            match result {
                Ok(end) => {
                    attempts.answered(&node, Some(end.status));
                    return end.result();
                }
                Err(fault) => {
                    let failure = Failure { fault, decision, request_sent: true, status: None };
                    if !attempts.failed(&node, &failure) {
                        return Err(failed(fault));
                    }
                }
            }
        }
    }

    fn head(&self) -> Result<RequestHead, StreamError> {
        let StreamCall { upstream, target, host, headers, passes, .. } = self.call;
        let mut fields = headers.clone();
        fields.append("Content-Type", b"application/grpc");
        fields.append("TE", b"trailers");
        let call = Call {
            upstream: upstream.clone(),
            method: Method::Post,
            target: target.as_bytes().to_vec(),
            host: host.clone(),
            headers: fields,
            passes: passes.clone(),
            body: None,
            timeout_ms: 0,
            limit: 0,
        };
        let limits = unlimited(&self.view.answer_limits);
        head(&call, &[], &limits)
            .map_err(|CallError(reason)| StreamError { reason, missing: Missing::Response })
    }

    /// One attempt on a node.
    async fn attempt(
        &self,
        upstream: &Upstream,
        node: &Endpoint,
        link_ms: Option<NonZeroU32>,
        head: &mut RequestHead,
        decision: &mut Decision,
    ) -> Result<StreamEnd, Fault> {
        let own = Origin::new(Peer::Unix, None, 0, &self.worker.clock.borrow());
        let connect_ms = upstream.transport.timeouts.connect_ms;
        let demands = Demands { connect_ms, link_ms, ..Demands::of(head, upstream, own, None) };
        let target = target::target(&self.view.snapshot, upstream, node, &demands);
        let send_ms = upstream.transport.timeouts.send_ms;
        let exchange = async |connection: &mut Connection| self.converse(connection, head, send_ms).await;
        let replayable = || self.slots.borrow().is_replayable();
        attempt(self.worker, &target, Method::Post, decision, exchange, replayable).await
    }

    /// Moves messages in both directions, until the service ends the call.
    async fn converse(
        &self,
        connection: &mut Connection,
        head: &mut RequestHead,
        send_ms: u64,
    ) -> Result<StreamEnd, Fault> {
        connection.send_head(head, None, BodyLength::Streamed, None);
        self.slots.borrow_mut().rewind();
        let mut sending = Sending { time: Deadline::new(), is_late_after_ms: send_ms, is_waiting: false };
        let (mut answer, mut has_head) = (ResponseHead::default(), false);
        poll_fn(|task| {
            let mut slots = self.slots.borrow_mut();
            let sent = sending.poll(connection, &mut slots, task);
            if let Poll::Ready(result) =
                self.poll_received(connection, &mut slots, &mut answer, &mut has_head, task)
            {
                return Poll::Ready(result);
            }
            // A response, if there is one, is worth more than the reason of the write error.
            sent.map_or(Poll::Pending, |fault| Poll::Ready(Err(fault)))
        })
        .await
    }

    fn poll_received(
        &self,
        connection: &mut Connection,
        slots: &mut RefMut<'_, Slots>,
        answer: &mut ResponseHead,
        has_head: &mut bool,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<StreamEnd, Fault>> {
        while !*has_head {
            task::ready!(connection.poll_head(task, Method::Post, &self.view.answer_limits, answer))?;
            *has_head = !answer.is_interim();
            if *has_head && (answer.status != 200 || connection.body_length().is_empty()) {
                return Poll::Ready(Ok(slots.end(answer.status, &answer.headers)));
            }
            if *has_head {
                slots.metadata.initial = Some(answer.headers.clone());
            }
        }
        while !slots.has_message() {
            match task::ready!(connection.poll_frame(task))? {
                Frame::Data(data) => slots.receive(&data)?,
                // Some servers send the status in the head although a body follows.
                Frame::End => return Poll::Ready(Ok(slots.end(200, &answer.headers))),
                Frame::Trailers(fields) => return Poll::Ready(Ok(slots.end(200, &fields))),
            }
        }
        Poll::Pending
    }
}

/// The writing side of a conversation.
struct Sending {
    /// Runs while the service accepts no bytes.
    time: Deadline,
    is_late_after_ms: u64,
    is_waiting: bool,
}

impl Sending {
    /// Writes as much as the connection accepts. Returns the fault of a connection that accepts no more.
    fn poll(
        &mut self,
        connection: &mut Connection,
        slots: &mut RefMut<'_, Slots>,
        task: &mut task::Context<'_>,
    ) -> Option<Fault> {
        loop {
            let mut progressed = false;
            while connection.has_room()
                && let Some(frame) = slots.next_frame()
            {
                connection.send(frame);
                progressed = true;
            }
            match connection.poll_flush(task) {
                Poll::Ready(Ok(())) if slots.has_frame() => {}
                Poll::Ready(Ok(())) => {
                    (slots.is_written, self.is_waiting) = (true, false);
                    self.time.clear();
                    return None;
                }
                Poll::Ready(Err(fault)) => return Some(fault),
                Poll::Pending => {
                    if progressed || !std::mem::replace(&mut self.is_waiting, true) {
                        self.time.set(self.is_late_after_ms);
                    }
                    let late = "the service does not read its messages";
                    let is_late = self.time.poll_expired(task).is_ready();
                    return is_late.then(|| Fault::new(FaultKind::UpstreamSendTimeout, late));
                }
            }
        }
    }
}

/// The end of a call that the service has responded.
struct StreamEnd {
    /// The status of HTTP.
    status: u16,
    /// The status of gRPC; None if missing or invalid.
    code: Option<u16>,
}

impl StreamEnd {
    /// The end by a head or by trailers with these fields.
    fn of(status: u16, fields: &Headers) -> StreamEnd {
        let code = fields.find(b"grpc-status").and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
        StreamEnd { status, code }
    }

    fn result(&self) -> Result<(), StreamError> {
        let reason = match (self.status, self.code) {
            (200, Some(0)) => return Ok(()),
            (200, Some(code)) => format!("the service ended the call with the gRPC status {code}"),
            (200, None) => "the service ended the call without a gRPC status".to_owned(),
            (status, _) => format!("the service responded with the HTTP status {status}"),
        };
        Err(StreamError { reason, missing: Missing::Response })
    }
}

fn failed(fault: Fault) -> StreamError {
    let missing = match fault {
        fault if has_no_node_left(fault) => Missing::Node,
        fault if is_late(fault) => Missing::Time,
        _ => Missing::Response,
    };
    StreamError { reason: fault.reason.to_owned(), missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut slots = Slots::new(0);
        slots.put(message);
        slots.out
    }

    #[test]
    fn messages_are_cut_out_of_any_pieces() {
        let bytes = [framed(b"one"), framed(b""), framed(b"three")].concat();
        for size in 1..=bytes.len() {
            let (mut slots, mut messages) = (Slots::new(5), Vec::new());
            for piece in bytes.chunks(size) {
                slots.receive(piece).unwrap();
                messages.extend(std::iter::from_fn(|| slots.take()));
            }
            assert_eq!(messages, [&b"one"[..], b"", b"three"], "{size}");
            assert!(!slots.has_message());
        }
    }

    #[test]
    fn invalid_messages_are_faults() {
        let check = |bytes: &[u8], expected: Option<FaultKind>| {
            let fault = Slots::new(5).receive(bytes).err();
            assert_eq!(fault.map(|fault| fault.kind), expected, "{bytes:?}");
        };
        check(&framed(b"12345"), None);
        check(&framed(b"123456"), Some(FaultKind::ResponseBodyTooLarge));
        // The length alone is enough: nothing is read up to it.
        check(&[0, 0xff, 0xff, 0xff, 0xff], Some(FaultKind::ResponseBodyTooLarge));
        check(&[1], Some(FaultKind::BadResponse));
    }

    #[test]
    fn only_the_first_message_is_sent_again() {
        let mut slots = Slots::new(5);
        let text = |slots: &mut Slots| match slots.next_frame() {
            Some(Frame::Data(data)) => String::from_utf8_lossy(&data[PREFIX..]).into_owned(),
            Some(_) => "end".to_owned(),
            None => String::new(),
        };
        slots.put(b"one");
        assert_eq!(text(&mut slots), "one");
        assert!(slots.is_replayable());
        slots.rewind();
        assert_eq!(text(&mut slots), "one");
        slots.put(b"two");
        slots.finish();
        assert!(!slots.is_replayable());
        assert_eq!([text(&mut slots), text(&mut slots), text(&mut slots)], ["two", "end", ""]);
    }

    #[test]
    fn ends_of_calls() {
        let check = |status, code: Option<&[u8]>, is_clean| {
            let mut fields = Headers::default();
            code.into_iter().for_each(|code| fields.append("grpc-status", code));
            assert_eq!(StreamEnd::of(status, &fields).result().is_ok(), is_clean, "{status} {code:?}");
        };
        check(200, Some(b"0"), true);
        check(200, Some(b"13"), false);
        check(200, Some(b"x"), false);
        check(200, None, false);
        check(503, Some(b"0"), false);
    }
}
