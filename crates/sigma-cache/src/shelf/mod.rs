//! Answers on a disk: found by a table in memory, written and read by others than workers.
//!
//! A shelf belongs to a zone, whose memory has what is asked for often. What a worker does here is a look at the table,
//! and to leave a job; whatever does not go as it should, requests go on without the shelf.
//!
//! [`port`] is what is needed of the machine, [`format`] the file of an answer, [`index`] the table, [`write`] and
//! [`read`] what is done with files, [`tend`] what is done beside all requests.

mod entry;
pub(crate) mod format;
mod index;
pub mod port;
mod read;
mod tend;
mod write;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sigma_http::Headers;

use entry::Entry;
pub use entry::Erasure;
pub(crate) use entry::Errand;
use index::Index;
use port::{Disk, FileId, Found, Hands, Job, Trouble};
pub(crate) use read::Reads;
use tend::Scan;
pub use tend::Tending;
pub(crate) use write::Stream;

use crate::label::Label;
use crate::purge::Purge;

/// Bytes of answers that wait to be written: a disk that is slower than that is left out.
const PENDING_MAX: u64 = 64 << 20;

/// For how many seconds nothing is written where the disk was full or has failed, and nothing is read where it was slow.
const WRITING_RESTS_S: u64 = 10;
const READING_RESTS_S: u64 = 5;

/// Files that are removed in one go.
const REMOVED_AT_ONCE: usize = 64;

/// How much a shelf may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Bytes of memory for the table of what is there.
    pub table_bytes: u64,
    /// Seconds after which what nobody has used is forgotten, fresh or not.
    pub inactive_s: u32,
}

/// What a shelf has done since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Answers that were written.
    pub written: AtomicU64,
    /// Answers that were read, the beginnings of large ones.
    pub read: AtomicU64,
    /// Answers that made room for others.
    pub evicted: AtomicU64,
    /// Answers that nobody had used.
    pub inactive: AtomicU64,
    /// Answers that were found at the start.
    pub found: AtomicU64,
    /// Answers that were not as they were written.
    pub corrupt: AtomicU64,
    /// What the disk has refused to do.
    pub failed: AtomicU64,
    /// What was left out because the disk did not keep up.
    pub left_out: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is to be removed.
#[derive(Debug, Default)]
struct Doomed {
    queue: VecDeque<(Arc<Entry>, Option<Errand>)>,
    /// Somebody is at it.
    is_under_way: bool,
    /// What could not be removed.
    stuck: Vec<Arc<Entry>>,
}

/// Answers on a disk. See the story of this module.
#[derive(Debug)]
pub struct Shelf {
    bounds: Bounds,
    index: Index,
    hands: Arc<dyn Hands>,
    /// The folder, while it is this process's.
    disk: Mutex<Option<Arc<dyn Disk>>>,
    is_open: AtomicBool,
    /// It is left to another process, or will never be had.
    is_left: AtomicBool,
    /// What must not be believed of what is found, until all of it was.
    scan: Mutex<Option<Scan>>,
    is_scanning: AtomicBool,
    doomed: Mutex<Doomed>,
    /// Bytes that wait to be written.
    pending: AtomicU64,
    /// What the names of this process's files begin with, and how many there are.
    names: OnceLock<u64>,
    named: AtomicU64,
    /// Until when nothing is written, and nothing is read.
    writing_rests: AtomicU64,
    reading_rests: AtomicU64,
    counts: Counts,
}

impl Shelf {
    /// One without a folder yet, whose work `hands` do.
    pub fn new(bounds: Bounds, hands: Arc<dyn Hands>) -> Arc<Shelf> {
        Arc::new(Shelf {
            bounds,
            index: Index::new(),
            hands,
            disk: Mutex::default(),
            is_open: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            scan: Mutex::new(Some(Scan::default())),
            is_scanning: AtomicBool::new(true),
            doomed: Mutex::default(),
            pending: AtomicU64::new(0),
            names: OnceLock::new(),
            named: AtomicU64::new(0),
            writing_rests: AtomicU64::new(0),
            reading_rests: AtomicU64::new(0),
            counts: Counts::default(),
        })
    }

    /// From here on it has a folder, whose new files have names that begin with `names`; what was in it before is looked
    /// through by [`Shelf::tend`]. Of that, all is forgotten that `orders` mean. One that was left stays so.
    pub fn open(&self, disk: Arc<dyn Disk>, names: u64, orders: &[Purge]) {
        orders.iter().for_each(|order| self.distrust(order));
        let _ = self.names.set(names);
        let mut own = held(&self.disk);
        if !self.is_left() {
            *own = Some(disk);
            self.is_open.store(true, Ordering::Release);
        }
    }

    /// It will never have a folder: nothing is remembered for one.
    pub fn give_up(&self) {
        self.is_left.store(true, Ordering::Release);
        *held(&self.scan) = None;
        self.is_scanning.store(false, Ordering::Release);
    }

    /// Whether it has no folder any more, or never will.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Leaves the folder to another process, as soon as what is under way with it has ended. What clients are being given
    /// they get to the end.
    pub fn close(self: &Arc<Shelf>) {
        {
            // Nobody opens it meanwhile.
            let _disk = held(&self.disk);
            self.is_left.store(true, Ordering::Release);
            self.is_open.store(false, Ordering::Release);
        }
        let shelf = Arc::clone(self);
        self.hands.give(Box::new(move || {
            while shelf.remove_some() {}
            drop(held(&shelf.disk).take());
        }));
    }

    /// Whether it has a folder.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// What it has done.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How many answers there are.
    pub fn entries(&self) -> u64 {
        self.index.count()
    }

    /// Bytes of the disk that it takes, or has set aside.
    pub fn bytes(&self) -> u64 {
        self.index.size()
    }

    /// Whether all that was in the folder at the start is known.
    pub fn is_known(&self) -> bool {
        !self.is_scanning.load(Ordering::Acquire)
    }

    /// The most bytes that a body may have.
    pub(crate) fn largest(&self) -> u64 {
        self.bounds.disk_bytes / 2
    }

    /// Whether there is any answer under a key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.is_open() && self.index.has(key)
    }

    /// Whether something can be written now.
    fn takes(&self, now: u64) -> bool {
        self.is_open() && self.writing_rests.load(Ordering::Relaxed) <= now
    }

    fn find(&self, key: &[u8], request: &Headers, now: u64) -> Option<Arc<Entry>> {
        let may_read = self.is_open() && self.reading_rests.load(Ordering::Relaxed) <= now;
        may_read.then(|| self.index.find(key, request)).flatten()
    }

    /// A name that no other file has.
    fn name(&self) -> FileId {
        let number = self.named.fetch_add(1, Ordering::Relaxed);
        // An odd factor gives each number another one, whose last digits choose the folder.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
        FileId(u128::from(self.names.get().copied().unwrap_or_default()) << 64 | u128::from(spread))
    }

    /// The folder, for one who may wait for it.
    fn disk(&self) -> Option<Arc<dyn Disk>> {
        held(&self.disk).clone()
    }

    /// Forgets what is under a key; whether there was something.
    pub(crate) fn forget(self: &Arc<Shelf>, key: &[u8], errand: Option<&Errand>) -> bool {
        self.outdate(key);
        let gone = self.index.forget(key, errand);
        let was_there = !gone.is_empty();
        self.doom(gone, errand);
        was_there
    }

    /// Forgets what an order means; how many there were.
    pub(crate) fn sweep(self: &Arc<Shelf>, order: &Purge, errand: Option<&Errand>) -> usize {
        self.distrust(order);
        let (gone, unwritten) =
            self.index.sweep(&|key: &[u8], label: &Label| order.means(key, label), errand);
        let count = gone.len() + unwritten;
        self.doom(gone, errand);
        count
    }

    /// Has the files of what was forgotten removed.
    fn doom(self: &Arc<Shelf>, gone: Vec<Arc<Entry>>, errand: Option<&Errand>) {
        if gone.is_empty() {
            return;
        }
        let mut doomed = held(&self.doomed);
        doomed.queue.extend(gone.into_iter().map(|entry| (entry, errand.cloned())));
        if std::mem::replace(&mut doomed.is_under_way, true) {
            return;
        }
        drop(doomed);
        self.hands.give(self.removal());
    }

    fn removal(self: &Arc<Shelf>) -> Job {
        let shelf = Arc::clone(self);
        Box::new(move || {
            if shelf.remove_some() {
                let next = shelf.removal();
                shelf.hands.give(next);
            }
        })
    }

    /// Removes a few files of what was forgotten; false if there are no more.
    fn remove_some(&self) -> bool {
        let disk = self.disk();
        for _ in 0..REMOVED_AT_ONCE {
            let next = {
                let mut doomed = held(&self.doomed);
                let next = doomed.queue.pop_front();
                doomed.is_under_way = next.is_some();
                next
            };
            let Some((entry, errand)) = next else { return false };
            if let Some(disk) = &disk {
                self.remove(&**disk, &entry);
            }
            drop(errand);
        }
        true
    }

    /// Removes the file of an entry that nobody finds any more; whether that could be done.
    fn remove(&self, disk: &dyn Disk, entry: &Arc<Entry>) -> bool {
        match disk.remove(Found { id: entry.id, is_draft: false }) {
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
        self.hands.tell(trouble, error);
    }

    /// An entry is not as it was written.
    fn spoil(self: &Arc<Shelf>, entry: &Arc<Entry>) {
        self.fail(Trouble::Corrupt, None);
        self.lose(entry);
    }

    /// Forgets an entry.
    fn lose(self: &Arc<Shelf>, entry: &Arc<Entry>) {
        if self.index.drop_one(entry) {
            self.doom(vec![Arc::clone(entry)], None);
        }
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one of these locks can leave its value half changed.
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
