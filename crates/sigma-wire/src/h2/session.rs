//! A client's connection, as the task that drives it sees it.
//!
//! It drives the codec and watches over what all streams share: how long the client may idle, what
//! it may flood, when it has to go. Each stream is for a task of its own.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use sigma_http::Chunk;
use sigma_http::h1::HeadLimits;
use sigma_net::{Deadline, Peer, Stream};

use super::wire::{FloodLimits, Monitor, Wire};

/// How long a client that was told to leave may take once it has no stream left.
const LEAVE_MS: u64 = 2_000;

/// What a client's connection with streams is held to, as long as it lasts.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// The head of a request.
    pub head: HeadLimits,
    /// Bytes of a request's body; 0 for any number.
    pub body_bytes: u64,
    /// Requests on one connection.
    pub requests: u32,
    /// Until the first request, and for the rest of a head.
    pub head_ms: u64,
    /// Until the next request.
    pub idle_ms: u64,
    /// For a client that does not read.
    pub send_ms: u64,
    /// Streams at a time.
    pub streams: u32,
    /// Largest list of request fields.
    pub header_list_bytes: u32,
    /// Largest frame that the client may send.
    pub frame_bytes: u32,
    /// Bytes of a request that the client may send ahead, per stream.
    pub stream_window_bytes: u32,
    /// Bytes that the client may send ahead on the connection.
    pub connection_window_bytes: u32,
    /// Bytes of an answer that may wait for the socket, per stream.
    pub send_buffer_bytes: usize,
    /// Streams taken back before anybody has looked at them.
    pub pending_resets: usize,
    /// What costs the client nothing.
    pub flood: FloodLimits,
}

/// What the streams of a connection and its own task share.
#[derive(Debug)]
struct Shared {
    limits: SessionLimits,
    /// Streams with an exchange on them.
    active: Cell<u32>,
    /// Of the connection's task, which has to know when the last exchange is over.
    driver: RefCell<Option<Waker>>,
}

/// Counts a stream in while it lives, however it ends.
#[derive(Debug)]
pub(super) struct Active(Rc<Shared>);

impl Active {
    fn new(shared: &Rc<Shared>) -> Active {
        shared.active.set(shared.active.get() + 1);
        Active(Rc::clone(shared))
    }

    pub(super) fn limits(&self) -> &SessionLimits {
        &self.0.limits
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let left = self.0.active.get() - 1;
        self.0.active.set(left);
        if left == 0
            && let Some(driver) = self.0.driver.take()
        {
            driver.wake();
        }
    }
}

/// A stream that the client has begun, with the head of its request.
#[derive(Debug)]
pub struct Incoming {
    pub(super) request: Request<RecvStream>,
    pub(super) respond: SendResponse<Bytes>,
    /// Which one of its connection it is, from 1.
    pub(super) number: u32,
    pub(super) active: Active,
}

/// What a connection waits for; each has its own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// For the first request.
    First,
    /// For the next one.
    Idle,
    /// For the rest of a head.
    Head,
    /// For the client to read; from this count of bytes on.
    Room(u64),
    /// For the end of exchanges, which have times of their own.
    Streams,
    /// For the client to go.
    Leaving,
}

/// A client's connection with streams.
pub struct Session {
    peer: Peer,
    codec: Connection<Wire, Bytes>,
    monitor: Rc<Monitor>,
    shared: Rc<Shared>,
    deadline: Deadline,
    wait: Wait,
    /// Streams begun so far.
    begun: u32,
    leaving: bool,
    cut: bool,
}

impl Session {
    /// Takes a connection whose client has sent `first`, the beginning of the preface; None if the
    /// rest of it does not come. `peer` is who a log names.
    pub async fn accept(stream: Stream, first: Chunk, peer: Peer, limits: SessionLimits) -> Option<Session> {
        let wire = Wire::of_client(stream, first, limits.flood);
        let monitor = wire.monitor();
        let deadline = Deadline::new();
        deadline.set(limits.head_ms);
        let mut handshake = builder(&limits).handshake::<_, Bytes>(wire);
        let handshake = poll_fn(|cx| match std::pin::Pin::new(&mut handshake).poll(cx) {
            Poll::Pending => deadline.poll_expired(cx).map(|()| None),
            Poll::Ready(result) => Poll::Ready(result.ok()),
        });
        let codec = handshake.await?;
        let shared = Rc::new(Shared { limits, active: Cell::new(0), driver: RefCell::default() });
        let wait = Wait::First;
        Some(Session { peer, codec, monitor, shared, deadline, wait, begun: 0, leaving: false, cut: false })
    }

    /// The next stream; None when the connection is over. `closing` tells it to take no further ones.
    /// It also drives the connection: its streams go on only while somebody waits for the next one.
    pub async fn next(&mut self, closing: impl Fn() -> bool) -> Option<Incoming> {
        let (request, respond) = poll_fn(|cx| self.poll_next(cx, &closing)).await?;
        self.begun += 1;
        Some(Incoming { request, respond, number: self.begun, active: Active::new(&self.shared) })
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        closing: &impl Fn() -> bool,
    ) -> Poll<Option<(Request<RecvStream>, SendResponse<Bytes>)>> {
        loop {
            if closing() || self.begun >= self.shared.limits.requests {
                self.leave();
            }
            match self.codec.poll_accept(cx) {
                Poll::Ready(Some(Ok(stream))) => return Poll::Ready(Some(stream)),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "a client's connection broke");
                    return Poll::Ready(None);
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {}
            }
            if self.monitor.is_flooded() && !self.cut {
                tracing::info!(peer = ?self.peer, "a client floods its connection; closing it");
                self.cut(Reason::ENHANCE_YOUR_CALM);
                continue;
            }
            self.shared.driver.replace(Some(cx.waker().clone()));
            if self.poll_wait(cx).is_pending() {
                return Poll::Pending;
            }
            match self.wait {
                Wait::First | Wait::Idle => self.leave(),
                Wait::Head if !self.cut => self.cut(Reason::ENHANCE_YOUR_CALM),
                Wait::Head | Wait::Room(_) | Wait::Leaving => return Poll::Ready(None),
                Wait::Streams => {}
            }
        }
    }

    /// No further streams; the client is told which were its last.
    fn leave(&mut self) {
        if !self.leaving {
            self.leaving = true;
            self.codec.graceful_shutdown();
        }
    }

    /// Ends the connection with all its streams.
    fn cut(&mut self, reason: Reason) {
        self.cut = true;
        self.leaving = true;
        self.codec.abrupt_shutdown(reason);
    }

    /// Ready when the time of what is waited for is over.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limits = &self.shared.limits;
        let idle = self.shared.active.get() == 0;
        let wait = match () {
            () if self.monitor.is_blocked() => Wait::Room(self.monitor.written()),
            () if self.cut || (self.leaving && idle) => Wait::Leaving,
            () if self.monitor.is_head_open() => Wait::Head,
            () if !idle => Wait::Streams,
            () if self.begun == 0 => Wait::First,
            () => Wait::Idle,
        };
        if wait != self.wait {
            self.wait = wait;
            match wait {
                Wait::First | Wait::Head => self.deadline.set(limits.head_ms),
                Wait::Idle => self.deadline.set(limits.idle_ms),
                Wait::Room(_) => self.deadline.set(limits.send_ms),
                Wait::Leaving => self.deadline.set(LEAVE_MS),
                Wait::Streams => self.deadline.clear(),
            }
        }
        // Asked even when it is not set: it is how a stop reaches this task.
        self.deadline.poll_expired(cx)
    }
}

fn builder(limits: &SessionLimits) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(limits.stream_window_bytes)
        .initial_connection_window_size(limits.connection_window_bytes)
        .max_frame_size(limits.frame_bytes)
        .max_header_list_size(limits.header_list_bytes)
        .max_concurrent_streams(limits.streams)
        .max_send_buffer_size(limits.send_buffer_bytes)
        .max_pending_accept_reset_streams(limits.pending_resets)
        .enable_connect_protocol();
    builder
}
