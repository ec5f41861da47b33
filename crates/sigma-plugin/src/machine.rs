//! What plugins get from the machine: time and unpredictable bytes.

use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

/// The machine that hooks run on; tests have one whose time and bytes are known.
pub trait Machine: Debug {
    /// The time of day. It may go back.
    fn now(&self) -> SystemTime;

    /// How long the process has run, the same for all workers. It never goes back.
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

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Machine for Host {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn uptime(&self) -> Duration {
        START.elapsed()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> Result<(), String> {
        getrandom::fill(bytes).map_err(|error| format!("the system gives no random bytes: {error}"))
    }
}
