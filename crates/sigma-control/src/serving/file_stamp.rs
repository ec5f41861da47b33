//! The state of a file that is followed. Take a stamp before the file is read: a change in between then
//! makes another stamp, and the file is read again.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A write within this time of the stamp may leave no trace in it: file systems count time in steps, of
/// up to two seconds.
const STEP: Duration = Duration::from_secs(2);

/// A value that changes with the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileStamp {
    inode: u64,
    modified: SystemTime,
    /// Seconds and nanoseconds. They change also where a file gets an older time.
    changed: (i64, i64),
    len: u64,
    /// The file was written so shortly before that a further write may not be seen.
    is_fresh: bool,
}

impl FileStamp {
    /// The stamp of a file; None if the file is missing.
    pub(crate) fn of(path: &Path) -> Option<FileStamp> {
        FileStamp::read(path).ok()
    }

    /// # Errors
    /// Returns an error if the state of the file cannot be read.
    pub(crate) fn read(path: &Path) -> std::io::Result<FileStamp> {
        let found = std::fs::metadata(path)?;
        let modified = found.modified()?;
        // A time in the future is one of another clock.
        let age = SystemTime::now().duration_since(modified).unwrap_or_default();
        Ok(FileStamp {
            inode: found.ino(),
            modified,
            changed: (found.ctime(), found.ctime_nsec()),
            len: found.len(),
            is_fresh: age < STEP,
        })
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The stamp as if the file had just been written.
    #[cfg(test)]
    pub(crate) fn as_fresh(self) -> FileStamp {
        FileStamp { is_fresh: true, ..self }
    }

    /// Whether a write after the stamp may have left no trace.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh
    }
}

/// Equal stamps are of the same file in the same state; the time of the look does not matter.
impl PartialEq for FileStamp {
    fn eq(&self, other: &FileStamp) -> bool {
        let state = |of: &FileStamp| (of.inode, of.modified, of.changed, of.len);
        state(self) == state(other)
    }
}
