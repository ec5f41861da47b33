//! What one worker holds for sessions over UDP, and its bounds: clients make up where datagrams come from, so nothing
//! here grows with their number.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use sigma_net::datagram::Batch;

/// How often it is logged that there is no room.
const COMPLAINT_MS: u64 = 10_000;

/// The part of a worker that sessions over UDP share.
#[derive(Debug)]
pub(crate) struct Datagrams {
    /// What a call receives into, from clients and from nodes. It is looked at before anything else is received.
    pub(crate) batch: RefCell<Batch>,
    pub(crate) room: Rc<Room>,
}

impl Default for Datagrams {
    fn default() -> Datagrams {
        // Most workers have no such sessions: room is made by those that do.
        Datagrams { batch: RefCell::new(Batch::new(0)), room: Rc::default() }
    }
}

impl Datagrams {
    /// Has room for datagrams of so many bytes from now on.
    pub(crate) fn fit(&self, datagram_bytes: u32) {
        let mut batch = self.batch.borrow_mut();
        if batch.datagram_bytes() != datagram_bytes as usize {
            *batch = Batch::new(datagram_bytes as usize);
        }
    }
}

/// Places for sessions, and memory for datagrams that wait.
#[derive(Debug, Default)]
pub(crate) struct Room {
    sessions: Cell<u32>,
    waiting_bytes: Cell<usize>,
    complained_ms: Cell<Option<u64>>,
}

impl Room {
    /// Open sessions.
    pub(crate) fn sessions(&self) -> u32 {
        self.sessions.get()
    }

    /// A place for one more session, of `most`.
    pub(crate) fn enter(self: &Rc<Room>, most: u32) -> Option<Place> {
        let sessions = self.sessions.get();
        (sessions < most).then(|| {
            self.sessions.set(sessions + 1);
            Place(Rc::clone(self))
        })
    }

    /// A copy of a datagram that waits, if no more than `most` bytes do.
    pub(crate) fn hold(self: &Rc<Room>, bytes: &[u8], most: usize) -> Option<Waiting> {
        let sum = self.waiting_bytes.get() + bytes.len();
        (sum <= most).then(|| {
            self.waiting_bytes.set(sum);
            Waiting { bytes: bytes.into(), room: Rc::clone(self) }
        })
    }

    /// Whether no more than half of `most` bytes wait.
    pub(crate) fn is_half_free(&self, most: usize) -> bool {
        self.waiting_bytes.get() <= most / 2
    }

    /// Whether it is time to say that there is no room.
    pub(crate) fn may_complain(&self, now_ms: u64) -> bool {
        let may = self.complained_ms.get().is_none_or(|then| now_ms.saturating_sub(then) >= COMPLAINT_MS);
        if may {
            self.complained_ms.set(Some(now_ms));
        }
        may
    }
}

/// The place of one session, which it gives back however it ends.
#[derive(Debug)]
pub(crate) struct Place(Rc<Room>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.sessions.set(self.0.sessions.get() - 1);
    }
}

/// A datagram that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    bytes: Box<[u8]>,
    room: Rc<Room>,
}

impl Deref for Waiting {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.room.waiting_bytes.set(self.room.waiting_bytes.get() - self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        let room = Rc::new(Room::default());
        let places: Vec<_> = (0..4).filter_map(|_| room.enter(3)).collect();
        assert_eq!((places.len(), room.sessions()), (3, 3));
        drop(places);
        assert_eq!(room.sessions(), 0);
        let held = room.hold(b"12345", 8).unwrap();
        assert!(room.hold(b"6789", 8).is_none());
        assert_eq!(&*held, b"12345");
        drop(held);
        assert!(room.hold(b"6789", 8).is_some());
    }

    #[test]
    fn complaints_are_rare() {
        let room = Room::default();
        let at = [0, 1, COMPLAINT_MS - 1, COMPLAINT_MS, COMPLAINT_MS + 1];
        assert_eq!(at.map(|now_ms| room.may_complain(now_ms)), [true, false, false, true, false]);
    }
}
