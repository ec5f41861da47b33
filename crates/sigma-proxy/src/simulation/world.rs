//! Simulated time, randomness from a seed, and the scheduler: everything that is left to chance on a real machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sigma_net::deadline::{self, TICK_MS};

/// Longer than every timeout in the settings: a connection that waits this long while nothing happens waits forever.
pub const FOR_EVER_MS: u64 = 120_000;

/// Polls of one simulation; more of them are an endless loop.
const POLLS_MAX: u32 = 2_000_000;

/// Time and randomness. Clones are the same world.
#[derive(Debug, Clone)]
pub struct World(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    /// The beginning by the clock of a runtime; None if the world has its own time.
    began: Option<tokio::time::Instant>,
    now_ms: u64,
    /// The wakers by time; the number distinguishes wakers of one moment.
    timers: BTreeMap<(u64, u64), Waker>,
    timers_set: u64,
}

impl World {
    /// A world of this seed, whose time passes by a [`Scheduler`].
    pub fn new(seed: u64) -> World {
        World::of(seed, None)
    }

    /// A world of this seed whose time is the clock of the runtime, which may be paused. Call it within one.
    pub fn on_runtime(seed: u64) -> World {
        World::of(seed, Some(tokio::time::Instant::now()))
    }

    fn of(seed: u64, began: Option<tokio::time::Instant>) -> World {
        let random = fastrand::Rng::with_seed(seed);
        let (now_ms, timers, timers_set) = (0, BTreeMap::new(), 0);
        World(Arc::new(Mutex::new(State { random, began, now_ms, timers, timers_set })))
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number in `range`.
    pub fn pick(&self, range: Range<usize>) -> usize {
        self.with(|state| state.random.usize(range))
    }

    /// One of `choices`.
    pub fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.pick(0..choices.len())]
    }

    /// Returns true in `percent` of all calls.
    pub fn chance(&self, percent: usize) -> bool {
        self.pick(0..100) < percent
    }

    /// Returns the milliseconds since its beginning.
    pub fn now_ms(&self) -> u64 {
        self.with(|state| match state.began {
            Some(began) => began.elapsed().as_millis() as u64,
            None => state.now_ms,
        })
    }

    /// Wakes `waker` at this time.
    pub fn wake_at(&self, at_ms: u64, waker: &Waker) {
        if let Some(began) = self.with(|state| state.began) {
            let (at, waker) = (began + Duration::from_millis(at_ms), waker.clone());
            tokio::spawn(async move {
                tokio::time::sleep_until(at).await;
                waker.wake();
            });
            return;
        }
        self.with(|state| {
            state.timers_set += 1;
            state.timers.insert((at_ms, state.timers_set), waker.clone());
        });
    }

    /// Waits.
    pub async fn sleep(&self, ms: u64) {
        let end = self.now_ms() + ms;
        poll_fn(|cx| {
            if self.now_ms() >= end {
                return Poll::Ready(());
            }
            self.wake_at(end, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Lets time pass up to the next timer or the next tick of the deadlines; returns how much.
    fn pass(&self) -> u64 {
        let (passed, ticks, due) = self.with(|state| {
            let tick = (state.now_ms / TICK_MS + 1) * TICK_MS;
            let next = state.timers.first_key_value().map_or(tick, |(&(at, _), _)| at.max(state.now_ms));
            let next = next.min(tick);
            let passed = next - state.now_ms;
            state.now_ms = next;
            let later = state.timers.split_off(&(next + 1, 0));
            (passed, next == tick, std::mem::replace(&mut state.timers, later))
        });
        due.into_values().for_each(Waker::wake);
        if ticks {
            deadline::tick();
        }
        passed
    }
}

/// Whether a task is to be polled.
struct Ready(AtomicBool);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task {
    name: String,
    future: Pin<Box<dyn Future<Output = ()>>>,
    ready: Arc<Ready>,
}

/// The queue of new tasks.
#[derive(Clone, Default)]
pub struct Spawner(Rc<RefCell<Vec<Task>>>);

impl Spawner {
    /// Adds a task.
    pub fn spawn(&self, name: String, future: impl Future<Output = ()> + 'static) {
        let ready = Arc::new(Ready(AtomicBool::new(true)));
        self.0.borrow_mut().push(Task { name, future: Box::pin(future), ready });
    }
}

/// A scheduler that polls tasks in random order.
pub struct Scheduler {
    world: World,
    spawner: Spawner,
    tasks: Vec<Task>,
    polls: u32,
}

impl Scheduler {
    /// A scheduler of the tasks that `spawner` gets.
    pub fn new(world: &World, spawner: &Spawner) -> Scheduler {
        Scheduler { world: world.clone(), spawner: spawner.clone(), tasks: Vec::new(), polls: 0 }
    }

    /// Runs until no task is left whose name begins with `awaited`; none of them may wait for
    /// `patience_ms` while nothing happens. `each_second` is called as time passes.
    ///
    /// # Errors
    /// Returns an error if a task panics, waits forever or is polled without end.
    pub fn run(&mut self, awaited: &str, patience_ms: u64, each_second: impl Fn()) -> Result<(), String> {
        let (mut silence_ms, mut second_ms) = (0, 0);
        loop {
            self.tasks.append(&mut self.spawner.0.borrow_mut());
            let waiting = self.tasks.iter().find(|task| task.name.starts_with(awaited));
            let Some(waiting) = waiting else { return Ok(()) };
            if silence_ms > patience_ms {
                return Err(format!("{} waits for ever", waiting.name));
            }
            let ready: Vec<usize> = (0..self.tasks.len()).filter(|&at| self.is_ready(at)).collect();
            if ready.is_empty() {
                let passed_ms = self.world.pass();
                silence_ms += passed_ms;
                second_ms += passed_ms;
                if second_ms >= 1_000 {
                    second_ms = 0;
                    each_second();
                }
                continue;
            }
            silence_ms = 0;
            self.poll(self.world.one_of(&ready))?;
        }
    }

    fn is_ready(&self, at: usize) -> bool {
        self.tasks[at].ready.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self, at: usize) -> Result<(), String> {
        let task = &mut self.tasks[at];
        self.polls += 1;
        if self.polls > POLLS_MAX {
            return Err(format!("{} is polled without end", task.name));
        }
        task.ready.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&task.ready));
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let poll = task.future.as_mut().poll(&mut Context::from_waker(&waker));
            poll.is_ready()
        }));
        match polled {
            Ok(false) => Ok(()),
            Ok(true) => {
                drop(self.tasks.swap_remove(at));
                Ok(())
            }
            Err(_) => Err(format!("{} panicked", task.name)),
        }
    }
}
