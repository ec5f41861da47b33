//! What a shelf needs of the machine: a folder, and hands that work beside the workers.
//!
//! Implemented by who has files and threads; tests have a folder in memory and hands that work when they are told.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The name of one file. It is made of numbers of this gateway's own: nothing that a client sends is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u128);

impl FileId {
    /// That with these 32 hexadecimal digits.
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

/// A file that was found when a folder was looked through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub id: FileId,
    /// It was never finished.
    pub is_draft: bool,
}

/// A folder on a disk that nobody else has. All calls may take long: they are made by [`Hands`] and by who tends the
/// shelf, never on a worker. When the last handle is dropped the folder is free for another process.
pub trait Disk: fmt::Debug + Send + Sync {
    /// A new draft that can be written and read.
    ///
    /// # Errors
    /// Returns the error of the operating system, as all that follow.
    fn create(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>>;

    /// A finished one, to be read and its head to be written anew.
    ///
    /// # Errors
    /// As [`Disk::create`].
    fn open(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>>;

    /// Makes a finished one of a draft, at once or not at all.
    ///
    /// # Errors
    /// As [`Disk::create`].
    fn publish(&self, id: FileId) -> io::Result<()>;

    /// Removes one. That there is none is no error.
    ///
    /// # Errors
    /// As [`Disk::create`].
    fn remove(&self, found: Found) -> io::Result<()>;

    /// How many parts it has to be looked through in.
    fn parts(&self) -> usize;

    /// What is in one of them, as far as it is a shelf's.
    ///
    /// # Errors
    /// As [`Disk::create`].
    fn list(&self, part: usize) -> io::Result<Vec<Found>>;
}

/// One file of a folder. Calls may take long, as those of [`Disk`].
pub trait OpenFile: fmt::Debug + Send + Sync {
    /// Reads from a place on until `bytes` are full or the file ends; how many there were.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes all of it to a place.
    ///
    /// # Errors
    /// Returns the error of the operating system; some of it may be written then.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
}

/// Something to be done with a disk.
pub type Job = Box<dyn FnOnce() + Send>;

/// Those who work beside the workers.
pub trait Hands: fmt::Debug + Send + Sync {
    /// Has something done unless too much waits already; whether it will be.
    fn offer(&self, job: Job) -> bool;

    /// Has something done that others wait for who were promised it: there is never more than one such job for one of
    /// them.
    fn give(&self, job: Job);

    /// Says that something does not go as it should. Called as often as that happens, so whoever writes it down does so
    /// at a limited rate.
    fn tell(&self, trouble: Trouble, error: Option<&io::Error>);
}

/// What does not go as it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// An answer could not be written: the disk is full, or has an error.
    Write,
    /// One could not be read.
    Read,
    /// One is not as it was written.
    Corrupt,
    /// One could not be removed, and would be found again at the next start.
    Remove,
    /// The disk does not keep up, and what was to be done with it is left out.
    Slow,
}

impl Trouble {
    /// It in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Trouble::Write => "an answer cannot be written",
            Trouble::Read => "an answer cannot be read",
            Trouble::Corrupt => "an answer is not as it was written, and is forgotten",
            Trouble::Remove => "an answer cannot be removed",
            Trouble::Slow => "the disk does not keep up: it is left out for a while",
        }
    }
}
