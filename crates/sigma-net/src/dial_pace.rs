//! The pace of new connections to nodes.
//!
//! A connect takes the kernel some microseconds. Once more than half of the local ports towards one address are in use, it
//! searches them for a free one, which takes up to a millisecond. Clients that send many requests at once would stop
//! their worker for minutes. So slow connects have a share of the worker's time: a task beyond it waits for its turn, and
//! other tasks go on. Usual connects are not counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use crate::thread_time;

/// The time from which on a connect is slow. A usual one takes a tenth of it.
const SLOW: Duration = Duration::from_micros(200);

/// Time of slow connects, with their pauses, that needs no wait.
const BURST: Duration = Duration::from_millis(20);

/// The pause after a slow connect, as a multiple of its time: slow connects have half of a busy worker.
const PAUSES: u32 = 1;

/// The longest wait for a turn. Beyond it this gateway lacks time, which is no fault of the node.
const WAIT_MAX: Duration = Duration::from_secs(1);

thread_local! {
    static PACE: Arc<Pace> = Arc::default();
}

/// The connects of one worker. It can be sent between threads, as the tasks that wait can.
#[derive(Debug)]
struct Pace {
    /// The tasks that wait, in the order of their arrival. Only the first one has a clock.
    queue: Mutex<()>,
    /// The beginning of its time.
    began: Instant,
    /// The end of the pauses so far, in microseconds of its time.
    paused_until: AtomicU64,
    /// The last connect took long. The next one is timed by the clock of the thread, which takes a system call: on a
    /// busy machine a connect may take long without any work.
    is_suspect: AtomicBool,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            queue: Mutex::default(),
            began: Instant::now(),
            paused_until: AtomicU64::new(0),
            is_suspect: AtomicBool::new(false),
        }
    }
}

/// The permission for one connect, which takes the time until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    pace: Arc<Pace>,
    began: Began,
}

/// The beginning of a connect by one of two clocks.
#[derive(Debug)]
enum Began {
    /// The clock on the wall.
    Wall(std::time::Instant),
    /// The processor time of the thread.
    Thread(Duration),
}

impl Drop for Turn {
    fn drop(&mut self) {
        match self.began {
            Began::Wall(began) => self.pace.is_suspect.store(began.elapsed() >= SLOW, Ordering::Relaxed),
            Began::Thread(began) => self.pace.ended(thread_time().saturating_sub(began)),
        }
    }
}

/// Waits for a turn of this worker. Do not await anything before the turn is dropped.
///
/// # Errors
/// Returns an error for a lack of this machine if the wait is too long.
pub(crate) async fn turn() -> io::Result<Turn> {
    Pace::turn(PACE.with(Arc::clone)).await
}

impl Pace {
    async fn turn(self: Arc<Self>) -> io::Result<Turn> {
        if self.due().is_some() || self.queue.try_lock().is_err() {
            // Boxed, as few connects wait.
            let waited = Box::pin(timeout(WAIT_MAX, self.wait())).await;
            waited.map_err(|_| io::Error::from(Errno::NOBUFS))?;
        }
        let began = match self.is_suspect.load(Ordering::Relaxed) {
            true => Began::Thread(thread_time()),
            false => Began::Wall(std::time::Instant::now()),
        };
        Ok(Turn { pace: self, began })
    }

    async fn wait(&self) {
        let _first = self.queue.lock().await;
        while let Some(due) = self.due() {
            sleep_until(due).await;
        }
    }

    /// Returns the time of the next turn; None if it may be now.
    fn due(&self) -> Option<Instant> {
        let paused_until = Duration::from_micros(self.paused_until.load(Ordering::Relaxed));
        let due = self.began + paused_until.checked_sub(BURST)?;
        (due > Instant::now()).then_some(due)
    }

    /// Counts a connect that has just ended if it was slow.
    fn ended(&self, time: Duration) {
        let is_slow = time >= SLOW;
        self.is_suspect.store(is_slow, Ordering::Relaxed);
        if is_slow {
            self.spent(time);
        }
    }

    /// Counts the time of a slow connect.
    fn spent(&self, time: Duration) {
        let began = self.began.elapsed().saturating_sub(time).as_micros() as u64;
        let from = self.paused_until.load(Ordering::Relaxed).max(began);
        let cost = (time * (PAUSES + 1)).as_micros() as u64;
        self.paused_until.store(from + cost, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::time::advance;

    use super::*;

    async fn connect(pace: &Arc<Pace>, cost: Duration) {
        let turn = Pace::turn(Arc::clone(pace)).await.expect("a turn");
        advance(cost).await;
        pace.ended(cost);
        drop(turn);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_connects_have_half_of_the_time() {
        let (pace, began) = (Arc::default(), Instant::now());
        for _ in 0..1_000 {
            connect(&pace, Duration::from_millis(1)).await;
        }
        let elapsed = began.elapsed();
        assert!((1_960..=2_010).contains(&elapsed.as_millis()), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_usual_connects_does_not_wait() {
        let (pace, began) = (Arc::default(), Instant::now());
        for _ in 0..400 {
            connect(&pace, Duration::from_micros(25)).await;
        }
        assert!(began.elapsed() < Duration::from_millis(11), "{:?}", began.elapsed());
        assert!(!pace.is_suspect.load(Ordering::Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn others_go_on_while_connects_wait_in_order() {
        let (pace, order) = (Arc::<Pace>::default(), Rc::new(Cell::new(0)));
        pace.spent(Duration::from_millis(300));
        let tasks = tokio::task::LocalSet::new();
        for number in 0..100 {
            let (pace, order) = (Arc::clone(&pace), Rc::clone(&order));
            tasks.spawn_local(async move {
                let _turn = Pace::turn(pace).await.expect("a turn");
                assert_eq!(order.replace(number + 1), number);
            });
        }
        tasks.run_until(tokio::task::yield_now()).await;
        assert_eq!(order.get(), 0, "none has a turn before the pause is over");
        tasks.await;
        assert_eq!(order.get(), 100);
    }
    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_a_lack_of_this_machine() {
        let (pace, began) = (Arc::<Pace>::default(), Instant::now());
        pace.spent(Duration::from_secs(10));
        let error = Pace::turn(Arc::clone(&pace)).await.expect_err("no turn in time");
        assert!(crate::limits::is_own_lack(&error), "{error}");
        assert_eq!(began.elapsed().as_secs(), 1);
    }
}
