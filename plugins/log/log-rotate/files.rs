//! Files of logs that get other names.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sigma_net::descriptors::is_open_for_writing;

use super::archive;
use sigma_plugin_kit::utc;

/// The suffix of an archive's name.
const ARCHIVE: &str = ".tar.gz";

/// The suffix while it is written.
const PART: &str = ".part";

/// A file that a log was written to.
pub(super) struct Rotated {
    path: PathBuf,
    /// The common suffix of the names of all rotated files of its log.
    end: OsString,
}

/// Gives the file of a log another name; None if it is taken, by a rotation within the same second.
///
/// # Errors
/// Returns an error if there is no such file, or it cannot be renamed.
pub(super) fn rotate(path: &Path, now_s: u64) -> io::Result<Option<Rotated>> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut end = OsString::from("__");
    end.push(name);
    let mut new = OsString::from(utc::for_files(now_s));
    new.push(&end);
    let new = path.with_file_name(new);
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let archive = with_end(&new, ARCHIVE);
    if new.symlink_metadata().is_ok() || archive.symlink_metadata().is_ok() {
        return Ok(None);
    }
    fs::rename(path, &new)?;
    Ok(Some(Rotated { path: new, end }))
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

impl Rotated {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a process has it open to write to it: this one, one that drains, or a parent. Where the file system does not
    /// know, the processes that can be seen are looked at.
    pub(super) fn is_written(&self) -> bool {
        if let Ok(is_open) = File::open(&self.path).and_then(|file| is_open_for_writing(&file)) {
            return is_open;
        }
        let Ok(file) = fs::metadata(&self.path) else { return false };
        let Ok(processes) = fs::read_dir("/proc") else { return false };
        let is_number = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let processes = processes.flatten().filter(|process| is_number(&process.file_name()));
        processes.map(|process| process.path()).any(|process| writes(&process, &file))
    }

    /// Compresses the file, and moves the archive to its final name.
    ///
    /// # Errors
    /// Returns an error if that fails or takes longer than `timeout`; the file stays then.
    pub(super) fn compress(&self, timeout: Duration) -> io::Result<()> {
        let archive = with_end(&self.path, ARCHIVE);
        let part = with_end(&archive, PART);
        let made = archive::write(&self.path, &part, timeout).and_then(|()| fs::rename(&part, archive));
        if let Err(error) = made {
            // It may not be there at all.
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        fs::remove_file(&self.path)
    }

    /// Removes the oldest rotated files of its log, of which so many are kept.
    pub(super) fn prune(&self, max_kept: usize) {
        let Some(folder) = self.path.parent() else { return };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let Ok(entries) = fs::read_dir(folder) else { return };
        let mut rotated: Vec<PathBuf> =
            entries.flatten().filter(|entry| self.is_of_log(&entry.file_name())).map(|e| e.path()).collect();
        // A name begins with its moment.
        rotated.sort_unstable();
        let many = rotated.len().saturating_sub(max_kept);
        for old in &rotated[..many] {
            if let Err(error) = fs::remove_file(old) {
                tracing::error!("{}: cannot remove {}: {error}", super::NAME, old.display());
            }
        }
    }

    fn is_of_log(&self, name: &OsStr) -> bool {
        let name = name.as_encoded_bytes();
        let name = name.strip_suffix(ARCHIVE.as_bytes()).unwrap_or(name);
        let moment = name.strip_suffix(self.end.as_encoded_bytes());
        // No other file of a folder is removed.
        let is_part = |b: &u8| b.is_ascii_digit() || b"-_".contains(b);
        moment.is_some_and(|moment| moment.len() == utc::FOR_FILES && moment.iter().all(is_part))
    }
}

/// Whether a process has a file open to write to it.
fn writes(process: &Path, file: &fs::Metadata) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let is_it = fs::metadata(descriptor.path())
            .is_ok_and(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()));
        is_it && is_for_writing(&process.join("fdinfo").join(descriptor.file_name()))
    })
}

/// Whether `/proc` says so of a descriptor; the last octal digit of its flags is the mode.
fn is_for_writing(about: &Path) -> bool {
    let text = fs::read_to_string(about).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    // An unknown file may be.
    flags.is_none_or(|flags| flags & 0b11 != 0)
}
