//! One connection to a node, shared by the exchanges of its worker.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use sigma_http::h1::HeadLimits;
use sigma_http::h2::{Codec, Config, FloodLimits, Role};
use sigma_http::{Chunk, Fault, FaultKind};
use sigma_net::{Deadline, Stream};

use super::mux::{Mux, Progress, Transport};

/// What a worker allows itself and the node on one connection.
#[derive(Debug, Clone, Copy)]
pub struct SharedLimits {
    /// The head of a response.
    pub head: HeadLimits,
    /// Streams at a time; the node may set fewer.
    pub streams: u32,
    /// Bytes of a response that the node may send ahead, per stream.
    pub stream_window_bytes: u32,
    /// Bytes that the node may send ahead on the connection.
    pub connection_window_bytes: u32,
    /// Largest frame that the node may send.
    pub frame_bytes: u32,
    /// Largest list of response fields.
    pub header_list_bytes: u32,
    /// Frames without a part of a message that the node may send per second, besides what it earns by what it is sent.
    pub controls_per_second: u32,
    /// After this time without room for other responses it takes no further requests.
    pub crowded_ms: u64,
    /// After so much more the streams of which nothing was taken meanwhile are ended.
    pub stalled_ms: u64,
}

/// A connection with room for several exchanges.
#[derive(Debug)]
pub struct SharedConnection {
    mux: Rc<Mux>,
    scheme: &'static [u8],
    streams_max: u32,
    active: Cell<u32>,
    /// Streams begun so far.
    begun: Cell<u32>,
    /// Takes no more streams: it ended, the node is leaving, or it does not answer.
    retired: Cell<bool>,
}

impl SharedConnection {
    /// Speaks the preface on a fresh connection, waits for the node's, and drives it from then on, in a
    /// task of its own that ends with the last stream once the connection is dropped. The node's preface
    /// says how many streams there may be, and that somebody is there.
    ///
    /// # Errors
    /// Returns an error, [`FaultKind::ProtocolMismatch`], if the node answers with something else or closes
    /// the connection.
    pub async fn open(stream: Stream, limits: &SharedLimits) -> Result<Rc<SharedConnection>, Fault> {
        let scheme: &[u8] = if stream.tls().is_some() { b"https" } else { b"http" };
        let mux = Mux::new(config(limits));
        let mut transport = Transport::new(stream, Chunk::empty(), Rc::clone(&mux));
        poll_fn(|cx| match transport.poll_drive(cx) {
            Poll::Ready(()) => Poll::Ready(Err(no_http2())),
            Poll::Pending if mux.look(Codec::is_greeted) => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let shared = Rc::new(SharedConnection {
            mux,
            scheme,
            streams_max: limits.streams,
            active: Cell::new(0),
            begun: Cell::new(0),
            retired: Cell::new(false),
        });
        let starvation = Starvation::new(limits);
        let driven = Driven(Rc::downgrade(&shared));
        tokio::task::spawn_local(drive(transport, Rc::clone(&shared.mux), starvation, driven));
        Ok(shared)
    }

    /// Room for one more exchange, if there is some. `requests_max` is the most that one connection
    /// serves.
    pub fn has_room(&self, requests_max: u32) -> bool {
        let node_max = self.mux.look(Codec::streams_max);
        !self.is_spent(requests_max) && self.active.get() < self.streams_max.min(node_max)
    }

    /// Whether it is of no use to anybody any more.
    pub fn is_spent(&self, requests_max: u32) -> bool {
        self.retired.get() || self.begun.get() >= requests_max || self.mux.look(Codec::is_spent)
    }

    /// Whether no exchange is on it.
    pub fn is_idle(&self) -> bool {
        self.active.get() == 0
    }

    /// Takes no further streams from now on.
    pub fn retire(&self) {
        self.retired.set(true);
    }

    /// A stream begins.
    pub(super) fn enter(&self) {
        self.active.set(self.active.get() + 1);
        self.begun.set(self.begun.get() + 1);
    }

    /// A stream has ended.
    pub(super) fn leave(&self) {
        self.active.set(self.active.get() - 1);
    }

    pub(super) fn mux(&self) -> &Mux {
        &self.mux
    }

    pub(super) fn scheme(&self) -> &'static [u8] {
        self.scheme
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.mux.with(Codec::leave);
        self.mux.wake_driver();
    }
}

/// Retires a connection when the task that drives it ends, however it ends.
struct Driven(Weak<SharedConnection>);

impl Drop for Driven {
    fn drop(&mut self) {
        if let Some(connection) = self.0.upgrade() {
            connection.retire();
            // Nobody reads or writes for those who are left.
            connection.mux.with(Codec::lose);
        }
    }
}

/// Drives a connection until it is over, or until everybody has let go of it and it has said so.
async fn drive(mut transport: Transport, mux: Rc<Mux>, mut starvation: Starvation, _driven: Driven) {
    poll_fn(|cx| {
        if transport.poll_drive(cx).is_ready() {
            return Poll::Ready(());
        }
        while starvation.poll_acts(cx, &mux).is_ready() {
            if transport.poll_drive(cx).is_ready() {
                return Poll::Ready(());
            }
        }
        match mux.look(Codec::is_done) && transport.progress() == Progress::Idle {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    if let Some((code, reason)) = mux.look(Codec::failure) {
        tracing::debug!(code = code.0, reason, "a connection to a node broke");
    }
}

/// Watches over a connection whose window is used up by responses that are not read.
struct Starvation {
    crowded_ms: u64,
    stalled_ms: u64,
    /// Set while it lasts.
    deadline: Option<Box<Deadline>>,
    is_retired: bool,
}

impl Starvation {
    fn new(limits: &SharedLimits) -> Starvation {
        let SharedLimits { crowded_ms, stalled_ms, .. } = *limits;
        Starvation { crowded_ms, stalled_ms, deadline: None, is_retired: false }
    }

    fn end(&mut self) {
        (self.deadline, self.is_retired) = (None, false);
    }

    /// Ready after it has done something that causes output.
    fn poll_acts(&mut self, cx: &mut Context<'_>, mux: &Mux) -> Poll<()> {
        if !mux.look(Codec::is_starved) {
            self.end();
            return Poll::Pending;
        }
        let deadline = self.deadline.get_or_insert_with(|| {
            mux.drive(Codec::mark_stalled);
            let deadline = Box::new(Deadline::new());
            deadline.set(self.crowded_ms);
            deadline
        });
        if deadline.poll_expired(cx).is_pending() {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_retired, true) {
            tracing::debug!(
                "responses that are not read use up a connection to a node: it takes no more requests"
            );
            mux.drive(Codec::retire);
            deadline.set(self.stalled_ms);
            return deadline.poll_expired(cx);
        }
        let ended = mux.drive(Codec::end_stalled);
        tracing::debug!(ended, "responses that are not read were ended for others on their connection");
        self.end();
        Poll::Ready(())
    }
}

/// Whether a connection served before the exchange that it is given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reused {
    /// It may have gone stale.
    Yes,
    /// It was opened for this exchange.
    No,
}

fn no_http2() -> Fault {
    Fault::new(FaultKind::ProtocolMismatch, "the node does not speak HTTP/2")
}

fn config(limits: &SharedLimits) -> Config {
    Config {
        role: Role::Client,
        streams: 0,
        pending_resets: 0,
        stream_window: limits.stream_window_bytes,
        connection_window: limits.connection_window_bytes,
        frame_bytes: limits.frame_bytes,
        header_list_bytes: limits.header_list_bytes,
        head: limits.head,
        // A node resets streams that it was asked for: it pays for a reset as for any other frame.
        flood: FloodLimits { resets_per_minute: u32::MAX, controls_per_second: limits.controls_per_second },
    }
}
