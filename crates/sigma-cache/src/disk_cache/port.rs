//! The interface of a disk cache to the machine: a folder, and background threads.
//!
//! The implementation has real files and threads; tests have a folder in memory and manual threads.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The name of one file. It is made of the gateway's own numbers: it contains no data of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u128);

impl FileId {
    /// Parses 32 hexadecimal digits.
    pub fn parse(digits: &str) -> Option<FileId> {
        let is_ours = digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_ours.then(|| u128::from_str_radix(digits, 16).ok().map(FileId)).flatten()
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A file found in a scan of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedFile {
    /// Its name.
    pub id: FileId,
    /// It was never completed.
    pub is_draft: bool,
}

/// A folder on a disk that belongs to this process alone. All calls may take long: they are made by [`DiskThreads`] and
/// the maintenance thread, never on a worker. After the last handle is dropped, the folder is free for another
/// process.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a draft for writing and reading.
    ///
    /// # Errors
    /// Returns the error of the operating system, as all methods below.
    fn create(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>>;

    /// Opens a complete file, for reading and for a new head.
    ///
    /// # Errors
    /// See [`Disk::create`].
    fn open(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>>;

    /// Makes a draft a complete file, atomically.
    ///
    /// # Errors
    /// See [`Disk::create`].
    fn publish(&self, id: FileId) -> io::Result<()>;

    /// Removes a file. A missing file is not an error.
    ///
    /// # Errors
    /// See [`Disk::create`].
    fn remove(&self, found: ScannedFile) -> io::Result<()>;

    /// Returns the number of parts for a scan.
    fn parts(&self) -> usize;

    /// Returns the disk cache's files in one part.
    ///
    /// # Errors
    /// See [`Disk::create`].
    fn list(&self, part: usize) -> io::Result<Vec<ScannedFile>>;
}

/// One file of a folder. Calls may take long, as in [`Disk`].
pub trait OpenFile: fmt::Debug + Send + Sync {
    /// Reads from a position until `bytes` are full or the file ends; returns their number.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes all bytes at a position.
    ///
    /// # Errors
    /// Returns the error of the operating system; then a part may be written.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
}

/// A job on a disk.
pub type Job = Box<dyn FnOnce() + Send>;

/// Background threads for disk jobs.
pub trait DiskThreads: fmt::Debug + Send + Sync {
    /// Runs a job unless too many wait already; returns true if it will run.
    fn offer(&self, job: Job) -> bool;

    /// Runs a job that others wait for; there is never more than one such job for each of them.
    fn give(&self, job: Job);

    /// Reports a problem. It is called for each problem, so the implementation must limit the rate of its log.
    fn tell(&self, trouble: Trouble, error: Option<&io::Error>);
}

/// A problem with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// A response could not be written: the disk is full, or has an error.
    Write,
    /// A response could not be read.
    Read,
    /// A response has a wrong checksum.
    Corrupt,
    /// A response could not be removed, and would be found again at the next start.
    Remove,
    /// The disk is too slow, and jobs are skipped.
    Slow,
}

impl Trouble {
    /// Returns its description.
    pub fn as_str(self) -> &'static str {
        match self {
            Trouble::Write => "cannot write a response to the disk cache",
            Trouble::Read => "cannot read a response from the disk cache",
            Trouble::Corrupt => "a response in the disk cache is corrupt and was removed",
            Trouble::Remove => "cannot remove a response from the disk cache",
            Trouble::Slow => "the disk is too slow: the disk cache is skipped for a while",
        }
    }
}
