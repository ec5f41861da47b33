//! Landlock: a thread, and each thread that it starts later, can access only the files that it has named.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The requested version of the rights (Linux 6.10). An older kernel enforces the part that it supports.
const KNOWN: ABI = ABI::V5;

/// The minimum version of the rights. With an older version (before Linux 5.19), a restricted process cannot move a
/// file between folders, which the disk cache needs.
const NEEDED: ABI = ABI::V2;

/// The files and folders that stay accessible. A folder includes its whole content. A rule belongs to the file or
/// folder itself, not to its path: a replacement has no rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Readable paths.
    pub read: Vec<PathBuf>,
    /// Readable and executable paths.
    pub execute: Vec<PathBuf>,
    /// Paths with all rights: read, write, create and remove.
    pub write: Vec<PathBuf>,
    /// Blocks signals to other processes (Linux 6.12).
    pub scoped_signals: bool,
}

/// The enforced part of a restriction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforced {
    /// All of it
    Fully,
    /// The part that the kernel supports
    Partly,
    /// Nothing, for this reason
    Not(String),
}

/// Restricts the calling thread and the threads and programs that it starts from now on. It cannot be undone. It also
/// removes the right to gain privileges by executing a file.
///
/// A missing path is omitted.
///
/// # Errors
/// Returns the reason if the kernel has Landlock and refuses the restriction.
pub fn restrict(remaining: &Remaining) -> Result<Enforced, String> {
    let needed = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(NEEDED));
    let ruleset = match needed {
        Ok(ruleset) => ruleset.set_compatibility(CompatLevel::BestEffort),
        Err(error) => return Ok(Enforced::Not(format!("{error}; Linux 5.19 with Landlock has it"))),
    };
    let status = created(ruleset, remaining).and_then(RulesetCreated::restrict_self);
    match status.map_err(|error| error.to_string())?.ruleset {
        RulesetStatus::FullyEnforced => Ok(Enforced::Fully),
        RulesetStatus::PartiallyEnforced => Ok(Enforced::Partly),
        RulesetStatus::NotEnforced => Ok(Enforced::Not("the kernel does not enforce it".to_owned())),
    }
}

fn created(ruleset: Ruleset, remaining: &Remaining) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset = ruleset.handle_access(AccessFs::from_all(KNOWN))?;
    if remaining.scoped_signals {
        ruleset = ruleset.scope(Scope::Signal)?;
    }
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::from_all(KNOWN) & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock);
    let rights =
        [(&remaining.read, read), (&remaining.execute, read | AccessFs::Execute), (&remaining.write, write)];
    let mut ruleset = ruleset.create()?;
    for (paths, rights) in rights {
        for path in paths {
            ruleset = allowed(ruleset, path, rights)?;
        }
    }
    Ok(ruleset)
}

fn allowed(
    ruleset: RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(place) = PathFd::new(path) else { return Ok(ruleset) };
    let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(KNOWN) };
    ruleset.add_rule(PathBeneath::new(place, rights))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    /// In a separate thread: the restriction lasts as long as the thread.
    #[test]
    fn paths_outside_are_denied() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["read", "write", "outside"] {
            fs::create_dir(path(folder)).unwrap();
            fs::write(path(folder).join("file"), "x").unwrap();
        }
        fs::write(path("alone"), "x").unwrap();
        let remaining = Remaining {
            read: vec![path("read"), path("missing")],
            write: vec![path("write"), path("alone")],
            ..Remaining::default()
        };
        std::thread::scope(|scope| {
            let restricted = scope.spawn(|| {
                match restrict(&remaining).unwrap() {
                    Enforced::Not(reason) => return eprintln!("not checked: {reason}"),
                    Enforced::Fully | Enforced::Partly => {}
                }
                let denied = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                assert_eq!(fs::read(path("read/file")).unwrap(), b"x");
                denied(fs::write(path("read/file"), "y").unwrap_err());
                denied(fs::read(path("outside/file")).unwrap_err());
                denied(fs::read_dir(path("outside")).map(drop).unwrap_err());
                denied(fs::write(path("outside/new"), "y").unwrap_err());
                denied(fs::remove_file(path("outside/file")).unwrap_err());
                fs::write(path("write/new"), "y").unwrap();
                fs::rename(path("write/new"), path("write/newer")).unwrap();
                fs::remove_file(path("write/newer")).unwrap();
                fs::write(path("alone"), "y").unwrap();
                denied(std::process::Command::new("/bin/true").status().unwrap_err());
                let of_child = std::thread::spawn({
                    let path = path("outside/file");
                    move || fs::read(path).unwrap_err()
                });
                denied(of_child.join().unwrap());
            });
            restricted.join().unwrap();
        });
        assert_eq!(fs::read(path("outside/file")).unwrap(), b"x", "other threads keep their rights");
    }
}
