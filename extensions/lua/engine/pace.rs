//! The pace of timers: they leave most of the time to requests.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// The pause after a turn of a timer, as a multiple of its time: timers have a fifth of a busy worker.
const PAUSES: u32 = 4;

/// The least time that a turn counts for: it also costs time outside the script.
const LEAST: Duration = Duration::from_micros(20);

/// The turns of the timers of one worker, one after the other.
#[derive(Default)]
pub(crate) struct Pace {
    queue: Mutex<()>,
    /// The time of the next turn; None if no timer has run.
    next: Cell<Option<Instant>>,
}

impl Pace {
    /// Waits for a turn.
    pub(crate) async fn turn(&self) {
        // Only the first in the queue has a clock.
        let _first = self.queue.lock().await;
        if let Some(next) = self.next.get().filter(|next| *next > Instant::now()) {
            sleep_until(next).await;
        }
        self.used(LEAST);
    }

    /// Notes the time of a turn.
    pub(crate) fn used(&self, time: Duration) {
        let now = Instant::now();
        let from = self.next.get().map_or(now, |next| next.max(now));
        self.next.set(Some(from + time * PAUSES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn timers_have_a_share_of_the_time() {
        let (pace, began) = (Pace::default(), Instant::now());
        for _ in 0..100 {
            pace.turn().await;
            pace.used(Duration::from_millis(10));
        }
        // The last turn has no pause after it.
        let elapsed = began.elapsed();
        assert!(
            elapsed >= Duration::from_millis(99 * 40) && elapsed < Duration::from_millis(4_100),
            "{elapsed:?}"
        );
        // Timers that seldom run do not wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        pace.turn().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
