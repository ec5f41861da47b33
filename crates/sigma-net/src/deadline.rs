//! Deadlines on one coarse wheel per worker.
//!
//! A gateway sets a deadline for almost every read, and almost none expires. So to set one is a store into a slot.
//! Only the wheel's tick, every [`TICK_MS`], checks whether a due slot was moved on meanwhile, and puts it into a
//! later bucket. To set a deadline reads no clock and allocates nothing.
//!
//! Deadlines never fire early, and at most two ticks late.
//!
//! The wheel of an idle worker rests: up to [`REST_TICKS`] without a deadline pass at once. An earlier wake of the
//! thread, or a new deadline, ends the rest first, so that no code sees an old time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Milliseconds between two ticks.
pub const TICK_MS: u64 = 50;

/// The ticks that pass at once in an idle thread. Tick counters are late by at most this.
pub const REST_TICKS: u64 = 10;

/// The wakes of an idle thread within a tick: for the tick, and for a timer's move to a finer level.
const IDLE_WAKES: u32 = 2;

/// The buckets of the wheel; deadlines beyond `TICK_MS * BUCKETS` are moved on the way.
const BUCKETS: u64 = 512;

const NEVER: u64 = u64::MAX;

#[derive(Default)]
struct Slot {
    /// The tick at which it fires.
    due: u64,
    /// The tick of the bucket that holds it, or 0.
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
                // Its last owner may have left it in a bucket.
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

    /// Returns how many of the next ticks, up to `most`, have nothing due before the last of them.
    fn quiet_ticks(&self, most: u64) -> u64 {
        let is_busy = |ahead: &u64| !self.buckets[((self.tick + ahead) % BUCKETS) as usize].is_empty();
        (1..most).find(is_busy).unwrap_or(most.max(1))
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

/// The rest state of a thread's wheel.
#[derive(Default)]
struct Rest {
    /// The thread reports its wakes; otherwise its wheel does not rest.
    is_told: Cell<bool>,
    /// The number of wakes since the last tick.
    wakes: Cell<u32>,
    is_resting: Cell<bool>,
    /// The driver's waker, while it rests.
    driver: Cell<Option<Waker>>,
    clock: Cell<Option<Clock>>,
    /// Runs when a wake of the thread has ended the rest.
    roused: RefCell<Option<Box<dyn Fn()>>>,
}

/// A turn of the wheel.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// The number of ticks passed.
    pub ticks: u64,
    /// The delay of the turn.
    pub late_ms: u64,
}

/// The start of the time count.
#[derive(Clone, Copy)]
struct Clock {
    start: tokio::time::Instant,
    began_ms: u64,
    began: u64,
}

impl Clock {
    /// Returns the time of the wheel: in milliseconds and in ticks.
    fn now(self) -> (u64, u64) {
        let elapsed = self.start.elapsed().as_millis() as u64;
        (self.began_ms + elapsed, self.began + elapsed / TICK_MS)
    }

    /// Returns the start of a tick.
    fn beginning_of(self, tick: u64) -> tokio::time::Instant {
        self.start + Duration::from_millis((tick - self.began) * TICK_MS)
    }
}

impl Rest {
    /// Ends the rest, if there is one. Returns true if there was one.
    fn rouse(&self) -> bool {
        if !self.is_resting.get() {
            return false;
        }
        self.is_resting.set(false);
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
        true
    }
}

/// Declares that this thread calls [`woken`] at each wake, so that its wheel may rest.
pub(crate) fn is_told_of_wakes() {
    REST.with(|rest| rest.is_told.set(true));
}

/// Handles a wake of the thread, before any task runs.
pub(crate) fn woken() {
    let clock = REST.with(|rest| {
        rest.wakes.set(rest.wakes.get() + 1);
        if rest.rouse() { rest.clock.get() } else { None }
    });
    if let Some(clock) = clock {
        let (now_ms, tick) = clock.now();
        turn(now_ms, tick);
        REST.with(|rest| {
            if let Some(roused) = &*rest.roused.borrow() {
                roused();
            }
        });
    }
}

/// Sets a function that runs in this thread before any other effect of a wake from a rest.
pub fn when_roused(roused: impl Fn() + 'static) {
    REST.with(|rest| *rest.roused.borrow_mut() = Some(Box::new(roused)));
}

thread_local! {
    static REST: Rest = Rest::default();
    static WHEEL: RefCell<Wheel> = RefCell::new(Wheel::new());
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
}

/// One task's deadline; the task has at most one at a time.
///
/// It belongs to the thread that made it.
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
    /// Returns a deadline that is not set.
    pub fn new() -> Deadline {
        Deadline { id: WHEEL.with_borrow_mut(Wheel::insert), _thread: std::marker::PhantomData }
    }

    /// Sets the expiry to `timeout_ms` from now.
    pub fn set(&self, timeout_ms: u64) {
        REST.with(Rest::rouse);
        WHEEL.with_borrow_mut(|wheel| {
            let slot = &mut wheel.slots[self.id as usize];
            // The current tick is partly over, so one more is added.
            slot.due = wheel.tick + timeout_ms.div_ceil(TICK_MS) + 1;
            slot.fired = false;
            wheel.queue(self.id);
        });
    }

    /// Clears it: it never expires until it is set again.
    pub fn clear(&self) {
        WHEEL.with_borrow_mut(|wheel| {
            let slot = &mut wheel.slots[self.id as usize];
            slot.due = NEVER;
            slot.fired = false;
        });
    }

    /// Returns the output of `future`, or `None` if the deadline passes before.
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
        // The wheel may be gone at the end of a thread; then so is the slot.
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

/// Wakes every task of this thread that waits with a deadline.
pub fn wake_all() {
    let wakers: Vec<Waker> =
        WHEEL.with_borrow(|wheel| wheel.slots.iter().filter_map(|s| s.waker.clone()).collect());
    wakers.into_iter().for_each(Waker::wake);
}

/// Returns milliseconds since the start of this thread's wheel, at its last tick.
pub fn now_ms() -> u64 {
    NOW_MS.get()
}

/// Turns this thread's wheel; never returns. `on_tick` runs after each turn. It returns the largest step of
/// an idle thread in ticks. After a restart it continues at the same tick.
pub async fn drive(mut on_tick: impl FnMut(Turn) -> u64) {
    let (began, began_ms) = (WHEEL.with_borrow(|wheel| wheel.tick), NOW_MS.get());
    let clock = Clock { start: tokio::time::Instant::now(), began_ms, began };
    REST.with(|rest| rest.clock.set(Some(clock)));
    let (mut tick, mut ahead) = (began, 1);
    loop {
        let until = clock.beginning_of(tick + ahead);
        wait(until, ahead > 1).await;
        let late_ms = until.elapsed().as_millis() as u64;
        let (now_ms, now) = clock.now();
        turn(now_ms, now);
        let most = on_tick(Turn { ticks: now - tick, late_ms });
        tick = now;
        let is_idle = REST.with(|rest| rest.is_told.get() && rest.wakes.replace(0) <= IDLE_WAKES);
        ahead = if is_idle { WHEEL.with_borrow(|wheel| wheel.quiet_ticks(most.min(REST_TICKS))) } else { 1 };
    }
}

/// Waits until then, or with `rests` until the thread has work.
async fn wait(until: tokio::time::Instant, rests: bool) {
    let mut sleep = pin!(tokio::time::sleep_until(until));
    REST.with(|rest| rest.is_resting.set(rests));
    poll_fn(|cx| {
        let is_over = sleep.as_mut().poll(cx).is_ready();
        REST.with(|rest| {
            if is_over || rests && !rest.is_resting.get() {
                rest.is_resting.set(false);
                return Poll::Ready(());
            }
            if rests {
                rest.driver.set(Some(cx.waker().clone()));
            }
            Poll::Pending
        })
    })
    .await;
}

fn turn(now_ms: u64, tick: u64) {
    NOW_MS.set(now_ms);
    let wake = WHEEL.with_borrow_mut(|wheel| wheel.advance(tick));
    wake.into_iter().for_each(Waker::wake);
}

/// Advances this thread by one tick, without a clock: for a simulated time, instead of [`drive`].
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
    async fn a_restarted_driver_continues() {
        let deadline = Deadline::new();
        for _ in 0..2 {
            deadline.set(2 * TICK_MS);
            let mut ticks = 0;
            let began_ms = now_ms();
            let driver = drive(|turn| {
                ticks += turn.ticks;
                REST_TICKS
            });
            tokio::select! {
                () = driver => unreachable!("it never ends"),
                () = poll_fn(|cx| deadline.poll_expired(cx)) => {}
            }
            assert!(ticks >= 2 && now_ms() >= began_ms + TICK_MS, "{ticks} ticks");
        }
    }

    #[test]
    fn an_idle_wheel_rests_until_the_next_deadline() {
        WHEEL.with_borrow_mut(|wheel| wheel.buckets.iter_mut().for_each(Vec::clear));
        let quiet = |most| WHEEL.with_borrow(|wheel| wheel.quiet_ticks(most));
        assert_eq!([quiet(0), quiet(1), quiet(10)], [1, 1, 10]);
        let deadline = Deadline::new();
        for (timeout_ms, ticks) in [(0, 1), (50, 2), (250, 6), (400, 9), (450, 10), (10_000, 10)] {
            WHEEL.with_borrow_mut(|wheel| {
                wheel.buckets.iter_mut().for_each(Vec::clear);
                wheel.slots.iter_mut().for_each(|slot| slot.queued = 0);
            });
            deadline.set(timeout_ms);
            assert_eq!(quiet(REST_TICKS), ticks, "{timeout_ms}");
        }
    }

    /// Runs a thread like [`crate::worker::spawn`].
    fn worker_thread(work: impl AsyncFnOnce() + Send + 'static) {
        let thread =
            crate::worker::spawn("test".into(), None, crate::worker::Io::Epoll, false, async || work().await);
        thread.expect("a thread").join().expect("its end");
    }

    #[test]
    fn a_resting_wheel_is_roused_before_any_reading() {
        worker_thread(async || {
            let driver = tokio::task::spawn_local(drive(|_| REST_TICKS));
            tokio::time::sleep(Duration::from_millis(2 * TICK_MS)).await;
            let first = (tokio::time::Instant::now(), now_ms());
            for round in 0..3 {
                // The thread is idle: the wheel rests.
                tokio::time::sleep(Duration::from_millis(19 * TICK_MS - 10)).await;
                let (really, counted) = (first.0.elapsed().as_millis() as u64, now_ms() - first.1);
                assert!(counted.abs_diff(really) <= 6 * TICK_MS, "{round}: {counted} for {really} ms");
                let began = (tokio::time::Instant::now(), now_ms());
                let deadline = Deadline::new();
                deadline.set(3 * TICK_MS);
                poll_fn(|cx| deadline.poll_expired(cx)).await;
                let (really, counted) = (began.0.elapsed().as_millis() as u64, now_ms() - began.1);
                assert!(really >= 3 * TICK_MS, "{round}: {really} ms, early");
                assert!(counted.abs_diff(really) <= 6 * TICK_MS, "{round}: {counted} for {really} ms");
            }
            driver.abort();
        });
    }

    #[test]
    fn an_idle_thread_wakes_rarely() {
        worker_thread(async || {
            let driver = tokio::task::spawn_local(drive(|_| REST_TICKS));
            tokio::time::sleep(Duration::from_millis(5 * TICK_MS)).await;
            let switches = || {
                let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
                let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                line.and_then(|number| number.trim().parse::<u64>().ok()).expect("a number")
            };
            let before = switches();
            tokio::time::sleep(Duration::from_secs(2)).await;
            let seen = switches() - before;
            // Two for each half second, one for the timers of this test.
            assert!(seen <= 16, "{seen} wakes in two seconds");
            driver.abort();
        });
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
            // Set just before the next tick, so `tick - start - 1` whole ticks have passed for sure.
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
