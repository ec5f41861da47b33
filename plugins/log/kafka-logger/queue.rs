//! Messages that wait to be sent together.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use sigma_plugin::Node;
use tokio::sync::Notify;

use crate::shared::kafka::Producer;
use sigma_plugin_kit::log_throttle::LogThrottle;

/// Bytes of messages that may wait, whatever their number; as for the batches before them.
const MOST_BYTES: usize = 64 << 20;

/// When messages are sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// So many are sent at once.
    pub(super) group: usize,
    /// So many bytes, or one message.
    pub(super) group_bytes: usize,
    /// So many may wait.
    pub(super) waiting: usize,
    /// Fewer are sent when the first one has waited for this long.
    pub(super) linger: Duration,
}

/// A message, and how many entries are in it.
pub(super) struct Message {
    pub(super) value: Vec<u8>,
    pub(super) entries: u64,
}

/// Messages of one producer that no batch waits for.
pub(super) struct Queue {
    producer: Producer,
    bounds: Bounds,
    node: Arc<Node>,
    waiting: Mutex<Waiting>,
    /// Told when a whole group waits.
    full: Notify,
    /// Held by who sends: groups leave one after the other.
    sending: tokio::sync::Mutex<()>,
    complaint: LogThrottle,
    ending: OnceLock<()>,
}

#[derive(Default)]
struct Waiting {
    messages: Vec<Message>,
    bytes: usize,
    /// A task is there that sends them.
    is_tended: bool,
}

impl Queue {
    pub(super) fn new(producer: Producer, bounds: Bounds, node: &Arc<Node>) -> Arc<Queue> {
        Arc::new(Queue {
            producer,
            bounds,
            node: Arc::clone(node),
            waiting: Mutex::default(),
            full: Notify::new(),
            sending: tokio::sync::Mutex::default(),
            complaint: LogThrottle::new(),
            ending: OnceLock::new(),
        })
    }

    /// Takes a message.
    ///
    /// # Errors
    /// Returns an error if too much waits.
    pub(super) fn push(self: &Arc<Queue>, message: Message) -> Result<(), String> {
        let mut waiting = self.waiting();
        let bytes = waiting.bytes + message.value.len();
        if waiting.messages.len() >= self.bounds.waiting || bytes > MOST_BYTES {
            return Err("buffer overflow".to_owned());
        }
        waiting.bytes = bytes;
        waiting.messages.push(message);
        if waiting.messages.len() >= self.bounds.group || waiting.bytes >= self.bounds.group_bytes {
            self.full.notify_one();
        }
        let is_tended = std::mem::replace(&mut waiting.is_tended, true);
        drop(waiting);
        if !is_tended {
            let queue = Arc::clone(self);
            self.node.spawn(async move {
                // A group that is complete does not wait.
                let _ = tokio::time::timeout(queue.bounds.linger, queue.full.notified()).await;
                queue.drain().await;
            });
            let weak = Arc::downgrade(self);
            self.ending.get_or_init(|| self.node.at_end(drain(weak)));
        }
        Ok(())
    }

    /// Sends all that waits, group by group.
    async fn drain(&self) {
        let _turn = self.sending.lock().await;
        loop {
            let group = self.group();
            if group.is_empty() {
                return;
            }
            let values: Vec<&[u8]> = group.iter().map(|message| &*message.value).collect();
            if let Err((_, reason)) = self.producer.send(&values).await {
                // Which of them a broker has taken is not known: some, where the partitions differ.
                self.node.lose_lines(group.iter().map(|message| message.entries).sum());
                if let Some(left_out) = self.complaint.due() {
                    tracing::error!(left_out, "{reason}");
                }
            }
        }
    }

    /// The messages that are sent next; none ends the task.
    fn group(&self) -> Vec<Message> {
        let mut waiting = self.waiting();
        let (mut bytes, mut count) = (0, 0);
        for message in waiting.messages.iter().take(self.bounds.group) {
            if count > 0 && bytes + message.value.len() > self.bounds.group_bytes {
                break;
            }
            (bytes, count) = (bytes + message.value.len(), count + 1);
        }
        waiting.bytes -= bytes;
        waiting.is_tended = count > 0;
        waiting.messages.drain(..count).collect()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Each holder leaves it consistent.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn drain(queue: Weak<Queue>) {
    if let Some(queue) = queue.upgrade() {
        queue.drain().await;
    }
}
