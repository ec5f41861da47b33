//! The sessions over UDP and their state. No socket is read or written here, and no clock.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use sigma_config::resources::StreamUdp;
use sigma_config::settings::Limits;
use sigma_net::datagram::{DatagramAddresses, DatagramSocket};
use tokio::sync::Notify;

use crate::edge::datagrams::{Room, SessionSlot, Waiting};

/// The sessions over one socket of a listener.
#[derive(Debug, Default)]
pub(super) struct Table {
    seats: HashMap<DatagramAddresses, Rc<Seat>>,
}

impl Table {
    /// The session that a datagram belongs to.
    pub(super) fn find(&self, way: &DatagramAddresses) -> Option<Rc<Seat>> {
        self.seats.get(way).cloned()
    }

    pub(super) fn insert(&mut self, seat: &Rc<Seat>) {
        self.seats.insert(seat.way, Rc::clone(seat));
    }

    /// Forgets a session, so that the next datagram on its way begins another one, unless that has happened already.
    pub(super) fn forget(&mut self, seat: &Rc<Seat>) {
        if self.seats.get(&seat.way).is_some_and(|own| Rc::ptr_eq(own, seat)) {
            self.seats.remove(&seat.way);
        }
    }

    /// Returns all of them.
    pub(super) fn seats(&self) -> impl Iterator<Item = &Rc<Seat>> {
        self.seats.values()
    }
}

/// The bounds on waiting datagrams of one session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) datagrams: usize,
    pub(super) bytes: usize,
    /// The bytes of all sessions of the worker.
    pub(super) worker_bytes: usize,
}

impl Bounds {
    pub(super) fn of(limits: &Limits) -> Bounds {
        Bounds {
            datagrams: limits.stream_udp_waiting_datagrams as usize,
            bytes: limits.stream_udp_waiting_bytes as usize,
            worker_bytes: limits.stream_udp_waiting_bytes_per_worker as usize,
        }
    }
}

/// A node, and the socket of the session to it.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    pub(super) addr: SocketAddr,
    pub(super) socket: Rc<DatagramSocket>,
}

/// One session, shared by the receiving and the replying side.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) way: DatagramAddresses,
    /// Something has happened that the session's task has to look at.
    pub(super) changed: Notify,
    place: SessionSlot,
    is_leaving: Cell<bool>,
    is_passed: Cell<bool>,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    /// Datagrams without a node yet, in order.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// The first datagram, for another node, as long as it is the only one and has no reply.
    first: Option<Waiting>,
    node: Option<Reached>,
    /// The error of the node.
    failure: Option<io::Error>,
    /// When the last datagram passed, in either direction.
    active_ms: u64,
    /// Bytes that were sent to nodes.
    sent_bytes: u64,
}

impl Seat {
    pub(super) fn new(way: DatagramAddresses, place: SessionSlot, rules: StreamUdp, now_ms: u64) -> Seat {
        Seat::going_on(way, place, rules, 0, 0, now_ms)
    }

    /// Returns a session of which so many datagrams of the client and of the node have passed, the last of them at
    /// this time.
    pub(super) fn going_on(
        way: DatagramAddresses,
        place: SessionSlot,
        rules: StreamUdp,
        asked: u64,
        answered: u64,
        active_ms: u64,
    ) -> Seat {
        if answered > 0 {
            place.note_reply(active_ms);
        }
        if asked > 1 {
            place.note_request();
        }
        Seat {
            way,
            place,
            changed: Notify::new(),
            is_leaving: Cell::new(false),
            is_passed: Cell::new(false),
            state: RefCell::new(State {
                ledger: Ledger { rules, asked, answered },
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                first: None,
                node: None,
                failure: None,
                active_ms,
                sent_bytes: 0,
            }),
        }
    }

    /// Adds a datagram of the client to be sent; returns false if it does not fit.
    pub(super) fn offer(&self, bytes: &[u8], room: &Rc<Room>, bounds: &Bounds) -> bool {
        let state = &mut *self.state.borrow_mut();
        // One may always wait, or large ones would never pass.
        let fits = state.waiting.is_empty()
            || state.waiting.len() < bounds.datagrams && state.waiting_bytes + bytes.len() <= bounds.bytes;
        let held = if fits { room.hold(bytes, bounds.worker_bytes) } else { None };
        let Some(held) = held else { return false };
        state.waiting_bytes += held.len();
        state.waiting.push_back(held);
        state.ledger.asked += 1;
        self.place.note_request();
        true
    }

    /// Passes the first datagram to `look`, while it waits.
    pub(super) fn with_first<T>(&self, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.state.borrow().waiting.front().map(|first| look(first))
    }

    /// Assigns this node to the session.
    pub(super) fn settle(&self, node: Reached) {
        self.state.borrow_mut().node = Some(node);
    }

    /// Takes the node from the session. Returns true if the sent datagram may be sent to another node: then it waits
    /// again.
    pub(super) fn unsettle(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.node = None;
        let Some(first) = state.first.take() else { return false };
        state.waiting_bytes += first.len();
        state.waiting.push_front(first);
        true
    }

    /// Returns the datagrams to send now, and the socket for them.
    pub(super) fn departing(&self) -> Option<(Reached, VecDeque<Waiting>)> {
        let state = &mut *self.state.borrow_mut();
        let node = state.node.clone().filter(|_| !state.waiting.is_empty())?;
        state.waiting_bytes = 0;
        Some((node, std::mem::take(&mut state.waiting)))
    }

    /// Notes that datagrams were sent to the node. The first one may be kept for another node.
    pub(super) fn departed(&self, mut gone: VecDeque<Waiting>, keeps: bool, now_ms: u64) {
        let state = &mut *self.state.borrow_mut();
        state.active_ms = now_ms;
        state.sent_bytes += gone.iter().map(|datagram| datagram.len() as u64).sum::<u64>();
        let is_first = keeps && state.ledger.asked == 1 && state.ledger.answered == 0;
        state.first = if is_first { gone.pop_front() } else { None };
    }

    /// Notes that datagrams of the node have come.
    pub(super) fn answered(&self, count: u64, now_ms: u64) {
        let state = &mut *self.state.borrow_mut();
        state.active_ms = now_ms;
        state.ledger.answered += count;
        state.first = None;
        self.place.note_reply(now_ms);
    }

    /// Its place among the sessions of the worker.
    pub(super) fn place(&self) -> &SessionSlot {
        &self.place
    }

    /// Notes that the node has failed.
    pub(super) fn fail(&self, error: io::Error) {
        self.state.borrow_mut().failure = Some(error);
        self.changed.notify_one();
    }

    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.state.borrow_mut().failure.take()
    }

    /// Notes that the client sends nothing more.
    pub(super) fn leave(&self) {
        self.is_leaving.set(true);
        self.changed.notify_one();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.get()
    }

    /// Returns its node, and how many datagrams of the client and of the node have passed: all that another process
    /// needs to continue it. None as long as a part of it exists only here.
    pub(super) fn standing(&self) -> Option<(Reached, (u64, u64))> {
        let state = self.state.borrow();
        let node = state.node.clone().filter(|_| state.waiting.is_empty() && state.failure.is_none())?;
        Some((node, (state.ledger.asked, state.ledger.answered)))
    }

    /// Forgets the past datagrams. Returns false if nothing waits either, so that there is no session.
    pub(super) fn starts_over(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        (state.ledger.asked, state.ledger.answered) = (state.waiting.len() as u64, 0);
        !state.waiting.is_empty()
    }

    /// Notes that another process continues it.
    pub(super) fn pass(&self) {
        self.is_passed.set(true);
        self.changed.notify_one();
    }

    pub(super) fn is_passed(&self) -> bool {
        self.is_passed.get()
    }

    /// Returns the milliseconds without a datagram.
    pub(super) fn quiet_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.state.borrow().active_ms)
    }

    /// Returns true if the next datagram begins another session.
    pub(super) fn is_full(&self) -> bool {
        self.state.borrow().ledger.is_full()
    }

    /// Returns true if all its datagrams have passed.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state.borrow();
        state.waiting.is_empty() && state.ledger.is_over()
    }

    /// Returns true if the node has yet to send expected replies.
    pub(super) fn is_owed(&self) -> bool {
        self.state.borrow().ledger.is_owed()
    }

    /// Returns the bytes that were sent to nodes.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.state.borrow().sent_bytes
    }

    /// Drops the waiting datagrams; returns their number.
    pub(super) fn give_up(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        state.node = None;
        state.waiting.drain(..).count() as u64
    }
}

/// The numbers of datagrams of a session, and its rules.
#[derive(Debug, Clone, Copy, Default)]
struct Ledger {
    rules: StreamUdp,
    asked: u64,
    answered: u64,
}

impl Ledger {
    fn is_full(&self) -> bool {
        self.rules.requests.is_some_and(|most| self.asked >= most.into())
    }

    fn is_owed(&self) -> bool {
        self.rules.responses.is_some_and(|each| self.answered < u64::from(each).saturating_mul(self.asked))
    }

    /// As nginx: a session that expects more datagrams waits for them.
    fn is_over(&self) -> bool {
        self.rules.responses.is_some() && !self.is_owed() && (self.rules.requests.is_none() || self.is_full())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::edge::datagrams::{Admission, SessionLimits};

    const BOUNDS: Bounds = Bounds { datagrams: 3, bytes: 10, worker_bytes: 100 };

    fn place() -> SessionSlot {
        let limits = SessionLimits { per_worker: 1, per_network: 0, per_address: 0 };
        Rc::<Admission>::default().enter([192, 0, 2, 1].into(), false, &limits, 0).unwrap().0
    }

    fn seat(responses: Option<u32>, requests: Option<u32>) -> Rc<Seat> {
        let way = DatagramAddresses { peer: ([192, 0, 2, 1], 5_000).into(), local: None };
        Rc::new(Seat::new(way, place(), StreamUdp { responses, requests }, 0))
    }

    #[test]
    fn waiting_datagrams_are_bounded() {
        let check = |sizes: &[usize], bounds: Bounds, taken: &[bool]| {
            let (seat, room) = (seat(None, None), Rc::default());
            let offered: Vec<bool> =
                sizes.iter().map(|size| seat.offer(&vec![0; *size], &room, &bounds)).collect();
            assert_eq!(offered, taken, "{sizes:?}");
        };
        check(&[1, 1, 1, 1], BOUNDS, &[true, true, true, false]);
        check(&[6, 6, 4, 1], BOUNDS, &[true, false, true, false]);
        // One that is larger than the bound waits alone.
        check(&[50, 0], BOUNDS, &[true, false]);
        check(&[101, 1], BOUNDS, &[false, true]);
        check(&[0, 0, 0, 0], BOUNDS, &[true, true, true, false]);
    }

    #[test]
    fn a_session_ends_with_its_answers() {
        // For `asked` datagrams and `answered` replies: whether it has ended, and whether replies are expected.
        let check = |rules: (Option<u32>, Option<u32>), asked, answered, expected: (bool, bool)| {
            let rules = StreamUdp { responses: rules.0, requests: rules.1 };
            let ledger = Ledger { rules, asked, answered };
            assert_eq!((ledger.is_over(), ledger.is_owed()), expected, "{ledger:?}");
        };
        check((None, None), 5, 5, (false, false));
        check((Some(1), None), 1, 0, (false, true));
        check((Some(1), None), 1, 1, (true, false));
        check((Some(1), None), 2, 1, (false, true));
        check((Some(2), None), 2, 4, (true, false));
        check((Some(0), None), 1, 0, (true, false));
        check((Some(1), Some(2)), 1, 1, (false, false));
        check((Some(1), Some(2)), 2, 2, (true, false));
        check((None, Some(1)), 1, 1, (false, false));
        check((Some(u32::MAX), None), u64::MAX, 1, (false, true));
    }

    /// It goes to another node only if no other datagram did and no reply came.
    #[test]
    fn the_first_datagram_may_be_sent_again() {
        let (seat, room) = (seat(None, None), Rc::default());
        let send = |seat: &Seat| {
            let waiting = std::mem::take(&mut seat.state.borrow_mut().waiting);
            seat.departed(waiting, true, 7);
        };
        assert!(seat.offer(b"one", &room, &BOUNDS));
        send(&seat);
        assert!(seat.unsettle());
        assert_eq!(seat.with_first(<[u8]>::to_vec).as_deref(), Some(&b"one"[..]));
        send(&seat);
        assert_eq!((seat.quiet_ms(9), seat.quiet_ms(3)), (2, 0));
        assert!(seat.offer(b"two", &room, &BOUNDS));
        send(&seat);
        assert!(!seat.unsettle(), "two were sent");
        let seat = self::seat(None, None);
        assert!(seat.offer(b"one", &room, &BOUNDS));
        send(&seat);
        seat.answered(1, 8);
        assert!(!seat.unsettle(), "it was answered");
    }

    #[test]
    fn reply_of_the_node_raises_the_standing() {
        let (seat, room) = (seat(None, None), Rc::default());
        assert!(seat.offer(b"one", &room, &BOUNDS) && seat.place().is_new());
        assert!(seat.offer(b"two", &room, &BOUNDS) && seat.place().is_new(), "the node has not replied");
        seat.answered(1, 8);
        assert!(!seat.place().is_new());
    }

    #[test]
    fn a_session_passes_when_nothing_of_it_waits() {
        let (way, rules) = (seat(None, None).way, StreamUdp { responses: Some(1), requests: None });
        let (seat, room) = (Seat::going_on(way, place(), rules, 3, 2, 5), Rc::default());
        assert_eq!((seat.is_owed(), seat.is_over(), seat.quiet_ms(9)), (true, false, 4));
        assert!(seat.standing().is_none(), "it has no node");
        assert!(!seat.starts_over(), "there is nothing to start with");
        assert!(seat.is_over());
        assert!(seat.offer(b"one", &room, &BOUNDS) && seat.starts_over());
        let waiting = std::mem::take(&mut seat.state.borrow_mut().waiting);
        seat.departed(waiting, true, 6);
        assert!(seat.is_owed());
        seat.answered(1, 7);
        assert!(seat.is_over() && !seat.is_passed());
        seat.pass();
        assert!(seat.is_passed());
    }

    #[test]
    fn a_session_is_forgotten_once() {
        let (old, new) = (seat(None, Some(1)), seat(None, None));
        let mut table = Table::default();
        table.insert(&old);
        assert!(table.find(&old.way).is_some_and(|found| Rc::ptr_eq(&found, &old)));
        table.insert(&new);
        table.forget(&old);
        assert!(table.find(&new.way).is_some_and(|found| Rc::ptr_eq(&found, &new)), "it is another's place");
        table.forget(&new);
        assert_eq!(table.seats().count(), 0);
    }

    proptest! {
        /// For any steps in any order: the bounds hold, nothing is lost or invented, and all memory is released.
        #[test]
        fn nothing_is_lost_or_made_up(steps in prop::collection::vec((0u8..4, 0usize..8), 0..60)) {
            let (seat, room) = (seat(Some(1), None), Rc::<Room>::default());
            let (mut taken, mut sent, mut answered) = (0, 0, 0);
            for (kind, size) in steps {
                match kind {
                    0 | 1 => taken += u64::from(seat.offer(&vec![0; size], &room, &BOUNDS)),
                    2 => {
                        let waiting = {
                            let mut state = seat.state.borrow_mut();
                            state.waiting_bytes = 0;
                            std::mem::take(&mut state.waiting)
                        };
                        sent += waiting.len() as u64;
                        seat.departed(waiting, size > 3, 0);
                    }
                    _ if answered < sent => {
                        answered += 1;
                        seat.answered(1, 0);
                    }
                    _ => {
                        let again = seat.unsettle();
                        prop_assert!(!again || taken == 1 || sent <= 1);
                        sent -= u64::from(again);
                    }
                }
                let state = seat.state.borrow();
                prop_assert!(state.waiting.len() <= BOUNDS.datagrams + 1);
                prop_assert_eq!(state.waiting.iter().map(|held| held.len()).sum::<usize>(), state.waiting_bytes);
                prop_assert_eq!(sent + state.waiting.len() as u64, taken);
                drop(state);
                prop_assert_eq!(seat.is_over(), sent == taken && answered == taken);
            }
            let waiting = seat.give_up();
            prop_assert_eq!(sent + waiting, taken);
            drop(seat);
            prop_assert!(room.hold(&[0; 100], 100).is_some());
        }
    }
}
