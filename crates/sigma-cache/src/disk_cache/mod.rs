//! Responses on a disk: found through a table in memory, written and read outside the workers.
//!
//! A disk cache belongs to a zone, whose memory has the popular responses. A worker only looks at the table and queues
//! a job; after any error, requests continue without the disk cache.
//!
//! [`port`] is the interface to the machine, [`format`] the file of a response, [`index`] the table, [`write`] and
//! [`read`] the work on files, [`maintenance`] the background work.

mod entry;
pub(crate) mod format;
mod index;
mod maintenance;
pub mod port;
mod read;
mod write;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sigma_http::Headers;

use entry::Entry;
pub use entry::Erasure;
pub(crate) use entry::PendingRemoval;
use index::Index;
pub use maintenance::Maintenance;
use maintenance::Scan;
use port::{Disk, DiskThreads, FileId, Job, ScannedFile, Trouble};
pub(crate) use read::Reads;
pub(crate) use write::Stream;

use crate::label::Label;
use crate::purge::Purge;

/// The limit of bytes that wait to be written: above it, the disk is too slow and responses are skipped.
const PENDING_MAX: u64 = 64 << 20;

/// Seconds without writes after a full or failed disk, and without reads after a slow one.
const WRITING_RESTS_S: u64 = 10;
const READING_RESTS_S: u64 = 5;

/// The number of files removed in one step.
const REMOVED_AT_ONCE: usize = 64;

/// The limits of a disk cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Bytes of memory for the table.
    pub table_bytes: u64,
    /// Seconds until an unused response is removed, fresh or not.
    pub inactive_s: u32,
}

/// The statistics of a disk cache since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Responses written.
    pub written: AtomicU64,
    /// Responses read; for large ones their beginnings.
    pub read: AtomicU64,
    /// Responses evicted for others.
    pub evicted: AtomicU64,
    /// Responses removed because they were unused.
    pub inactive: AtomicU64,
    /// Responses found at the start.
    pub found: AtomicU64,
    /// Responses with wrong checksums.
    pub corrupt: AtomicU64,
    /// Failed disk operations.
    pub failed: AtomicU64,
    /// Jobs skipped because the disk was behind.
    pub left_out: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Files to be removed.
#[derive(Debug, Default)]
struct Doomed {
    queue: VecDeque<(Arc<Entry>, Option<PendingRemoval>)>,
    /// A removal is running.
    is_under_way: bool,
    /// Files that could not be removed.
    stuck: Vec<Arc<Entry>>,
}

/// Responses on a disk. See the module comment.
#[derive(Debug)]
pub struct DiskCache {
    bounds: Bounds,
    index: Index,
    threads: Arc<dyn DiskThreads>,
    /// The folder, while it belongs to this process.
    disk: Mutex<Option<Arc<dyn Disk>>>,
    is_open: AtomicBool,
    /// It was handed to another process, or will never be available.
    is_left: AtomicBool,
    /// The purges and changes that must exclude responses found by the scan, until it is complete.
    scan: Mutex<Option<Scan>>,
    is_scanning: AtomicBool,
    doomed: Mutex<Doomed>,
    /// Bytes that wait to be written.
    pending: AtomicU64,
    names: FileNames,
    pauses: DiskPauses,
    counts: Counts,
}

/// The names of the files of this process.
#[derive(Debug, Default)]
struct FileNames {
    /// Unset until the folder is open.
    prefix: OnceLock<u64>,
    /// The number of names so far.
    count: AtomicU64,
}

impl FileNames {
    fn prefix(&self) -> u64 {
        self.prefix.get().copied().unwrap_or_default()
    }

    /// Returns a unique name.
    fn next(&self) -> FileId {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        // An odd factor maps each number to another one, whose last digits choose the folder.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
        FileId(u128::from(self.prefix()) << 64 | u128::from(spread))
    }
}

/// The pauses after errors of a disk: the second in which each ends.
#[derive(Debug, Default)]
struct DiskPauses {
    writing: AtomicU64,
    reading: AtomicU64,
}

impl DiskPauses {
    fn allow_writing(&self, now: u64) -> bool {
        self.writing.load(Ordering::Relaxed) <= now
    }

    fn allow_reading(&self, now: u64) -> bool {
        self.reading.load(Ordering::Relaxed) <= now
    }

    fn pause_writing(&self, now: u64) {
        self.writing.store(now + WRITING_RESTS_S, Ordering::Relaxed);
    }

    fn pause_reading(&self, now: u64) {
        self.reading.store(now + READING_RESTS_S, Ordering::Relaxed);
    }
}

impl DiskCache {
    /// Returns a disk cache without a folder, whose jobs run on `threads`.
    pub fn new(bounds: Bounds, threads: Arc<dyn DiskThreads>) -> Arc<DiskCache> {
        Arc::new(DiskCache {
            bounds,
            index: Index::new(),
            threads,
            disk: Mutex::default(),
            is_open: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            scan: Mutex::new(Some(Scan::default())),
            is_scanning: AtomicBool::new(true),
            doomed: Mutex::default(),
            pending: AtomicU64::new(0),
            names: FileNames::default(),
            pauses: DiskPauses::default(),
            counts: Counts::default(),
        })
    }

    /// Gives it a folder, whose new files have names with the prefix `names`; [`DiskCache::maintain`] scans the old
    /// files. Old responses that match `orders` are removed. A disk cache that was closed stays closed.
    pub fn open(&self, disk: Arc<dyn Disk>, names: u64, orders: &[Purge]) {
        orders.iter().for_each(|order| self.distrust(order));
        let _ = self.names.prefix.set(names);
        let mut own = held(&self.disk);
        if !self.is_left() {
            *own = Some(disk);
            self.is_open.store(true, Ordering::Release);
        }
    }

    /// Declares that it never gets a folder: nothing is stored for one.
    pub fn give_up(&self) {
        self.is_left.store(true, Ordering::Release);
        *held(&self.scan) = None;
        self.is_scanning.store(false, Ordering::Release);
    }

    /// Returns true if it has no folder any more, or never will.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Hands the folder to another process, as soon as running jobs have ended. Clients get responses to the end.
    pub fn close(self: &Arc<DiskCache>) {
        {
            // It cannot be opened meanwhile.
            let _disk = held(&self.disk);
            self.is_left.store(true, Ordering::Release);
            self.is_open.store(false, Ordering::Release);
        }
        let disk_cache = Arc::clone(self);
        self.threads.give(Box::new(move || {
            while disk_cache.remove_some() {}
            drop(held(&disk_cache.disk).take());
        }));
    }

    /// Returns true if it has a folder.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns its statistics.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of responses.
    pub fn entries(&self) -> u64 {
        self.index.count()
    }

    /// Returns the disk space in use or reserved, in bytes.
    pub fn bytes(&self) -> u64 {
        self.index.size()
    }

    /// Returns true if the scan of the folder is complete.
    pub fn is_known(&self) -> bool {
        !self.is_scanning.load(Ordering::Acquire)
    }

    /// Returns the largest body in bytes.
    pub(crate) fn largest(&self) -> u64 {
        self.bounds.disk_bytes / 2
    }

    /// Returns true if there is a response under a key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.is_open() && self.index.has(key)
    }

    /// Returns true if writing is possible now.
    fn takes(&self, now: u64) -> bool {
        self.is_open() && self.pauses.allow_writing(now)
    }

    fn find(&self, key: &[u8], request: &Headers, now: u64) -> Option<Arc<Entry>> {
        let may_read = self.is_open() && self.pauses.allow_reading(now);
        may_read.then(|| self.index.find(key, request)).flatten()
    }

    /// Returns the folder, for a caller that may wait for it.
    fn disk(&self) -> Option<Arc<dyn Disk>> {
        held(&self.disk).clone()
    }

    /// Removes the responses under a key; returns true if there was one.
    pub(crate) fn forget(
        self: &Arc<DiskCache>,
        key: &[u8],
        pending_removal: Option<&PendingRemoval>,
    ) -> bool {
        self.outdate(key);
        let gone = self.index.forget(key, pending_removal);
        let was_there = !gone.is_empty();
        self.doom(gone, pending_removal);
        was_there
    }

    /// Removes the responses that match an order; returns their number.
    pub(crate) fn sweep(
        self: &Arc<DiskCache>,
        order: &Purge,
        pending_removal: Option<&PendingRemoval>,
    ) -> usize {
        self.distrust(order);
        let (gone, unwritten) =
            self.index.sweep(&|key: &[u8], label: &Label| order.means(key, label), pending_removal);
        let count = gone.len() + unwritten;
        self.doom(gone, pending_removal);
        count
    }

    /// Queues the removal of files.
    fn doom(self: &Arc<DiskCache>, gone: Vec<Arc<Entry>>, pending_removal: Option<&PendingRemoval>) {
        if gone.is_empty() {
            return;
        }
        let mut doomed = held(&self.doomed);
        doomed.queue.extend(gone.into_iter().map(|entry| (entry, pending_removal.cloned())));
        if std::mem::replace(&mut doomed.is_under_way, true) {
            return;
        }
        drop(doomed);
        self.threads.give(self.removal());
    }

    fn removal(self: &Arc<DiskCache>) -> Job {
        let disk_cache = Arc::clone(self);
        Box::new(move || {
            if disk_cache.remove_some() {
                let next = disk_cache.removal();
                disk_cache.threads.give(next);
            }
        })
    }

    /// Removes a few queued files; returns false if none are left.
    fn remove_some(&self) -> bool {
        let disk = self.disk();
        for _ in 0..REMOVED_AT_ONCE {
            let next = {
                let mut doomed = held(&self.doomed);
                let next = doomed.queue.pop_front();
                doomed.is_under_way = next.is_some();
                next
            };
            let Some((entry, pending_removal)) = next else { return false };
            if let Some(disk) = &disk {
                self.remove(&**disk, &entry);
            }
            drop(pending_removal);
        }
        true
    }

    /// Removes the file of an entry that is not in the table any more; returns true on success.
    fn remove(&self, disk: &dyn Disk, entry: &Arc<Entry>) -> bool {
        match disk.remove(ScannedFile { id: entry.id, is_draft: false }) {
            Ok(()) => {
                self.index.free(entry.size());
                true
            }
            Err(error) => {
                self.fail(Trouble::Remove, Some(&error));
                held(&self.doomed).stuck.push(Arc::clone(entry));
                false
            }
        }
    }

    fn fail(&self, trouble: Trouble, error: Option<&io::Error>) {
        let count = match trouble {
            Trouble::Corrupt => &self.counts.corrupt,
            Trouble::Slow => &self.counts.left_out,
            Trouble::Write | Trouble::Read | Trouble::Remove => &self.counts.failed,
        };
        Counts::add(count);
        self.threads.tell(trouble, error);
    }

    /// Handles an entry with a wrong checksum.
    fn spoil(self: &Arc<DiskCache>, entry: &Arc<Entry>) {
        self.fail(Trouble::Corrupt, None);
        self.lose(entry);
    }

    /// Removes an entry.
    fn lose(self: &Arc<DiskCache>, entry: &Arc<Entry>) {
        if self.index.drop_one(entry) {
            self.doom(vec![Arc::clone(entry)], None);
        }
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can leave a value half changed.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
