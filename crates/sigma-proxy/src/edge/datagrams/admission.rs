//! Admission of UDP sessions on one worker: limits per worker, per source network and per source address.
//!
//! A sender of datagrams chooses its source address, so a new session proves nothing. As in connection tracking, a
//! session has a standing; if there is no room, sessions of lower standing are evicted for new ones:
//!
//! | | standing | meaning | evicted |
//! |---|---|---|
//! | new | the node has not replied | first, the oldest before others |
//! | answered | the node has replied, the client has not sent since | next, once it is quiet for a second |
//! | known | the client has sent again after a reply | never |

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use sigma_config::settings::Limits;
use tokio::sync::Notify;

/// An answered session without a datagram for this long can be evicted: its client is most likely finished.
const QUIET_MS: u64 = 1_000;

/// The number of answered sessions that a new one checks at most.
const LOOKS: usize = 8;

/// The limits of a worker's sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionLimits {
    pub(crate) per_worker: u32,
    /// 0: no limit.
    pub(crate) per_network: u32,
    /// 0: no limit.
    pub(crate) per_address: u32,
}

impl SessionLimits {
    pub(crate) fn of(limits: &Limits) -> SessionLimits {
        SessionLimits {
            per_worker: limits.stream_udp_sessions_per_worker,
            per_network: limits.stream_udp_sessions_per_network,
            per_address: limits.stream_udp_sessions_per_address,
        }
    }

    /// Returns the limit of an address, 0 for no limit. If the worker's limit is low, a source leaves a part to
    /// others.
    pub(crate) fn of_address(&self, of_worker: u32) -> u32 {
        self.per_address.min(of_worker - of_worker / 4)
    }

    /// Returns the limit of a network.
    pub(crate) fn of_network(&self, of_worker: u32) -> u32 {
        self.per_network.min(of_worker - of_worker / 8)
    }
}

/// The reason why a session is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The worker has reached `stream_udp_sessions_per_worker`
    Worker,
    /// The worker's share of descriptors is in use
    Descriptors,
    Network,
    Address,
}

/// The scope of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Scope {
    Address(IpAddr),
    /// /24 for IPv4, /64 for IPv6.
    Network(IpAddr),
    Worker,
}

/// Returns the scopes of a source, from the narrowest on. A trusted peer, which carries sessions of others, counts
/// only for the worker.
fn scopes(ip: IpAddr, is_trusted: bool) -> impl Iterator<Item = Scope> + Clone {
    let ip = ip.to_canonical();
    let network = match ip {
        IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from(u32::from(ip) & !0xff)),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) >> 64 << 64)),
    };
    let own = [Scope::Address(ip), Scope::Network(network)];
    own.into_iter().filter(move |_| !is_trusted).chain([Scope::Worker])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    New,
    Answered,
    Known,
}

/// One session in the admission tables.
#[derive(Debug)]
struct Occupant {
    ip: IpAddr,
    is_trusted: bool,
    standing: Cell<Standing>,
    /// Its position in the order of its standing.
    order: Cell<u64>,
    active_ms: Cell<u64>,
    is_evicted: Cell<bool>,
    evicted: Notify,
}

impl Occupant {
    fn scopes(&self) -> impl Iterator<Item = Scope> + Clone {
        scopes(self.ip, self.is_trusted)
    }
}

/// The sessions of one scope. Evictable ones are in their order of eviction.
#[derive(Debug, Default)]
struct Occupants {
    count: u32,
    new: BTreeMap<u64, Rc<Occupant>>,
    answered: BTreeMap<u64, Rc<Occupant>>,
}

impl Occupants {
    fn queue(&mut self, standing: Standing) -> Option<&mut BTreeMap<u64, Rc<Occupant>>> {
        match standing {
            Standing::New => Some(&mut self.new),
            Standing::Answered => Some(&mut self.answered),
            Standing::Known => None,
        }
    }
}

/// All sessions of a worker.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// There is no entry without a session, so that sources take no more memory than sessions.
    scopes: RefCell<HashMap<Scope, Occupants>>,
    next: Cell<u64>,
    /// The limit by descriptors, if there is one.
    share: Cell<Option<u32>>,
}

impl Admission {
    /// Also limits the sessions by the worker's share of descriptors.
    pub(crate) fn set_share(&self, sessions: u32) {
        self.share.set(Some(sessions));
    }

    /// Returns the limit of the worker's sessions.
    pub(crate) fn most(&self, limits: &SessionLimits) -> u32 {
        limits.per_worker.min(self.share.get().unwrap_or(u32::MAX))
    }

    /// Returns the number of open sessions.
    pub(crate) fn sessions(&self) -> u32 {
        self.count(Scope::Worker)
    }

    fn count(&self, scope: Scope) -> u32 {
        self.scopes.borrow().get(&scope).map_or(0, |occupants| occupants.count)
    }

    /// Takes a place for a new session of this source. Also returns the number of evicted sessions.
    ///
    /// # Errors
    /// Returns the reached limit, if no session within it can be evicted.
    pub(crate) fn enter(
        self: &Rc<Admission>,
        ip: IpAddr,
        is_trusted: bool,
        limits: &SessionLimits,
        now_ms: u64,
    ) -> Result<(SessionSlot, u32), Refusal> {
        let (mut evicted, of_worker) = (0, self.most(limits));
        for scope in scopes(ip, is_trusted) {
            let (most, refusal) = match scope {
                Scope::Address(_) => (limits.of_address(of_worker), Refusal::Address),
                Scope::Network(_) => (limits.of_network(of_worker), Refusal::Network),
                Scope::Worker if of_worker < limits.per_worker => (of_worker, Refusal::Descriptors),
                Scope::Worker => (limits.per_worker, Refusal::Worker),
            };
            if most >= of_worker && scope != Scope::Worker {
                continue;
            }
            // More than one is evicted only after a limit was lowered.
            while most > 0 && self.is_full(scope, most) {
                if !self.evict_one(scope, now_ms) {
                    return Err(refusal);
                }
                evicted += 1;
            }
        }
        let occupant = Rc::new(Occupant {
            ip,
            is_trusted,
            standing: Cell::new(Standing::New),
            order: Cell::new(self.take_number()),
            active_ms: Cell::new(now_ms),
            is_evicted: Cell::new(false),
            evicted: Notify::new(),
        });
        let mut all = self.scopes.borrow_mut();
        for scope in occupant.scopes() {
            let occupants = all.entry(scope).or_default();
            occupants.count += 1;
            occupants.new.insert(occupant.order.get(), Rc::clone(&occupant));
        }
        Ok((SessionSlot { admission: Rc::clone(self), occupant }, evicted))
    }

    fn take_number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    fn is_full(&self, scope: Scope, most: u32) -> bool {
        self.scopes.borrow().get(&scope).is_some_and(|occupants| occupants.count >= most)
    }

    /// Evicts the first session of this scope; returns false if none can be evicted.
    fn evict_one(&self, scope: Scope, now_ms: u64) -> bool {
        for _ in 0..LOOKS {
            let candidate = {
                let all = self.scopes.borrow();
                let Some(occupants) = all.get(&scope) else { return false };
                let first = occupants.new.first_key_value().or(occupants.answered.first_key_value());
                first.map(|(_, occupant)| Rc::clone(occupant))
            };
            let Some(occupant) = candidate else { return false };
            let is_new = occupant.standing.get() == Standing::New;
            if is_new || now_ms.saturating_sub(occupant.active_ms.get()) >= QUIET_MS {
                self.leave(&occupant);
                occupant.is_evicted.set(true);
                occupant.evicted.notify_one();
                return true;
            }
            // Its node still sends: others are checked before it.
            self.rank(&occupant, Standing::Answered);
        }
        false
    }

    /// Changes the standing of a session; it is the last in the new order.
    fn rank(&self, occupant: &Rc<Occupant>, standing: Standing) {
        let (before, order) = (occupant.standing.replace(standing), self.take_number());
        let order_before = occupant.order.replace(order);
        let mut all = self.scopes.borrow_mut();
        for scope in occupant.scopes() {
            let Some(occupants) = all.get_mut(&scope) else { continue };
            if let Some(queue) = occupants.queue(before) {
                queue.remove(&order_before);
            }
            if let Some(queue) = occupants.queue(standing) {
                queue.insert(order, Rc::clone(occupant));
            }
        }
    }

    fn leave(&self, occupant: &Occupant) {
        let mut all = self.scopes.borrow_mut();
        for scope in occupant.scopes() {
            let Some(occupants) = all.get_mut(&scope) else { continue };
            occupants.count -= 1;
            if let Some(queue) = occupants.queue(occupant.standing.get()) {
                queue.remove(&occupant.order.get());
            }
            if occupants.count == 0 {
                all.remove(&scope);
            }
        }
    }
}

/// One session's place; it is freed on drop or eviction.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    admission: Rc<Admission>,
    occupant: Rc<Occupant>,
}

impl SessionSlot {
    /// Records datagrams of the node.
    pub(crate) fn note_reply(&self, now_ms: u64) {
        self.occupant.active_ms.set(now_ms);
        self.raise(Standing::New, Standing::Answered);
    }

    /// Records a datagram of the client.
    pub(crate) fn note_request(&self) {
        self.raise(Standing::Answered, Standing::Known);
    }

    fn raise(&self, from: Standing, to: Standing) {
        if self.occupant.standing.get() == from && !self.is_evicted() {
            self.admission.rank(&self.occupant, to);
        }
    }

    /// Returns true if the node has not replied.
    pub(crate) fn is_new(&self) -> bool {
        self.occupant.standing.get() == Standing::New
    }

    /// Returns true after an eviction.
    pub(crate) fn is_evicted(&self) -> bool {
        self.occupant.is_evicted.get()
    }

    /// Waits for an eviction; for one task at a time.
    pub(crate) async fn evicted(&self) {
        while !self.is_evicted() {
            self.occupant.evicted.notified().await;
        }
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        if !self.is_evicted() {
            self.admission.leave(&self.occupant);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: SessionLimits = SessionLimits { per_worker: u32::MAX, per_network: 0, per_address: 0 };

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn enter(
        admission: &Rc<Admission>,
        ip: IpAddr,
        limits: &SessionLimits,
        now_ms: u64,
    ) -> Result<SessionSlot, Refusal> {
        admission.enter(ip, false, limits, now_ms).map(|(place, _)| place)
    }

    #[test]
    fn the_oldest_new_session_is_evicted() {
        let admission = Rc::<Admission>::default();
        let limits = SessionLimits { per_worker: 3, ..NONE };
        let places: Vec<SessionSlot> =
            (0..3).map(|last| enter(&admission, ip(last), &limits, 0).unwrap()).collect();
        places[0].note_reply(1);
        let newest = enter(&admission, ip(9), &limits, 2).unwrap();
        let evicted: Vec<bool> = places.iter().map(SessionSlot::is_evicted).collect();
        assert_eq!(evicted, [false, true, false], "the oldest one without a reply");
        drop(places);
        assert_eq!(admission.count(Scope::Worker), 1);
        drop(newest);
        assert!(admission.scopes.borrow().is_empty());
    }

    #[test]
    fn an_answered_session_is_evicted_only_when_quiet_and_a_known_one_never() {
        let admission = Rc::<Admission>::default();
        let limits = SessionLimits { per_worker: 2, ..NONE };
        let (answered, known) =
            (enter(&admission, ip(1), &limits, 0).unwrap(), enter(&admission, ip(2), &limits, 0).unwrap());
        answered.note_reply(10);
        known.note_reply(10);
        known.note_request();
        assert_eq!(enter(&admission, ip(3), &limits, 10 + QUIET_MS - 1).unwrap_err(), Refusal::Worker);
        // A node that still sends keeps its session.
        answered.note_reply(500);
        assert_eq!(enter(&admission, ip(3), &limits, 10 + QUIET_MS).unwrap_err(), Refusal::Worker);
        let third = enter(&admission, ip(3), &limits, 500 + QUIET_MS).unwrap();
        assert!(answered.is_evicted() && !known.is_evicted());
        third.note_reply(2_000);
        third.note_request();
        assert_eq!(enter(&admission, ip(4), &limits, 1_000_000).unwrap_err(), Refusal::Worker);
    }

    #[test]
    fn a_source_evicts_its_own_session() {
        let admission = Rc::<Admission>::default();
        let limits = SessionLimits { per_worker: 100, per_network: 3, per_address: 2 };
        let other = enter(&admission, [198, 51, 100, 1].into(), &limits, 0).unwrap();
        let own: Vec<SessionSlot> = (0..3).map(|_| enter(&admission, ip(1), &limits, 0).unwrap()).collect();
        assert_eq!(own.iter().filter(|place| place.is_evicted()).count(), 1);
        let neighbours: Vec<SessionSlot> =
            (2..10).map(|last| enter(&admission, ip(last), &limits, 0).unwrap()).collect();
        assert_eq!(admission.count(Scope::Network(ip(0))), 3);
        assert!(!other.is_evicted(), "another network is not touched");
        for place in own.iter().chain(&neighbours) {
            place.note_reply(0);
            place.note_request();
        }
        assert_eq!(enter(&admission, ip(77), &limits, 0).unwrap_err(), Refusal::Network);
        drop(neighbours);
        let mapped = "::ffff:192.0.2.50".parse().unwrap();
        let first = enter(&admission, mapped, &limits, 0).unwrap();
        let second = enter(&admission, ip(50), &limits, 0).unwrap();
        for place in [&first, &second] {
            place.note_reply(0);
            place.note_request();
        }
        assert_eq!(enter(&admission, ip(50), &limits, 0).unwrap_err(), Refusal::Address);
        // A trusted peer carries the sessions of others.
        assert!(admission.enter(ip(50), true, &limits, 0).is_ok());
    }

    #[test]
    fn a_source_leaves_a_part_of_few_sessions_to_others() {
        let admission = Rc::<Admission>::default();
        let limits = SessionLimits { per_worker: 8, per_network: 100, per_address: 100 };
        let mut known = Vec::new();
        while let Ok(place) = enter(&admission, ip(1), &limits, 0) {
            place.note_reply(0);
            place.note_request();
            known.push(place);
        }
        assert_eq!(known.len(), 6);
        known.push(enter(&admission, ip(2), &limits, 0).unwrap());
        assert!(enter(&admission, ip(3), &limits, 0).is_ok() && known[6].is_evicted(), "of its network");
        assert!(enter(&admission, [198, 51, 100, 1].into(), &limits, 0).is_ok());
    }

    #[test]
    fn the_share_of_descriptors_is_a_separate_limit() {
        let admission = Rc::<Admission>::default();
        admission.set_share(1);
        let place = enter(&admission, ip(1), &NONE, 0).unwrap();
        place.note_reply(0);
        place.note_request();
        assert_eq!(enter(&admission, ip(2), &NONE, 0).unwrap_err(), Refusal::Descriptors);
        let fewer = SessionLimits { per_worker: 1, ..NONE };
        assert_eq!(enter(&admission, ip(2), &fewer, 0).unwrap_err(), Refusal::Worker);
    }

    proptest! {
        /// In any order of events each scope keeps its limit, and a known session stays.
        #[test]
        fn limits_hold_and_known_sessions_stay(steps in prop::collection::vec((0u8..5, 0u8..6, 0usize..12), 0..200)) {
            let admission = Rc::<Admission>::default();
            let limits = SessionLimits { per_worker: 6, per_network: 5, per_address: 3 };
            let mut places: Vec<(SessionSlot, bool)> = Vec::new();
            for (now_ms, (kind, source, which)) in (0u64..).step_by(300).zip(steps) {
                let source: IpAddr = [10, 0, source / 3, source].into();
                let count = places.len().max(1);
                match (kind, places.get_mut(which % count)) {
                    (0 | 1, _) => places.extend(enter(&admission, source, &limits, now_ms).ok().map(|place| (place, false))),
                    (2, Some((place, _))) => place.note_reply(now_ms),
                    (3, Some((place, is_known))) => {
                        place.note_request();
                        *is_known = !place.is_evicted() && place.occupant.standing.get() == Standing::Known;
                    }
                    (_, Some(_)) => drop(places.swap_remove(which % count)),
                    _ => {}
                }
                prop_assert!(places.iter().all(|(place, is_known)| !(*is_known && place.is_evicted())));
                let open = places.iter().filter(|(place, _)| !place.is_evicted()).count();
                prop_assert_eq!(open, admission.count(Scope::Worker) as usize);
                for (scope, occupants) in admission.scopes.borrow().iter() {
                    let most = match scope { Scope::Address(_) => 3, Scope::Network(_) => 5, Scope::Worker => 6 };
                    prop_assert!((1..=most).contains(&occupants.count));
                    prop_assert!(occupants.new.len() + occupants.answered.len() <= occupants.count as usize);
                }
            }
            places.clear();
            prop_assert!(admission.scopes.borrow().is_empty());
        }
    }
}
