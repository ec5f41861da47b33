//! The pid file: locked while its process runs, so that two gateways do not take each other for themselves.
//!
//! A gateway whose configuration names none has one in the folder for such files, under a name made of the path of its
//! configuration. So two gateways of two configurations have two files, and commands find the file by the path alone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;
use sigma_config::settings::Settings;
use sigma_observe::own_file::open_own;

use super::start::StartError;

/// Readable for all users, writable for the owner.
const MODE: u32 = 0o644;

/// The mode of a folder for pid files that is made.
const FOLDER_MODE: u32 = 0o755;

/// The folder of root's gateways.
const ROOTS_FOLDER: &str = "/run/sigma";

/// Attempts to lock a file, and the pause between two: a command that looks at the file locks it for a moment.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Bytes of the name of a default file that are made of a path.
const NAME_BYTES: usize = 8;

/// The default pid file of a gateway with this configuration. None where the system has no folder for it.
pub fn default_pid_file(configuration: &Path) -> Option<PathBuf> {
    let name = name_of(configuration);
    folders().into_iter().find(|folder| is_fit(folder)).map(|folder| folder.join(name))
}

/// The files in which a gateway with this configuration may have its id by default.
pub fn known_pid_files(configuration: &Path) -> Vec<PathBuf> {
    let name = name_of(configuration);
    // Root finds its own gateways, and the gateway of a service.
    let mut folders = folders();
    folders.extend((!folders.contains(&ROOTS_FOLDER.into())).then(|| ROOTS_FOLDER.into()));
    folders.into_iter().map(|folder| folder.join(&name)).collect()
}

/// The process that has locked a pid file, and the user whose file it is. None if the process has ended.
///
/// # Errors
/// Returns an error if there is no such file, or if it holds no number.
pub fn holder_of(path: &Path) -> io::Result<Option<(i32, u32)>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => return Ok(None),
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        Err(error) => return Err(error.into()),
    }
    let mut text = String::new();
    (&mut file).take(32).read_to_string(&mut text)?;
    let pid = text.trim().parse().map_err(|_| io::Error::other("it contains no process id"))?;
    Ok(Some((pid, facts.uid())))
}

fn name_of(configuration: &Path) -> String {
    let whole = std::fs::canonicalize(configuration).or_else(|_| std::path::absolute(configuration));
    let whole = whole.unwrap_or_else(|_| configuration.to_owned());
    let digest = digest(&SHA256, whole.as_os_str().as_encoded_bytes());
    let hex: String = digest.as_ref()[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.pid")
}

/// The folders for pid files of this user, the preferred first: of a service, of root, of a login.
fn folders() -> Vec<PathBuf> {
    let named = |name: &str| std::env::var(name).ok().filter(|folder| folder.starts_with('/'));
    let service = named("RUNTIME_DIRECTORY").and_then(|all| all.split(':').next().map(PathBuf::from));
    let root = geteuid().is_root().then(|| PathBuf::from(ROOTS_FOLDER));
    let login = named("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("sigma"));
    service.into_iter().chain(root).chain(login).collect()
}

/// Whether only this user can write to a folder; a missing folder is created.
fn is_fit(folder: &Path) -> bool {
    let _ = DirBuilder::new().mode(FOLDER_MODE).create(folder);
    let Ok(facts) = std::fs::symlink_metadata(folder) else { return false };
    facts.is_dir() && facts.uid() == geteuid().as_raw() && facts.mode() & 0o022 == 0
}

/// Where a gateway has its pid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidFileLocation {
    path: PathBuf,
    /// The configuration names none.
    is_default: bool,
}

impl PidFileLocation {
    /// That which the settings name, else the default one.
    pub(crate) fn of(settings: &Settings, default: Option<&Path>) -> Option<PidFileLocation> {
        let named = settings.pid_file.clone().map(|path| PidFileLocation { path, is_default: false });
        named.or_else(|| Some(PidFileLocation { path: default?.to_owned(), is_default: true }))
    }

    /// Writes the file. A default one that cannot be written stops nothing.
    ///
    /// # Errors
    /// Returns an error if the file that the settings name cannot be written.
    pub(crate) fn write(&self) -> Result<Option<PidFile>, StartError> {
        match PidFile::write(&self.path) {
            Err(error) if self.is_default => {
                tracing::info!("{error}; commands need `--pid`, or set `pid_file`");
                Ok(None)
            }
            written => written.map(Some),
        }
    }

    /// Removes the file that a process has left which had another one.
    pub(crate) fn remove_former(own: Option<&PidFileLocation>, former: Option<&Path>) {
        let Some(former) = former.filter(|former| own.is_none_or(|own| own.path != *former)) else { return };
        // One that is locked is another process's by now.
        if former.exists()
            && let Ok(_lock) = lock(former)
        {
            let _ = std::fs::remove_file(former);
        }
    }
}

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
    let mut locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    for _ in 1..ATTEMPTS {
        if locked != Err(rustix::io::Errno::WOULDBLOCK) {
            break;
        }
        std::thread::sleep(PAUSE);
        locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    match locked {
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
    fn the_holder_is_known_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sigma.pid");
        assert_eq!(holder_of(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let file = PidFile::write(&path).unwrap();
        let own = (std::process::id().cast_signed(), geteuid().as_raw());
        assert_eq!(holder_of(&path).unwrap(), Some(own));
        file.leave();
        assert_eq!(holder_of(&path).unwrap(), None, "a file that a dead process has left");
        let again = PidFile::write(&path).unwrap();
        let other = dir.path().join("other.pid");
        let place = |path: &Path| PidFileLocation { path: path.to_owned(), is_default: true };
        PidFileLocation::remove_former(Some(&place(&path)), Some(&path));
        PidFileLocation::remove_former(Some(&place(&other)), Some(&path));
        assert!(path.exists(), "it is in use");
        again.leave();
        PidFileLocation::remove_former(None, Some(&path));
        assert!(!path.exists());
        PidFileLocation::remove_former(None, Some(&path));
        assert!(!path.exists());
    }

    #[test]
    fn two_configurations_have_two_default_files() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other, link) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        std::fs::write(&one, "").unwrap();
        std::os::unix::fs::symlink(&one, &link).unwrap();
        assert_ne!(name_of(&one), name_of(&other));
        assert_eq!(name_of(&one), name_of(&link), "a link is the same configuration");
        assert!(!is_fit(&dir.path().join("no/such")) && is_fit(&dir.path().join("new")));
        std::os::unix::fs::symlink(dir.path().join("new"), dir.path().join("link")).unwrap();
        assert!(!is_fit(&dir.path().join("link")), "a link may lead elsewhere tomorrow");
    }

    #[test]
    fn a_default_file_that_cannot_be_written_stops_nothing() {
        let path = Path::new("/nowhere/at/all.pid");
        let named = Settings { pid_file: Some(path.to_owned()), ..Settings::default() };
        assert!(PidFileLocation::of(&named, None).unwrap().write().is_err());
        assert!(PidFileLocation::of(&Settings::default(), Some(path)).unwrap().write().unwrap().is_none());
        assert_eq!(PidFileLocation::of(&Settings::default(), None), None);
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
