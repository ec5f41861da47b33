//! One question for all who want the same answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::stored::Stored;

/// A question that somebody is asking a node, and that others wait for.
#[derive(Debug, Default)]
pub struct Flight {
    is_over: AtomicBool,
    /// Since when it is asked, in seconds since 1970.
    began: u64,
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The answer, while its body is coming.
    coming: Option<Arc<Stored>>,
    /// How many requests wait for it.
    waiting: u32,
}

impl Flight {
    /// One that is asked from now on.
    pub(crate) fn new(now: u64) -> Flight {
        Flight { began: now, ..Flight::default() }
    }

    /// Whether it is asked for longer than `most` seconds, and no answer has begun to come.
    pub(crate) fn is_late(&self, now: u64, most: u32) -> bool {
        most > 0 && now.saturating_sub(self.began) >= u64::from(most) && self.coming().is_none()
    }

    /// A place among those who wait; None if `most` do.
    pub fn join(self: Arc<Flight>, most: u32) -> Option<Place> {
        let mut state = self.lock();
        if most > 0 && state.waiting >= most {
            return None;
        }
        state.waiting += 1;
        drop(state);
        Some(Place(self))
    }

    /// Waits until there is something new: an answer is coming, or the question is over.
    async fn news(&self) {
        let told = self.told.notified();
        if !self.is_over.load(Ordering::Acquire) && self.coming().is_none() {
            told.await;
        }
    }

    /// The answer that is coming, if one is.
    pub fn coming(&self) -> Option<Arc<Stored>> {
        self.lock().coming.clone()
    }

    /// An answer is coming that all may have.
    pub(crate) fn answer(&self, stored: Arc<Stored>) {
        self.lock().coming = Some(stored);
        self.told.notify_waiters();
    }

    /// The question is over.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.lock().coming = None;
        self.told.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those who wait for an answer.
#[derive(Debug)]
pub struct Place(Arc<Flight>);

impl Place {
    /// Waits until there is something new: an answer is coming, or the question is over.
    pub async fn news(&self) {
        self.0.news().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}
