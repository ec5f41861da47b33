//! A client's connection, as the task that drives it sees it.
//!
//! It drives the transport and watches over what all streams share: how long the client may idle, what
//! it may flood, when it has to go. Each stream is for a task of its own.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_buffer::held;
use sigma_http::Chunk;
use sigma_http::h1::HeadLimits;
use sigma_http::h2::{Codec, Config, ErrorCode, FloodLimits, GLITCHES, Role};
use sigma_net::{Deadline, Peer, Stream};

use super::mux::{Mux, Progress, Transport};
use super::server::{Incoming, ServerStream, Shared};

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
    /// Bytes that a client which is waited for has to take within `send_ms`.
    pub progress_bytes: u64,
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
    /// Streams taken back whose exchanges are not over yet.
    pub pending_resets: usize,
    /// What costs the client nothing.
    pub flood: FloodLimits,
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

impl Wait {
    /// The wait for room when `written` bytes have left: another one than this if enough of them have left since.
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
    /// The revocations of accounts that were looked at.
    revocations: u64,
    /// Nothing is left to say; the client may still be sending.
    closing: bool,
}

impl Session {
    /// Takes a connection whose client has sent `first`, the beginning of the preface. `peer` is who a log
    /// names.
    pub fn accept(stream: Stream, first: Chunk, peer: Peer, limits: SessionLimits) -> Session {
        let mux = Mux::new(config(&limits));
        let transport = Transport::new(stream, first, Rc::clone(&mux));
        let shared = Rc::new(Shared { mux, body_bytes: limits.body_bytes });
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

    /// The next stream; None when the connection is over. `closing` tells it to take no further ones.
    /// It also drives the connection: its streams go on only while somebody waits for the next one.
    pub async fn next(&mut self, closing: impl Fn() -> bool) -> Option<Incoming> {
        poll_fn(|cx| self.poll_next(cx, &closing)).await
    }

    /// How often the client did what costs it nothing since this was asked last, in the order of
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
                Wait::Head => self.cut("a head did not come in time"),
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

    /// Says why the connection ended, where somebody has to know.
    fn tell(&self) {
        match self.shared.mux.look(Codec::failure) {
            Some((ErrorCode::ENHANCE_YOUR_CALM, reason)) => {
                tracing::info!(peer = ?self.peer, reason, "a client costs too much; closing its connection");
            }
            Some((ErrorCode(code), reason)) => tracing::debug!(code, reason, "a client's connection broke"),
            None => {}
        }
    }

    /// Ready when the time of what is waited for is over.
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
        // Asked even when it is not set: it is how a stop reaches this task.
        self.deadline.poll_expired(cx)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Exchanges that are left have nobody to drive them any more.
        self.shared.mux.drive(Codec::lose);
    }
}

fn config(limits: &SessionLimits) -> Config {
    Config {
        role: Role::Server,
        streams: limits.streams,
        pending_resets: limits.pending_resets,
        stream_window: limits.stream_window_bytes,
        connection_window: limits.connection_window_bytes,
        frame_bytes: limits.frame_bytes,
        header_list_bytes: limits.header_list_bytes,
        head: limits.head,
        flood: limits.flood,
    }
}
