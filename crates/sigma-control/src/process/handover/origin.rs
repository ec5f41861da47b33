//! How this process was started, and by whom: a predecessor whose place it takes, a parent that watches it, a service
//! manager, or an operator.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::process::getppid;
use sigma_net::descriptors;

use super::channel::{Channel, say_now};
use super::failed;
use crate::process::program::Program;
use crate::process::systemd;

/// The variable that says which descriptors are the channels, and who has left them open. It counts for a child of
/// that process only, not for programs that this one starts.
const VARIABLE: &str = "SIGMA_STARTED_BY";

/// How this process was started, and by whom.
#[derive(Debug)]
pub struct Origin {
    /// What was started.
    pub(crate) program: Program,
    /// The channel to the process whose place this one takes.
    predecessor: Option<OwnedFd>,
    /// The channel to the process that watches this one.
    parent: Option<OwnedFd>,
    /// The sockets that a service manager has bound, until they are taken.
    sockets: Mutex<Vec<OwnedFd>>,
}

/// The channels to them.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) predecessor: Option<Channel>,
    pub(crate) parent: Option<Channel>,
}

impl Origin {
    /// Reads the environment. To be called once, before anything else is opened.
    ///
    /// # Errors
    /// Returns an error if it names channels that are not there.
    pub fn of_environment() -> io::Result<Origin> {
        let (program, sockets) = (Program::of_this_process()?, systemd::sockets()?);
        let none = Origin { program, predecessor: None, parent: None, sockets: Mutex::new(sockets) };
        let Some(text) = std::env::var(VARIABLE).ok() else { return Ok(none) };
        let Some(numbers) = Numbers::read(&text) else {
            let text = format!("Sigma uses the environment variable {VARIABLE} itself; remove it");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        // It was meant for the process that has started the one that has started this.
        if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != numbers.by) {
            return Ok(none);
        }
        let adopt = |number: Option<RawFd>| number.map(descriptors::adopt).transpose();
        Ok(Origin { predecessor: adopt(numbers.predecessor)?, parent: adopt(numbers.parent)?, ..none })
    }

    /// Whether this process replaces another one.
    pub fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// The folder of the program that was started.
    pub(crate) fn program_folder(&self) -> PathBuf {
        self.program.path().parent().unwrap_or(Path::new("/")).to_owned()
    }

    /// Takes the sockets that a service manager has bound for this process. A second call returns none: another handle
    /// would keep a port open whose listener is closed, and its clients would wait.
    pub(crate) fn take_sockets(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut *self.sockets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether another process of Sigma has started this one, and waits for it.
    pub fn has_starter(&self) -> bool {
        self.predecessor.is_some() || self.parent.is_some()
    }

    /// Whether a parent watches this process.
    pub fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Reports to the waiting process why this one ends instead.
    pub fn failed(&self, why: &str) {
        if let Some(predecessor) = &self.predecessor {
            // Its end is seen as well.
            let _ = say_now(predecessor, &failed(why));
        }
    }

    /// The channels. Within a runtime.
    pub(crate) fn links(&self) -> io::Result<Links> {
        let link =
            |end: &Option<OwnedFd>| end.as_ref().map(|end| Channel::over(end.try_clone()?)).transpose();
        Ok(Links { predecessor: link(&self.predecessor)?, parent: link(&self.parent)? })
    }
}

/// Lets the program that `command` starts have these channels, for as long as the descriptors live.
///
/// # Errors
/// Returns the error of the operating system.
pub(crate) fn left_open(
    command: &mut Command,
    predecessor: Option<&OwnedFd>,
    parent: Option<&OwnedFd>,
) -> io::Result<()> {
    for end in [predecessor, parent].into_iter().flatten() {
        descriptors::leave_open(end)?;
    }
    let number = |end: Option<&OwnedFd>| end.map(AsRawFd::as_raw_fd);
    let by = rustix::process::getpid().as_raw_nonzero().get();
    let numbers = Numbers { by, predecessor: number(predecessor), parent: number(parent) };
    command.env(VARIABLE, numbers.write());
    Ok(())
}

/// The text of the variable: `by=PID predecessor=N parent=N`.
#[derive(Debug, PartialEq, Eq)]
struct Numbers {
    by: i32,
    predecessor: Option<RawFd>,
    parent: Option<RawFd>,
}

impl Numbers {
    fn read(text: &str) -> Option<Numbers> {
        let (mut by, mut predecessor, mut parent) = (None, None, None);
        for word in text.split(' ') {
            let (name, number) = word.split_once('=')?;
            let place = match name {
                "by" => &mut by,
                "predecessor" => &mut predecessor,
                "parent" => &mut parent,
                _ => return None,
            };
            *place = Some(number.parse().ok()?);
        }
        Some(Numbers { by: by?, predecessor, parent })
    }

    fn write(&self) -> String {
        let mut text = format!("by={}", self.by);
        for (name, number) in [("predecessor", self.predecessor), ("parent", self.parent)] {
            if let Some(number) = number {
                text.push_str(&format!(" {name}={number}"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_reads_as_it_was_written() {
        for (predecessor, parent) in [(None, None), (Some(7), None), (None, Some(8)), (Some(7), Some(8))] {
            let numbers = Numbers { by: 42, predecessor, parent };
            assert_eq!(Numbers::read(&numbers.write()), Some(numbers));
        }
        for text in
            ["", "by", "by=x", "predecessor=7", "by=1 other=2", "by=1  parent=2", "by=1 parent=99999999999"]
        {
            assert_eq!(Numbers::read(text), None, "{text:?}");
        }
    }
}
