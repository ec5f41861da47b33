//! The parent's own upgrade: the process continues as another program, with all that it holds.
//!
//! The program is executed in place, so the process keeps its id, its children and its descriptors, and its
//! starter notices nothing. Its state passes in a file in memory. It is the program that a gateway runs which
//! serves already, so it can be started; the gateway has said itself that it can be the parent of what this
//! one has. No configuration is read: the settings are those that the parent was started with.
//!
//! Signals are held back from before the exec until the new image listens to them. They stay pending over it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::getpid;
use serde::{Deserialize, Serialize};
use sigma_config::process::Process;
use sigma_config::settings::ErrorLog;
use sigma_net::descriptors;

/// The version of the state between one image of a parent and the next. To be raised when an image could not
/// read it any more.
const PROTOCOL: u32 = 1;

/// The variable that says which descriptor the file is, and of which process. It counts for that process only.
const VARIABLE: &str = "SIGMA_GOES_ON";

/// The service manager's variables about descriptors, which the former image has taken.
const TAKEN: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "SIGMA_STARTED_BY"];

/// A longer file is not valid.
const FILE_MAX: u64 = 64 << 20;

/// The file of a program, and which parents it can continue as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramFile {
    parents: u32,
    device: u64,
    inode: u64,
}

impl ProgramFile {
    /// That of this process; None if the system does not say.
    pub(super) fn of_this_process() -> Option<ProgramFile> {
        ProgramFile::at(Path::new("/proc/self/exe"))
    }

    fn at(path: &Path) -> Option<ProgramFile> {
        let file = std::fs::metadata(path).ok()?;
        Some(ProgramFile { parents: PROTOCOL, device: file.dev(), inode: file.ino() })
    }

    /// Whether a parent that runs `self` is to continue as the program at `path`, which a gateway has
    /// reported.
    pub(super) fn is_outdated_by(self, told: ProgramFile, path: &Path) -> bool {
        // A file that was replaced since has not been tried yet.
        told != self && told.parents == PROTOCOL && ProgramFile::at(path) == Some(told)
    }
}

/// A gateway of the parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptChild {
    pub(super) pid: i32,
    pub(super) link: RawFd,
    pub(super) is_current: bool,
    pub(super) takes_lines: bool,
    pub(super) runs_for_ms: u64,
}

/// The state of the parent. The descriptors are open under their numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ParentState {
    pub(super) protocol: u32,
    pub(super) version: String,
    pub(super) settings: Process,
    pub(super) error_log: ErrorLog,
    pub(super) pid_file: Option<(PathBuf, RawFd)>,
    /// The descriptor of an order's result.
    pub(super) outcome: Option<RawFd>,
    pub(super) held: Vec<RawFd>,
    pub(super) children: Vec<KeptChild>,
    pub(super) deaths: u32,
    pub(super) status: i32,
    pub(super) has_predecessor: bool,
    /// Lines that no gateway has taken yet, and how many are lost before them.
    pub(super) lines: Vec<(String, String)>,
    pub(super) lines_lost: u64,
}

impl ParentState {
    pub(super) const PROTOCOL: u32 = PROTOCOL;
}

/// Descriptors that stay open over an exec. They close again when this is dropped, after a failed exec.
#[derive(Debug, Default)]
pub(super) struct LeftOpen<'d>(Vec<BorrowedFd<'d>>);

impl<'d> LeftOpen<'d> {
    /// Leaves one more open. Returns its number.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(super) fn leave(&mut self, descriptor: &'d impl AsFd) -> io::Result<RawFd> {
        self.leave_borrowed(descriptor.as_fd())
    }

    pub(super) fn leave_borrowed(&mut self, descriptor: BorrowedFd<'d>) -> io::Result<RawFd> {
        descriptors::leave_open(descriptor)?;
        self.0.push(descriptor);
        Ok(descriptor.as_raw_fd())
    }
}

impl Drop for LeftOpen<'_> {
    fn drop(&mut self) {
        for descriptor in &self.0 {
            // It is open, which is the one reason to fail.
            let _ = descriptors::close_on_exec(descriptor);
        }
    }
}

/// Goes on as the program at `path`. Returns only if that cannot be, and why; nothing has changed then.
pub(super) fn become_program(path: &Path, arguments: &[OsString], kept: &ParentState) -> io::Error {
    match left_in_file(kept) {
        // The file stays open until after the call.
        Ok(file) => sigma_net::exec::replace(path, arguments, &environment(&file)),
        Err(error) => error,
    }
}

/// A file in memory that the next image reads.
fn left_in_file(kept: &ParentState) -> io::Result<File> {
    let mut file = File::from(memfd_create("sigma-parent", MemfdFlags::empty())?);
    file.write_all(&serde_json::to_vec(kept)?)?;
    Ok(file)
}

/// Returns the environment of the next image: the present one, and the path of the file.
fn environment(file: &File) -> Vec<(OsString, OsString)> {
    let is_taken = |name: &OsString| name == VARIABLE || TAKEN.iter().any(|taken| name == taken);
    let mut all: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_taken(name)).collect();
    let own = format!("by={} state={}", getpid().as_raw_nonzero(), file.as_raw_fd());
    all.push((VARIABLE.into(), own.into()));
    all
}

/// The state that a former image of this process, a parent, has left for this one.
#[derive(Debug)]
pub struct Renewal(pub(super) ParentState);

impl Renewal {
    /// That of this process, if it is one that continues. To be called once, before anything else is opened.
    ///
    /// # Errors
    /// Returns an error if it cannot be read.
    pub fn of_environment() -> io::Result<Option<Renewal>> {
        let Some((by, state)) = std::env::var(VARIABLE).ok().as_deref().and_then(numbers) else {
            return Ok(None);
        };
        // It was meant for the process that has started this one.
        if by != getpid().as_raw_nonzero().get() {
            return Ok(None);
        }
        let mut file = File::from(descriptors::adopt(state)?);
        file.rewind()?;
        let mut text = Vec::new();
        file.take(FILE_MAX).read_to_end(&mut text)?;
        let kept: ParentState = serde_json::from_slice(&text)?;
        if kept.protocol != PROTOCOL {
            let text = format!("cannot read the state of version {} of the parent process", kept.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Some(Renewal(kept)))
    }

    /// How the process was set.
    pub fn process(&self) -> &Process {
        &self.0.settings
    }

    /// How the error log was set.
    pub fn error_log(&self) -> &ErrorLog {
        &self.0.error_log
    }

    /// Takes the descriptor of an order's result, as [`LogControl::outcome`](crate::LogControl::outcome) has
    /// given it.
    ///
    /// # Errors
    /// Returns an error if it is not there.
    pub fn take_outcome(&mut self) -> io::Result<Option<OwnedFd>> {
        self.0.outcome.take().map(descriptors::adopt).transpose()
    }

    pub(super) fn has_predecessor(&self) -> bool {
        self.0.has_predecessor
    }
}

/// The numbers in `by=PID state=FD`.
fn numbers(text: &str) -> Option<(i32, RawFd)> {
    let (by, state) = text.split_once(' ')?;
    Some((by.strip_prefix("by=")?.parse().ok()?, state.strip_prefix("state=")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    #[test]
    fn the_variable_reads_as_it_was_written() {
        assert_eq!(numbers("by=12 state=7"), Some((12, 7)));
        for text in
            ["", "by=12", "state=7 by=12", "by=x state=7", "by=12 state=7 more", "by=1 state=99999999999"]
        {
            assert_eq!(numbers(text), None, "{text:?}");
        }
    }

    #[test]
    fn descriptors_that_were_left_open_close_again() {
        let file = File::open("/dev/null").unwrap();
        let flags = || fcntl_getfd(&file).unwrap();
        assert_eq!(flags(), FdFlags::CLOEXEC);
        let mut left = LeftOpen::default();
        assert_eq!(left.leave(&file).unwrap(), file.as_raw_fd());
        assert_eq!(flags(), FdFlags::empty());
        drop(left);
        assert_eq!(flags(), FdFlags::CLOEXEC);
    }

    #[test]
    fn a_failed_exec_changes_nothing() {
        let kept: ParentState = serde_json::from_value(serde_json::json!({
            "protocol": PROTOCOL, "version": "1.2.3", "settings": {}, "error_log": {}, "pid_file": null, "outcome": null,
            "held": [], "children": [], "deaths": 0, "status": 0, "has_predecessor": false, "lines": [], "lines_lost": 0,
        }))
        .unwrap();
        let error = become_program(Path::new("/no/such/program"), &[], &kept);
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let file = left_in_file(&kept).unwrap();
        assert_eq!(fcntl_getfd(&file).unwrap(), FdFlags::empty(), "the next image has it");
        let own = format!("by={} state={}", std::process::id(), file.as_raw_fd());
        let all = environment(&file);
        assert_eq!(all.last(), Some(&(VARIABLE.into(), own.into())));
        assert!(all.iter().any(|(name, _)| name == "PATH"));
    }

    #[test]
    fn a_parent_continues_as_the_program_of_its_gateway() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, "old").unwrap();
        std::fs::write(&new, "new").unwrap();
        let (own, told) = (ProgramFile::at(&old).unwrap(), ProgramFile::at(&new).unwrap());
        assert!(own.is_outdated_by(told, &new));
        assert!(!own.is_outdated_by(own, &old), "it is the same");
        assert!(!own.is_outdated_by(told, &old), "another one is there now");
        assert!(!own.is_outdated_by(told, &dir.path().join("none")));
        let later = ProgramFile { parents: PROTOCOL + 1, ..told };
        assert!(!own.is_outdated_by(later, &new), "it cannot read what this one leaves");
        assert_eq!(ProgramFile::of_this_process().unwrap().parents, PROTOCOL);
    }
}
