//! Calls of plugins to other services: over the worker's own connections, by the rules of attempts.

mod bytes;
mod stream;

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::rc::{Rc, Weak};
use std::task::{self, Poll};

use sigma_buffer::held::{self, CountedBytes};
use sigma_http::h1::parse_request;
use sigma_http::{
    BodyLength, Chunk, Fault, FaultKind, Frame, HeaderId, Headers, Method, RequestHead, ResponseHead,
};
use sigma_net::{Deadline, Peer, deadline};
use sigma_plugin::outbound::{
    BytesCall, BytesError, Call, CallError, Calling, CallingBytes, MessageStream, Missing, Outbound,
    ServiceResponse, StreamCall,
};
use sigma_upstream::balance::Outcome;
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::pool::Target;
use sigma_wire::{Connection, HeadLimits};

use crate::attempt::attempts::{Attempts, Decision, Failure, Progress, decide};
use crate::attempt::target::{self, Demands};
use crate::edge::connection::Origin;
use crate::exchange::mark_pass;
use crate::snapshot::Upstream;
use crate::worker::{View, Worker};

/// Makes calls of the plugins of one worker.
#[derive(Debug)]
pub(crate) struct Calls {
    worker: Weak<Worker>,
}

impl Calls {
    /// Makes the calls of the worker that `worker` leads to.
    pub(crate) fn new(worker: Weak<Worker>) -> Calls {
        Calls { worker }
    }

    /// Returns the worker, for requests outside an exchange.
    pub(crate) fn worker(&self) -> Option<Rc<Worker>> {
        self.worker.upgrade()
    }
}

impl Outbound for Calls {
    fn call(&self, call: Call) -> Calling {
        let worker = Weak::clone(&self.worker);
        Box::pin(async move {
            let worker = worker.upgrade().ok_or_else(|| CallError("the worker ended".to_owned()))?;
            let view = worker.view();
            let limit = Deadline::new();
            limit.set(call.timeout_ms);
            match limit.bound(OutboundCall { worker: &worker, view: &view, call: &call }.run()).await {
                Some(result) => result,
                None => Err(CallError(format!("no response within {} ms", call.timeout_ms))),
            }
        })
    }

    fn kept(&self) -> Rc<dyn Outbound> {
        Rc::new(Calls::new(Weak::clone(&self.worker)))
    }

    fn own_name(&self) -> String {
        self.worker().map_or_else(String::new, |worker| worker.own_name.as_str().to_owned())
    }

    fn call_bytes(&self, call: BytesCall) -> CallingBytes {
        let worker = Weak::clone(&self.worker);
        Box::pin(async move {
            let lacks = |missing, reason: String| Err(BytesError { reason, missing });
            let Some(worker) = worker.upgrade() else {
                return lacks(Missing::Node, "the worker ended".to_owned());
            };
            let view = worker.view();
            let limit = Deadline::new();
            limit.set(call.timeout_ms);
            let course = bytes::OutboundBytesCall { worker: &worker, view: &view, call: &call };
            match limit.bound(course.run()).await {
                Some(result) => result,
                None => lacks(Missing::Time, format!("no response within {} ms", call.timeout_ms)),
            }
        })
    }

    fn open_stream(&self, call: StreamCall) -> Box<dyn MessageStream> {
        Box::new(stream::GrpcStream::new(Weak::clone(&self.worker), call))
    }
}

/// One call under way.
struct OutboundCall<'c> {
    worker: &'c Worker,
    view: &'c View,
    call: &'c Call,
}

impl OutboundCall<'_> {
    async fn run(&self) -> Result<ServiceResponse, CallError> {
        let snapshot = &self.view.snapshot;
        let number = snapshot.upstream_number(&self.call.upstream);
        let Some((number, upstream)) = number.and_then(|number| Some((number, snapshot.upstream(number)?)))
        else {
            return Err(CallError("the service is no longer part of the configuration".to_owned()));
        };
        let mut head = head(self.call, &[], &unlimited(&self.view.answer_limits))?;
        // A call has one short time: it follows no retry policy, whose pauses would be too long.
        let mut attempts = Attempts::new(self.worker, number, upstream, None, None);
        let mut marked = false;
        loop {
            let node = attempts.pick().map_err(call_error)?;
            if !marked {
                marked = mark_pass(&mut head.headers, &self.worker.own_name, snapshot, &node.addr);
            }
            let in_flight = attempts.begin(&node);
            let mut decision = Decision::NextNode;
            let link_ms = attempts.link_ms(&node);
            let result = self.attempt(upstream, &node, link_ms, &mut head, &mut decision).await;
            in_flight.end(Outcome { latency_ms: None, now_ms: deadline::now_ms() });
            match result {
                Ok(answer) => {
                    attempts.answered(&node, Some(answer.status));
                    return Ok(answer);
                }
                Err(fault) => {
                    let failure = Failure { fault, decision, request_sent: true, status: None };
                    if !attempts.failed(&node, &failure) {
                        return Err(call_error(fault));
                    }
                }
            }
        }
    }

    /// One attempt on a node.
    async fn attempt(
        &self,
        upstream: &Upstream,
        node: &Endpoint,
        link_ms: Option<NonZeroU32>,
        head: &mut RequestHead,
        decision: &mut Decision,
    ) -> Result<ServiceResponse, Fault> {
        let own = Origin::new(Peer::Unix, None, 0, &self.worker.clock.borrow());
        let connect_ms = upstream.transport.timeouts.connect_ms;
        let demands = Demands { connect_ms, link_ms, ..Demands::of(head, upstream, own, None) };
        let target = target::target(&self.view.snapshot, upstream, node, &demands);
        let exchange = async |connection: &mut Connection| self.exchange(connection, head).await;
        attempt(self.worker, &target, self.call.method, decision, exchange, || true).await
    }

    /// Sends the request and reads the response, on one connection.
    async fn exchange(
        &self,
        connection: &mut Connection,
        head: &mut RequestHead,
    ) -> Result<ServiceResponse, Fault> {
        let Call { method, body, limit, .. } = self.call;
        let length = body.as_ref().map_or(BodyLength::None, |body| BodyLength::Known(body.len() as u64));
        connection.send_head(head, None, length, None);
        let mut upload =
            Upload { body: body.as_deref().unwrap_or_default(), taken: 0, ended: length.is_empty() };
        let sent = body.as_ref().map_or(0, Vec::len);
        let mut held = CountedBytes::default();
        held.set(sent);
        let mut answer = ResponseHead::default();
        loop {
            poll_fn(|task| {
                upload.send(connection, task);
                connection.poll_head(task, *method, &self.view.answer_limits, &mut answer)
            })
            .await?;
            if !answer.is_interim() {
                break;
            }
        }
        let (mut bytes, mut trailers) = (Vec::new(), Headers::default());
        if !connection.body_length().is_empty() {
            loop {
                let frame = poll_fn(|task| {
                    upload.send(connection, task);
                    connection.poll_frame(task)
                });
                let data = match frame.await? {
                    Frame::Data(data) => data,
                    Frame::Trailers(fields) => {
                        trailers = *fields;
                        break;
                    }
                    _ => break,
                };
                if bytes.len() + data.len() > *limit || data.len() > held::room() {
                    let reason = "the response of a service exceeds its limit";
                    return Err(Fault::new(FaultKind::ResponseBodyTooLarge, reason));
                }
                bytes.extend_from_slice(&data);
                held.set(sent + bytes.capacity());
            }
        }
        answer.headers.remove_hop_by_hop();
        let headers = std::mem::take(&mut answer.headers);
        Ok(ServiceResponse { status: answer.status, headers, body: bytes, trailers })
    }
}

/// Returns limits for a head of the gateway itself, which may have any length.
fn unlimited(limits: &HeadLimits) -> HeadLimits {
    HeadLimits { line_bytes: usize::MAX, head_bytes: usize::MAX, ..*limits }
}

/// Returns the head of the request of a call. It passes the parser for heads of clients: the value of a variable in a
/// field cannot become another field. `own` are fields of the gateway's.
pub(crate) fn head(
    call: &Call,
    own: &[(HeaderId, &[u8])],
    limits: &HeadLimits,
) -> Result<RequestHead, CallError> {
    let Call { method, target, host, headers, passes, .. } = call;
    let mut text = Vec::with_capacity(256);
    text.extend_from_slice(method.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(target);
    text.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    text.extend_from_slice(host.as_bytes());
    text.extend_from_slice(b"\r\n");
    let passes = (!passes.is_empty()).then_some((HeaderId::CdnLoop, &passes[..]));
    let own = own.iter().copied().chain(passes).map(|(id, value)| (id.name().as_bytes(), value));
    for (name, value) in headers.iter().chain(own) {
        if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            let name = String::from_utf8_lossy(name);
            return Err(CallError(format!("the value of the field {name} contains invalid characters")));
        }
        text.extend_from_slice(name);
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
    let mut head = RequestHead::default();
    match parse_request(&text, limits, &mut head) {
        Ok(Some(end)) if end == text.len() => Ok(head),
        _ => Err(CallError("the request is invalid".to_owned())),
    }
}

/// One attempt on a node; on a stale idle connection a second one on a fresh connection. It may be repeated as a
/// request with `method` may, while `replayable` says so.
async fn attempt<T>(
    worker: &Worker,
    target: &Target<'_>,
    method: Method,
    decision: &mut Decision,
    mut exchange: impl AsyncFnMut(&mut Connection) -> Result<T, Fault>,
    replayable: impl Fn() -> bool,
) -> Result<T, Fault> {
    let mut idle_allowed = true;
    loop {
        let kept = if idle_allowed { worker.checkout(target) } else { None };
        let mut connection = match kept {
            Some(connection) => connection,
            None => {
                *decision = Decision::NextNode;
                worker.connect(target).await?
            }
        };
        let fault = match exchange(&mut connection).await {
            Ok(answer) => {
                connection.give_back(target, deadline::now_ms());
                return Ok(answer);
            }
            Err(fault) => fault,
        };
        let progress = Progress {
            unsent: connection.is_unsent(),
            stale: connection.may_be_stale(),
            replayable: replayable(),
            answered: false,
        };
        *decision = decide(fault, method, progress, None);
        if *decision != Decision::SameNode {
            return Err(fault);
        }
        idle_allowed = false;
    }
}

/// The body of a call on its way.
struct Upload<'c> {
    body: &'c [u8],
    taken: usize,
    ended: bool,
}

impl Upload<'_> {
    /// Sends as much as the connection accepts, and the end after it; returns true if all of it has left. A
    /// connection that accepts no more may still have a response.
    fn send(&mut self, connection: &mut Connection, task: &mut task::Context<'_>) -> bool {
        loop {
            while !self.ended && connection.has_room() {
                let piece = Chunk::next_of(self.body, &mut self.taken);
                self.ended = piece.is_none();
                connection.send(piece.map_or(Frame::End, Frame::Data));
            }
            match connection.poll_flush(task) {
                Poll::Ready(Ok(())) if !self.ended => {}
                flushed => return matches!(flushed, Poll::Ready(Ok(()))),
            }
        }
    }
}

fn call_error(fault: Fault) -> CallError {
    CallError(fault.reason.to_owned())
}
