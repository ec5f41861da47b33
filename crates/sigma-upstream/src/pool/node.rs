//! The connections of a worker to one endpoint.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use sigma_http::{Fault, FaultKind, Version};
use sigma_net::{Deadline, deadline};
use sigma_observe::counters::{Counter, WorkerCounters};
use sigma_wire::h2::Reused;
use sigma_wire::{Connection, MultiplexedConnection};
use tokio::sync::oneshot;

use super::demand::Demand;
use super::http3::{Attempt, Http3State};
use super::race::{over_quic, race};
use super::shared::{Member, Order, Shared, SharedDialResult};
use super::target::{PoolLimits, Target, TargetIdentity};
use crate::dial::{DialQuic, Dialled, Http3Use, dial, timed_out};
use crate::identity::LeaseWatch;
use crate::quic::{QuicFault, QuicSockets, without_udp};

/// A connection in use by an exchange. The pool is notified of its end.
#[derive(Debug)]
pub struct InUse {
    // Before the place, whose drop tells waiting exchanges that it is free.
    connection: Connection,
    place: ConnectionSlot,
}

impl InUse {
    /// Returns a reusable connection to the pool for the next request. In a full pool the least recently used one is
    /// closed.
    pub fn give_back(self, target: &Target<'_>, now_ms: u64) {
        // The last one is dropped first: its stream must be over when its place is given out.
        let InUse { place, connection } = self;
        if target.limits.size > 0 && connection.is_reusable(target.limits.requests) {
            connection.deadline().clear();
            place.node.keep(target, connection, now_ms);
        }
    }
}

impl InUse {
    /// Takes the `Alt-Svc` of a response for the target: the next connection may be over QUIC.
    pub fn announce(&self, target: &Target<'_>, value: &[u8], now_ms: u64) {
        self.place.node.http3.announce(target, value, now_ms);
    }
}

impl Deref for InUse {
    type Target = Connection;

    #[inline]
    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for InUse {
    #[inline]
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// The room of an exchange among the connections of a node.
#[derive(Debug)]
struct ConnectionSlot {
    node: Rc<Node>,
    /// The shared connection; None for one of its own.
    member: Option<Rc<Member>>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        match &self.member {
            None => self.node.demand.fall(),
            Some(member) => self.node.freed(member),
        }
    }
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    made: TargetIdentity,
    used_ms: u64,
    expires_ms: u64,
}

/// The connections of a worker to one endpoint.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) owner: LeaseWatch,
    sockets: Rc<QuicSockets>,
    counters: Arc<WorkerCounters>,
    http3: Rc<Http3State>,
    /// Connections for one exchange at a time.
    demand: Demand,
    /// The node was offered HTTP/2 next to HTTP/1 and declined it.
    declines: Cell<bool>,
    /// The limits of the last returned connection.
    limits: Cell<Option<PoolLimits>>,
    kept: RefCell<ReturnedLimits>,
}

#[derive(Debug, Default)]
struct ReturnedLimits {
    /// The least recently used first.
    idle: VecDeque<Idle>,
    shared: Shared,
}

/// The result of a sweep.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Census {
    /// Connections without an exchange.
    pub(super) idle: usize,
    /// Idle connections kept for the recent peak.
    pub(super) beyond: usize,
}

impl Node {
    pub(super) fn new(owner: LeaseWatch, sockets: Rc<QuicSockets>, counters: Arc<WorkerCounters>) -> Node {
        Node {
            owner,
            sockets,
            counters,
            http3: Rc::default(),
            demand: Demand::default(),
            declines: Cell::new(false),
            limits: Cell::new(None),
            kept: RefCell::default(),
        }
    }

    pub(super) fn checkout(self: &Rc<Self>, target: &Target<'_>, now_ms: u64) -> Option<InUse> {
        let in_use = self.find(target, now_ms)?;
        if target.dial.http3().is_some() && in_use.version() != Some(Version::Http3) {
            self.upgrade(target, now_ms);
        }
        Some(in_use)
    }

    fn find(self: &Rc<Self>, target: &Target<'_>, now_ms: u64) -> Option<InUse> {
        let mut kept = self.kept.borrow_mut();
        if let Some((connection, member)) = kept.shared.place(target, now_ms) {
            return Some(self.placed(connection, member));
        }
        let idle = &mut kept.idle;
        let mut end = idle.len();
        while let Some(at) = idle.range(..end).rposition(|idle| idle.made.fits(target)) {
            let mut candidate = idle.remove(at)?;
            if candidate.expires_ms > now_ms && candidate.connection.is_quiet() {
                return Some(InUse { connection: candidate.connection, place: self.occupy() });
            }
            end = at;
        }
        None
    }

    /// Keeps a connection, which still counts as in use, for the next exchange.
    fn keep(&self, target: &Target<'_>, connection: Connection, now_ms: u64) {
        let limits = target.limits;
        self.limits.set(Some(limits));
        let mut kept = self.kept.borrow_mut();
        let room = Node::idle_limit(limits, self.demand.spare() + 1);
        while kept.len() >= room {
            if !self.close_longest_idle(&mut kept) {
                return;
            }
        }
        let expires_ms = now_ms + limits.idle_timeout_ms;
        kept.idle.push_back(Idle {
            connection,
            made: TargetIdentity::of(target),
            used_ms: now_ms,
            expires_ms,
        });
    }

    /// Returns the limit of idle connections. Beyond the size, the total including those in use is at most the recent
    /// peak: a client that uses new names all the time gains nothing.
    fn idle_limit(limits: PoolLimits, spare: usize) -> usize {
        match limits.burst_ms {
            0 => limits.size,
            _ => limits.size.max(spare),
        }
    }

    /// Makes room for another connection; returns false if none can be closed.
    fn close_longest_idle(&self, kept: &mut ReturnedLimits) -> bool {
        let closed = kept.close_longest_idle();
        if closed {
            self.counters.add(Counter::UpstreamClosedForRoom, 1);
        }
        closed
    }

    pub(super) fn sweep(self: &Rc<Self>, now_ms: u64) -> Census {
        self.demand.settle(now_ms);
        let mut census = Census::default();
        {
            let mut kept = self.kept.borrow_mut();
            kept.idle.retain_mut(|c| c.expires_ms > now_ms && c.connection.is_quiet());
            kept.shared.sweep(now_ms);
            if let Some(limits) = self.limits.get() {
                let room = Node::idle_limit(limits, self.demand.spare());
                while kept.len() > room && self.close_longest_idle(&mut kept) {}
                kept.close_beyond(limits.size, now_ms, limits.burst_ms);
                census.beyond = kept.idle.len().saturating_sub(limits.size);
            }
            census.idle = kept.idle.len() + kept.shared.idle();
        }
        self.open_more();
        census
    }

    /// Closes the connections kept for the recent peak. Returns true if there were any.
    pub(super) fn close_beyond_size(&self) -> bool {
        let Some(limits) = self.limits.get() else { return false };
        self.kept.borrow_mut().close_beyond(limits.size, deadline::now_ms(), 0) > 0
    }

    fn occupy(self: &Rc<Self>) -> ConnectionSlot {
        self.demand.rise();
        ConnectionSlot { node: Rc::clone(self), member: None }
    }

    fn placed(self: &Rc<Self>, connection: Connection, member: Rc<Member>) -> InUse {
        InUse { connection, place: ConnectionSlot { node: Rc::clone(self), member: Some(member) } }
    }

    fn freed(self: &Rc<Self>, member: &Rc<Member>) {
        let more = self.kept.borrow_mut().shared.freed(member, deadline::now_ms());
        if more {
            self.open_more();
        }
    }

    /// Returns true if connections to `target` are expected to be shared.
    pub(super) fn is_shared(&self, target: &Target<'_>) -> bool {
        let is_known = target.dial.is_shared() || (target.dial.may_be_shared() && !self.declines.get());
        is_known
            || target.dial.http3().is_some_and(|http3| {
                http3.when == Http3Use::Only
                    || self.http3.wanted(&target.endpoint.addr, &target.dial, deadline::now_ms()).is_some()
                    || self.kept.borrow().shared.is_opening_to(target)
            })
    }

    /// Opens a connection over QUIC in the background, if the node may have HTTP/3: meanwhile requests use TCP.
    fn upgrade(self: &Rc<Self>, target: &Target<'_>, now_ms: u64) {
        let Some(to) = self.http3.wanted(&target.endpoint.addr, &target.dial, now_ms) else { return };
        let mut kept = self.kept.borrow_mut();
        if !self.has_room_for_shared(&mut kept, target.limits) {
            return;
        }
        let order = kept.shared.begin_upgrade(target);
        drop(kept);
        let attempt = self.http3.begin(to, target.dial.limits.quic.retry_after_ms);
        self.counters.add(Counter::UpstreamConnects, 1);
        let (node, sockets) = (Rc::downgrade(self), Rc::clone(&self.sockets));
        tokio::task::spawn_local(async move {
            let (_, to_dial) = order.made.redial(&order.dial);
            let connected = over_quic(&sockets, to, &to_dial).await;
            if let Some(node) = node.upgrade() {
                node.end_upgrade(&order, attempt, connected.map(Some));
            }
        });
    }

    /// Handles the end of a connection over QUIC; one that came after another one is added.
    fn end_upgrade(
        self: &Rc<Self>,
        order: &Order,
        attempt: Attempt,
        connected: Result<Option<MultiplexedConnection>, QuicFault>,
    ) {
        let now_ms = deadline::now_ms();
        let counter =
            if connected.is_ok() { Counter::UpstreamQuicConnects } else { Counter::UpstreamQuicFailures };
        self.counters.add(counter, 1);
        attempt.ended(connected.as_ref().err().copied(), now_ms);
        let member = {
            let mut kept = self.kept.borrow_mut();
            kept.shared.end_upgrade(&order.made, connected.ok().flatten(), now_ms)
        };
        self.watch_room(member.as_ref());
        self.open_more();
    }

    /// Gives streams to waiting exchanges when the node allows further ones.
    fn watch_room(self: &Rc<Self>, member: Option<&Rc<Member>>) {
        let Some(member) = member else { return };
        let (node, of) = (Rc::downgrade(self), Rc::downgrade(member));
        member.connection.on_room(move || {
            if let (Some(node), Some(member)) = (node.upgrade(), of.upgrade()) {
                node.freed(&member);
            }
        });
    }

    /// Returns a stream on a shared connection, now or later; None if the node does not share connections. First
    /// come, first served, at most for the target's connect timeout.
    pub(super) async fn wait(self: &Rc<Self>, target: &Target<'_>) -> Result<Option<InUse>, Fault> {
        let (made, told) = self.kept.borrow_mut().shared.join(target);
        let mut waiting = Waiting { node: Rc::clone(self), made, told, over: false };
        self.counters.add(Counter::UpstreamWaits, 1);
        self.open_more();
        let limit = Deadline::new();
        limit.set(target.dial.timeout_ms);
        let told = limit.bound(&mut waiting.told).await;
        waiting.over = told.is_some();
        match told {
            Some(Ok(SharedDialResult::Place(connection, member))) => {
                Ok(Some(self.placed(connection, member)))
            }
            Some(Ok(SharedDialResult::Own(connection))) => {
                Ok(Some(InUse { connection, place: self.occupy() }))
            }
            Some(Ok(SharedDialResult::NotShared)) => Ok(None),
            Some(Ok(SharedDialResult::Failed(fault))) => Err(fault),
            Some(Err(_)) => Err(Fault::new(FaultKind::Internal, "the connection pool was closed")),
            None if self.kept.borrow().shared.is_opening(&waiting.made) => Err(timed_out()),
            None => Err(full()),
        }
    }

    /// Takes the connection of an exchange that dialled for itself. Returns None if it exceeds the limit: the node
    /// turned out to share connections, and the limit of those is reached.
    pub(super) fn adopt(
        self: &Rc<Self>,
        target: &Target<'_>,
        dialled: Dialled,
        dialling: Dialling,
        now_ms: u64,
    ) -> Option<InUse> {
        let connection = match dialled {
            Dialled::Single(connection) => {
                self.declines.set(target.dial.may_be_shared());
                return Some(InUse { connection, place: dialling.0 });
            }
            Dialled::Shared(connection) => connection,
        };
        drop(dialling);
        self.declines.set(false);
        let mut kept = self.kept.borrow_mut();
        if !target.is_private() {
            if let Some((connection, member)) = kept.shared.place(target, now_ms) {
                return Some(self.placed(connection, member));
            }
            if !self.has_room_for_shared(&mut kept, target.limits) {
                return None;
            }
        }
        let place = connection.begin(Reused::No);
        let member = kept.shared.adopt(target, connection, now_ms);
        while kept.len() > target.limits.size && self.close_longest_idle(&mut kept) {}
        Some(self.placed(place, member))
    }

    /// Counts a connection that is being dialled as one in use.
    pub(super) fn dialling(self: &Rc<Self>) -> Dialling {
        self.counters.add(Counter::UpstreamConnects, 1);
        Dialling(self.occupy())
    }

    /// Returns true if another shared connection is allowed. An idle one of another kind is closed for it.
    fn has_room_for_shared(&self, kept: &mut ReturnedLimits, limits: PoolLimits) -> bool {
        let size = limits.size.max(1);
        if kept.bounded() < size {
            return true;
        }
        kept.shared.remove_spent();
        while kept.bounded() >= size {
            if !self.close_longest_idle(kept) {
                return false;
            }
        }
        true
    }

    /// Opens connections as long as exchanges need more and the limit allows it.
    fn open_more(self: &Rc<Self>) {
        loop {
            let mut kept = self.kept.borrow_mut();
            let Some(limits) = kept.shared.wanted() else { return };
            if !self.has_room_for_shared(&mut kept, limits) {
                kept.shared.make_do(deadline::now_ms());
                return;
            }
            let Some(order) = kept.shared.order() else { return };
            let attempt = self.attempt(&order);
            if attempt.is_some() {
                kept.shared.begin_upgrade_of(&order);
            }
            drop(kept);
            self.counters.add(Counter::UpstreamConnects, 1);
            let opening = Opening { node: Rc::downgrade(self), order, over: false };
            tokio::task::spawn_local(opening.run(attempt, Rc::clone(&self.sockets)));
        }
    }

    /// Begins a connection over QUIC for an ordered one, if the node may have HTTP/3.
    fn attempt(&self, order: &Order) -> Option<Attempt> {
        let (addr, to_dial) = order.made.redial(&order.dial);
        let to = self.http3.wanted(addr, &to_dial, deadline::now_ms())?;
        Some(self.http3.begin(to, to_dial.limits.quic.retry_after_ms))
    }

    /// Gives waiting exchanges the result of an ordered connection.
    fn opened(self: &Rc<Self>, order: &Order, result: Result<Dialled, Fault>) {
        let mut kept = self.kept.borrow_mut();
        let member = match result {
            Ok(Dialled::Shared(connection)) => {
                // HTTP/3 says nothing about the version over TCP.
                self.declines.set(self.declines.get() && connection.is_http3());
                kept.shared.opened(order, connection, deadline::now_ms())
            }
            Ok(Dialled::Single(connection)) => {
                self.declines.set(true);
                kept.shared.not_shared(order, connection);
                None
            }
            Err(fault) => {
                kept.shared.failed(order, fault);
                None
            }
        };
        drop(kept);
        self.watch_room(member.as_ref());
        self.open_more();
    }
}

impl ReturnedLimits {
    fn len(&self) -> usize {
        self.idle.len() + self.shared.len()
    }

    /// Returns the connections that count for the limit of shared ones.
    fn bounded(&self) -> usize {
        self.idle.len() + self.shared.bounded()
    }

    /// Closes the least recently used connection without an exchange; returns false without one.
    fn close_longest_idle(&mut self) -> bool {
        let idle_ms = self.idle.front().map(|idle| idle.used_ms);
        match (idle_ms, self.shared.longest_idle()) {
            (Some(idle_ms), Some((member, used_ms))) if used_ms < idle_ms => self.shared.close(&member),
            (Some(_), _) => drop(self.idle.pop_front()),
            (None, Some((member, _))) => self.shared.close(&member),
            (None, None) => return false,
        }
        true
    }

    /// Closes the connections beyond `size` that have been idle for at least `idle_ms`. Returns their number.
    fn close_beyond(&mut self, size: usize, now_ms: u64, idle_ms: u64) -> usize {
        let beyond = self.idle.len().saturating_sub(size);
        let is_over = |idle: &&Idle| now_ms.saturating_sub(idle.used_ms) >= idle_ms;
        let over = self.idle.iter().take(beyond).take_while(is_over).count();
        self.idle.drain(..over).count()
    }
}

/// A connection that an exchange dials for itself.
#[derive(Debug)]
pub(super) struct Dialling(ConnectionSlot);

/// A shared connection being opened, in its own task: the exchange that ordered it may leave.
struct Opening {
    node: Weak<Node>,
    order: Order,
    over: bool,
}

impl Opening {
    async fn run(mut self, attempt: Option<Attempt>, sockets: Rc<QuicSockets>) {
        let (made, general) = (Rc::clone(&self.order.made), self.order.dial.clone());
        let (addr, to_dial) = made.redial(&general);
        let Some(attempt) = attempt else {
            return match to_dial.http3() {
                Some(DialQuic { when: Http3Use::Only, .. }) => self.tell(Err(without_udp())),
                _ => self.tell(dial(addr, &to_dial).await),
            };
        };
        let raced = Box::pin(race(&sockets, attempt.to, addr, &to_dial, |result| self.tell(result))).await;
        if let Some(node) = self.node.upgrade() {
            node.end_upgrade(&self.order, attempt, raced);
        }
    }

    fn tell(&mut self, result: Result<Dialled, Fault>) {
        self.over = true;
        if let Some(node) = self.node.upgrade() {
            node.opened(&self.order, result);
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.over {
            self.tell(Err(Fault::new(
                FaultKind::Internal,
                "a connection was abandoned while it was opening",
            )));
        }
    }
}

/// An exchange that waits for a stream.
struct Waiting {
    node: Rc<Node>,
    made: Rc<TargetIdentity>,
    told: oneshot::Receiver<SharedDialResult>,
    /// It has its result.
    over: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have got a stream that it did not take.
        self.told.close();
        let missed = self.told.try_recv().ok();
        self.node.kept.borrow_mut().shared.left(&self.made, self.over || missed.is_some());
        if let Some(SharedDialResult::Place(connection, member)) = missed {
            drop(self.node.placed(connection, member));
        }
    }
}

fn full() -> Fault {
    Fault::new(
        FaultKind::OutOfSockets,
        "all connections to the node are in use, and `keepalive_pool.size` allows no more",
    )
}
