//! What is known in memory of an answer on a disk.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::port::FileId;
use crate::label::Label;
use crate::mark::{Mark, seconds};
use crate::stored::Stored;

/// What an entry takes of memory beside its texts, about: itself, and its places in two tables.
const OVERHEAD_BYTES: u64 = 320;

/// What waiters are told: the answer, or that it cannot be had.
type Waiter = oneshot::Sender<Option<Arc<Stored>>>;

/// An answer on a disk, or one that is being written there. A copy is a handle.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: FileId,
    pub(crate) key: Arc<[u8]>,
    pub(crate) label: Arc<Label>,
    /// When the answer was made, as it says itself.
    pub(crate) date: u64,
    /// Bytes of the disk that it takes, or has set aside.
    pub(crate) size: AtomicU64,
    pub(crate) mark: Arc<Mark>,
    /// When it was, as the order of eviction knows it.
    pub(crate) placed: AtomicU32,
    /// Those who wait for it to be read, if somebody reads it.
    waiters: Mutex<Option<Vec<Waiter>>>,
    /// Of those who wait until nothing of it is left, where it was forgotten while it was written.
    errands: Mutex<Vec<Errand>>,
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
            errands: Mutex::default(),
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

    /// Bytes of memory that it takes, about.
    pub(crate) fn weight(&self) -> u64 {
        OVERHEAD_BYTES + self.key.len() as u64 + self.label.weight()
    }

    /// Waits for it to be read. True if nobody reads it yet: then whoever asks has to see to it.
    pub(crate) fn wait(&self) -> (oneshot::Receiver<Option<Arc<Stored>>>, bool) {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.waiters();
        let is_first = waiters.is_none();
        waiters.get_or_insert_default().push(sender);
        (receiver, is_first)
    }

    /// It was read, or cannot be.
    pub(crate) fn tell(&self, stored: Option<&Arc<Stored>>) {
        let waiters = self.waiters().take();
        for waiter in waiters.into_iter().flatten() {
            // Who has gone needs nothing.
            let _ = waiter.send(stored.cloned());
        }
    }

    /// Somebody waits until nothing of it is left.
    pub(crate) fn hold(&self, errand: Option<&Errand>) {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).extend(errand.cloned());
    }

    /// Nothing of it is left.
    pub(crate) fn let_go(&self) {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn waiters(&self) -> MutexGuard<'_, Option<Vec<Waiter>>> {
        // Nothing that holds the lock can leave the list half changed.
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was forgotten, and is still being removed from disks.
#[derive(Debug)]
pub struct Erasure(Vec<mpsc::Receiver<()>>);

/// Held by whatever has yet to be removed.
pub(crate) type Errand = mpsc::Sender<()>;

impl Erasure {
    /// Nothing has to be removed.
    pub fn nothing() -> Erasure {
        Erasure(Vec::new())
    }

    /// One, and what those hold who are to remove something.
    pub(crate) fn begin() -> (Erasure, Errand) {
        let (errand, done) = mpsc::channel(1);
        (Erasure(vec![done]), errand)
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, other: Erasure) -> Erasure {
        self.0.extend(other.0);
        self
    }

    /// Waits until all of it is removed: from here on not even a process that dies brings it back. What a disk refuses
    /// to remove is told in the log, and not waited for.
    pub async fn done(self) {
        for mut done in self.0 {
            // Nobody sends: it ends when the last one has dropped its end.
            while done.recv().await.is_some() {}
        }
    }
}
