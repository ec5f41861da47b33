//! The pid file: locked while its process runs, so that two gateways do not take each other for themselves.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sigma_observe::own_file::open_own;

use super::start::StartError;

/// Readable for all users, writable for the owner.
const MODE: u32 = 0o644;

/// The file of this process.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Locks the file and writes the id of this process into it.
    ///
    /// # Errors
    /// Returns an error if another process has locked it, or if it cannot be written.
    pub(crate) fn write(path: &Path) -> Result<PidFile, StartError> {
        let failed = |source| StartError::PidFile { path: path.to_owned(), source };
        let file = lock(path).map_err(failed)?;
        let mut pid_file = PidFile { path: path.to_owned(), file };
        pid_file.fill().map_err(failed)?;
        Ok(pid_file)
    }

    /// The file that a former image of this process has locked.
    pub(crate) fn kept(path: PathBuf, file: OwnedFd) -> PidFile {
        PidFile { path, file: file.into() }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn fill(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(format!("{}\n", std::process::id()).as_bytes())
    }

    /// Removes the file: the process ends.
    pub(crate) fn remove(self) {
        // Gone already is as good as removed.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Leaves the file to another process.
    pub(crate) fn leave(self) {
        // Closing it does the same; a handle that a child has would keep it locked.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl AsFd for PidFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let mut file = open_own(path, MODE)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)?;
            let text = format!(
                "the process {} runs with this file: stop it, or name another `pid_file`",
                pid.trim()
            );
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_of_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sigma.pid");
        std::fs::write(&path, "a much longer text than a number\n").unwrap();
        let first = PidFile::write(&path).unwrap();
        let own = format!("{}\n", std::process::id());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), own);
        let refused = PidFile::write(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("the process {} runs", std::process::id())), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), own, "the other one's stays");
        first.leave();
        let second = PidFile::write(&path).unwrap();
        second.remove();
        assert!(!path.exists());
        assert!(PidFile::write(&dir.path().join("no/such/folder")).is_err());
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("sigma.pid"));
        std::fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let refused = PidFile::write(&path).unwrap_err().to_string();
        assert!(refused.contains("link"), "{refused}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
    }
}
