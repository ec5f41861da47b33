//! The threads that work with one disk, next to the workers.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sigma_cache::disk_cache::port::{DiskThreads, Job, Trouble};

/// Threads of one disk: it is hardly faster with more, and a slow one holds up no other.
const THREADS: usize = 4;

/// Jobs that wait for them. Where there are more, the disk does not keep up, and requests continue without it.
const JOBS_MAX: usize = 1_024;

/// The interval of repeated messages about the same problem.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The threads of a zone.
#[derive(Debug)]
pub(super) struct Pool {
    zone: String,
    queue: Mutex<Queue>,
    more: Condvar,
    told: Mutex<Vec<(Trouble, Instant, u64)>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that are at work.
    busy: usize,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("jobs", &self.jobs.len()).field("busy", &self.busy).finish()
    }
}

impl Pool {
    /// Starts the threads of the zone of this name. Without a thread nothing is done.
    pub(super) fn start(zone: &str) -> Arc<Pool> {
        let pool = Arc::new(Pool {
            zone: zone.to_owned(),
            queue: Mutex::default(),
            more: Condvar::new(),
            told: Mutex::default(),
        });
        for _ in 0..THREADS {
            let own = Arc::clone(&pool);
            let thread = std::thread::Builder::new().name("sigma-disk".to_owned());
            if let Err(error) = thread.spawn(move || own.work()) {
                tracing::error!(zone, %error, "cannot start a thread for a disk cache");
            }
        }
        pool
    }

    fn work(&self) {
        loop {
            let mut queue = held(&self.queue);
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None => queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            queue.busy += 1;
            drop(queue);
            // Its data is consistent between two of its locks; the thread is still needed.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!(zone = self.zone, "a task of a disk cache panicked");
            }
            held(&self.queue).busy -= 1;
        }
    }

    /// Whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        let queue = held(&self.queue);
        queue.busy == 0 && queue.jobs.is_empty()
    }

    fn add(&self, mut queue: MutexGuard<'_, Queue>, job: Job) {
        queue.jobs.push_back(job);
        drop(queue);
        self.more.notify_one();
    }

    /// Returns how often a problem was not logged since its last message; None if it is not to be logged now.
    fn is_due(&self, trouble: Trouble, now: Instant) -> Option<u64> {
        let mut told = held(&self.told);
        match told.iter_mut().find(|(known, ..)| *known == trouble) {
            Some((_, last, silent)) if now.duration_since(*last) < TOLD_EVERY => {
                *silent += 1;
                None
            }
            Some((_, last, silent)) => {
                *last = now;
                Some(std::mem::take(silent))
            }
            None => {
                told.push((trouble, now, 0));
                Some(0)
            }
        }
    }
}

impl DiskThreads for Pool {
    fn offer(&self, job: Job) -> bool {
        let queue = held(&self.queue);
        let has_room = queue.jobs.len() < JOBS_MAX;
        if has_room {
            self.add(queue, job);
        }
        has_room
    }

    fn give(&self, job: Job) {
        self.add(held(&self.queue), job);
    }

    fn tell(&self, trouble: Trouble, error: Option<&io::Error>) {
        let Some(silent) = self.is_due(trouble, Instant::now()) else { return };
        let (zone, what) = (&self.zone, trouble.as_str());
        let error = error.map(tracing::field::display);
        tracing::warn!(zone, error, not_told = silent, "disk cache: {what}");
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one of these locks can leave its value half changed.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_are_done_and_there_is_an_end_to_waiting() {
        let pool = Pool::start("z");
        let (begun, beginnings) = mpsc::channel();
        let (leave, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        // One that panics costs no thread.
        pool.give(Box::new(|| panic!("within a test")));
        for _ in 0..THREADS {
            let (begun, gate) = (begun.clone(), Arc::clone(&gate));
            pool.give(Box::new(move || {
                begun.send(()).unwrap();
                let _ = held(&gate).recv();
            }));
        }
        (0..THREADS).for_each(|_| beginnings.recv().unwrap());
        let taken = (0..2 * JOBS_MAX).filter(|_| pool.offer(Box::new(|| {}))).count();
        assert_eq!(taken, JOBS_MAX);
        let (done, last) = mpsc::channel();
        pool.give(Box::new(move || done.send(()).unwrap()));
        assert!(!pool.is_idle());
        drop(leave);
        last.recv().unwrap();
        while !pool.is_idle() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn problems_are_logged_now_and_then() {
        let (pool, now) = (Pool::start("z"), Instant::now());
        assert_eq!(pool.is_due(Trouble::Slow, now), Some(0));
        assert_eq!(pool.is_due(Trouble::Slow, now), None);
        assert_eq!(pool.is_due(Trouble::Write, now), Some(0));
        assert_eq!(pool.is_due(Trouble::Slow, now + TOLD_EVERY), Some(1));
    }
}
