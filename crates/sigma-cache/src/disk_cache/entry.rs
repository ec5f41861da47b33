//! The memory entry of a response on a disk.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::port::FileId;
use crate::label::Label;
use crate::mark::{Mark, seconds};
use crate::stored::Stored;

/// The approximate memory of an entry besides its texts: itself, and its places in two tables.
const OVERHEAD_BYTES: u64 = 320;

/// The channel of a waiter: the response, or None if it is unavailable.
type Waiter = oneshot::Sender<Option<Arc<Stored>>>;

/// A response on a disk, or one that is being written there. A clone is a handle.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: FileId,
    pub(crate) key: Arc<[u8]>,
    pub(crate) label: Arc<Label>,
    /// The date of the response, from its own fields.
    pub(crate) date: u64,
    /// Bytes of the disk that it uses, or has reserved.
    pub(crate) size: AtomicU64,
    pub(crate) mark: Arc<Mark>,
    /// Its last use, as the eviction order has it.
    pub(crate) placed: AtomicU32,
    /// The waiters for a read, if one is running.
    waiters: Mutex<Option<Vec<Waiter>>>,
    /// Handles of purges that wait for its removal, if it was purged while it was written.
    pending_removals: Mutex<Vec<PendingRemoval>>,
}

impl Entry {
    pub(crate) fn new(id: FileId, key: Arc<[u8]>, stored: &Stored, size: u64, now: u64) -> Entry {
        Entry {
            id,
            key,
            label: Arc::clone(&stored.label),
            date: stored.date(),
            size: AtomicU64::new(size),
            mark: Arc::new(Mark::new(id.0, now)),
            placed: AtomicU32::new(seconds(now)),
            waiters: Mutex::default(),
            pending_removals: Mutex::default(),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.mark.is_gone()
    }

    pub(crate) fn forget(&self) {
        self.mark.forget();
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns its approximate memory in bytes.
    pub(crate) fn weight(&self) -> u64 {
        OVERHEAD_BYTES + self.key.len() as u64 + self.label.weight()
    }

    /// Waits for a read. Returns true if no read is running: then the caller must start one.
    pub(crate) fn wait(&self) -> (oneshot::Receiver<Option<Arc<Stored>>>, bool) {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.waiters();
        let is_first = waiters.is_none();
        waiters.get_or_insert_default().push(sender);
        (receiver, is_first)
    }

    /// Gives the waiters the result of a read.
    pub(crate) fn tell(&self, stored: Option<&Arc<Stored>>) {
        let waiters = self.waiters().take();
        for waiter in waiters.into_iter().flatten() {
            // A waiter that has left needs nothing.
            let _ = waiter.send(stored.cloned());
        }
    }

    /// Makes a purge wait for its removal.
    pub(crate) fn hold(&self, pending_removal: Option<&PendingRemoval>) {
        self.pending_removals.lock().unwrap_or_else(PoisonError::into_inner).extend(pending_removal.cloned());
    }

    /// Ends the wait of purges: it is removed.
    pub(crate) fn let_go(&self) {
        self.pending_removals.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn waiters(&self) -> MutexGuard<'_, Option<Vec<Waiter>>> {
        // No code under the lock can leave the list half changed.
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Purged responses that are still being removed from disks.
#[derive(Debug)]
pub struct Erasure(Vec<mpsc::Receiver<()>>);

/// Held for each pending removal.
pub(crate) type PendingRemoval = mpsc::Sender<()>;

impl Erasure {
    /// Returns an erasure without pending removals.
    pub fn nothing() -> Erasure {
        Erasure(Vec::new())
    }

    /// Returns an erasure, and the handle for pending removals.
    pub(crate) fn begin() -> (Erasure, PendingRemoval) {
        let (pending_removal, done) = mpsc::channel(1);
        (Erasure(vec![done]), pending_removal)
    }

    /// Combines two erasures.
    #[must_use]
    pub fn and(mut self, other: Erasure) -> Erasure {
        self.0.extend(other.0);
        self
    }

    /// Waits until everything is removed: from here on not even a crash brings it back. A removal that fails is
    /// logged, and not waited for.
    pub async fn done(self) {
        for mut done in self.0 {
            // It receives nothing: it ends when the last sender is dropped.
            while done.recv().await.is_some() {}
        }
    }
}
