//! Files of the process in folders that other users can write to. There a user could replace the file with a link, so
//! that the process writes to another file.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;

/// The limit of links from one file to the next; Linux has 40.
const MOST_LINKS: usize = 8;

/// Opens a file to append to; a missing one is made with this mode. A link is followed if it belongs to the user of
/// this process or to root: operators redirect logs by links.
///
/// # Errors
/// Returns the error of the operating system, or an error if the link belongs to another user.
pub fn append(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(mode);
    open(path, options)
}

/// Opens a file for reading. Links are followed as in [`append`].
///
/// # Errors
/// Returns the error of the operating system, or an error if the link belongs to another user.
pub fn read(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    open(path, options)
}

fn open(path: &Path, mut options: OpenOptions) -> io::Result<File> {
    // To open a pipe would wait for its other end.
    options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK));
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match options.open(&path) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => path = target(&path)?,
            opened => return opened,
        }
    }
    Err(Errno::LOOP.into())
}

/// Opens a file of this process for reading and writing; a missing one is made with this mode.
///
/// # Errors
/// Returns the error of the operating system, or an error if the file is a link, belongs to another user, or has
/// another name.
pub fn open_own(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(mode);
    let file = match options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK)).open(path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return Err(refused("the file is a symbolic link: remove it, or name another file"));
        }
        opened => opened?,
    };
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused("the file belongs to another user: remove it, or name another file"));
    }
    if facts.nlink() > 1 {
        return Err(refused("the file is a hard link: remove it, or name another file"));
    }
    Ok(file)
}

/// Returns true if a file belongs to the user of this process, or to root.
fn is_trusted(facts: &Metadata) -> bool {
    facts.uid() == 0 || facts.uid() == rustix::process::geteuid().as_raw()
}

/// Returns the target of a link, which is checked and read through one descriptor: its name may be reused meanwhile.
fn target(path: &Path) -> io::Result<PathBuf> {
    let link =
        OpenOptions::new().read(true).custom_flags(flags(OFlags::PATH | OFlags::NOFOLLOW)).open(path)?;
    if !is_trusted(&link.metadata()?) {
        return Err(refused("the file is a symbolic link of another user"));
    }
    let to = readlinkat(&link, "", Vec::new())?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(folder.join(OsStr::from_bytes(to.as_bytes())))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why)
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn own_links_of_logs_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("logs")).unwrap();
        symlink("logs/access.log", path("a")).unwrap();
        symlink(path("a"), path("b")).unwrap();
        append(&path("b"), 0o640).unwrap().write_all(b"line").unwrap();
        assert_eq!(fs::read_to_string(path("logs/access.log")).unwrap(), "line");
        append(Path::new("/dev/null"), 0o640).unwrap();
        symlink("loop", path("loop")).unwrap();
        assert!(append(&path("loop"), 0o640).is_err());
        // Only root can give a link away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(path("a"), Some(12345), None).unwrap();
            assert_eq!(append(&path("b"), 0o640).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn file_of_the_process_is_neither_link_nor_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("victim"), "kept").unwrap();
        symlink(path("victim"), path("link")).unwrap();
        fs::hard_link(path("victim"), path("hard")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        for name in ["link", "hard", "folder"] {
            assert!(open_own(&path(name), 0o644).is_err(), "{name}");
        }
        symlink(path("nothing"), path("dangling")).unwrap();
        assert!(open_own(&path("dangling"), 0o644).is_err());
        assert!(!path("nothing").exists());
        assert_eq!(fs::read_to_string(path("victim")).unwrap(), "kept");
        open_own(&path("new"), 0o644).unwrap();
        open_own(&path("new"), 0o644).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path("new"), Some(12345), None).unwrap();
            assert!(open_own(&path("new"), 0o644).unwrap_err().to_string().contains("another user"));
        }
    }
}
