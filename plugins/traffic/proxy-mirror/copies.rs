//! Copies on their way: a bounded number at once, a bounded number that wait, and a bounded number of bytes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use super::config::Bounds;

/// A copy that is sent, its response read and compared.
type CopyTask = Pin<Box<dyn Future<Output = ()>>>;

/// The copies of one worker; a part of it.
#[derive(Default)]
pub(super) struct Copies {
    running: Cell<usize>,
    waiting: RefCell<VecDeque<CopyTask>>,
    bytes: Cell<usize>,
}

impl Copies {
    /// Sends a copy now, or when another has ended.
    ///
    /// # Errors
    /// Returns an error if too many wait already.
    pub(super) fn begin(self: &Rc<Self>, bounds: Bounds, course: CopyTask) -> Result<(), Full> {
        if self.running.get() < bounds.worker_running {
            let seat = Seat::take(self);
            tokio::task::spawn_local(seat.run(course));
            return Ok(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= bounds.worker_waiting {
            return Err(Full);
        }
        waiting.push_back(course);
        Ok(())
    }

    /// Takes memory for bytes of a body; None if there is no room.
    pub(super) fn hold(self: &Rc<Self>, bounds: Bounds, bytes: usize) -> Option<BodyMemory> {
        let all = self.bytes.get().checked_add(bytes).filter(|all| *all <= bounds.worker_bytes)?;
        self.bytes.set(all);
        Some(BodyMemory { copies: Rc::clone(self), bytes })
    }
}

/// There is no room for another copy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Memory that is taken for a body, given back when it is dropped.
pub(super) struct BodyMemory {
    copies: Rc<Copies>,
    bytes: usize,
}

impl BodyMemory {
    /// Adds what another one holds.
    pub(super) fn join(&mut self, mut other: BodyMemory) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        self.copies.bytes.set(self.copies.bytes.get() - self.bytes);
    }
}

/// One of those that are under way, also if it panics.
struct Seat(Rc<Copies>);

impl Seat {
    fn take(copies: &Rc<Copies>) -> Seat {
        copies.running.set(copies.running.get() + 1);
        Seat(Rc::clone(copies))
    }

    /// Runs a copy, and then those that wait.
    async fn run(self, course: CopyTask) {
        let mut next = Some(course);
        while let Some(course) = next {
            course.await;
            next = self.0.waiting.borrow_mut().pop_front();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const BOUNDS: Bounds = Bounds { worker_running: 1, worker_waiting: 1, worker_bytes: 10 };

    #[test]
    fn copies_over_the_limits_are_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let copies = Rc::new(Copies::default());
            let (end, ended) = oneshot::channel::<()>();
            let (tell, told) = oneshot::channel();
            let first = async move { drop(ended.await) };
            assert_eq!(copies.begin(BOUNDS, Box::pin(first)), Ok(()));
            assert_eq!(copies.begin(BOUNDS, Box::pin(async move { tell.send(7).unwrap() })), Ok(()));
            assert_eq!(copies.begin(BOUNDS, Box::pin(async {})), Err(Full));
            // The second one waits for the first.
            end.send(()).unwrap();
            assert_eq!(told.await, Ok(7));
            while copies.running.get() > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(copies.begin(BOUNDS, Box::pin(async {})), Ok(()));
        });
    }

    #[test]
    fn memory_is_given_back() {
        let copies = Rc::new(Copies::default());
        let mut held = copies.hold(BOUNDS, 6).unwrap();
        assert!(copies.hold(BOUNDS, 5).is_none());
        held.join(copies.hold(BOUNDS, 4).unwrap());
        assert!(copies.hold(BOUNDS, 1).is_none());
        drop(held);
        assert_eq!(copies.bytes.get(), 0);
    }
}
