//! A client's connection, from the view of the task that drives it.
//!
//! It drives the transport and enforces the limits of the whole connection: idle time, floods, graceful end. Each
//! stream has its own task.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_buffer::held;
use sigma_http::Chunk;
use sigma_http::h1::HeadLimits;
use sigma_http::h2::{Codec, Config, ErrorCode, FloodLimits, FlowWindows, GLITCHES, Role};
use sigma_net::{Deadline, Peer, Stream};

use super::mux::{Mux, Progress, Transport};
use super::server::{Incoming, ServerStream, Shared};

/// How long a client may take to close after GOAWAY and its last stream.
const LEAVE_MS: u64 = 2_000;

/// The limits of a client's connection with streams.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
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
    /// The limit for a client that does not read.
    pub send_ms: u64,
    /// Bytes that a blocking client must read within `send_ms`.
    pub progress_bytes: u64,
    /// Concurrent streams.
    pub streams: u32,
    /// Largest list of request fields.
    pub header_list_bytes: u32,
    /// Largest frame that the client may send.
    pub frame_bytes: u32,
    /// Bytes that the peer may send ahead.
    pub windows: FlowWindows,
    /// Cancelled streams whose exchanges still run.
    pub pending_resets: usize,
    /// The limits of useless frames.
    pub flood: FloodLimits,
}

/// The reason for a wait of the connection; each has its own time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The first request
    First,
    /// The next request
    Idle,
    /// The rest of a head
    Head,
    /// Reading by the client, from this count of bytes on
    Room(u64),
    /// The end of exchanges, which have their own time limits
    Streams,
    /// The close by the client
    Leaving,
}

impl Wait {
    /// Returns the wait for room after `written` bytes; a new one if enough bytes were sent since.
    fn for_room(self, written: u64, progress_bytes: u64) -> Wait {
        match self {
            Wait::Room(before) if written - before < progress_bytes => self,
            _ => Wait::Room(written),
        }
    }
}

/// A client's connection with streams.
#[derive(Debug)]
pub struct Session {
    peer: Peer,
    transport: Transport,
    shared: Rc<Shared>,
    limits: SessionLimits,
    deadline: Deadline,
    wait: Wait,
    /// The revocations of accounts that were handled.
    revocations: u64,
    /// The output is complete; the client may still be sending.
    closing: bool,
}

impl Session {
    /// Takes a connection whose client has sent `first`, the beginning of the preface. `peer` is the name in logs,
    /// `alternative` the value of `Alt-Svc` in responses.
    pub fn accept(
        stream: Stream,
        first: Chunk,
        peer: Peer,
        limits: SessionLimits,
        alternative: Option<Box<str>>,
    ) -> Session {
        let mux = Mux::new(config(&limits));
        let transport = Transport::new(stream, first, Rc::clone(&mux));
        let shared = Rc::new(Shared { mux, body_bytes: limits.body_bytes, alternative });
        let deadline = Deadline::new();
        deadline.set(limits.head_ms);
        Session {
            peer,
            transport,
            shared,
            limits,
            deadline,
            wait: Wait::First,
            revocations: held::revocations(),
            closing: false,
        }
    }

    /// Returns the next stream; None at the end of the connection. `closing` makes it stop to accept streams. It also
    /// drives the connection: its streams progress only while a task waits for the next one.
    pub async fn next(&mut self, closing: impl Fn() -> bool) -> Option<Incoming> {
        poll_fn(|cx| self.poll_next(cx, &closing)).await
    }

    /// Returns the number of each kind of glitch since the last call, in the order of
    /// [`Glitch::ALL`](sigma_http::h2::Glitch::ALL).
    pub fn take_glitches(&mut self) -> [u32; GLITCHES] {
        self.shared.mux.drive(Codec::take_glitches)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, closing: &impl Fn() -> bool) -> Poll<Option<Incoming>> {
        if self.revocations != held::revocations() {
            self.revocations = held::revocations();
            self.shared.mux.drive(Codec::end_revoked);
        }
        loop {
            if self.closing {
                let closed = self.transport.poll_close(cx).is_ready();
                return if closed || self.poll_wait(cx).is_ready() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            }
            if let Some(incoming) = self.take_incoming() {
                return Poll::Ready(Some(incoming));
            }
            if closing() || self.shared.mux.look(Codec::begun) >= self.limits.requests {
                self.shared.mux.drive(Codec::leave);
            }
            let over = self.transport.poll_drive(cx).is_ready();
            if let Some(incoming) = self.take_incoming() {
                return Poll::Ready(Some(incoming));
            }
            if over || (self.shared.mux.look(Codec::is_done) && self.transport.progress() == Progress::Idle) {
                self.tell();
                self.closing = true;
                continue;
            }
            if self.poll_wait(cx).is_pending() {
                return Poll::Pending;
            }
            match self.wait {
                Wait::First | Wait::Idle => self.shared.mux.drive(Codec::leave),
                Wait::Head => self.cut("a header block did not arrive in time"),
                Wait::Room(_) | Wait::Leaving => {
                    self.shared.mux.drive(Codec::lose);
                    return Poll::Ready(None);
                }
                Wait::Streams => {}
            }
        }
    }

    fn take_incoming(&mut self) -> Option<Incoming> {
        let incoming = self.shared.mux.drive(Codec::next_incoming)?;
        let stream = ServerStream::new(Rc::clone(&self.shared), incoming.key, incoming.number);
        Some(Incoming { stream, head: incoming.head, length: incoming.length })
    }

    /// Ends the connection with all its streams.
    fn cut(&mut self, reason: &'static str) {
        self.shared.mux.drive(|codec| codec.fail(ErrorCode::ENHANCE_YOUR_CALM, reason));
    }

    /// Logs why the connection ended, if that matters to operators.
    fn tell(&self) {
        match self.shared.mux.look(Codec::failure) {
            Some((ErrorCode::ENHANCE_YOUR_CALM, reason)) => {
                tracing::info!(peer = ?self.peer, reason, "a client sends too many useless frames; closing its connection");
            }
            Some((ErrorCode(code), reason)) => tracing::debug!(code, reason, "a client's connection broke"),
            None => {}
        }
    }

    /// Ready when the time limit of the current wait has ended.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limits = &self.limits;
        let blocked = self.transport.progress() == Progress::Blocked;
        let wait = self.shared.mux.look(|codec| match () {
            () if self.closing => Wait::Leaving,
            () if blocked => self.wait.for_room(codec.bytes_written(), limits.progress_bytes),
            () if codec.failure().is_some() || (codec.is_leaving() && codec.held() == 0) => Wait::Leaving,
            () if codec.is_head_open() => Wait::Head,
            () if codec.held() > 0 => Wait::Streams,
            () if codec.begun() == 0 => Wait::First,
            () => Wait::Idle,
        });
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
        // Polled even when it is not set: a stop reaches this task through it.
        self.deadline.poll_expired(cx)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The remaining exchanges have no driver any more.
        self.shared.mux.drive(Codec::lose);
    }
}

fn config(limits: &SessionLimits) -> Config {
    Config {
        role: Role::Server,
        streams: limits.streams,
        pending_resets: limits.pending_resets,
        windows: limits.windows,
        frame_bytes: limits.frame_bytes,
        header_list_bytes: limits.header_list_bytes,
        head: limits.head,
        flood: limits.flood,
    }
}
