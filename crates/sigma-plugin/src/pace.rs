//! Bandwidth limits of an exchange or a session: plugins reserve bytes, and the gateway waits.
//!
//! In each direction at most one piece waits between reading and writing. Nothing more is read meanwhile, so the
//! sender gets backpressure.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll, ready};

use sigma_http::{Chunk, Fault, Frame};

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client
    ToNode,
    /// To the client
    ToClient,
}

/// Ready when reserved bytes may be sent.
pub type Pause = Pin<Box<dyn Future<Output = ()>>>;

/// A bandwidth limit of one exchange or session.
pub trait Pace {
    /// Returns the largest number of bytes for one reservation in a direction, at least 1; None if that direction has
    /// no limit.
    fn piece(&self, direction: Direction) -> Option<usize>;

    /// Reserves bytes, at most a piece. The gateway waits for the result before it sends them; None for no wait.
    fn book(&self, direction: Direction, bytes: usize) -> Option<Pause>;

    /// Returns reserved bytes that are not sent after all.
    fn give_back(&self, direction: Direction, bytes: usize);
}

/// All bandwidth limits of one exchange or session. Bytes wait for each of them.
#[derive(Default)]
pub struct Paces {
    all: Vec<Box<dyn Pace>>,
    passages: [Passage; 2],
}

/// The state of one direction.
#[derive(Default)]
struct Passage {
    /// Bytes that are reserved and not sent.
    booked: usize,
    /// The pauses of these bytes.
    pauses: Vec<Pause>,
    /// A piece of a body or tunnel that is not fully sent.
    held: Chunk,
}

impl Paces {
    /// Adds a limit.
    pub fn add(&mut self, pace: Box<dyn Pace>) {
        self.all.push(pace);
    }

    /// Returns how many of the next `bytes` may be sent, at least one, and counts them as sent. While it is pending,
    /// call it again with the same bytes.
    pub fn poll_pass(
        &mut self,
        direction: Direction,
        bytes: usize,
        task: &mut task::Context<'_>,
    ) -> Poll<usize> {
        let passage = &mut self.passages[direction as usize];
        if passage.booked == 0 {
            let most = self.all.iter().filter_map(|pace| pace.piece(direction)).min();
            let Some(most) = most.filter(|_| bytes > 0) else { return Poll::Ready(bytes) };
            passage.booked = bytes.min(most.max(1));
            let slow = self.all.iter().filter(|pace| pace.piece(direction).is_some());
            passage.pauses.extend(slow.filter_map(|pace| pace.book(direction, passage.booked)));
        }
        passage.pauses.retain_mut(|pause| pause.as_mut().poll(task).is_pending());
        if !passage.pauses.is_empty() {
            return Poll::Pending;
        }
        let passes = passage.booked.min(bytes);
        let rest = passage.booked - passes;
        passage.booked = 0;
        self.give_back(direction, rest);
        Poll::Ready(passes)
    }

    /// Returns the next frame of `next` at the allowed pace.
    ///
    /// # Errors
    /// Returns the error of `next`.
    pub fn poll_frame(
        &mut self,
        direction: Direction,
        task: &mut task::Context<'_>,
        next: impl FnOnce(&mut task::Context<'_>) -> Poll<Result<Frame, Fault>>,
    ) -> Poll<Result<Frame, Fault>> {
        if self.passages[direction as usize].held.is_empty() {
            match ready!(next(task))? {
                Frame::Data(data) if !data.is_empty() => self.passages[direction as usize].held = data,
                other => return Poll::Ready(Ok(other)),
            }
        }
        let held = self.passages[direction as usize].held.len();
        let polled = self.poll_pass(direction, held, task);
        let held = &mut self.passages[direction as usize].held;
        let Poll::Ready(passes) = polled else {
            held.shrink();
            return Poll::Pending;
        };
        Poll::Ready(Ok(Frame::Data(held.split_to(passes))))
    }

    /// Returns true if bytes wait only for a limit.
    pub fn is_waiting(&self, direction: Direction) -> bool {
        self.passages[direction as usize].booked > 0
    }

    /// Returns true if bytes that were read are not sent yet, in either direction.
    pub fn is_holding(&self) -> bool {
        self.passages.iter().any(|passage| !passage.held.is_empty())
    }

    /// Drops bytes that were read and not sent: they will come again.
    pub fn forget(&mut self, direction: Direction) {
        let passage = &mut self.passages[direction as usize];
        passage.held = Chunk::empty();
        passage.pauses.clear();
        let booked = std::mem::take(&mut passage.booked);
        self.give_back(direction, booked);
    }

    fn give_back(&self, direction: Direction, bytes: usize) {
        if bytes > 0 {
            let slow = self.all.iter().filter(|pace| pace.piece(direction).is_some());
            slow.for_each(|pace| pace.give_back(direction, bytes));
        }
    }
}

impl Drop for Paces {
    fn drop(&mut self) {
        self.forget(Direction::ToNode);
        self.forget(Direction::ToClient);
    }
}

impl fmt::Debug for Paces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paces").field("all", &self.all.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;

    /// Delays bytes towards the client until the test opens it.
    #[derive(Clone)]
    struct Gate {
        piece: usize,
        is_open: Rc<Cell<bool>>,
        seen: Rc<RefCell<Vec<i64>>>,
    }

    impl Gate {
        fn new(piece: usize) -> Gate {
            Gate { piece, is_open: Rc::new(Cell::new(true)), seen: Rc::default() }
        }
    }

    impl Pace for Gate {
        fn piece(&self, direction: Direction) -> Option<usize> {
            (direction == Direction::ToClient).then_some(self.piece)
        }

        fn book(&self, _: Direction, bytes: usize) -> Option<Pause> {
            self.seen.borrow_mut().push(bytes as i64);
            let is_open = Rc::clone(&self.is_open);
            (!is_open.get()).then(|| -> Pause {
                Box::pin(std::future::poll_fn(move |_| match is_open.get() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }))
            })
        }

        fn give_back(&self, _: Direction, bytes: usize) {
            self.seen.borrow_mut().push(-(bytes as i64));
        }
    }

    fn paces(gates: &[&Gate]) -> Paces {
        let mut paces = Paces::default();
        gates.iter().for_each(|gate| paces.add(Box::new((*gate).clone())));
        paces
    }

    #[test]
    fn bytes_wait_for_all_limits() {
        let (wide, narrow) = (Gate::new(100), Gate::new(3));
        let mut paces = paces(&[&wide, &narrow]);
        let task = &mut task::Context::from_waker(Waker::noop());
        assert_eq!(
            paces.poll_pass(Direction::ToNode, 1_000, task),
            Poll::Ready(1_000),
            "nothing slows that down"
        );
        assert_eq!(paces.poll_pass(Direction::ToClient, 10, task), Poll::Ready(3));
        narrow.is_open.set(false);
        wide.is_open.set(false);
        assert_eq!(paces.poll_pass(Direction::ToClient, 7, task), Poll::Pending);
        assert!(paces.is_waiting(Direction::ToClient) && !paces.is_waiting(Direction::ToNode));
        wide.is_open.set(true);
        assert_eq!(paces.poll_pass(Direction::ToClient, 7, task), Poll::Pending);
        // A finished pause is not polled again.
        wide.is_open.set(false);
        narrow.is_open.set(true);
        assert_eq!(paces.poll_pass(Direction::ToClient, 7, task), Poll::Ready(3));
        assert!(!paces.is_waiting(Direction::ToClient));
        narrow.is_open.set(false);
        assert_eq!(paces.poll_pass(Direction::ToClient, 4, task), Poll::Pending);
        drop(paces);
        for gate in [&wide, &narrow] {
            assert_eq!(*gate.seen.borrow(), [3, 3, 3, -3], "each byte is booked once");
        }
    }

    #[test]
    fn frames_pass_in_pieces_and_in_order() {
        let gate = Gate::new(4);
        let mut paces = paces(&[&gate]);
        let task = &mut task::Context::from_waker(Waker::noop());
        let mut frames =
            vec![Frame::End, Frame::Data(Chunk::copy_of(b"klm")), Frame::Data(Chunk::copy_of(b"abcdefghij"))];
        let mut seen = Vec::new();
        loop {
            match paces.poll_frame(Direction::ToClient, task, |_| Poll::Ready(Ok(frames.pop().unwrap()))) {
                Poll::Ready(Ok(Frame::Data(data))) => seen.push(String::from_utf8(data.to_vec()).unwrap()),
                Poll::Ready(Ok(_)) => break,
                _ => panic!("nothing waits"),
            }
        }
        assert_eq!(seen, ["abcd", "efgh", "ij", "klm"]);
    }

    #[test]
    fn forgotten_bytes_can_come_again() {
        let gate = Gate::new(4);
        let mut paces = paces(&[&gate]);
        let task = &mut task::Context::from_waker(Waker::noop());
        let come = |text: &'static [u8]| {
            move |_: &mut task::Context<'_>| Poll::Ready(Ok(Frame::Data(Chunk::copy_of(text))))
        };
        assert!(paces.poll_frame(Direction::ToClient, task, come(b"abcdefgh")).is_ready());
        gate.is_open.set(false);
        assert!(paces.poll_frame(Direction::ToClient, task, come(b"never asked")).is_pending());
        assert!(paces.is_holding());
        paces.forget(Direction::ToClient);
        assert!(!paces.is_holding() && !paces.is_waiting(Direction::ToClient));
        gate.is_open.set(true);
        let Poll::Ready(Ok(Frame::Data(again))) = paces.poll_frame(Direction::ToClient, task, come(b"ab"))
        else {
            panic!("it passes");
        };
        assert_eq!(&again[..], b"ab");
        assert_eq!(*gate.seen.borrow(), [4, 4, -4, 2]);
    }
}
