//! A limit of concurrent requests for the whole process, with a priority queue.
//!
//! While there is room, entering and leaving are one atomic operation each. Waiting requests are in a [`Line`], in
//! front of one gate or of several, and are admitted in order: lower priorities first, and first come, first served
//! among equals. Each entering request brings the bounds, so that a gate survives a change of its configuration with
//! its count.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::lock::lock;

/// The limits of a gate and its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests behind the gate.
    pub inside: u32,
    /// Requests in the line.
    pub waiting: u32,
}

/// A gate with a limit of concurrent requests.
#[derive(Debug, Default)]
pub struct Gate {
    /// The limit, as the last arrival brought it.
    limit: AtomicU32,
    inside: AtomicU32,
    /// The line of this gate alone.
    own: Arc<Line>,
    /// The line of this gate and others.
    shared: Option<Arc<Line>>,
}

/// Requests that wait for a permit.
#[derive(Debug, Default)]
pub struct Line {
    /// Their number; changed only under the lock.
    waiting: AtomicU32,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// By priority and number.
    places: BTreeMap<(i32, u64), QueuePosition>,
}

#[derive(Debug)]
enum QueuePosition {
    Waits(Option<Waker>),
    /// It is admitted, and its task has not run yet.
    Granted(Permit),
}

/// The error of a full line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A permit of a gate, until dropped.
#[derive(Debug)]
#[must_use = "the place is given back with it"]
pub struct Permit(Option<Arc<Gate>>);

impl Permit {
    /// Returns true if it belongs to this gate.
    pub fn is_for(&self, gate: &Arc<Gate>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, gate))
    }

    /// Keeps the permit without its value: the caller must call [`Gate::leave`] later, once.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.leave();
        }
    }
}

impl Gate {
    /// Returns a gate that also serves the shared `line`.
    pub fn behind(line: &Arc<Line>) -> Gate {
        Gate { shared: Some(Arc::clone(line)), ..Gate::default() }
    }

    /// Returns the number of permits in use.
    pub fn inside(&self) -> u32 {
        self.inside.load(Ordering::Relaxed)
    }

    /// Returns a permit at once, if there is one and the gate's own line is empty.
    pub fn try_enter(self: &Arc<Gate>, bounds: Bounds) -> Option<Permit> {
        self.limit_to(bounds.inside);
        if self.own.waiting.load(Ordering::SeqCst) == 0 { self.take() } else { None }
    }

    /// Waits for a permit in the gate's own line.
    ///
    /// # Errors
    /// Returns an error if the line is full.
    pub async fn enter(self: &Arc<Gate>, bounds: Bounds, priority: i32) -> Result<Permit, Full> {
        match self.try_enter(bounds) {
            Some(permit) => Ok(permit),
            None => Ok(self.line_up(bounds, priority)?.await),
        }
    }

    fn line_up(self: &Arc<Gate>, bounds: Bounds, priority: i32) -> Result<Waiting, Full> {
        let waiting = self.own.join(bounds.waiting, priority)?;
        // A request may have left before this one was in the line.
        self.own.offer(self);
        Ok(waiting)
    }

    fn limit_to(self: &Arc<Gate>, limit: u32) {
        if self.limit.load(Ordering::SeqCst) != limit && self.limit.swap(limit, Ordering::SeqCst) < limit {
            self.offer();
        }
    }

    fn take(self: &Arc<Gate>) -> Option<Permit> {
        let limit = self.limit.load(Ordering::SeqCst);
        let more = |inside| (inside < limit).then_some(inside + 1);
        self.inside.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Permit(Some(Arc::clone(self))))
    }

    /// Gives back a detached permit.
    pub fn leave(self: &Arc<Gate>) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.offer();
    }

    /// Admits waiting requests, as far as there is room.
    fn offer(self: &Arc<Gate>) {
        self.own.offer(self);
        if let Some(shared) = &self.shared {
            shared.offer(self);
        }
    }
}

impl Line {
    /// Joins the line for one of its gates. The caller must try each gate once more before waiting: a request may
    /// have left before this one was in the line.
    ///
    /// # Errors
    /// Returns an error if there are `length` in the line.
    pub fn join(self: &Arc<Line>, length: u32, priority: i32) -> Result<Waiting, Full> {
        let mut queue = lock(&self.queue);
        if self.waiting.load(Ordering::SeqCst) >= length {
            return Err(Full);
        }
        let key = (priority, queue.next);
        queue.next += 1;
        queue.places.insert(key, QueuePosition::Waits(None));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Ok(Waiting { line: Arc::clone(self), key: Some(key) })
    }

    /// Admits as many as `gate` has room for.
    fn offer(&self, gate: &Arc<Gate>) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut queue = lock(&self.queue);
        for place in queue.places.values_mut() {
            let QueuePosition::Waits(waker) = place else { continue };
            let Some(permit) = gate.take() else { return };
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let waker = waker.take();
            *place = QueuePosition::Granted(permit);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// A request in a line; a drop removes it.
#[derive(Debug)]
#[must_use = "it leaves the line with it"]
pub struct Waiting {
    line: Arc<Line>,
    /// None once it was admitted.
    key: Option<(i32, u64)>,
}

impl Future for Waiting {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let Some(key) = this.key else { return Poll::Pending };
        let mut queue = lock(&this.line.queue);
        if let Some(QueuePosition::Waits(waker)) = queue.places.get_mut(&key) {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        this.key = None;
        match queue.places.remove(&key) {
            Some(QueuePosition::Granted(permit)) => Poll::Ready(permit),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut queue = lock(&self.line.queue);
        let place = queue.places.remove(&key);
        if let Some(QueuePosition::Waits(_)) = place {
            self.line.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        // An unused permit goes to the next one in the line.
        drop(queue);
        drop(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(inside: u32, waiting: u32) -> Bounds {
        Bounds { inside, waiting }
    }

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
    fn permits_are_taken_and_given_back() {
        let (gate, two) = (Arc::<Gate>::default(), bounds(2, 0));
        let (one, other) = (gate.try_enter(two), gate.try_enter(two));
        assert!(one.is_some() && other.is_some() && gate.try_enter(two).is_none());
        assert_eq!(gate.line_up(two, 0).map(drop), Err(Full));
        drop(one);
        assert!(gate.try_enter(two).is_some());
        drop(other);
        assert_eq!(gate.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn lower_priorities_go_first_and_equals_in_order() {
        let (gate, one) = (Arc::<Gate>::default(), bounds(1, 4));
        let inside = gate.try_enter(one);
        let mut waiting: Vec<Waiting> =
            [5, 0, 5, -1].map(|priority| gate.line_up(one, priority).expect("room")).into();
        assert_eq!(gate.line_up(one, 0).map(drop), Err(Full));
        assert!(waiting.iter_mut().all(|one| is_in(one).is_none()));
        drop(inside);
        for at in [3, 1, 0, 2] {
            let let_in: Vec<usize> = (0..4).filter(|n| waiting[*n].key.is_some()).collect();
            let mut permits: Vec<(usize, Permit)> =
                let_in.into_iter().filter_map(|n| Some((n, is_in(&mut waiting[n])?))).collect();
            assert_eq!(permits.len(), 1);
            assert_eq!(permits.remove(0).0, at);
        }
        assert!(gate.try_enter(one).is_some(), "all have left");
    }

    #[test]
    fn a_request_that_gives_up_leaves_no_trace() {
        let (gate, one) = (Arc::<Gate>::default(), bounds(1, 2));
        let inside = gate.try_enter(one);
        let (first, mut second) = (gate.line_up(one, 0).expect("room"), gate.line_up(one, 0).expect("room"));
        drop(first);
        let third = gate.line_up(one, 0).expect("its place is free");
        drop(inside);
        // It is admitted and dropped before it runs: the next one is admitted.
        assert!(is_in(&mut second).is_some());
        drop(third);
        assert_eq!(gate.inside.load(Ordering::SeqCst), 0);
        assert_eq!(gate.own.waiting.load(Ordering::SeqCst), 0);
        assert!(lock(&gate.own.queue).places.is_empty());
    }

    #[test]
    fn a_line_of_two_gates_takes_the_first_free_permit() {
        let line = Arc::<Line>::default();
        let gates = [(); 2].map(|()| Arc::new(Gate::behind(&line)));
        let inside = gates.each_ref().map(|gate| gate.try_enter(bounds(1, 9)));
        let mut any = [0, 0, -1].map(|priority| line.join(3, priority).expect("room"));
        assert_eq!(line.join(3, 0).map(drop), Err(Full));
        // A request for one gate goes before one with a choice.
        let mut own = gates[1].line_up(bounds(1, 9), 5).expect("room");
        let [first, second] = inside;
        drop(second);
        let second = is_in(&mut own).expect("a place");
        assert!(any.iter_mut().all(|one| is_in(one).is_none()));
        drop(first);
        let first = is_in(&mut any[2]).expect("a place");
        assert!(first.is_for(&gates[0]) && !first.is_for(&gates[1]));
        // A dropped request makes room for the next one.
        drop(second);
        let [gone, mut last, _] = any;
        drop(gone);
        assert!(is_in(&mut last).expect("a place").is_for(&gates[1]));
        drop(first);
        assert!(gates.iter().all(|gate| gate.inside.load(Ordering::SeqCst) == 0));
        assert!(lock(&line.queue).places.is_empty() && line.waiting.load(Ordering::SeqCst) == 0);
    }

    #[test]
    fn bounds_change_while_requests_are_inside() {
        let gate = Arc::<Gate>::default();
        let two = [(); 2].map(|()| gate.try_enter(bounds(2, 9)).expect("room"));
        // With a lower limit, present requests stay, and new ones wait until enough have left.
        assert!(gate.try_enter(bounds(1, 9)).is_none());
        let mut waiting = gate.line_up(bounds(1, 9), 0).expect("room");
        let [first, second] = two;
        drop(first);
        assert!(is_in(&mut waiting).is_none());
        drop(second);
        let third = is_in(&mut waiting).expect("a place");
        // With a higher limit, waiting requests go first, before the one that brings it.
        let mut waiting = gate.line_up(bounds(1, 9), 0).expect("room");
        assert!(gate.try_enter(bounds(2, 9)).is_none());
        let fourth = is_in(&mut waiting).expect("a place");
        drop((third, fourth));
        assert_eq!((gate.inside.load(Ordering::SeqCst), gate.own.waiting.load(Ordering::SeqCst)), (0, 0));
    }

    /// Threads come and go, and some give up: the limit always holds, and each waiting request is admitted.
    #[test]
    fn each_waiting_thread_is_admitted() {
        let (gate, three) = (Arc::<Gate>::default(), bounds(3, 1000));
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (gate, most) = (&gate, &most);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                    for round in 0..2_000u32 {
                        if (round + thread).is_multiple_of(7) {
                            drop(gate.line_up(three, 0));
                            continue;
                        }
                        let permit = runtime.block_on(gate.enter(three, (round % 3) as i32)).expect("room");
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
        assert_eq!((gate.inside.load(Ordering::SeqCst), gate.own.waiting.load(Ordering::SeqCst)), (0, 0));
    }
}
