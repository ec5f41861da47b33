//! Time and random bytes of the machine, for plugins.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// The machine that hooks run on; tests replace it with fixed time and bytes.
pub trait System: Debug {
    /// Returns the time of day. It may go back.
    fn now(&self) -> SystemTime;

    /// Returns the run time of the process, the same for all workers. It never goes back. It includes the run time of
    /// earlier processes after an upgrade.
    fn uptime(&self) -> Duration;

    /// Fills `bytes` with unpredictable bytes.
    ///
    /// # Errors
    /// Returns an error message if the system has no random bytes.
    fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String>;
}

/// The real machine.
#[derive(Debug, Clone, Copy)]
pub struct Host;

/// Random bytes that a thread reads from the system at a time: a system call for each request is too expensive.
const POOL_BYTES: usize = 512;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], left: 0 }) };
}

/// Random bytes of one thread. Each byte is used once, and then erased.
struct Pool {
    bytes: [u8; POOL_BYTES],
    /// The number of unused bytes, at the beginning.
    left: usize,
}

impl Pool {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        if self.left < out.len() {
            from_system(&mut self.bytes)?;
            self.left = POOL_BYTES;
        }
        let given = &mut self.bytes[self.left - out.len()..self.left];
        out.copy_from_slice(given);
        given.fill(0);
        self.left -= out.len();
        Ok(())
    }
}

fn from_system(bytes: &mut [u8]) -> Result<(), String> {
    getrandom::fill(bytes).map_err(|error| format!("cannot get random bytes: {error}"))
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The run time of the previous process; set once, before the first reading of the time.
static BEFORE: OnceLock<Duration> = OnceLock::new();

impl Host {
    /// Continues the clock of the previous process, which its handed-over state uses. Call it once, before any other
    /// call.
    pub fn go_on_from(uptime: Duration) {
        // The first call counts.
        let _ = BEFORE.set(uptime);
    }
}

/// A machine that replaces the real one on a thread, for simulations. Built only with the feature `simulation`.
#[cfg(feature = "simulation")]
pub mod simulation {
    use std::cell::RefCell;

    use super::System;

    thread_local! {
        static MACHINE: RefCell<Option<Box<dyn System>>> = const { RefCell::new(None) };
    }

    /// Makes [`Host`](super::Host) be `machine` on this thread, until the result is dropped.
    pub fn enter(machine: Box<dyn System>) -> Entered {
        MACHINE.set(Some(machine));
        Entered(())
    }

    /// The thread has a simulated machine while this exists.
    #[derive(Debug)]
    #[must_use = "the machine ends with it"]
    pub struct Entered(());

    impl Drop for Entered {
        fn drop(&mut self) {
            MACHINE.set(None);
        }
    }

    /// Returns the answer of the machine of this thread, if it has one.
    pub(super) fn ask<T>(question: impl FnOnce(&dyn System) -> T) -> Option<T> {
        MACHINE.with_borrow(|machine| machine.as_deref().map(question))
    }
}

impl System for Host {
    fn now(&self) -> SystemTime {
        #[cfg(feature = "simulation")]
        if let Some(now) = simulation::ask(|machine| machine.now()) {
            return now;
        }
        SystemTime::now()
    }

    fn uptime(&self) -> Duration {
        #[cfg(feature = "simulation")]
        if let Some(uptime) = simulation::ask(|machine| machine.uptime()) {
            return uptime;
        }
        START.elapsed() + BEFORE.get().copied().unwrap_or_default()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String> {
        #[cfg(feature = "simulation")]
        if let Some(filled) = simulation::ask(|machine| machine.fill_random(bytes)) {
            return filled;
        }
        match bytes.len() {
            0..=POOL_BYTES => POOL.with_borrow_mut(|pool| pool.fill(bytes)),
            _ => from_system(bytes),
        }
    }
}
