//! The folder of one zone: its files are private, and have names that no client chooses.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags, flock};
use sigma_cache::disk_cache::port::{Disk, FileId, OpenFile, ScannedFile};

/// Locked by the process whose folder it is.
const LOCK: &str = "sigma.lock";
/// Says when that process last knew of all orders to purge.
const STAMP: &str = "sigma.stamp";

/// How the names of files end; all others are not ours, and left alone.
const KEPT: &str = ".kept";
const DRAFT: &str = ".draft";

/// A folder that is this process's until it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    levels: Vec<u8>,
    /// The folders that were in it at the start.
    parts: Vec<PathBuf>,
    /// The locks go with the files.
    _locks: [File; 2],
}

/// A file in it.
#[derive(Debug)]
struct CacheFile(File);

impl Folder {
    /// That at this path, which is made if it is not there. None if another process has it.
    ///
    /// # Errors
    /// Returns an error if it cannot be used, or if other users could change its content.
    pub(super) fn take(path: &Path, levels: &[u8]) -> io::Result<Option<Folder>> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let itself = must_be_own(path)?;
        // Programs that clear `/tmp` leave locked files alone. Not all file systems can, and none needs to.
        let _ = flock(&itself, FlockOperation::NonBlockingLockShared);
        let lock = options().create(true).truncate(false).open(path.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mut parts = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let is_part = entry.file_name().to_str().is_some_and(is_level) && entry.file_type()?.is_dir();
            if is_part {
                parts.push(entry.path());
            }
        }
        Ok(Some(Folder { path: path.to_owned(), levels: levels.to_vec(), parts, _locks: [lock, itself] }))
    }

    /// When its process last knew of all orders, in seconds since 1970; None if it is unknown.
    pub(super) fn stamp(&self) -> Option<u64> {
        std::fs::read_to_string(self.path.join(STAMP)).ok()?.trim().parse().ok()
    }

    /// Says that this is now.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(super) fn set_stamp(&self, now: u64) -> io::Result<()> {
        let mut file = options().create(true).truncate(true).open(self.path.join(STAMP))?;
        file.write_all(format!("{now}\n").as_bytes())
    }

    /// Where a file is: in folders that are named by the last letters of its name, as nginx has them.
    fn place(&self, ScannedFile { id, is_draft }: ScannedFile) -> PathBuf {
        let name = id.to_string();
        let (mut path, mut end) = (self.path.clone(), name.len());
        for level in &self.levels {
            let start = end - usize::from(*level);
            path.push(&name[start..end]);
            end = start;
        }
        path.push(name + if is_draft { DRAFT } else { KEPT });
        path
    }

    /// Finds the files in a folder, and in those in it. One that is ours and in another place than we would look for it
    /// is removed: the levels have changed.
    fn find(&self, folder: &Path, depth: usize, found: &mut Vec<ScannedFile>) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let Some(name) = name.to_str() else { continue };
            if kind.is_dir() && is_level(name) && depth < 3 {
                self.find(&entry.path(), depth + 1, found)?;
            } else if kind.is_file()
                && let Some(one) = named(name)
            {
                match self.place(one) == entry.path() {
                    true => found.push(one),
                    false => std::fs::remove_file(entry.path())?,
                }
            }
        }
        Ok(())
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A link must not lead to another file.
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Opens a folder. Refuses one that others could put files into: in `/tmp` an attacker may have made it
/// first.
fn must_be_own(path: &Path) -> io::Result<File> {
    let refused = |why: &str| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let mut options = OpenOptions::new();
    let folder = match options.read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => return refused("it is not a folder"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return refused("it belongs to another user, and is not accessible");
        }
        opened => opened?,
    };
    let facts = folder.metadata()?;
    if facts.uid() != rustix::process::geteuid().as_raw() {
        return refused("it belongs to another user");
    }
    if facts.mode() & 0o022 != 0 {
        return refused("other users may write to it");
    }
    Ok(folder)
}

/// Whether a folder has a name that a level may give.
fn is_level(name: &str) -> bool {
    matches!(name.len(), 1 | 2) && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn named(name: &str) -> Option<ScannedFile> {
    let (digits, is_draft) = match name.strip_suffix(KEPT) {
        Some(digits) => (digits, false),
        None => (name.strip_suffix(DRAFT)?, true),
    };
    Some(ScannedFile { id: FileId::parse(digits)?, is_draft })
}

impl Disk for Folder {
    fn create(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>> {
        let path = self.place(ScannedFile { id, is_draft: true });
        let create = || options().create_new(true).open(&path);
        let file = match create() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(&self.path);
                DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
                create()?
            }
            file => file?,
        };
        Ok(Arc::new(CacheFile(file)))
    }

    fn open(&self, id: FileId) -> io::Result<Arc<dyn OpenFile>> {
        Ok(Arc::new(CacheFile(options().open(self.place(ScannedFile { id, is_draft: false }))?)))
    }

    fn publish(&self, id: FileId) -> io::Result<()> {
        let place = |is_draft| self.place(ScannedFile { id, is_draft });
        std::fs::rename(place(true), place(false))
    }

    fn remove(&self, found: ScannedFile) -> io::Result<()> {
        match std::fs::remove_file(self.place(found)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn parts(&self) -> usize {
        self.parts.len()
    }

    fn list(&self, part: usize) -> io::Result<Vec<ScannedFile>> {
        let mut found = Vec::new();
        if let Some(folder) = self.parts.get(part) {
            self.find(folder, 1, &mut found)?;
        }
        Ok(found)
    }
}

impl OpenFile for CacheFile {
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < bytes.len() {
            match self.0.read_at(&mut bytes[read..], at + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_have_the_layout_of_nginx() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/zone");
        let folder = Folder::take(&path, &[1, 2]).unwrap().unwrap();
        let id = FileId(0xb7f5_4b2d_f777_3722_d382_f480_9d65_029c);
        let file = folder.create(id).unwrap();
        file.write_at(b"hello", 3).unwrap();
        let mut bytes = [9; 10];
        assert_eq!((file.read_at(&mut bytes, 2).unwrap(), &bytes[..6]), (6, &b"\0hello"[..]));
        let draft = path.join("c/29/b7f54b2df7773722d382f4809d65029c.draft");
        assert_eq!((mode(&draft), mode(&path.join("c/29")), mode(&path)), (0o600, 0o700, 0o700));
        assert!(folder.create(id).is_err() && folder.open(id).is_err());
        folder.publish(id).unwrap();
        assert!(!draft.exists() && folder.open(id).is_ok());
        drop(folder);

        // Existing files are found at the start; foreign ones are left alone.
        let other = path.join("c/29/b7f54b2df7773722d382f4809d65029c");
        let misplaced = path.join("c/b7f54b2df7773722d382f4809d65029d.kept");
        for path in [&other, &misplaced, &path.join("c/notes.kept")] {
            std::fs::write(path, "x").unwrap();
        }
        let folder = Folder::take(&path, &[1, 2]).unwrap().unwrap();
        assert_eq!((folder.parts(), folder.list(0).unwrap()), (1, vec![ScannedFile { id, is_draft: false }]));
        assert!(other.exists() && !misplaced.exists());
        folder.remove(ScannedFile { id, is_draft: false }).unwrap();
        folder.remove(ScannedFile { id, is_draft: false }).unwrap();
        assert_eq!(folder.list(0).unwrap(), []);
        assert_eq!(folder.stamp(), None);
        folder.set_stamp(17).unwrap();
        folder.set_stamp(5).unwrap();
        assert_eq!(folder.stamp(), Some(5));
    }

    #[test]
    fn a_folder_is_one_processes_and_no_strangers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zone");
        let folder = Folder::take(&path, &[1]).unwrap().unwrap();
        assert!(Folder::take(&path, &[1]).unwrap().is_none());
        drop(folder);
        assert!(Folder::take(&path, &[1]).unwrap().is_some());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Folder::take(&path, &[1]).unwrap_err().to_string().contains("other users may write"));
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert!(Folder::take(&link, &[1]).unwrap_err().to_string().contains("it is not a folder"));
        // Neither is a file that a link leads to.
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o700)).unwrap();
        symlink(dir.path().join("theirs"), other.join(LOCK)).unwrap();
        assert!(Folder::take(&other, &[1]).is_err() && !dir.path().join("theirs").exists());
    }
}
