//! A bound on requests at a time, for the whole process, with a queue by priority.
//!
//! While there is room, entering and leaving are one atomic operation each. Who waits is woken in order:
//! lower priorities first, and first come, first served among equals.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::endpoint::lock;

/// A gate that so many may be behind.
#[derive(Debug)]
pub struct Gate {
    limit: u32,
    queue_max: u32,
    inside: AtomicU32,
    /// Changed under the lock of the queue only.
    waiting: AtomicU32,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// By priority and number.
    places: BTreeMap<(i32, u64), Place>,
}

#[derive(Debug)]
enum Place {
    Waits(Option<Waker>),
    /// It has been let in and does not know it yet.
    Granted,
}

/// Why nobody more is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A place behind the gate, until dropped.
#[derive(Debug)]
#[must_use = "the place is given back with it"]
pub struct Permit(Arc<Gate>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Gate {
    /// A gate for `limit` inside and `queue_max` waiting.
    pub fn new(limit: u32, queue_max: u32) -> Arc<Gate> {
        Arc::new(Gate {
            limit,
            queue_max,
            inside: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            queue: Mutex::default(),
        })
    }

    /// A place at once, if there is one and nobody waits for it.
    pub fn try_enter(self: &Arc<Gate>) -> Option<Permit> {
        let free = self.waiting.load(Ordering::SeqCst) == 0 && self.take();
        free.then(|| Permit(Arc::clone(self)))
    }

    /// A place, waited for in the queue.
    ///
    /// # Errors
    /// Returns an error if the queue is full.
    pub async fn enter(self: &Arc<Gate>, priority: i32) -> Result<Permit, Full> {
        match self.try_enter() {
            Some(permit) => Ok(permit),
            None => Ok(self.line_up(priority)?.await),
        }
    }

    fn line_up(self: &Arc<Gate>, priority: i32) -> Result<Waiting, Full> {
        let mut queue = lock(&self.queue);
        // Changed under the lock only.
        if self.waiting.load(Ordering::SeqCst) >= self.queue_max {
            return Err(Full);
        }
        let key = (priority, queue.next);
        queue.next += 1;
        queue.places.insert(key, Place::Waits(None));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Somebody may have left before this one was to be seen.
        self.grant(&mut queue);
        Ok(Waiting { gate: Arc::clone(self), key: Some(key) })
    }

    fn take(&self) -> bool {
        let more = |inside| (inside < self.limit).then_some(inside + 1);
        self.inside.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.grant(&mut lock(&self.queue));
        }
    }

    /// Lets in as many as there is room for.
    fn grant(&self, queue: &mut Queue) {
        for place in queue.places.values_mut() {
            let Place::Waits(waker) = place else { continue };
            if !self.take() {
                return;
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let waker = waker.take();
            *place = Place::Granted;
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// One that waits in the queue; dropped, it goes away.
#[derive(Debug)]
struct Waiting {
    gate: Arc<Gate>,
    /// None when it was let in.
    key: Option<(i32, u64)>,
}

impl Future for Waiting {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let Some(key) = this.key else { return Poll::Pending };
        let mut queue = lock(&this.gate.queue);
        match queue.places.get_mut(&key) {
            Some(Place::Waits(waker)) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => {
                queue.places.remove(&key);
                drop(queue);
                this.key = None;
                Poll::Ready(Permit(Arc::clone(&this.gate)))
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut queue = lock(&self.gate.queue);
        match queue.places.remove(&key) {
            Some(Place::Waits(_)) => {
                self.gate.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            Some(Place::Granted) => {
                // It had a place without knowing.
                drop(queue);
                self.gate.leave();
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn is_in(waiting: &mut Waiting) -> Option<Permit> {
        match poll(waiting) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn places_are_taken_and_given_back() {
        let gate = Gate::new(2, 0);
        let (one, other) = (gate.try_enter(), gate.try_enter());
        assert!(one.is_some() && other.is_some() && gate.try_enter().is_none());
        assert_eq!(gate.line_up(0).map(drop), Err(Full));
        drop(one);
        assert!(gate.try_enter().is_some());
        drop(other);
        assert_eq!(gate.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn lower_priorities_go_first_and_equals_in_order() {
        let gate = Gate::new(1, 4);
        let inside = gate.try_enter();
        let mut waiting: Vec<Waiting> =
            [5, 0, 5, -1].map(|priority| gate.line_up(priority).expect("room")).into();
        assert_eq!(gate.line_up(0).map(drop), Err(Full));
        assert!(waiting.iter_mut().all(|one| is_in(one).is_none()));
        drop(inside);
        for at in [3, 1, 0, 2] {
            let let_in: Vec<usize> = (0..4).filter(|n| waiting[*n].key.is_some()).collect();
            let mut permits: Vec<(usize, Permit)> =
                let_in.into_iter().filter_map(|n| Some((n, is_in(&mut waiting[n])?))).collect();
            assert_eq!(permits.len(), 1);
            assert_eq!(permits.remove(0).0, at);
        }
        assert!(gate.try_enter().is_some(), "all have left");
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let gate = Gate::new(1, 2);
        let inside = gate.try_enter();
        let (first, mut second) = (gate.line_up(0).expect("room"), gate.line_up(0).expect("room"));
        drop(first);
        let third = gate.line_up(0).expect("its place is free");
        drop(inside);
        // It has been let in and goes away before it knows: the next one is let in.
        assert!(is_in(&mut second).is_some());
        drop(third);
        assert_eq!(gate.inside.load(Ordering::SeqCst), 0);
        assert_eq!(gate.waiting.load(Ordering::SeqCst), 0);
        assert!(lock(&gate.queue).places.is_empty());
    }

    /// Threads that come and go, some of which give up: never more inside than may be, and nobody is
    /// forgotten.
    #[test]
    fn nobody_is_forgotten_among_threads() {
        let gate = Gate::new(3, 1000);
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (gate, most) = (&gate, &most);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                    for round in 0..2_000u32 {
                        if (round + thread).is_multiple_of(7) {
                            drop(gate.line_up(0));
                            continue;
                        }
                        let permit = runtime.block_on(gate.enter((round % 3) as i32)).expect("room");
                        most.fetch_max(gate.inside.load(Ordering::SeqCst), Ordering::SeqCst);
                        if round.is_multiple_of(5) {
                            std::thread::yield_now();
                        }
                        drop(permit);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert_eq!((gate.inside.load(Ordering::SeqCst), gate.waiting.load(Ordering::SeqCst)), (0, 0));
    }
}
