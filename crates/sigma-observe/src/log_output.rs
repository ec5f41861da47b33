//! The descriptor of a log. A pipe without a reader does not block its writer forever.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use crate::log_buffer::{LogError, LogTarget};

/// Log files contain addresses and targets of clients: only owner and group may read them.
const FILE_MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;

/// The bytes that a pipe with any room accepts at once (PIPE_BUF): a larger write could wait.
const PIECE_BYTES: usize = 4_096;

/// The interval of checks for a stalled reader.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The descriptor that the writer thread of a log writes to.
#[derive(Debug)]
pub(crate) struct LogOutput {
    to: Descriptor,
    /// Its other end may stall, as in a pipe: each write first checks for room.
    may_stall: bool,
}

/// A write that was cut short.
#[derive(Debug)]
pub(crate) struct Short {
    pub(crate) written: usize,
    pub(crate) error: io::Error,
}

#[derive(Debug)]
enum Descriptor {
    Stdout,
    Stderr,
    File(File),
}

impl LogOutput {
    /// Opens `target`; does not wait for a reader.
    pub(crate) fn open(target: &LogTarget) -> Result<LogOutput, LogError> {
        let to = match target {
            LogTarget::Stdout => Descriptor::Stdout,
            LogTarget::Stderr => Descriptor::Stderr,
            LogTarget::File(path) => match open_file(path) {
                Ok(file) => Descriptor::File(file),
                Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                    return Err(LogError::NoReader { path: path.clone() });
                }
                Err(source) => return Err(LogError::Open { path: path.clone(), source }),
            },
        };
        let is_file = to.with(|fd| {
            fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
        });
        Ok(LogOutput { to, may_stall: !is_file })
    }

    /// Writes all of `bytes`. It waits for a stalled reader until `is_over` returns true.
    ///
    /// # Errors
    /// Returns the number of bytes written before the operating system refused the rest: with `TimedOut` for a
    /// stalled reader.
    pub(crate) fn write_all(&mut self, bytes: &[u8], is_over: impl Fn() -> bool) -> Result<(), Short> {
        let mut written = 0;
        while written < bytes.len() {
            if self.may_stall {
                match self.has_room() {
                    Ok(true) => {}
                    Ok(false) if is_over() => {
                        return Err(Short { written, error: ErrorKind::TimedOut.into() });
                    }
                    Ok(false) => continue,
                    Err(error) => return Err(Short { written, error }),
                }
            }
            let rest = &bytes[written..];
            let piece = if self.may_stall { &rest[..rest.len().min(PIECE_BYTES)] } else { rest };
            match self.to.with(|fd| rustix::io::write(fd, piece)) {
                Ok(0) => return Err(Short { written, error: ErrorKind::WriteZero.into() }),
                Ok(n) => written += n,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(Short { written, error: error.into() }),
            }
        }
        Ok(())
    }

    /// Returns true if a write succeeds, or fails, at once; waits briefly for that.
    fn has_room(&self) -> io::Result<bool> {
        self.to.with(|fd| match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&PAUSE)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        })
    }
}

impl Descriptor {
    /// Bypasses the buffers and locks of the standard library: a lock held by a thread that waits for a reader would
    /// prevent the process from ending.
    fn with<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Descriptor::Stdout => act(io::stdout().as_fd()),
            Descriptor::Stderr => act(io::stderr().as_fd()),
            Descriptor::File(file) => act(file.as_fd()),
        }
    }
}

/// Opens without waiting: for a FIFO it would otherwise wait for a reader.
fn open_file(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(parent)?;
    }
    crate::own_file::append(path, FILE_MODE)
}
