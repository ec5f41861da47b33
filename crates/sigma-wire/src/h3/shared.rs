//! One connection to a node, shared by the exchanges of its worker.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use sigma_buffer::held::Account;
use sigma_http::h1::HeadLimits;
use sigma_http::h3::{Broken, Config, ErrorCode, FloodLimits, Role, Scope};
use sigma_net::Deadline;
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
    /// While responses are awaited, a connection without a packet from the node for this time is dead.
    pub silence_ms: u64,
}

/// A stream to a node, in both directions.
pub(super) type Stream = (SendStream, RecvStream);

/// Called when a connection has room again.
type OnRoom = Box<dyn Fn()>;

/// A connection with room for several exchanges.
pub struct SharedConnection {
    pub(super) common: Rc<Common>,
    control: Rc<RefCell<Control>>,
    streams_max: u32,
    active: Cell<u32>,
    /// Requests begun so far.
    begun: Cell<u32>,
    /// It accepts no more requests: it ended, the node is leaving, or it does not respond.
    retired: Cell<bool>,
    /// A stream for the next request. The node's limit of streams is known only by opening one.
    next: RefCell<Option<Stream>>,
    /// The node allows no further stream now.
    is_full: Cell<bool>,
    on_room: RefCell<Option<OnRoom>>,
}

impl std::fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedConnection").field("active", &self.active).finish_non_exhaustive()
    }
}

impl SharedConnection {
    /// Takes a connection after its handshake, and drives it in its own task, which ends with the last request once
    /// the connection is dropped.
    pub fn open(connection: Connection, limits: &SharedLimits) -> Rc<SharedConnection> {
        let common = Common::new(connection, config(limits), Account::default());
        let control = Rc::new(RefCell::new(Control::default()));
        let shared = Rc::new(SharedConnection {
            common: Rc::clone(&common),
            control: Rc::clone(&control),
            streams_max: limits.streams,
            active: Cell::new(0),
            begun: Cell::new(0),
            retired: Cell::new(false),
            next: RefCell::default(),
            is_full: Cell::new(false),
            on_room: RefCell::default(),
        });
        let silence = Silence::new(limits.silence_ms);
        tokio::task::spawn_local(drive(common, control, Rc::downgrade(&shared), silence));
        shared
    }

    /// Returns true if there is room for one more exchange. `requests_max` is the limit of requests on one
    /// connection.
    pub fn has_room(&self, requests_max: u32) -> bool {
        !self.is_spent(requests_max) && self.active.get() < self.streams_max && self.has_stream()
    }

    /// Calls `notice` when the node allows further streams after it allowed none.
    pub fn on_room(&self, notice: impl Fn() + 'static) {
        self.on_room.replace(Some(Box::new(notice)));
    }

    /// Returns true if the node allows another stream.
    fn has_stream(&self) -> bool {
        if self.next.borrow().is_some() {
            return true;
        }
        // The driver waits for one.
        !self.is_full.get() && self.poll_stream(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Opens the next stream; ready without one at the end of the connection.
    fn poll_stream(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.common.connection.poll_open_bidi(cx) {
            Poll::Ready(opened) => {
                self.is_full.set(false);
                self.next.replace(opened.ok());
                Poll::Ready(())
            }
            Poll::Pending => {
                if !self.is_full.replace(true) {
                    self.common.wake_driver();
                }
                Poll::Pending
            }
        }
    }

    /// Waits for the stream that others wait for.
    fn poll_room(&self, cx: &mut Context<'_>) {
        if self.is_full.get()
            && self.poll_stream(cx).is_ready()
            && let Some(notice) = &*self.on_room.borrow()
        {
            notice();
        }
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

    /// Counts the start of an exchange, and returns its stream; None if the node allows none now, or the connection
    /// has ended.
    pub(super) fn enter(&self) -> Option<Stream> {
        self.active.set(self.active.get() + 1);
        self.begun.set(self.begun.get() + 1);
        // A request that cannot begin at once goes to another connection.
        if self.has_stream() { self.next.take() } else { None }
    }

    /// Keeps the stream of an exchange that did not use it.
    pub(super) fn keep(&self, stream: Stream) {
        self.next.borrow_mut().get_or_insert(stream);
    }

    /// Counts the end of an exchange.
    pub(super) fn leave(&self) {
        self.active.set(self.active.get() - 1);
    }

    /// Reads the frames that had arrived when the connection ended: the driver may see a GOAWAY only after a request
    /// sees the end.
    pub(super) fn read_last_frames(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        // The connection has ended: a broken rule changes nothing.
        let _ = poll_control(&mut cx, &self.common, &mut self.control.borrow_mut());
        self.common.exclude_by_goaway();
    }

    /// Returns true if it accepts no more requests.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.get()
    }
}

/// Detects a node that is gone: a living one acknowledges packets within milliseconds, however long its application
/// takes.
struct Silence {
    /// Half of the time: after it the node gets a ping.
    half_ms: u64,
    /// Set while responses are awaited.
    deadline: Option<Box<Deadline>>,
    /// The bytes received at the start of the time.
    received: u64,
    has_asked: bool,
}

impl Silence {
    fn new(silence_ms: u64) -> Silence {
        Silence { half_ms: (silence_ms / 2).max(1), deadline: None, received: 0, has_asked: false }
    }

    /// Ready when the node is gone.
    fn poll_gone(&mut self, cx: &mut Context<'_>, common: &Common) -> Poll<()> {
        if common.active() == 0 {
            self.deadline = None;
            return Poll::Pending;
        }
        let received = common.connection.bytes_received();
        let deadline = self.deadline.get_or_insert_with(|| {
            (self.received, self.has_asked) = (received, false);
            let deadline = Box::new(Deadline::new());
            deadline.set(self.half_ms);
            deadline
        });
        while deadline.poll_expired(cx).is_ready() {
            if received == self.received {
                if std::mem::replace(&mut self.has_asked, true) {
                    return Poll::Ready(());
                }
                common.connection.ping();
            } else {
                self.has_asked = false;
            }
            self.received = received;
            deadline.set(self.half_ms);
        }
        Poll::Pending
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.common.wake_driver();
    }
}

/// Drives a connection until it ends, or until all its users have dropped it and its requests have ended.
async fn drive(
    common: Rc<Common>,
    control: Rc<RefCell<Control>>,
    shared: Weak<SharedConnection>,
    mut silence: Silence,
) {
    poll_fn(|cx| {
        common.register_driver(cx);
        if let Err(broken) = poll_control(cx, &common, &mut control.borrow_mut()) {
            common.fail(broken);
        }
        if common.exclude_by_goaway()
            && let Some(shared) = shared.upgrade()
        {
            shared.retire();
        }
        if let Poll::Ready(lost) = common.connection.poll_closed(cx) {
            tracing::debug!(%lost, "a connection to a node ended");
            return Poll::Ready(());
        }
        if silence.poll_gone(cx, &common).is_ready() {
            tracing::debug!("a node stopped acknowledging packets");
            return Poll::Ready(());
        }
        if let Some(shared) = shared.upgrade() {
            shared.poll_room(cx);
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
            reason: "a request from a server",
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
