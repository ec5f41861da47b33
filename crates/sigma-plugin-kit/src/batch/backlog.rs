//! The entries of one plugin that wait or are being sent, and their bounds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::log_throttle::LogThrottle;

/// Most bytes that the entries of one plugin may hold in memory, all batches together. APISIX
/// counts entries only; with bodies in them their number says little about memory.
pub(super) const PENDING_BYTES: usize = 64 << 20;

/// Entries of one plugin that wait or are being sent.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) pushed: AtomicU64,
    pub(super) processed: AtomicU64,
    discarded: AtomicU64,
    pub(super) bytes: AtomicUsize,
    complaint: LogThrottle,
}

impl Backlog {
    /// Admits an entry, unless there are too many, or its configuration has no room for it.
    pub(super) fn admit(&self, bytes: Option<usize>, limit: u64) -> bool {
        let (pushed, processed) =
            (self.pushed.load(Ordering::Relaxed), self.processed.load(Ordering::Relaxed));
        let has_room = pushed.saturating_sub(processed) < limit;
        let fits = |bytes: &usize| self.bytes.load(Ordering::Relaxed) + bytes <= PENDING_BYTES;
        let Some(bytes) = bytes.filter(|bytes| has_room && fits(bytes)) else {
            let discarded = self.discarded.fetch_add(1, Ordering::Relaxed) + 1;
            self.complain(pushed, processed, limit, discarded);
            return false;
        };
        self.pushed.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    fn complain(&self, pushed: u64, processed: u64, limit: u64, discarded: u64) {
        if self.complaint.due().is_some() {
            tracing::error!(
                "max pending entries limit exceeded. discarding entry. total_pushed_entries: {pushed} \
                 total_processed_entries: {processed} max_pending_entries: {limit} \
                 discarded_entries: {discarded}"
            );
        }
    }

    /// Releases entries that were delivered or dropped.
    pub(super) fn release(&self, entries: &[Vec<u8>]) {
        self.processed.fetch_add(entries.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_sub(entries.iter().map(Vec::len).sum(), Ordering::Relaxed);
    }
}
