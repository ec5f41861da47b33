//! Calls to services under way.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use sigma_http::{Headers, Method};
use sigma_plugin::outbound::{Call, MessageStream, ServiceResponse, StreamCall, StreamError};
use sigma_plugin_kit::tallies::Tally;
use tokio::sync::{Semaphore, mpsc};

use crate::events::Event;
use crate::state::{Arrived, CallAnswer, GrpcEnd, Outgoing, Pairs, Part};

/// The status of a call by gRPC that its service has not ended.
const UNAVAILABLE: u32 = 14;

/// The log of a call.
pub(crate) struct CallLog {
    pub(crate) name: Box<str>,
    pub(crate) tally: Tally<Event>,
}

impl CallLog {
    fn failed(&self, reason: &str) {
        self.tally.count(Event::CallFailed);
        tracing::warn!("wasm {}: a call has no response: {reason}", self.name);
    }
}

/// The work of a call.
pub(crate) enum Calling {
    Http(sigma_plugin::outbound::Calling, CallLog),
    /// One message, and one in the response
    Unary {
        stream: Box<dyn MessageStream>,
        message: Vec<u8>,
        timeout: Duration,
        log: CallLog,
    },
    Stream(GrpcStream, CallLog),
}

impl Calling {
    /// Makes the call; passes its response on. It ends early if `pass` returns None.
    pub(crate) async fn run(self, mut pass: impl FnMut(Arrived) -> Option<()>) {
        match self {
            Calling::Http(calling, log) => {
                let answer = calling.await.inspect_err(|error| log.failed(&error.0));
                pass(Arrived::Http(answer.map(call_answer).unwrap_or_default()));
            }
            Calling::Unary { mut stream, message, timeout, log } => {
                let called = tokio::time::timeout(timeout, unary(&mut *stream, message)).await;
                let called = called.unwrap_or_else(|_| Err("the timeout expired".to_owned()));
                pass(Arrived::Grpc(called.map_err(|reason| {
                    log.failed(&reason);
                    end_of(stream.metadata().trailing.as_ref(), Err(reason))
                })));
            }
            Calling::Stream(conversation, log) => conversation.run(&log, pass).await,
        }
    }
}

/// Sends a message, and returns the one of the response.
async fn unary(stream: &mut dyn MessageStream, message: Vec<u8>) -> Result<Vec<u8>, String> {
    let reason = |error: StreamError| error.reason;
    poll_fn(|task| stream.poll_sent(task)).await.map_err(reason)?;
    stream.send(&message);
    stream.finish();
    let answer = poll_fn(|task| stream.poll_message(task)).await.map_err(reason)?;
    let answer = answer.ok_or_else(|| "the response has no message".to_owned())?;
    // The status follows the message.
    match poll_fn(|task| stream.poll_message(task)).await.map_err(reason)? {
        None => Ok(answer),
        Some(_) => Err("the response has several messages".to_owned()),
    }
}

/// Returns the status of a call; UNKNOWN if the service sent no status.
fn end_of(trailing: Option<&Headers>, result: Result<(), String>) -> GrpcEnd {
    let field = |name: &[u8]| trailing.and_then(|fields| fields.find(name));
    let code = field(b"grpc-status").and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
    match (code, result) {
        (Some(code), _) => GrpcEnd { code, message: field(b"grpc-message").unwrap_or_default().to_vec() },
        (None, Ok(())) => GrpcEnd::default(),
        (None, Err(reason)) => GrpcEnd { code: UNAVAILABLE, message: reason.into_bytes() },
    }
}

/// A stream by gRPC.
pub(crate) struct GrpcStream {
    stream: Box<dyn MessageStream>,
    messages: mpsc::Receiver<Vec<u8>>,
    is_finished: bool,
    has_initial: bool,
    /// A part that arrived with the head.
    next: Option<Part>,
}

impl GrpcStream {
    pub(crate) fn new(stream: Box<dyn MessageStream>, messages: mpsc::Receiver<Vec<u8>>) -> GrpcStream {
        GrpcStream { stream, messages, is_finished: false, has_initial: false, next: None }
    }

    /// Moves messages in both directions, to the end of the call.
    async fn run(mut self, log: &CallLog, mut pass: impl FnMut(Arrived) -> Option<()>) {
        // A part at a time: the next one is read when the module has got the one before.
        let room = Arc::new(Semaphore::new(1));
        while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
            let part = poll_fn(|task| self.poll(task)).await;
            let is_end = matches!(part, Part::End(..));
            if let Part::End(_, end) = &part
                && end.code != 0
            {
                log.failed(&format!("status {}: {}", end.code, end.message.escape_ascii()));
            }
            if pass(Arrived::Stream { part, _permit: permit }).is_none() || is_end {
                return;
            }
        }
    }

    /// Sends messages of the module.
    fn poll_send(&mut self, task: &mut task::Context<'_>) {
        while !self.is_finished
            && let Poll::Ready(Ok(())) = self.stream.poll_sent(task)
        {
            match self.messages.poll_recv(task) {
                Poll::Ready(Some(message)) => self.stream.send(&message),
                Poll::Ready(None) => {
                    self.is_finished = true;
                    self.stream.finish();
                }
                Poll::Pending => return,
            }
        }
    }

    /// Returns the next part of the response.
    fn poll(&mut self, task: &mut task::Context<'_>) -> Poll<Part> {
        if let Some(part) = self.next.take() {
            return Poll::Ready(part);
        }
        self.poll_send(task);
        let polled = self.stream.poll_message(task);
        let initial = self.initial();
        let part = match polled {
            Poll::Pending => return initial.map_or(Poll::Pending, Poll::Ready),
            Poll::Ready(Ok(Some(message))) => Part::Message(message),
            Poll::Ready(ended) => {
                let trailing = self.stream.metadata().trailing;
                let end = end_of(trailing.as_ref(), ended.map(drop).map_err(|error| error.reason));
                Part::End(trailing.as_ref().map(lowered), end)
            }
        };
        // The head comes first.
        Poll::Ready(match initial {
            Some(initial) => {
                self.next = Some(part);
                initial
            }
            None => part,
        })
    }

    /// Returns the metadata of the head, once.
    fn initial(&mut self) -> Option<Part> {
        if self.has_initial {
            return None;
        }
        let fields = self.stream.metadata().initial?;
        self.has_initial = true;
        Some(Part::Initial(lowered(&fields)))
    }
}

fn lowered(headers: &Headers) -> Pairs {
    headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect()
}

fn fields(pairs: &Pairs) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in pairs {
        if let Ok(name) = std::str::from_utf8(name) {
            headers.append(name, value);
        }
    }
    headers
}

/// Returns a call by HTTP.
pub(crate) fn outbound_call(call: Outgoing, limit: usize) -> Call {
    Call {
        upstream: call.upstream,
        method: Method::parse(call.method.as_deref().unwrap_or(b"GET")),
        target: call.target,
        host: call.host.into(),
        headers: fields(&call.headers),
        passes: call.passes,
        body: Some(call.body).filter(|body| !body.is_empty()),
        timeout_ms: call.timeout_ms,
        limit,
    }
}

/// Returns the message of a call by gRPC, the messages of a stream, and the call.
pub(crate) fn stream_call(
    call: Outgoing,
    limit: usize,
) -> (Vec<u8>, Option<mpsc::Receiver<Vec<u8>>>, StreamCall) {
    let stream = StreamCall {
        upstream: call.upstream,
        target: String::from_utf8_lossy(&call.target).into(),
        host: call.host.into(),
        headers: fields(&call.headers),
        passes: call.passes,
        limit,
    };
    (call.body, call.messages, stream)
}

fn call_answer(answer: ServiceResponse) -> CallAnswer {
    let mut headers = vec![(b":status".to_vec(), answer.status.to_string().into_bytes())];
    headers.extend(lowered(&answer.headers));
    CallAnswer { headers, trailers: lowered(&answer.trailers), body: answer.body }
}
