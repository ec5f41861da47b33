//! What an answer in memory and its file on a disk know of each other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The mark of one file.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The name of the file.
    pub(crate) id: u128,
    /// When the answer was last used, in seconds since 1970. Written by whoever uses it, whole seconds apart.
    used: AtomicU32,
    /// It is forgotten: nobody is given what is in the file any more.
    is_gone: AtomicBool,
}

impl Mark {
    pub(crate) fn new(id: u128, now: u64) -> Mark {
        Mark { id, used: AtomicU32::new(seconds(now)), is_gone: AtomicBool::new(false) }
    }

    /// Somebody uses it.
    pub(crate) fn touch(&self, now: u64) {
        let now = seconds(now);
        // Most uses are of the second that is written already: the line stays in the caches of all workers.
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

/// Seconds since 1970, which are enough for a hundred years.
pub(crate) fn seconds(now: u64) -> u32 {
    u32::try_from(now).unwrap_or(u32::MAX)
}
