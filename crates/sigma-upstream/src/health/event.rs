//! Notifications about nodes that go out and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

/// A node has gone out, or has come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthEvent {
    /// The upstream, such as `upstreams/1`.
    pub upstream: Arc<str>,
    /// The node's name.
    pub node: String,
    /// Its address.
    pub address: String,
    /// The reason why it gets no requests; None if it gets requests again.
    pub reason: Option<String>,
}

/// The queue of events. It never waits: an event without room is dropped and counted.
#[derive(Debug, Clone, Default)]
pub struct HealthEvents {
    queue: Option<mpsc::Sender<HealthEvent>>,
    dropped: Arc<AtomicU64>,
}

impl HealthEvents {
    /// Returns events that go into this queue.
    pub fn into_queue(queue: mpsc::Sender<HealthEvent>) -> HealthEvents {
        HealthEvents { queue: Some(queue), dropped: Arc::default() }
    }

    /// Returns the events dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    pub(super) fn tell(&self, event: impl FnOnce() -> HealthEvent) {
        let Some(queue) = &self.queue else { return };
        if queue.try_send(event()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
