//! The server side of HTTP/2 (RFC 9113): one task per connection, one per stream.
//!
//! The connection's task drives the codec and watches over what all streams share: how long the
//! client may idle, what it may flood, when it has to go. Each stream runs the one exchange loop.

mod stream;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use sigma_http::h1::HeadLimits;
use sigma_http::{Chunk, Fault};
use sigma_net::{Deadline, Stream};
use sigma_wire::h2::wire::{FloodLimits, Monitor, Wire};

use super::Origin;
use super::secure::Secure;
use crate::exchange;
use crate::worker::Worker;

pub(crate) use stream::ServerStream;

/// How long a client that was told to leave may take once it has no stream left.
const LEAVE_MS: u64 = 2_000;

/// What a connection needs to know of the settings; in force as long as it lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionLimits {
    pub(crate) head: HeadLimits,
    pub(crate) body_bytes: u64,
    pub(crate) requests: u32,
    pub(crate) head_ms: u64,
    pub(crate) idle_ms: u64,
    pub(crate) send_ms: u64,
    pub(crate) streams: u32,
    pub(crate) header_list_bytes: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) stream_window_bytes: u32,
    pub(crate) connection_window_bytes: u32,
    pub(crate) send_buffer_bytes: usize,
    pub(crate) pending_resets: usize,
    pub(crate) flood: FloodLimits,
}

/// What the streams of a connection and its own task share.
#[derive(Debug)]
struct Shared {
    origin: Origin,
    secure: Option<Rc<Secure>>,
    limits: SessionLimits,
    /// Streams with an exchange on them.
    active: Cell<u32>,
    /// Of the connection's task, which has to know when the last exchange is over.
    driver: RefCell<Option<Waker>>,
}

/// Counts a stream in while it lives, however it ends.
struct Active(Rc<Shared>);

impl Active {
    fn new(shared: &Rc<Shared>) -> Active {
        shared.active.set(shared.active.get() + 1);
        Active(Rc::clone(shared))
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

/// A client's connection and what becomes of it.
struct Session {
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

/// Serves a connection whose client has sent `first`, the beginning of the preface, to its end.
/// `closing` tells it to take no further streams; `guard` lives as long as any of its exchanges.
pub(crate) async fn serve<G: 'static>(
    worker: Rc<Worker>,
    (stream, first): (Stream, Chunk),
    origin: Origin,
    limits: SessionLimits,
    closing: impl Fn() -> bool,
    guard: Rc<G>,
) {
    let secure = Secure::of(&stream);
    let wire = Wire::of_client(stream, first, limits.flood);
    let monitor = wire.monitor();
    let deadline = Deadline::new();
    deadline.set(limits.head_ms);
    let mut handshake = builder(&limits).handshake::<_, Bytes>(wire);
    let handshake = poll_fn(|cx| match std::pin::Pin::new(&mut handshake).poll(cx) {
        Poll::Pending => deadline.poll_expired(cx).map(|()| None),
        Poll::Ready(result) => Poll::Ready(result.ok()),
    });
    let Some(codec) = handshake.await else { return };
    let shared = Rc::new(Shared { origin, secure, limits, active: Cell::new(0), driver: RefCell::default() });
    let mut session =
        Session { codec, monitor, shared, deadline, wait: Wait::First, begun: 0, leaving: false, cut: false };
    while let Some((request, respond)) = session.next(&closing).await {
        session.begun += 1;
        let (worker, guard) = (Rc::clone(&worker), Rc::clone(&guard));
        let active = Active::new(&session.shared);
        let number = session.begun;
        tokio::task::spawn_local(async move {
            run(&worker, &active.0, request, respond, number).await;
            drop((active, guard));
        });
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

/// One stream, from its head to its end.
async fn run(
    worker: &Worker,
    shared: &Shared,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    number: u32,
) {
    let mut scratch = worker.take_scratch();
    let mut stream =
        ServerStream::new(respond, (shared.origin, shared.secure.clone()), &shared.limits, number);
    let key = [worker.random(), worker.random()];
    let down = |stream| super::Downstream::H2(stream);
    match stream.accept(request, key, &mut scratch.cx.request) {
        Ok(()) => exchange::run(worker, down(&mut stream), &mut scratch).await,
        Err(fault) => exchange::refuse(worker, down(&mut stream), &mut scratch, fault).await,
    }
    worker.give_scratch(scratch);
}

impl Session {
    /// The next stream; none when the connection is over.
    async fn next(
        &mut self,
        closing: &impl Fn() -> bool,
    ) -> Option<(Request<RecvStream>, SendResponse<Bytes>)> {
        poll_fn(|cx| self.poll_next(cx, closing)).await
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
                tracing::info!(peer = ?self.shared.origin.peer, "a client floods its connection; closing it");
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

/// The fault of a client that went away, or that took its stream back.
fn gone() -> Fault {
    Fault::new(sigma_http::FaultKind::ClientGone, "the client closed the stream")
}
