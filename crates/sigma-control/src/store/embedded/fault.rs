//! A disk that fails when a test says so.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Bound;

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

thread_local! {
    /// So many of the next calls of fsync on this thread report a failure, though the bytes got there.
    pub(super) static FAILING: Cell<u32> = const { Cell::new(0) };
}

/// A file whose fsync may fail.
#[derive(Debug)]
pub(super) struct Faulty(FileBackend);

impl Faulty {
    pub(super) fn new(file: File) -> Result<Faulty, DatabaseError> {
        FileBackend::new(file).map(Faulty)
    }
}

impl StorageBackend for Faulty {
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()?;
        let left = FAILING.get();
        FAILING.set(left.saturating_sub(1));
        if left > 0 { Err(io::Error::other("the disk failed")) } else { Ok(()) }
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
