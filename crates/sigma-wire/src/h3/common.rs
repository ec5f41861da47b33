//! One connection from the view of its streams.
//!
//! Everything of a connection belongs to one thread. Exchanges reach the codec through [`Common`]; the task of the
//! session drives the unidirectional streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use sigma_buffer::held::{self, Account};
use sigma_http::h3::{Broken, Codec, Config, ErrorCode, Glitch, Priority, Role, send_order};
use sigma_net::deadline;
use sigma_net::quic::{Connection, SendStream};

use super::datagrams::DatagramQueue;

/// The state of a connection for all of its streams.
pub(super) struct Common {
    codec: RefCell<Codec>,
    pub(super) connection: Connection,
    /// The waker of the task that drives the connection.
    driver: RefCell<Option<Waker>>,
    /// The running exchanges, by their place.
    exchanges: RefCell<Vec<Option<Rc<Running>>>>,
    active: Cell<usize>,
    /// Tasks whose field sections wait for the dynamic table.
    blocked: RefCell<Vec<Waker>>,
    /// Complete responses that the client has not acknowledged, once the connection leaves.
    lingering: RefCell<Vec<SendStream>>,
    /// The memory account of the connection, without its streams.
    pub(super) account: Account,
    /// The account for bytes that the peer has not acknowledged.
    unacknowledged: Rc<Account>,
}

impl std::fmt::Debug for Common {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Common").field("active", &self.active).finish_non_exhaustive()
    }
}

/// An exchange from the view of its connection.
#[derive(Debug)]
pub(super) struct Running {
    id: u64,
    place: usize,
    pub(super) account: Account,
    /// Its account was revoked.
    pub(super) is_revoked: Cell<bool>,
    /// The peer leaves, and did not process it.
    pub(super) is_excluded: Cell<bool>,
    /// A new order of its stream.
    pub(super) order: Cell<Option<i32>>,
    /// Received datagrams, once the exchange is a tunnel for them.
    pub(super) datagrams: RefCell<Option<DatagramQueue>>,
    waker: RefCell<Option<Waker>>,
}

impl Running {
    /// Wakes this task if the connection changes something.
    pub(super) fn wait(&self, cx: &Context<'_>) {
        match &mut *self.waker.borrow_mut() {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Common {
    pub(super) fn new(connection: Connection, config: Config, account: Account) -> Rc<Common> {
        let mut codec = Codec::new(config);
        codec.set_now(deadline::now_ms());
        let unacknowledged = Rc::new(match config.role {
            Role::Server => Account::of_exchange(&account),
            // Connections to nodes count nothing themselves.
            Role::Client => Account::default(),
        });
        connection.count_in(Rc::clone(&unacknowledged));
        if config.role == Role::Server {
            connection.count_unread_in(Account::of_exchange(&account));
        }
        Rc::new(Common {
            codec: RefCell::new(codec),
            connection,
            driver: RefCell::default(),
            exchanges: RefCell::default(),
            active: Cell::new(0),
            blocked: RefCell::default(),
            lingering: RefCell::default(),
            account,
            unacknowledged,
        })
    }

    /// Runs `act` on the codec, and wakes the driver if that causes output.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Codec) -> R) -> R {
        let mut codec = self.codec.borrow_mut();
        codec.set_now(deadline::now_ms());
        let result = act(&mut codec);
        let has_output = codec.has_output();
        drop(codec);
        if has_output {
            self.wake_driver();
        }
        result
    }

    /// As [`Common::with`], for the driver itself, which runs anyway.
    pub(super) fn drive<R>(&self, act: impl FnOnce(&mut Codec) -> R) -> R {
        let mut codec = self.codec.borrow_mut();
        codec.set_now(deadline::now_ms());
        act(&mut codec)
    }

    /// Reads from the codec.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Codec) -> R) -> R {
        look(&self.codec.borrow())
    }

    /// Registers the task that drives the connection.
    pub(super) fn register_driver(&self, cx: &Context<'_>) {
        match &mut *self.driver.borrow_mut() {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
    }

    /// Wakes the driver.
    pub(super) fn wake_driver(&self) {
        let waker = self.driver.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the connection after a fault of the peer.
    pub(super) fn fail(&self, broken: Broken) {
        if self.connection.lost().is_some() {
            return;
        }
        let Broken { code, reason, .. } = broken;
        if code == ErrorCode::EXCESSIVE_LOAD {
            let peer = self.connection.peer();
            tracing::info!(?peer, reason, "a peer sends too many useless frames; closing its connection");
        } else {
            tracing::debug!(code = code.0, reason, "a peer's connection broke");
        }
        self.connection.close(code.0, reason);
    }

    /// Pays for a glitch of the peer; the connection ends if it cannot.
    pub(super) fn spend(&self, glitch: Glitch) {
        let paid = self.with(|codec| codec.spend(glitch));
        if let Err(broken) = paid {
            self.fail(broken);
        }
    }

    /// Registers an exchange.
    pub(super) fn begin(&self, id: u64, account: Account) -> Rc<Running> {
        let mut exchanges = self.exchanges.borrow_mut();
        let place = exchanges.iter().position(Option::is_none).unwrap_or_else(|| {
            exchanges.push(None);
            exchanges.len() - 1
        });
        let running = Rc::new(Running {
            id,
            place,
            account,
            is_revoked: Cell::new(false),
            is_excluded: Cell::new(false),
            order: Cell::new(None),
            datagrams: RefCell::default(),
            waker: RefCell::default(),
        });
        exchanges[place] = Some(Rc::clone(&running));
        self.active.set(self.active.get() + 1);
        running
    }

    /// Removes an exchange.
    pub(super) fn end(&self, running: &Running) {
        let mut exchanges = self.exchanges.borrow_mut();
        if let Some(place) = exchanges.get_mut(running.place) {
            *place = None;
        }
        self.active.set(self.active.get() - 1);
        if self.active.get() == 0 {
            // Memory of a burst is freed.
            *exchanges = Vec::new();
            drop(exchanges);
            // The driver may have waited for that.
            self.wake_driver();
        }
    }

    /// Returns the running exchange of a stream.
    pub(super) fn find(&self, id: u64) -> Option<Rc<Running>> {
        self.exchanges.borrow().iter().flatten().find(|running| running.id == id).cloned()
    }

    /// Returns the number of running exchanges.
    pub(super) fn active(&self) -> usize {
        self.active.get()
    }

    /// Ends the exchanges with revoked accounts. Returns false if the account of the connection was revoked.
    pub(super) fn end_revoked(&self) -> bool {
        for running in self.exchanges.borrow().iter().flatten() {
            if running.account.is_revoked() {
                running.is_revoked.set(true);
                running.wake();
            }
        }
        let is_revoked = self.account.is_revoked() || self.unacknowledged.is_revoked();
        !(is_revoked || self.connection.is_unread_revoked())
    }

    /// Ends the exchanges that a leaving peer does not process. Returns true if the peer is leaving.
    pub(super) fn exclude_by_goaway(&self) -> bool {
        let Some(first) = self.look(Codec::peer_goaway) else { return false };
        for running in self.exchanges.borrow().iter().flatten() {
            if running.id >= first && !running.is_excluded.replace(true) {
                running.wake();
            }
        }
        true
    }

    /// Passes changed priorities to their exchanges.
    pub(super) fn change_priorities(&self) {
        let exchanges = self.exchanges.borrow();
        self.drive(|codec| {
            codec.take_priorities(|(id, priority): (u64, Priority)| {
                if let Some(running) = exchanges.iter().flatten().find(|running| running.id == id) {
                    running.order.set(Some(send_order(priority, id)));
                    running.wake();
                }
            });
        });
    }

    /// Wakes this task when the dynamic table has new entries.
    pub(super) fn wait_for_entries(&self, cx: &Context<'_>) {
        let mut blocked = self.blocked.borrow_mut();
        if !blocked.iter().any(|waker| waker.will_wake(cx.waker())) {
            blocked.push(cx.waker().clone());
        }
    }

    /// Wakes the tasks whose field sections need no further entries.
    pub(super) fn wake_unblocked(&self) {
        let mut any = false;
        self.drive(|codec| codec.take_unblocked(|_| any = true));
        if any {
            let blocked = std::mem::take(&mut *self.blocked.borrow_mut());
            blocked.into_iter().for_each(Waker::wake);
        }
    }

    /// Keeps a complete response until the client has it, if the connection leaves: its close would drop the rest.
    pub(super) fn linger(&self, send: SendStream) {
        if self.look(Codec::is_leaving) {
            self.lingering.borrow_mut().push(send);
        }
    }

    /// Returns true if the client has all complete responses.
    pub(super) fn is_acknowledged(&self, cx: &mut Context<'_>) -> bool {
        let mut lingering = self.lingering.borrow_mut();
        lingering.retain_mut(|send| send.poll_stopped(cx).is_pending());
        lingering.is_empty()
    }

    /// Records the bytes that the connection holds.
    pub(super) fn count_memory(&self, pending: usize) {
        self.account.set(self.look(Codec::memory) + pending);
        self.account.moved(self.connection.bytes_sent() + self.connection.bytes_received());
    }

    /// Returns true if another exchange may begin within the worker's budget.
    pub(super) fn may_begin(&self) -> bool {
        let may = self.account.may_begin();
        if !may {
            held::refused();
        }
        may
    }
}
