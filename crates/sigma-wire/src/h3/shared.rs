//! One connection to a node, shared by the exchanges of its worker.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use sigma_buffer::held::Account;
use sigma_http::h1::HeadLimits;
use sigma_http::h3::{Broken, Codec, Config, ErrorCode, FloodLimits, Role, Scope};
use sigma_net::quic::{Connection, Dir, RecvStream, SendStream};

use super::common::Common;
use super::control::Control;

/// The limits of one connection, for the worker and the node.
#[derive(Debug, Clone, Copy)]
pub struct SharedLimits {
    /// The head of a response.
    pub head: HeadLimits,
    /// Concurrent requests; the node may allow fewer.
    pub streams: u32,
    /// Largest list of response fields.
    pub header_list_bytes: u32,
    /// The capacity of the dynamic table that the node may fill.
    pub table_bytes: u32,
    /// Responses that may wait for the dynamic table.
    pub blocked_streams: u32,
    /// Control frames that the node may send per second, in addition to its allowance for frames sent to it.
    pub controls_per_second: u32,
}

/// A connection with room for several exchanges.
#[derive(Debug)]
pub struct SharedConnection {
    pub(super) common: Rc<Common>,
    streams_max: u32,
    active: Cell<u32>,
    /// Requests begun so far.
    begun: Cell<u32>,
    /// It accepts no more requests: it ended, the node is leaving, or it does not respond.
    retired: Cell<bool>,
    /// The node's limit of streams was reached, and no request has ended since.
    is_full: Cell<bool>,
}

impl SharedConnection {
    /// Takes a connection after its handshake, and drives it in a task of its own, which ends with the last request
    /// once the connection is dropped.
    pub fn open(connection: Connection, limits: &SharedLimits) -> Rc<SharedConnection> {
        let common = Common::new(connection, config(limits), Account::default());
        let shared = Rc::new(SharedConnection {
            common: Rc::clone(&common),
            streams_max: limits.streams,
            active: Cell::new(0),
            begun: Cell::new(0),
            retired: Cell::new(false),
            is_full: Cell::new(false),
        });
        tokio::task::spawn_local(drive(common, Rc::downgrade(&shared)));
        shared
    }

    /// Returns true if there is room for one more exchange. `requests_max` is the limit of requests on one
    /// connection.
    pub fn has_room(&self, requests_max: u32) -> bool {
        !self.is_spent(requests_max) && !self.is_full.get() && self.active.get() < self.streams_max
    }

    /// Returns true if it is no longer usable.
    pub fn is_spent(&self, requests_max: u32) -> bool {
        self.retired.get() || self.begun.get() >= requests_max || self.common.connection.lost().is_some()
    }

    /// Returns true if it has no exchange.
    pub fn is_idle(&self) -> bool {
        self.active.get() == 0
    }

    /// Stops new requests.
    pub fn retire(&self) {
        self.retired.set(true);
    }

    /// Counts the start of an exchange.
    pub(super) fn enter(&self) {
        self.active.set(self.active.get() + 1);
        self.begun.set(self.begun.get() + 1);
    }

    /// Counts the end of an exchange.
    pub(super) fn leave(&self) {
        self.active.set(self.active.get() - 1);
        self.is_full.set(false);
    }

    /// Opens a stream; None if the node allows none now, or the connection has ended.
    pub(super) fn open_stream(&self) -> Option<(SendStream, RecvStream)> {
        // A request that cannot begin at once goes to another connection.
        let mut cx = Context::from_waker(Waker::noop());
        if self.retired.get() {
            return None;
        }
        match self.common.connection.poll_open_bidi(&mut cx) {
            Poll::Ready(opened) => opened.ok(),
            Poll::Pending => {
                self.is_full.set(true);
                None
            }
        }
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.common.wake_driver();
    }
}

/// Drives a connection until it ends, or until all its users have dropped it and its requests are over.
async fn drive(common: Rc<Common>, shared: Weak<SharedConnection>) {
    let mut control = Control::default();
    poll_fn(|cx| {
        common.register_driver(cx);
        if let Err(broken) = poll_control(cx, &common, &mut control) {
            common.fail(broken);
        }
        if let Some(first) = common.look(Codec::peer_goaway) {
            common.exclude_from(first);
            if let Some(shared) = shared.upgrade() {
                shared.retire();
            }
        }
        if let Poll::Ready(lost) = common.connection.poll_closed(cx) {
            tracing::debug!(%lost, "a connection to a node ended");
            return Poll::Ready(());
        }
        match shared.strong_count() == 0 && common.active() == 0 {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    if let Some(shared) = shared.upgrade() {
        shared.retire();
    }
    common.connection.close(ErrorCode::NO_ERROR.0, "");
}

fn poll_control(cx: &mut Context<'_>, common: &Common, control: &mut Control) -> Result<(), Broken> {
    control.poll(cx, common)?;
    // RFC 9114 §6.1: a server opens no bidirectional streams.
    match common.connection.poll_accept(cx, Dir::Bi) {
        Poll::Ready(Ok(_)) => Err(Broken {
            scope: Scope::Connection,
            code: ErrorCode::STREAM_CREATION_ERROR,
            reason: "a request of a server",
        }),
        Poll::Ready(Err(_)) | Poll::Pending => Ok(()),
    }
}

fn config(limits: &SharedLimits) -> Config {
    Config {
        role: Role::Client,
        streams: 0,
        header_list_bytes: limits.header_list_bytes,
        table_bytes: limits.table_bytes,
        blocked_streams: limits.blocked_streams,
        head: limits.head,
        // A node resets streams that were requested from it: a reset costs it as much as any other frame.
        flood: FloodLimits { resets_per_minute: u32::MAX, controls_per_second: limits.controls_per_second },
    }
}
