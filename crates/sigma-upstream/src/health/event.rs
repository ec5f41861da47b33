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

/// The queues of events, one for each service. They never wait: an event without room is dropped and counted.
#[derive(Debug, Clone, Default)]
pub struct HealthEvents(Vec<Queue>);

#[derive(Debug, Clone)]
struct Queue {
    sender: mpsc::Sender<HealthEvent>,
    dropped: Arc<AtomicU64>,
}

impl HealthEvents {
    /// Returns events that go into this queue.
    pub fn into_queue(sender: mpsc::Sender<HealthEvent>) -> HealthEvents {
        HealthEvents(vec![Queue { sender, dropped: Arc::default() }])
    }

    /// Returns events that go into the queues of both.
    #[must_use]
    pub fn and(mut self, other: HealthEvents) -> HealthEvents {
        self.0.extend(other.0);
        self
    }

    /// Returns the events dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        self.0.iter().map(|queue| queue.dropped.swap(0, Ordering::Relaxed)).sum()
    }

    pub(super) fn tell(&self, event: impl FnOnce() -> HealthEvent) {
        if self.0.is_empty() {
            return;
        }
        let event = event();
        for queue in &self.0 {
            if queue.sender.try_send(event.clone()).is_err() {
                queue.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
