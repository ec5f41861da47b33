//! From a path to an open file, without a way out of the folder.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Conf;
use super::precompressed::Precompressed;

/// The handling of symbolic links below the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Symlinks {
    Deny,
    // As far as they lead to something in the folder.
    Inside,
    Follow,
}

/// The target of a path.
pub(super) enum PathTarget {
    File {
        file: File,
        name: String,
        /// The coding of its content, if it replaces the plain file.
        coding: Option<Precompressed>,
        size: u64,
        modified: Option<SystemTime>,
    },
    /// A folder whose path lacks its final slash.
    Folder,
    /// A folder without an index.
    Bare(OwnedFd),
    /// Neither a file nor a folder.
    Nothing,
}

/// A path to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathLookup {
    /// Its segments below the root.
    pub(super) segments: Vec<String>,
    /// It ends with a slash.
    pub(super) is_folder: bool,
}

/// How files are opened. Without NONBLOCK a pipe in the folder would hold the thread.
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens the root. Blocks.
pub(super) fn root(conf: &Conf) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(&conf.root, READ | OFlags::DIRECTORY, Mode::empty())?)
}

/// Returns true if the error says that there is no such file, as far as clients may know.
pub(super) fn is_absent(error: &io::Error) -> bool {
    // XDEV and LOOP: a link leads out, or may not be followed. NXIO: a socket.
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::XDEV | Errno::LOOP | Errno::NXIO)
    )
}

/// Looks a path up. The first of `codings` with a file replaces it. Blocks.
pub(super) fn find(
    root: &OwnedFd,
    conf: &Conf,
    PathLookup { segments, is_folder }: &PathLookup,
    codings: &[Precompressed],
) -> io::Result<PathTarget> {
    if *is_folder {
        for index in &conf.index {
            let path: Vec<&str> = segments.iter().chain([index]).map(String::as_str).collect();
            match open(root, &path, conf.symlinks).and_then(described) {
                Ok(found @ PathTarget::File { .. }) => {
                    return Ok(encoded(root, &path, conf, codings).unwrap_or(found));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        return bare(root, segments, conf.symlinks);
    }
    let path: Vec<&str> = segments.iter().map(String::as_str).collect();
    let found = open(root, &path, conf.symlinks).and_then(described)?;
    match found {
        PathTarget::File { .. } => Ok(encoded(root, &path, conf, codings).unwrap_or(found)),
        PathTarget::Folder | PathTarget::Bare(_) | PathTarget::Nothing => Ok(found),
    }
}

/// Returns the folder at a path; nothing for a file.
fn bare(root: &OwnedFd, segments: &[String], symlinks: Symlinks) -> io::Result<PathTarget> {
    if segments.is_empty() {
        return Ok(PathTarget::Bare(rustix::fs::openat(root, ".", READ | OFlags::DIRECTORY, Mode::empty())?));
    }
    let path: Vec<&str> = segments.iter().map(String::as_str).collect();
    let OpenedFile { file, .. } = open(root, &path, symlinks)?;
    Ok(if file.metadata()?.is_dir() { PathTarget::Bare(file.into()) } else { PathTarget::Nothing })
}

/// Returns the file with the same content in one of these codings, the first that exists. It is opened by the
/// rules of every file; a file that may not be opened counts as missing.
fn encoded(root: &OwnedFd, path: &[&str], conf: &Conf, codings: &[Precompressed]) -> Option<PathTarget> {
    let (name, folders) = path.split_last()?;
    codings.iter().find_map(|coding| {
        let beside = format!("{name}{}", coding.suffix());
        let path: Vec<&str> = folders.iter().copied().chain([&*beside]).collect();
        match open(root, &path, conf.symlinks).and_then(described).ok()? {
            PathTarget::File { file, size, modified, .. } => {
                let name = (*name).to_owned();
                Some(PathTarget::File { file, name, coding: Some(*coding), size, modified })
            }
            PathTarget::Folder | PathTarget::Bare(_) | PathTarget::Nothing => None,
        }
    })
}

/// A file or folder that was opened.
struct OpenedFile {
    file: File,
    /// The last segment of its path.
    name: String,
}

fn described(opened: OpenedFile) -> io::Result<PathTarget> {
    let OpenedFile { file, name } = opened;
    let meta = file.metadata()?;
    Ok(if meta.is_file() {
        PathTarget::File { file, name, coding: None, size: meta.len(), modified: meta.modified().ok() }
    } else if meta.is_dir() {
        PathTarget::Folder
    } else {
        PathTarget::Nothing
    })
}

/// Opens a path below the folder.
fn open(root: &OwnedFd, segments: &[&str], symlinks: Symlinks) -> io::Result<OpenedFile> {
    let name = segments.last().copied().unwrap_or_default().to_owned();
    let path = segments.join("/");
    let resolve = match symlinks {
        Symlinks::Follow => {
            let file = rustix::fs::openat(root, Path::new(&path), READ, Mode::empty())?;
            return Ok(OpenedFile { file: file.into(), name });
        }
        Symlinks::Inside => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        Symlinks::Deny => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    };
    match rustix::fs::openat2(root, Path::new(&path), READ, Mode::empty(), resolve) {
        Ok(file) => Ok(OpenedFile { file: file.into(), name }),
        // An old kernel, or a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => Ok(OpenedFile { file: walk(root, segments)?.into(), name }),
        Err(error) => Err(error.into()),
    }
}

/// Opens a path segment by segment, no symbolic link on the way.
fn walk(root: &OwnedFd, segments: &[&str]) -> io::Result<OwnedFd> {
    let mut at = rustix::fs::openat(root, ".", READ | OFlags::DIRECTORY, Mode::empty())?;
    for (number, segment) in segments.iter().enumerate() {
        let kind = if number + 1 < segments.len() { OFlags::DIRECTORY } else { OFlags::empty() };
        at = rustix::fs::openat(&at, *segment, READ | OFlags::NOFOLLOW | kind, Mode::empty())?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), "x").unwrap();
        std::os::unix::fs::symlink("d", dir.path().join("dl")).unwrap();
        std::os::unix::fs::symlink("f", dir.path().join("d/fl")).unwrap();
        let root = rustix::fs::open(dir.path(), READ | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let check = |path: &[&str], expected: bool| {
            assert_eq!(walk(&root, path).is_ok(), expected, "{path:?}");
        };
        check(&["d", "f"], true);
        check(&["d"], true);
        check(&["dl", "f"], false);
        check(&["d", "fl"], false);
        check(&["d", "none"], false);
    }
}
