//! The UDP session state of one worker, and its limits: clients can forge source addresses, so nothing here grows
//! with their number.

mod admission;

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use sigma_net::datagram::Batch;

pub(crate) use self::admission::{Admission, Refusal, SessionLimits, SessionSlot};

/// The shortest interval of log lines about a lack of room.
const COMPLAINT_MS: u64 = 10_000;

/// The shared part of a worker's UDP sessions.
#[derive(Debug)]
pub(crate) struct Datagrams {
    /// The receive buffers, for clients and nodes. Datagrams in it are handled before the next receive.
    pub(crate) batch: RefCell<Batch>,
    pub(crate) room: Rc<Room>,
    pub(crate) admission: Rc<Admission>,
    /// The time of the last log line of each kind.
    complained_ms: [Cell<Option<u64>>; COMPLAINTS],
}

/// A reason for a line in the error log. Each kind has its own rate limit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Complaint {
    Refused(Refusal),
    /// Sessions were evicted for others
    Evicted,
    /// The system has no socket
    NoSocket,
}

const COMPLAINTS: usize = 6;

impl Complaint {
    fn number(self) -> usize {
        match self {
            Complaint::Refused(refusal) => refusal as usize,
            Complaint::Evicted => 4,
            Complaint::NoSocket => 5,
        }
    }
}

impl Default for Datagrams {
    fn default() -> Datagrams {
        // Most workers have no such sessions: memory is allocated with the first one.
        Datagrams {
            batch: RefCell::new(Batch::new(0)),
            room: Rc::default(),
            admission: Rc::default(),
            complained_ms: Default::default(),
        }
    }
}

impl Datagrams {
    /// Makes room for datagrams of this size from now on.
    pub(crate) fn fit(&self, datagram_bytes: u32) {
        let mut batch = self.batch.borrow_mut();
        if batch.datagram_bytes() != datagram_bytes as usize {
            *batch = Batch::new(datagram_bytes as usize);
        }
    }

    /// Returns true if a line may be logged: one of each kind in ten seconds.
    pub(crate) fn may_complain(&self, complaint: Complaint, now_ms: u64) -> bool {
        let complained_ms = &self.complained_ms[complaint.number()];
        let may = complained_ms.get().is_none_or(|then| now_ms.saturating_sub(then) >= COMPLAINT_MS);
        if may {
            complained_ms.set(Some(now_ms));
        }
        may
    }
}

/// Memory for waiting datagrams.
#[derive(Debug, Default)]
pub(crate) struct Room {
    waiting_bytes: Cell<usize>,
}

impl Room {
    /// Copies a datagram that waits, if at most `most` bytes wait.
    pub(crate) fn hold(self: &Rc<Room>, bytes: &[u8], most: usize) -> Option<Waiting> {
        let sum = self.waiting_bytes.get() + bytes.len();
        (sum <= most).then(|| {
            self.waiting_bytes.set(sum);
            Waiting { bytes: bytes.into(), room: Rc::clone(self) }
        })
    }

    /// Returns true if at most half of `most` bytes wait.
    pub(crate) fn is_half_free(&self, most: usize) -> bool {
        self.waiting_bytes.get() <= most / 2
    }
}

/// A waiting datagram.
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
    fn memory_is_given_back() {
        let room = Rc::new(Room::default());
        let held = room.hold(b"12345", 8).unwrap();
        assert!(room.hold(b"6789", 8).is_none());
        assert_eq!(&*held, b"12345");
        drop(held);
        assert!(room.hold(b"6789", 8).is_some());
    }

    #[test]
    fn complaints_are_rare() {
        let datagrams = Datagrams::default();
        let at = [0, 1, COMPLAINT_MS - 1, COMPLAINT_MS, COMPLAINT_MS + 1];
        let may = |complaint| at.map(|now_ms| datagrams.may_complain(complaint, now_ms));
        // Each kind has its own limit.
        for complaint in [Complaint::Refused(Refusal::Address), Complaint::Evicted, Complaint::NoSocket] {
            assert_eq!(may(complaint), [true, false, false, true, false], "{complaint:?}");
        }
    }
}
