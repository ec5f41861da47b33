//! One connection to a node, shared by the exchanges of its worker.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use sigma_http::h1::HeadLimits;
use sigma_http::h2::{Codec, Config, FloodLimits, FlowWindows, Role};
use sigma_http::{Chunk, Fault, FaultKind};
use sigma_net::{Deadline, Stream};

use super::mux::{Mux, Progress, Transport};

/// The limits of one connection, for the worker and the node.
#[derive(Debug, Clone, Copy)]
pub struct SharedLimits {
    /// The head of a response.
    pub head: HeadLimits,
    /// Concurrent streams; the node may allow fewer.
    pub streams: u32,
    /// Bytes that the peer may send ahead.
    pub windows: FlowWindows,
    /// Largest frame that the node may send.
    pub frame_bytes: u32,
    /// Largest list of response fields.
    pub header_list_bytes: u32,
    /// Control frames that the node may send per second, in addition to its allowance for frames sent to it.
    pub controls_per_second: u32,
    /// After this time without window for other responses, it accepts no further requests.
    pub crowded_ms: u64,
    /// After this further time, streams without reads since then are ended.
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
    /// It accepts no more streams: it ended, the node is leaving, or it does not respond.
    retired: Cell<bool>,
}

impl SharedConnection {
    /// Sends the preface on a new connection, waits for the node's, and then drives the connection in its own task,
    /// which ends with the last stream once the connection is dropped. The node's preface has the limit of streams,
    /// and proves that the node is alive.
    ///
    /// # Errors
    /// Returns an error, [`FaultKind::ProtocolMismatch`], if the node sends something else or closes the connection.
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

    /// Returns true if there is room for one more exchange. `requests_max` is the limit of requests on one
    /// connection.
    pub fn has_room(&self, requests_max: u32) -> bool {
        let node_max = self.mux.look(Codec::streams_max);
        !self.is_spent(requests_max) && self.active.get() < self.streams_max.min(node_max)
    }

    /// Returns true if it is no longer usable.
    pub fn is_spent(&self, requests_max: u32) -> bool {
        self.retired.get() || self.begun.get() >= requests_max || self.mux.look(Codec::is_spent)
    }

    /// Returns true if it has no exchange.
    pub fn is_idle(&self) -> bool {
        self.active.get() == 0
    }

    /// Stops new streams.
    pub fn retire(&self) {
        self.retired.set(true);
    }

    /// Counts the start of a stream.
    pub(super) fn enter(&self) {
        self.active.set(self.active.get() + 1);
        self.begun.set(self.begun.get() + 1);
    }

    /// Counts the end of a stream.
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

/// Retires a connection when its driver ends for any reason.
struct Driven(Weak<SharedConnection>);

impl Drop for Driven {
    fn drop(&mut self) {
        if let Some(connection) = self.0.upgrade() {
            connection.retire();
            // The remaining streams have no driver any more.
            connection.mux.with(Codec::lose);
        }
    }
}

/// Drives a connection until it ends, or until all its users have dropped it and it has announced that.
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

/// Detects a connection whose window is used up by unread responses.
struct Starvation {
    crowded_ms: u64,
    stalled_ms: u64,
    /// Set while that lasts.
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

    /// Ready after an action that causes output.
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
                "clients do not read their responses on this connection to a node; it gets no more requests"
            );
            mux.drive(Codec::retire);
            deadline.set(self.stalled_ms);
            return deadline.poll_expired(cx);
        }
        let ended = mux.drive(Codec::end_stalled);
        tracing::debug!(
            ended,
            "responses that clients do not read were reset, to free their connection to a node"
        );
        self.end();
        Poll::Ready(())
    }
}

/// The use of a connection before its current exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reused {
    /// It may be stale.
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
        windows: limits.windows,
        frame_bytes: limits.frame_bytes,
        header_list_bytes: limits.header_list_bytes,
        head: limits.head,
        // A node resets streams that were requested from it: a reset costs it as much as any other frame.
        flood: FloodLimits { resets_per_minute: u32::MAX, controls_per_second: limits.controls_per_second },
    }
}
