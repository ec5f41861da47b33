//! One connection to a node, shared by the exchanges of its worker.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::uri::Scheme;
use sigma_http::{Fault, FaultKind};
use sigma_net::Stream;

use super::wire::{Monitor, Wire};
use crate::rules::INTERIM_MAX;

/// Heads that the answer to one request can have: interim ones with one too many, its own, and
/// trailers.
const HEADS_MAX: u32 = INTERIM_MAX as u32 + 3;

/// What a worker allows itself and the node on one connection.
#[derive(Debug, Clone, Copy)]
pub struct SharedLimits {
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
    /// Bytes of a request body that may wait for the socket, per stream.
    pub send_buffer_bytes: usize,
}

/// A connection with room for several exchanges.
#[derive(Debug)]
pub struct SharedConnection {
    sender: RefCell<SendRequest<Bytes>>,
    scheme: Scheme,
    monitor: Rc<Monitor>,
    streams_max: u32,
    active: Cell<u32>,
    /// Streams begun so far.
    begun: Cell<u32>,
    /// Takes no more streams: it ended, the node is leaving, or it does not answer.
    retired: Cell<bool>,
}

impl SharedConnection {
    /// Speaks the preface on a fresh connection and drives it from then on, in a task of its own
    /// that ends with the last stream once the connection is dropped.
    ///
    /// # Errors
    /// Returns an error, [`FaultKind::ConnectRefused`], if the node does not take the preface.
    pub async fn open(stream: Stream, limits: &SharedLimits) -> Result<Rc<SharedConnection>, Fault> {
        let scheme = if stream.tls().is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let wire = Wire::of_server(stream);
        let monitor = wire.monitor();
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(limits.stream_window_bytes)
            .initial_connection_window_size(limits.connection_window_bytes)
            .max_frame_size(limits.frame_bytes)
            .max_header_list_size(limits.header_list_bytes)
            .max_send_buffer_size(limits.send_buffer_bytes)
            .handshake::<_, Bytes>(wire);
        let (sender, connection) = handshake.await.map_err(|error| {
            tracing::debug!(%error, "a node does not take the HTTP/2 preface");
            Fault::new(FaultKind::ConnectRefused, "the node does not speak HTTP/2")
        })?;
        let shared = Rc::new(SharedConnection {
            sender: RefCell::new(sender),
            scheme,
            monitor,
            streams_max: limits.streams,
            active: Cell::new(0),
            begun: Cell::new(0),
            retired: Cell::new(false),
        });
        let driven = Driven(Rc::downgrade(&shared));
        tokio::task::spawn_local(async move {
            let _driven = driven;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a node broke");
            }
        });
        Ok(shared)
    }

    /// Room for one more exchange, if there is some. `requests_max` is the most that one connection
    /// serves.
    pub fn has_room(&self, requests_max: u32) -> bool {
        let peer_max = self.sender.borrow().current_max_send_streams();
        !self.retired.get()
            && self.begun.get() < requests_max
            && self.active.get() < self.streams_max
            && (self.active.get() as usize) < peer_max
    }

    /// Whether it is of no use to anybody any more.
    pub fn is_spent(&self, requests_max: u32) -> bool {
        self.retired.get() || self.begun.get() >= requests_max
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
        self.monitor.grant_heads(HEADS_MAX);
    }

    /// A stream has ended that had this many heads. One that did not end in order may have had
    /// others that it has not seen, so it keeps its whole grant.
    pub(super) fn leave(&self, heads: Option<u32>) {
        self.active.set(self.active.get() - 1);
        self.monitor.withdraw_heads(heads.map_or(0, |heads| HEADS_MAX.saturating_sub(heads)));
    }

    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.sender.borrow().clone()
    }

    pub(super) fn scheme(&self) -> Scheme {
        self.scheme.clone()
    }

    pub(super) fn monitor(&self) -> &Monitor {
        &self.monitor
    }
}

/// Retires a connection when the task that drives it ends, however it ends.
struct Driven(Weak<SharedConnection>);

impl Drop for Driven {
    fn drop(&mut self) {
        if let Some(connection) = self.0.upgrade() {
            connection.retire();
        }
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
