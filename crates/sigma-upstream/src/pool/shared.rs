//! Shared connections to one endpoint, and exchanges that wait for a stream on one.
//!
//! This code neither dials nor waits: [`Shared`] decides which connection to open next, and gets the result.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use sigma_http::{Fault, FaultKind};
use sigma_wire::h2::Reused;
use sigma_wire::{Connection, MultiplexedConnection};
use tokio::sync::oneshot;

use super::target::{PoolLimits, Target, TargetIdentity};
use crate::dial::GeneralDial;

/// The limit of connections of one target that are opened at a time. Below it, as many are opened as exist, so that
/// the number doubles with each round while exchanges wait.
const OPENINGS_MAX: usize = 16;

/// The result for a waiting exchange.
#[derive(Debug)]
pub(super) enum SharedDialResult {
    /// A stream on a shared connection
    Place(Connection, Rc<Member>),
    /// Its own connection: the node does not share connections
    Own(Connection),
    /// The node does not share connections
    NotShared,
    /// No connection could be opened
    Failed(Fault),
}

/// A shared connection of the pool.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) connection: MultiplexedConnection,
    made: Rc<TargetIdentity>,
    limits: PoolLimits,
    /// The time of its last exchange, or of the last sweep that found one.
    used_ms: Cell<u64>,
    /// [`Shared::now`] at its opening.
    opened: u64,
    /// It is in the list of members that may have room.
    listed: Cell<bool>,
}

impl Member {
    fn has_room(&self) -> bool {
        self.connection.has_room(self.limits.requests)
    }

    fn is_spent(&self) -> bool {
        self.connection.is_spent(self.limits.requests)
    }
}

/// An exchange that waits for a stream.
#[derive(Debug)]
struct Waiter {
    /// [`Shared::now`] at its arrival.
    came: u64,
    /// It takes no connection that was opened before its arrival.
    fresh: bool,
    timeout_ms: u64,
    tell: oneshot::Sender<SharedDialResult>,
}

impl Waiter {
    fn accepts(&self, member: &Member) -> bool {
        !self.fresh || member.opened > self.came
    }
}

/// The state for one target.
#[derive(Debug)]
struct Group {
    made: Rc<TargetIdentity>,
    dial: GeneralDial,
    limits: PoolLimits,
    members: Vec<Rc<Member>>,
    /// The members that may have room; all others are full.
    roomy: Vec<Rc<Member>>,
    /// In the order of their arrival.
    waiting: VecDeque<Waiter>,
    /// Waiting exchanges that have given up.
    gone: usize,
    openings: usize,
    /// Connections over QUIC that are being opened, for later exchanges as well.
    upgrades: usize,
    /// The streams of a connection, as the last full one had them; 0 if none was full.
    places: usize,
    /// The node allows no stream on a connection that it keeps open. Another connection would not help.
    stalled: bool,
}

impl Group {
    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.waiting.is_empty() && self.openings == 0 && self.upgrades == 0
    }

    /// Returns a member with room, if there is one: HTTP/3 before others.
    fn available_member(&mut self) -> Option<&Rc<Member>> {
        if self.made.has_http3() {
            let is_first = |member: &Rc<Member>| member.connection.is_http3() && member.has_room();
            if let Some(at) = self.roomy.iter().rposition(is_first) {
                return self.roomy.get(at);
            }
        }
        while let Some(last) = self.roomy.last() {
            if last.has_room() {
                break;
            }
            last.listed.set(false);
            self.roomy.pop();
        }
        self.roomy.last()
    }

    fn list(&mut self, member: &Rc<Member>) {
        if !member.listed.replace(true) {
            self.roomy.push(Rc::clone(member));
        }
    }

    /// Gives the streams of a member to waiting exchanges, first come, first served. Returns their number.
    fn hand_out(&mut self, member: &Rc<Member>, now_ms: u64) -> usize {
        let mut given = 0;
        while member.has_room() {
            let next = self.waiting.iter().position(|w| w.tell.is_closed() || w.accepts(member));
            let Some(waiter) = next.and_then(|at| self.waiting.remove(at)) else { break };
            if waiter.tell.is_closed() {
                self.gone = self.gone.saturating_sub(1);
                continue;
            }
            member.used_ms.set(now_ms);
            let place = member.connection.begin(Reused::No);
            // It is not closed, and no other task runs meanwhile.
            let _ = waiter.tell.send(SharedDialResult::Place(place, Rc::clone(member)));
            given += 1;
        }
        given
    }

    fn hand_out_all(&mut self, now_ms: u64) {
        for member in self.members.clone() {
            if self.waiting.is_empty() {
                return;
            }
            self.hand_out(&member, now_ms);
        }
    }

    /// Returns how many connections should be opening.
    fn openings_wanted(&self) -> usize {
        let waiting = self.waiting.len().saturating_sub(self.gone);
        if waiting == 0 || self.stalled {
            return 0;
        }
        let needed = waiting.div_ceil(self.places.max(1));
        needed.min(self.members.len().clamp(1, OPENINGS_MAX))
    }

    fn remove_spent(&mut self) {
        self.members.retain(|member| !member.is_spent());
        self.roomy.retain(|member| !member.is_spent());
    }
}

/// The next connection to open.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) made: Rc<TargetIdentity>,
    pub(super) dial: GeneralDial,
}

/// The shared connections to one endpoint.
#[derive(Debug, Default)]
pub(super) struct Shared {
    groups: Vec<Group>,
    /// A logical clock: it grows with every arrival and every connection.
    now: u64,
    /// Over all groups.
    waiting: usize,
}

impl Shared {
    fn group(&mut self, made: &Rc<TargetIdentity>) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| Rc::ptr_eq(&group.made, made))
    }

    fn group_of(&mut self, target: &Target<'_>) -> &mut Group {
        let at = self.groups.iter().position(|group| group.made.fits(target)).unwrap_or_else(|| {
            self.groups.push(Group {
                made: Rc::new(TargetIdentity::of(target)),
                dial: target.dial.in_general(),
                limits: target.limits,
                members: Vec::new(),
                roomy: Vec::new(),
                waiting: VecDeque::new(),
                gone: 0,
                openings: 0,
                upgrades: 0,
                places: 0,
                stalled: false,
            });
            self.groups.len() - 1
        });
        let group = &mut self.groups[at];
        group.limits = target.limits;
        group
    }

    fn remove_if_empty(&mut self, made: &Rc<TargetIdentity>) {
        self.groups.retain(|group| !Rc::ptr_eq(&group.made, made) || !group.is_empty());
    }

    /// Returns the number of usable connections, for any target.
    pub(super) fn len(&self) -> usize {
        self.groups.iter().map(|group| group.members.len()).sum()
    }

    /// Returns the connections that count for the limit: open and opening ones. A client's own connection lives as
    /// long as the client.
    pub(super) fn bounded(&self) -> usize {
        let shared = self.groups.iter().filter(|group| !group.made.is_private());
        shared.map(|group| group.members.len() + group.openings).sum()
    }

    /// Returns the connections without an exchange.
    pub(super) fn idle(&self) -> usize {
        let members = self.groups.iter().flat_map(|group| &group.members);
        members.filter(|member| member.connection.is_idle()).count()
    }

    /// Returns a stream for an exchange, if there is one.
    pub(super) fn place(&mut self, target: &Target<'_>, now_ms: u64) -> Option<(Connection, Rc<Member>)> {
        let group = self.groups.iter_mut().find(|group| group.made.fits(target))?;
        let member = group.available_member()?;
        member.used_ms.set(now_ms);
        Some((member.connection.begin(Reused::Yes), Rc::clone(member)))
    }

    /// Adds an exchange that waits for a stream. One that comes although there is a free stream has tried it without
    /// success, and gets one on a new connection.
    pub(super) fn join(
        &mut self,
        target: &Target<'_>,
    ) -> (Rc<TargetIdentity>, oneshot::Receiver<SharedDialResult>) {
        let (tell, told) = oneshot::channel();
        self.now += 1;
        let (came, timeout_ms) = (self.now, target.dial.timeout_ms);
        let group = self.group_of(target);
        if group.waiting.is_empty() || timeout_ms > group.dial.timeout_ms {
            group.dial = target.dial.in_general();
        }
        let fresh = group.available_member().is_some();
        group.waiting.push_back(Waiter { came, fresh, timeout_ms, tell });
        let made = Rc::clone(&group.made);
        self.waiting += 1;
        (made, told)
    }

    /// Removes an exchange that waits no more: it has its result, or has given up.
    pub(super) fn left(&mut self, made: &Rc<TargetIdentity>, was_told: bool) {
        self.waiting -= 1;
        if was_told {
            return;
        }
        let Some(group) = self.group(made) else { return };
        group.gone += 1;
        if group.gone * 2 > group.waiting.len() {
            group.waiting.retain(|waiter| !waiter.tell.is_closed());
            group.gone = 0;
        }
        self.remove_if_empty(made);
    }

    /// Returns true if an opening for such a target is running.
    pub(super) fn is_opening(&self, made: &Rc<TargetIdentity>) -> bool {
        self.groups.iter().any(|group| Rc::ptr_eq(&group.made, made) && group.openings > 0)
    }

    /// Returns true if an opening for a target is running.
    pub(super) fn is_opening_to(&self, target: &Target<'_>) -> bool {
        self.groups.iter().any(|group| group.openings > 0 && group.made.fits(target))
    }

    /// Counts a connection over QUIC that is being opened besides others.
    pub(super) fn begin_upgrade(&mut self, target: &Target<'_>) -> Order {
        let group = self.group_of(target);
        group.upgrades += 1;
        Order { made: Rc::clone(&group.made), dial: target.dial.in_general() }
    }

    /// As [`Shared::begin_upgrade`], for the opening of an ordered connection.
    pub(super) fn begin_upgrade_of(&mut self, order: &Order) {
        if let Some(group) = self.group(&order.made) {
            group.upgrades += 1;
        }
    }

    /// Adds the connection of an upgrade, if there is one.
    pub(super) fn end_upgrade(
        &mut self,
        made: &Rc<TargetIdentity>,
        connection: Option<MultiplexedConnection>,
        now_ms: u64,
    ) -> Option<Rc<Member>> {
        self.now += 1;
        let opened = self.now;
        let group = self.group(made)?;
        group.upgrades -= 1;
        let member = connection.map(|connection| group.admit(connection, opened, now_ms));
        self.remove_if_empty(made);
        member
    }

    /// Handles the end of an exchange on a connection. Returns true if more connections may have to be opened.
    pub(super) fn freed(&mut self, member: &Rc<Member>, now_ms: u64) -> bool {
        let waits = self.waiting > 0;
        let Some(group) = self.group(&member.made) else { return waits };
        if member.is_spent() {
            group.members.retain(|other| !Rc::ptr_eq(other, member));
            self.remove_if_empty(&member.made);
            return waits;
        }
        group.hand_out(member, now_ms);
        if member.has_room() {
            group.list(member);
        }
        // An idle one may be closed for another.
        waits && member.connection.is_idle()
    }

    /// Returns the group that should open the next connection: the one with the longest wait.
    fn wanting(&mut self) -> Option<&mut Group> {
        if self.waiting == 0 {
            return None;
        }
        let wanting = self.groups.iter_mut().filter(|group| group.openings < group.openings_wanted());
        wanting.min_by_key(|group| group.waiting.front().map_or(u64::MAX, |waiter| waiter.came))
    }

    /// Returns the limits of the next connection to open, if one is needed.
    pub(super) fn wanted(&mut self) -> Option<PoolLimits> {
        self.wanting().map(|group| group.limits)
    }

    /// Counts the next connection as opening.
    pub(super) fn order(&mut self) -> Option<Order> {
        let group = self.wanting()?;
        group.openings += 1;
        Some(Order { made: Rc::clone(&group.made), dial: group.dial.clone() })
    }

    /// No further connection may be opened: every stream is as good as a new one.
    pub(super) fn make_do(&mut self, now_ms: u64) {
        for group in &mut self.groups {
            if group.waiting.iter().any(|waiter| waiter.fresh) {
                group.waiting.iter_mut().for_each(|waiter| waiter.fresh = false);
                group.hand_out_all(now_ms);
            }
        }
    }

    /// Stops counting connections that take no more exchanges.
    pub(super) fn remove_spent(&mut self) {
        self.groups.iter_mut().for_each(Group::remove_spent);
    }

    /// Adds an ordered connection. One on which the node allows no stream does not count.
    pub(super) fn opened(
        &mut self,
        order: &Order,
        connection: MultiplexedConnection,
        now_ms: u64,
    ) -> Option<Rc<Member>> {
        self.now += 1;
        let opened = self.now;
        let group = self.group(&order.made)?;
        if connection.is_spent(group.limits.requests) {
            let reason = "the node closes new connections before the first request";
            self.failed(order, Fault::new(FaultKind::ConnectRefused, reason));
            return None;
        }
        group.openings -= 1;
        Some(group.admit(connection, opened, now_ms))
    }

    /// Adds an unordered connection.
    pub(super) fn adopt(
        &mut self,
        target: &Target<'_>,
        connection: MultiplexedConnection,
        now_ms: u64,
    ) -> Rc<Member> {
        self.now += 1;
        let opened = self.now;
        self.group_of(target).admit(connection, opened, now_ms)
    }

    /// Handles the failure of an ordered connection. Waiting exchanges fail together, unless another opening is
    /// running; but those with a longer timeout wait on.
    pub(super) fn failed(&mut self, order: &Order, fault: Fault) {
        let (made, timeout_ms) = (&order.made, order.dial.timeout_ms);
        let Some(group) = self.group(made) else { return };
        group.openings -= 1;
        if group.openings > 0 {
            return;
        }
        for waiter in std::mem::take(&mut group.waiting) {
            if waiter.timeout_ms > timeout_ms {
                group.dial.timeout_ms = group.dial.timeout_ms.max(waiter.timeout_ms);
                group.waiting.push_back(waiter);
            } else {
                // An exchange that has left needs no result.
                let _ = waiter.tell.send(SharedDialResult::Failed(fault));
            }
        }
        group.gone = 0;
        self.remove_if_empty(made);
    }

    /// The node does not share connections: `own` goes to the first waiting exchange, all others dial for themselves.
    pub(super) fn not_shared(&mut self, order: &Order, own: Connection) {
        let made = &order.made;
        let Some(group) = self.group(made) else { return };
        group.openings -= 1;
        let mut told = SharedDialResult::Own(own);
        for waiter in std::mem::take(&mut group.waiting) {
            if !waiter.tell.is_closed() {
                let _ = waiter.tell.send(std::mem::replace(&mut told, SharedDialResult::NotShared));
            }
        }
        group.gone = 0;
        self.remove_if_empty(made);
    }

    /// Returns the least recently used connection without an exchange, and the time of its last use.
    pub(super) fn longest_idle(&self) -> Option<(Rc<Member>, u64)> {
        let members = self.groups.iter().flat_map(|group| &group.members);
        // One whose node has not allowed the next stream yet is about to serve again.
        let is_free = |member: &&Rc<Member>| !member.connection.is_http3() || member.has_room();
        let idle = members.filter(|member| member.connection.is_idle()).filter(is_free);
        let longest = idle.min_by_key(|member| member.used_ms.get())?;
        Some((Rc::clone(longest), longest.used_ms.get()))
    }

    /// Closes a connection.
    pub(super) fn close(&mut self, member: &Rc<Member>) {
        let Some(group) = self.group(&member.made) else { return };
        group.members.retain(|other| !Rc::ptr_eq(other, member));
        group.roomy.retain(|other| !Rc::ptr_eq(other, member));
        self.remove_if_empty(&member.made);
    }

    /// Closes connections that idled too long or take no more exchanges; a spent one ends with its last exchange,
    /// which holds it. It also finds new room after changes of nodes' settings.
    pub(super) fn sweep(&mut self, now_ms: u64) {
        for group in &mut self.groups {
            group.remove_spent();
            group.members.retain(|member| {
                if !member.connection.is_idle() {
                    member.used_ms.set(now_ms);
                }
                now_ms.saturating_sub(member.used_ms.get()) < member.limits.idle_timeout_ms
            });
            group.roomy.clear();
            group.members.iter().for_each(|member| member.listed.set(false));
            group.hand_out_all(now_ms);
            for member in &group.members {
                if member.has_room() {
                    member.listed.set(true);
                    group.roomy.push(Rc::clone(member));
                }
            }
            group.stalled = group.members.iter().any(|m| m.connection.is_idle() && !m.has_room());
        }
        self.groups.retain(|group| !group.is_empty());
    }
}

impl Group {
    /// Adds a new connection, and gives its streams to waiting exchanges.
    fn admit(&mut self, connection: MultiplexedConnection, opened: u64, now_ms: u64) -> Rc<Member> {
        let member = Rc::new(Member {
            connection,
            made: Rc::clone(&self.made),
            limits: self.limits,
            used_ms: Cell::new(now_ms),
            opened,
            listed: Cell::new(false),
        });
        self.members.push(Rc::clone(&member));
        let given = self.hand_out(&member, now_ms);
        if member.has_room() {
            self.list(&member);
        } else {
            self.places = given;
        }
        self.stalled = given == 0 && !member.has_room();
        member
    }
}
