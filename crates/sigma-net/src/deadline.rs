//! Deadlines on one coarse wheel per worker.
//!
//! A gateway sets a deadline for almost every read and nearly none ever expires. So setting one
//! is a store into a slot; only the wheel's tick, every [`TICK_MS`], looks whether a slot that
//! was due has meanwhile been moved on, and puts it into a later bucket. No clock is read and
//! nothing is allocated when a deadline is set.
//!
//! Deadlines never fire early, and at most two ticks late.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Milliseconds between two ticks.
pub const TICK_MS: u64 = 50;

/// Buckets of the wheel; deadlines beyond `TICK_MS * BUCKETS` are put off on the way.
const BUCKETS: u64 = 512;

const NEVER: u64 = u64::MAX;

#[derive(Default)]
struct Slot {
    /// Tick at which it fires.
    due: u64,
    /// Tick of the bucket that holds it, or 0.
    queued: u64,
    fired: bool,
    waker: Option<Waker>,
}

struct Wheel {
    slots: Vec<Slot>,
    free: Vec<u32>,
    buckets: Vec<Vec<u32>>,
    tick: u64,
}

impl Wheel {
    fn new() -> Wheel {
        Wheel {
            slots: Vec::new(),
            free: Vec::new(),
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            tick: 1,
        }
    }

    fn insert(&mut self) -> u32 {
        let slot = Slot { due: NEVER, ..Slot::default() };
        match self.free.pop() {
            Some(id) => {
                // It may still sit in a bucket from its last owner.
                let queued = self.slots[id as usize].queued;
                self.slots[id as usize] = Slot { queued, ..slot };
                id
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn queue(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        let at = slot.due.min(self.tick + BUCKETS - 1);
        if slot.queued == 0 || slot.queued > at {
            slot.queued = at;
            self.buckets[(at % BUCKETS) as usize].push(id);
        }
    }

    fn advance(&mut self, to: u64) -> Vec<Waker> {
        let mut wake = Vec::new();
        while self.tick < to {
            self.tick += 1;
            let tick = self.tick;
            let mut due = std::mem::take(&mut self.buckets[(tick % BUCKETS) as usize]);
            for id in due.drain(..) {
                let slot = &mut self.slots[id as usize];
                if slot.queued != tick {
                    continue;
                }
                slot.queued = 0;
                if slot.due == NEVER {
                    continue;
                }
                if slot.due <= tick {
                    slot.fired = true;
                    wake.extend(slot.waker.take());
                } else {
                    self.queue(id);
                }
            }
            let bucket = &mut self.buckets[(tick % BUCKETS) as usize];
            if bucket.is_empty() {
                *bucket = due;
            }
        }
        wake
    }
}

thread_local! {
    static WHEEL: RefCell<Wheel> = RefCell::new(Wheel::new());
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
}

/// One task's deadline; the task has at most one at a time.
///
/// Belongs to the thread that made it.
#[derive(Debug)]
pub struct Deadline {
    id: u32,
    /// Not `Send`: the slot is in this thread's wheel.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Default for Deadline {
    fn default() -> Self {
        Deadline::new()
    }
}

impl Deadline {
    /// A deadline that is not set.
    pub fn new() -> Deadline {
        Deadline { id: WHEEL.with_borrow_mut(Wheel::insert), _thread: std::marker::PhantomData }
    }

    /// Expires `timeout_ms` from now, instead of whatever was set.
    pub fn set(&self, timeout_ms: u64) {
        WHEEL.with_borrow_mut(|wheel| {
            let slot = &mut wheel.slots[self.id as usize];
            // The current tick is partly over, so one more is added.
            slot.due = wheel.tick + timeout_ms.div_ceil(TICK_MS) + 1;
            slot.fired = false;
            wheel.queue(self.id);
        });
    }

    /// Never expires until set again.
    pub fn clear(&self) {
        WHEEL.with_borrow_mut(|wheel| {
            let slot = &mut wheel.slots[self.id as usize];
            slot.due = NEVER;
            slot.fired = false;
        });
    }

    /// What `future` comes to, or `None` if the deadline passes before.
    pub async fn bound<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_expired(cx).map(|()| None),
        })
        .await
    }

    /// Ready once the deadline has passed.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        WHEEL.with_borrow_mut(|wheel| {
            let slot = &mut wheel.slots[self.id as usize];
            if slot.fired {
                return Poll::Ready(());
            }
            match &slot.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                _ => slot.waker = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // The wheel may be gone when a thread ends; then so is the slot.
        let _ = WHEEL.try_with(|wheel| {
            if let Ok(mut wheel) = wheel.try_borrow_mut() {
                let slot = &mut wheel.slots[self.id as usize];
                slot.due = NEVER;
                slot.waker = None;
                wheel.free.push(self.id);
            }
        });
    }
}

/// Wakes every task of this thread that waits with a deadline, so that it looks around.
pub fn wake_all() {
    let wakers: Vec<Waker> =
        WHEEL.with_borrow(|wheel| wheel.slots.iter().filter_map(|s| s.waker.clone()).collect());
    wakers.into_iter().for_each(Waker::wake);
}

/// Milliseconds since this thread's wheel started, as of its last tick.
pub fn now_ms() -> u64 {
    NOW_MS.get()
}

/// Turns this thread's wheel; never returns. `on_tick` runs after each turn. Started anew, it goes on
/// where it was.
pub async fn drive(mut on_tick: impl FnMut()) {
    let start = tokio::time::Instant::now();
    let (began, began_ms) = (WHEEL.with_borrow(|wheel| wheel.tick), NOW_MS.get());
    let mut ticks = tokio::time::interval(Duration::from_millis(TICK_MS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let elapsed = start.elapsed().as_millis() as u64;
        turn(began_ms + elapsed, began + elapsed / TICK_MS);
        on_tick();
    }
}

fn turn(now_ms: u64, tick: u64) {
    NOW_MS.set(now_ms);
    let wake = WHEEL.with_borrow_mut(|wheel| wheel.advance(tick));
    wake.into_iter().for_each(Waker::wake);
}

/// One tick passes on this thread, whatever a clock says: for whoever makes up the time, in place of
/// [`drive`].
#[cfg(feature = "simulation")]
pub fn tick() {
    turn(NOW_MS.get() + TICK_MS, WHEEL.with_borrow(|wheel| wheel.tick) + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(to: u64) {
        super::turn(now_ms(), to);
    }

    fn expired(deadline: &Deadline) -> bool {
        deadline.poll_expired(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test]
    async fn a_driver_that_is_started_anew_goes_on() {
        let deadline = Deadline::new();
        for _ in 0..2 {
            deadline.set(2 * TICK_MS);
            let mut ticks = 0;
            let began_ms = now_ms();
            let driver = drive(|| ticks += 1);
            tokio::select! {
                () = driver => unreachable!("it never ends"),
                () = poll_fn(|cx| deadline.poll_expired(cx)) => {}
            }
            assert!(ticks >= 2 && now_ms() >= began_ms + TICK_MS, "{ticks} ticks");
        }
    }

    #[test]
    fn fires_never_early_and_at_most_two_ticks_late() {
        let deadline = Deadline::new();
        for timeout_ms in [0, 1, 50, 51, 1_000, 25_600, 3_600_000] {
            let start = WHEEL.with_borrow(|w| w.tick);
            deadline.set(timeout_ms);
            let mut tick = start;
            while !expired(&deadline) {
                tick += 1;
                turn(tick);
            }
            // Set just before the next tick, `tick - start - 1` whole ticks have surely passed.
            let surely = (tick - start - 1) * TICK_MS;
            assert!(surely >= timeout_ms && surely < timeout_ms + 2 * TICK_MS, "{timeout_ms}: {surely}");
        }
    }

    #[test]
    fn moving_clearing_and_reuse() {
        let start = WHEEL.with_borrow(|w| w.tick);
        let (a, b) = (Deadline::new(), Deadline::new());
        a.set(10_000);
        a.set(100);
        b.set(100);
        b.clear();
        turn(start + 4);
        assert!(expired(&a) && !expired(&b));
        a.set(1_000);
        assert!(!expired(&a), "setting starts over");
        drop(b);
        let c = Deadline::new();
        c.set(10_000);
        turn(start + 40);
        assert!(expired(&a) && !expired(&c));
    }
}
