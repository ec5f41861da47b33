//! The program that this process runs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that this process runs, and how it was started.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    /// Where relative paths among the arguments begin.
    folder: PathBuf,
}

impl Program {
    /// This process's; to be called before it goes to another folder. A path that was given at its start is
    /// resolved again at each start, so that a replaced file, or a link that leads elsewhere since, is used
    /// then.
    ///
    /// # Errors
    /// Returns an error if the system does not say which program this is.
    pub(crate) fn of_this_process() -> io::Result<Program> {
        let mut arguments = std::env::args_os();
        let name = PathBuf::from(arguments.next().unwrap_or_default());
        let path = if name.components().count() > 1 {
            std::path::absolute(name)?
        } else {
            in_path(&name).map_or_else(std::env::current_exe, Ok)?
        };
        Ok(Program { path, arguments: arguments.collect(), folder: std::env::current_dir()? })
    }

    /// The command that starts it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).current_dir(&self.folder);
        command
    }

    /// Returns its arguments, without its own name.
    pub(crate) fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Where a shell has found the program of this name.
fn in_path(name: &Path) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.filter(|_| !name.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_named_by_a_path() {
        let program = Program::of_this_process().unwrap();
        assert!(program.path().is_absolute() && program.path().is_file(), "{program:?}");
        assert!(in_path(Path::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(in_path(Path::new("no-such-program-anywhere")), None);
        assert_eq!(in_path(Path::new("")), None);
    }
}
