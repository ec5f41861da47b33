//! What plugins get from the machine: time and unpredictable bytes.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// The machine that hooks run on; tests have one whose time and bytes are known.
pub trait Machine: Debug {
    /// The time of day. It may go back.
    fn now(&self) -> SystemTime;

    /// How long the process has run, the same for all workers. It never goes back. A process that took the place of
    /// another one has run since that one began.
    fn uptime(&self) -> Duration;

    /// Fills `bytes` with what nobody can guess.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the system has no random bytes.
    fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String>;
}

/// The real one.
#[derive(Debug, Clone, Copy)]
pub struct Host;

/// Bytes that a thread asks the system for at a time: a system call for each request costs more than
/// what is made of them.
const POOL_BYTES: usize = 512;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], left: 0 }) };
}

/// Random bytes of one thread. Each is given once, and not kept.
struct Pool {
    bytes: [u8; POOL_BYTES],
    /// How many were not given yet, at the beginning.
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
    getrandom::fill(bytes).map_err(|error| format!("the system gives no random bytes: {error}"))
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How long the process had run whose place this one took; set once, before anything asks for the time.
static BEFORE: OnceLock<Duration> = OnceLock::new();

impl Host {
    /// Goes on with the time of the process before: what it has left has times of that clock. To be called once,
    /// before any other call.
    pub fn go_on_from(uptime: Duration) {
        // The first counts.
        let _ = BEFORE.set(uptime);
    }
}

impl Machine for Host {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn uptime(&self) -> Duration {
        START.elapsed() + BEFORE.get().copied().unwrap_or_default()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String> {
        match bytes.len() {
            0..=POOL_BYTES => POOL.with_borrow_mut(|pool| pool.fill(bytes)),
            _ => from_system(bytes),
        }
    }
}
