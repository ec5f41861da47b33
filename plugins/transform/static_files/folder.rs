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
pub(super) enum Found {
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
    /// Neither a file nor a folder, or a folder without an index.
    Nothing,
}

/// How files are opened. Without NONBLOCK a pipe in the folder would hold the thread.
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Looks a path up; `is_folder` if it ends with a slash. The first of `codings` with a file replaces it.
/// Blocks.
pub(super) fn find(
    conf: &Conf,
    segments: &[String],
    is_folder: bool,
    codings: &[Precompressed],
) -> io::Result<Found> {
    let root = rustix::fs::open(&conf.root, READ | OFlags::DIRECTORY, Mode::empty())?;
    if is_folder {
        for index in &conf.index {
            let path: Vec<&str> = segments.iter().chain([index]).map(String::as_str).collect();
            match open(&root, &path, conf.symlinks).and_then(described) {
                Ok(found @ Found::File { .. }) => {
                    return Ok(encoded(&root, &path, conf, codings).unwrap_or(found));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        return Ok(Found::Nothing);
    }
    let path: Vec<&str> = segments.iter().map(String::as_str).collect();
    let found = open(&root, &path, conf.symlinks).and_then(described)?;
    match found {
        Found::File { .. } => Ok(encoded(&root, &path, conf, codings).unwrap_or(found)),
        Found::Folder | Found::Nothing => Ok(found),
    }
}

/// Returns the file with the same content in one of these codings, the first that exists. It is opened by the
/// rules of every file; a file that may not be opened counts as missing.
fn encoded(root: &OwnedFd, path: &[&str], conf: &Conf, codings: &[Precompressed]) -> Option<Found> {
    let (name, folders) = path.split_last()?;
    codings.iter().find_map(|coding| {
        let beside = format!("{name}{}", coding.suffix());
        let path: Vec<&str> = folders.iter().copied().chain([&*beside]).collect();
        match open(root, &path, conf.symlinks).and_then(described).ok()? {
            Found::File { file, size, modified, .. } => {
                let name = (*name).to_owned();
                Some(Found::File { file, name, coding: Some(*coding), size, modified })
            }
            Found::Folder | Found::Nothing => None,
        }
    })
}

fn described((file, name): (File, String)) -> io::Result<Found> {
    let meta = file.metadata()?;
    Ok(if meta.is_file() {
        Found::File { file, name, coding: None, size: meta.len(), modified: meta.modified().ok() }
    } else if meta.is_dir() {
        Found::Folder
    } else {
        Found::Nothing
    })
}

/// Opens a path below the folder; also says its last segment.
fn open(root: &OwnedFd, segments: &[&str], symlinks: Symlinks) -> io::Result<(File, String)> {
    let name = segments.last().copied().unwrap_or_default().to_owned();
    let path = segments.join("/");
    let resolve = match symlinks {
        Symlinks::Follow => {
            let file = rustix::fs::openat(root, Path::new(&path), READ, Mode::empty())?;
            return Ok((file.into(), name));
        }
        Symlinks::Inside => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        Symlinks::Deny => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    };
    match rustix::fs::openat2(root, Path::new(&path), READ, Mode::empty(), resolve) {
        Ok(file) => Ok((file.into(), name)),
        // An old kernel, or a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => Ok((walk(root, segments)?.into(), name)),
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
