//! The link between a response in memory and its file on a disk.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The mark of one file.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The name of the file.
    pub(crate) id: u128,
    /// The time of the last use, in seconds since 1970. Written by each user, at most once a second.
    used: AtomicU32,
    /// It is purged: its file is not used any more.
    is_gone: AtomicBool,
}

impl Mark {
    pub(crate) fn new(id: u128, now: u64) -> Mark {
        Mark { id, used: AtomicU32::new(seconds(now)), is_gone: AtomicBool::new(false) }
    }

    /// Records a use.
    pub(crate) fn touch(&self, now: u64) {
        let now = seconds(now);
        // Most uses are in the recorded second: so the cache line stays shared by all workers.
        if self.used.load(Ordering::Relaxed) < now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    pub(crate) fn forget(&self) {
        self.is_gone.store(true, Ordering::Release);
    }
}

/// Returns seconds since 1970, which fit for a hundred years.
pub(crate) fn seconds(now: u64) -> u32 {
    u32::try_from(now).unwrap_or(u32::MAX)
}
