//! Request collapsing (single flight): one request fetches for all that want the same response.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::stored::Stored;

/// A request to a node that others wait for.
#[derive(Debug, Default)]
pub struct SingleFlight {
    is_over: AtomicBool,
    /// Its start, in seconds since 1970.
    began: u64,
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The response, while its body arrives.
    coming: Option<Arc<Stored>>,
    /// The number of waiting requests.
    waiting: u32,
}

impl SingleFlight {
    /// Returns a flight that starts now.
    pub(crate) fn new(now: u64) -> SingleFlight {
        SingleFlight { began: now, ..SingleFlight::default() }
    }

    /// Returns true if it runs longer than `most` seconds without a response.
    pub(crate) fn is_late(&self, now: u64, most: u32) -> bool {
        most > 0 && now.saturating_sub(self.began) >= u64::from(most) && self.coming().is_none()
    }

    /// Takes a place among the waiting requests; None if `most` wait already.
    pub fn join(self: Arc<SingleFlight>, most: u32) -> Option<SingleFlightWaiter> {
        let mut state = self.lock();
        if most > 0 && state.waiting >= most {
            return None;
        }
        state.waiting += 1;
        drop(state);
        Some(SingleFlightWaiter(self))
    }

    /// Waits for news: a response is arriving, or the flight has ended.
    async fn news(&self) {
        let told = self.told.notified();
        if !self.is_over.load(Ordering::Acquire) && self.coming().is_none() {
            told.await;
        }
    }

    /// Returns the arriving response, if there is one.
    pub fn coming(&self) -> Option<Arc<Stored>> {
        self.lock().coming.clone()
    }

    /// Sets an arriving response that all may share.
    pub(crate) fn complete(&self, stored: Arc<Stored>) {
        self.lock().coming = Some(stored);
        self.told.notify_waiters();
    }

    /// Ends the flight.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.lock().coming = None;
        self.told.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the requests that wait for a response.
#[derive(Debug)]
pub struct SingleFlightWaiter(Arc<SingleFlight>);

impl SingleFlightWaiter {
    /// Waits for news: a response is arriving, or the flight has ended.
    pub async fn news(&self) {
        self.0.news().await;
    }
}

impl Drop for SingleFlightWaiter {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}
