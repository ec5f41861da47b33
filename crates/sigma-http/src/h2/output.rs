//! Bytes on their way out, and whose turn it is to add to them.

use std::collections::VecDeque;

use sigma_buffer::small;

use super::frame;
use super::priority::{LEVELS, Priority};
use super::stream::StreamKey;

/// Bytes that may wait for the socket before bodies have to wait with their streams, where priorities and
/// the end of a stream can still decide over them.
pub(super) const OUT_BYTES: usize = 64 * 1024;

/// Bytes on their way out, and the streams that have more.
#[derive(Debug)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were written.
    at: usize,
    /// Bytes written since the connection began.
    written: u64,
    /// Bytes that the peer takes on the connection.
    pub(super) window: i64,
    /// The streams with something to send, by urgency.
    ready: [VecDeque<StreamKey>; LEVELS],
    /// Which of `ready` are not empty, a bit each.
    urgent: u8,
}

impl Output {
    pub(super) fn new() -> Output {
        Output {
            bytes: Vec::new(),
            at: 0,
            written: 0,
            window: frame::DEFAULT_WINDOW.into(),
            ready: Default::default(),
            urgent: 0,
        }
    }

    /// Where frames that wait for nothing are written.
    pub(super) fn control(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = small::take();
        }
        &mut self.bytes
    }

    /// Bytes written since the connection began.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that wait for the socket.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Puts a stream into the queue of its urgency; with `next` it goes on where it was.
    pub(super) fn enqueue(&mut self, key: StreamKey, priority: Priority, next: bool) {
        let level = usize::from(priority.urgency);
        // One that is of no use in pieces goes on until it is done.
        if next && !priority.incremental {
            self.ready[level].push_front(key);
        } else {
            self.ready[level].push_back(key);
        }
        self.urgent |= 1 << level;
    }

    /// The stream whose turn it is.
    pub(super) fn dequeue(&mut self) -> Option<StreamKey> {
        let level = self.urgent.trailing_zeros() as usize;
        let queue = self.ready.get_mut(level)?;
        let key = queue.pop_front();
        if queue.is_empty() {
            self.urgent &= !(1 << level);
        }
        key
    }

    /// Whether a stream waits for its turn.
    pub(super) fn has_ready(&self) -> bool {
        self.urgent != 0
    }

    /// The bytes that wait for the socket.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Takes note that the first `n` of them were written.
    pub(super) fn advance(&mut self, n: usize) {
        self.at += n;
        self.written += n as u64;
        if self.at == self.bytes.len() {
            self.at = 0;
            small::recycle(std::mem::take(&mut self.bytes));
        } else if self.at > OUT_BYTES {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
    }
}
