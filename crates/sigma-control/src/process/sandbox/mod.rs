//! The sandbox of a gateway (`process.sandbox`): the files that remain when it has started.
//!
//! The rules follow the configuration of the start, and a process cannot widen them. So a reload that names a
//! file outside is refused with that reason; a successor makes its own. It is started from outside of the sandbox: by the
//! parent in the mode `supervised`, else by the one thread that starts programs.

mod needs;

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf, absolute};

use sigma_config::Config;
use sigma_config::process;
use sigma_net::sandbox::files::{Enforced, Remaining, restrict};
use sigma_plugin::{FileAccess, Roster};

use self::needs::Need;
use super::handover::Origin;
use super::log_control::LIFE;
use super::start::StartError;
use super::upgrade::Starter;
use crate::serving::source::Source;

/// Programs and their libraries, for a successor and for hooks.
const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"];

/// Authorities, names, users, the time zone; facts about the process and the machine; chance; the token of a pod. The whole
/// of `/etc`, since its files are replaced and not written to (`/etc/resolv.conf` with each lease).
const SYSTEM: [&str; 9] = [
    "/etc",
    "/proc",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/dev/urandom",
    "/dev/random",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/var/run/secrets/kubernetes.io/serviceaccount",
];

/// Variables that say where authorities are instead.
const AUTHORITIES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The mode of a folder for logs that is made, and of others.
const MODES: [u32; 2] = [0o750, 0o700];

/// The sandbox of this process, and the thread that starts its successors.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// None without one.
    remaining: Option<Remaining>,
    starter: Starter,
}

impl Sandbox {
    /// Enters the sandbox that the settings ask for. To be called while there is one thread, when the process has its user
    /// and its folder, and before anything is opened that is to be opened again. The lines are for the error log, which
    /// begins within the sandbox.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the restriction, or if the starter cannot be started.
    pub fn enter(
        config: &Config,
        plugins: &Roster,
        source: &Source,
        origin: &Origin,
    ) -> Result<(Sandbox, Vec<Line>), StartError> {
        let starter = || Starter::new().map_err(StartError::Handover);
        if config.settings.process.sandbox == process::Sandbox::Off {
            return Ok((Sandbox { remaining: None, starter: starter()? }, Vec::new()));
        }
        // With a parent, no thread of this process stays outside.
        let outside = if origin.has_parent() { None } else { Some(starter()?) };
        let mut lines = Vec::new();
        let mut remaining = system(origin.program_folder());
        remaining.scoped_signals = origin.has_parent();
        // A later reload finds new files in the folders of the patterns.
        let folder = source.path.parent().unwrap_or(Path::new(""));
        let included: Vec<PathBuf> =
            config.settings.include.iter().map(|pattern| folder.join(pattern)).collect();
        let own = std::iter::once(&source.path).filter(|_| !source.is_text());
        for path in own.chain(&source.companion).chain(&included) {
            add(&mut remaining, &of_source(path), &mut lines);
        }
        let needs = needs::of(config, plugins).into_iter();
        let pid_file = source.default_pid_file.as_deref().filter(|_| config.settings.pid_file.is_none());
        for need in needs.chain(pid_file.map(of_pid_file)) {
            add(&mut remaining, &need, &mut lines);
        }
        let enforced = restrict(&remaining).map_err(|reason| {
            StartError::Sandbox(format!("`process.sandbox`: the kernel refuses it: {reason}"))
        })?;
        lines.extend(line_of(&enforced));
        let starter = outside.map_or_else(starter, Ok)?;
        let is_in_force = !matches!(enforced, Enforced::Not(_));
        Ok((Sandbox { remaining: is_in_force.then_some(remaining), starter }, lines))
    }

    pub(super) fn starter(&self) -> &Starter {
        &self.starter
    }

    /// Refuses a configuration that names files outside.
    ///
    /// # Errors
    /// Returns an error that names each of them.
    pub(super) fn check(&self, config: &Config, plugins: &Roster) -> Result<(), StartError> {
        let Some(remaining) = &self.remaining else { return Ok(()) };
        let outside: Vec<String> = needs::of(config, plugins)
            .into_iter()
            .filter(|need| need.is_reloaded && !covers(remaining, need))
            .map(|Need { place, path, .. }| format!("`{place}`: {} is outside the sandbox", path.display()))
            .collect();
        if outside.is_empty() {
            return Ok(());
        }
        const REMEDY: &str = "sandbox rules are fixed at the start of a process: run `sigma upgrade` to start a process with the new configuration";
        Err(StartError::Sandbox(format!("{}\n({REMEDY})", outside.join("\n"))))
    }
}

/// A line about the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// How it is.
    Fact(String),
    /// Something that is to be changed.
    Warning(String),
}

impl Line {
    /// Writes it to the error log.
    pub fn tell(&self) {
        match self {
            Line::Fact(text) => tracing::info!(target: LIFE, "{text}"),
            Line::Warning(text) => tracing::warn!("{text}"),
        }
    }
}

fn line_of(enforced: &Enforced) -> Option<Line> {
    match enforced {
        Enforced::Fully => None,
        Enforced::Partly => Some(Line::Fact(
            "`process.sandbox`: the kernel supports Landlock in part, and this part is in force; newer kernels support all of it"
                .to_owned(),
        )),
        Enforced::Not(reason) => Some(Line::Warning(format!(
            "`process.sandbox`: files are not restricted, the kernel has no Landlock: {reason}"
        ))),
    }
}

fn of_source(path: &Path) -> Need {
    let (place, path) = ("the configuration".to_owned(), path.to_owned());
    Need { place, path, access: FileAccess::ReadFile, is_reloaded: false }
}

fn of_pid_file(path: &Path) -> Need {
    let (place, path) = ("pid_file".to_owned(), path.to_owned());
    Need { place, path, access: FileAccess::WriteFile, is_reloaded: false }
}

/// The rights that every gateway has.
fn system(program: PathBuf) -> Remaining {
    let mut remaining = Remaining {
        read: SYSTEM.iter().map(PathBuf::from).collect(),
        execute: PROGRAMS.iter().map(PathBuf::from).chain([program]).collect(),
        write: vec![PathBuf::from("/dev/null")],
        scoped_signals: false,
    };
    remaining.read.extend(AUTHORITIES.iter().filter_map(std::env::var_os).map(PathBuf::from));
    // It may lead elsewhere.
    let names = std::fs::canonicalize("/etc/resolv.conf");
    remaining
        .read
        .extend(names.map(|path| needs::folder(&path)).into_iter().filter(|folder| folder != Path::new("/")));
    remaining
}

/// Adds the rules for a need. Folders that are to be written to are made.
fn add(remaining: &mut Remaining, need: &Need, lines: &mut Vec<Line>) {
    let Some(places) = places(need) else {
        let path = need.path.display();
        lines.push(Line::Warning(format!(
            "`{}`: {path} lies in the root folder, which the sandbox does not open: use a folder below it",
            need.place
        )));
        return;
    };
    match need.access {
        FileAccess::ReadFile | FileAccess::ReadFolder => remaining.read.extend(places),
        FileAccess::Execute => remaining.execute.extend(places),
        FileAccess::WriteFile | FileAccess::WriteFolder => {
            let mode = if need.place.contains("log") { MODES[0] } else { MODES[1] };
            for place in places.iter().filter(|place| !place.exists()) {
                // The part that uses the folder reports the error.
                let _ = DirBuilder::new().recursive(true).mode(mode).create(place);
            }
            remaining.write.extend(places);
        }
    }
}

/// The files and folders that have to be open for a need. For a file that is its folder, since a file that replaces it has
/// another identity; for a device, a pipe and a file in the root folder, the file itself. A link is open at both ends, as
/// certbot has them. None for the root folder itself.
fn places(need: &Need) -> Option<Vec<PathBuf>> {
    let path = absolute(&need.path).ok()?;
    let is_folder = matches!(need.access, FileAccess::ReadFolder | FileAccess::WriteFolder);
    let mut places = if is_folder || stands_alone(&path) {
        vec![path]
    } else {
        let target = std::fs::canonicalize(&path).ok();
        std::iter::once(path).chain(target).map(|path| needs::folder(&path)).collect()
    };
    places.dedup();
    let is_open = |place: &PathBuf| {
        place != Path::new("/") && (needs::folder(place) != Path::new("/") || place.exists())
    };
    places.iter().all(is_open).then_some(places)
}

/// Whether a file is opened by its own name alone: a device, a pipe, or a file in the root folder.
fn stands_alone(path: &Path) -> bool {
    let is_special = std::fs::metadata(path).is_ok_and(|found| {
        let kind = found.file_type();
        kind.is_char_device() || kind.is_fifo() || kind.is_block_device()
    });
    is_special
        || path.starts_with("/dev")
        || path.starts_with("/proc")
        || needs::folder(path) == Path::new("/")
}

/// Whether the rules allow a need.
fn covers(remaining: &Remaining, need: &Need) -> bool {
    let Remaining { read, execute, write, .. } = remaining;
    let allowed: &[&[PathBuf]] = match need.access {
        FileAccess::ReadFile | FileAccess::ReadFolder => &[read, execute, write],
        FileAccess::Execute => &[execute],
        FileAccess::WriteFile | FileAccess::WriteFolder => &[write],
    };
    let is_within = |place: &PathBuf| {
        let place = resolved(place);
        allowed.iter().copied().flatten().any(|folder| place.starts_with(resolved(folder)))
    };
    places(need).is_some_and(|places| places.iter().all(is_within))
}

/// The path without links, as far as there are files.
fn resolved(path: &Path) -> PathBuf {
    for known in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (std::fs::canonicalize(known), path.strip_prefix(known)) {
            return real.join(rest);
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(path: &Path, access: FileAccess) -> Need {
        Need { place: "access_log.path".to_owned(), path: path.to_owned(), access, is_reloaded: true }
    }

    #[test]
    fn the_folders_of_a_file_and_of_its_target_are_open() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let (live, archive) = (dir.join("live"), dir.join("archive"));
        std::fs::create_dir_all(&live).unwrap();
        std::fs::create_dir_all(&archive).unwrap();
        std::fs::write(archive.join("cert1.pem"), "x").unwrap();
        std::os::unix::fs::symlink("../archive/cert1.pem", live.join("cert.pem")).unwrap();
        let check = |path: &Path, access, expected: Option<Vec<PathBuf>>| {
            assert_eq!(places(&need(path, access)), expected, "{}", path.display());
        };
        check(&live.join("cert.pem"), FileAccess::ReadFile, Some(vec![live.clone(), archive]));
        check(&live.join("new.pem"), FileAccess::ReadFile, Some(vec![live.clone()]));
        check(&live, FileAccess::ReadFolder, Some(vec![live.clone()]));
        check(Path::new("/dev/null"), FileAccess::WriteFile, Some(vec!["/dev/null".into()]));
        check(Path::new("/dev/stdout"), FileAccess::WriteFile, Some(vec!["/dev/stdout".into()]));
        check(Path::new("/no-such-file.log"), FileAccess::WriteFile, None);
        check(Path::new("/"), FileAccess::ReadFolder, None);
    }

    #[test]
    fn paths_outside_are_not_covered() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut remaining = Remaining { read: vec![path("read")], ..Remaining::default() };
        let mut lines = Vec::new();
        add(&mut remaining, &need(&path("logs/access.log"), FileAccess::WriteFile), &mut lines);
        add(&mut remaining, &need(Path::new("/no-such-file.log"), FileAccess::WriteFile), &mut lines);
        assert!(path("logs").is_dir(), "a folder that is missing is made");
        assert!(matches!(&lines[..], [Line::Warning(text)] if text.contains("root folder")), "{lines:?}");
        for (name, access, expected) in [
            ("logs/other.log", FileAccess::WriteFile, true),
            ("logs/deep/other.log", FileAccess::WriteFile, true),
            ("logs/../read/x", FileAccess::WriteFile, false),
            ("logs.old/other.log", FileAccess::WriteFile, false),
            ("read/x", FileAccess::ReadFile, true),
            ("logs/x", FileAccess::ReadFile, true),
            ("read/x", FileAccess::Execute, false),
            ("x", FileAccess::ReadFile, false),
        ] {
            assert_eq!(covers(&remaining, &need(&path(name), access)), expected, "{name}");
        }
    }
}
