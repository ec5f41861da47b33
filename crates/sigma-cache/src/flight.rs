//! One question for all who want the same answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::stored::Stored;

/// A question that somebody is asking a node, and that others wait for.
#[derive(Debug, Default)]
pub struct Flight {
    is_over: AtomicBool,
    /// The answer, while its body is coming.
    coming: Mutex<Option<Arc<Stored>>>,
    told: Notify,
}

impl Flight {
    /// Waits until there is something new: an answer is coming, or the question is over.
    pub async fn news(&self) {
        let told = self.told.notified();
        if !self.is_over.load(Ordering::Acquire) && self.coming().is_none() {
            told.await;
        }
    }

    /// The answer that is coming, if one is.
    pub fn coming(&self) -> Option<Arc<Stored>> {
        // Nothing that holds the lock panics.
        self.coming.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An answer is coming that all may have.
    pub(crate) fn answer(&self, stored: Arc<Stored>) {
        self.set(Some(stored));
        self.told.notify_waiters();
    }

    /// The question is over.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.set(None);
        self.told.notify_waiters();
    }

    fn set(&self, coming: Option<Arc<Stored>>) {
        *self.coming.lock().unwrap_or_else(PoisonError::into_inner) = coming;
    }
}
