//! Orders to a running process: reload, reopen, stop, upgrade.
//!
//! An order needs the process and nothing else. So of the configuration only `pid_file` is read, and any other mistake in
//! it is no obstacle.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal as SignalNumber, geteuid, kill_process, pidfd_open};
use sigma_control::{holder_of, known_pid_files};

use crate::args::{DEFAULT_FILE, Signal};
use crate::outcome::Outcomes;

/// How long a reload may take before the command gives up on its outcome.
const RELOAD_LIMIT: Duration = Duration::from_secs(60);

/// The limit of an upgrade: longer than the default of `process.upgrade_timeout_ms`.
const UPGRADE_LIMIT: Duration = Duration::from_secs(180);

/// How long a pid file may be without a lock while a successor replaces a gateway.
const HANDOVER: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(10);

/// Largest configuration that is searched for `pid_file`.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Requests a reload and waits for its outcome.
pub(crate) fn reload(args: &Signal) -> Result<ExitCode> {
    order(process_of(args)?, SignalNumber::HUP, "reload", RELOAD_LIMIT).map_err(|refusal| match refusal {
        Refusal::Refused(problem) => {
            anyhow!("the reload failed and the old configuration stays in force:\n{problem}")
        }
        Refusal::Other(error) => error,
    })
}

/// Requests an upgrade and waits for its outcome.
pub(crate) fn upgrade(args: &Signal) -> Result<ExitCode> {
    order(process_of(args)?, SignalNumber::USR2, "upgrade", UPGRADE_LIMIT).map_err(|refusal| match refusal {
        Refusal::Refused(problem) => {
            anyhow!("the upgrade failed and the old process keeps serving:\n{problem}")
        }
        Refusal::Other(error) => error,
    })
}

/// Has a process finish its open exchanges and end.
pub(crate) fn stop(args: &Signal) -> Result<ExitCode> {
    let pid = process_of(args)?;
    tell(pid, SignalNumber::TERM)?;
    println!("process {} finishes its open requests and then ends", pid.as_raw_nonzero());
    Ok(ExitCode::SUCCESS)
}

/// Has a process open its log files again.
pub(crate) fn reopen(args: &Signal) -> Result<ExitCode> {
    let pid = process_of(args)?;
    tell(pid, SignalNumber::USR1)?;
    println!("process {} opens its log files again", pid.as_raw_nonzero());
    Ok(ExitCode::SUCCESS)
}

/// The process that a command is for.
fn process_of(args: &Signal) -> Result<Pid> {
    let number = match (args.pid, &args.pid_file) {
        (Some(pid), _) => pid,
        (None, Some(file)) => number_in(file)?,
        (None, None) => running(args.conf.as_deref())?,
    };
    Pid::from_raw(number).filter(|_| number > 0).ok_or_else(|| anyhow!("{number} is not a process id"))
}

/// The id of the gateway that runs with a configuration.
fn running(conf: Option<&Path>) -> Result<i32> {
    const HOW: &str = "name the process with --pid or its pid file with --pid-file";
    let path = conf.unwrap_or(Path::new(DEFAULT_FILE));
    let text = std::fs::read_to_string(path);
    let is_missing = text.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let named = text.ok().and_then(|text| {
        let env = |name: &str| std::env::var(name).ok();
        sigma_config::pid_file_of(&text, &env, FILE_BYTES_MAX)
    });
    let files: Vec<PathBuf> = named.iter().cloned().chain(known_pid_files(path)).collect();
    for file in &files {
        match held(file) {
            Ok(Some(pid)) => return Ok(pid),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot use the pid file {}", file.display()));
            }
        }
    }
    Err(match (named, conf) {
        (None, None) if is_missing => anyhow!(
            "which process? {HOW}, or name its configuration with -c; there is no {DEFAULT_FILE} here"
        ),
        (Some(file), _) => {
            anyhow!("no gateway runs with the pid file {} of {}; {HOW}", file.display(), path.display())
        }
        (None, _) => {
            anyhow!("{} sets no `pid_file`, so its process is unknown; {HOW}", path.display())
        }
    })
}

/// The process that has a pid file; None if it has ended.
fn held(file: &Path) -> std::io::Result<Option<i32>> {
    let end = Instant::now() + HANDOVER;
    loop {
        if let Some((pid, owner)) = holder_of(file)? {
            // Root would signal any process that another user writes there.
            if geteuid().is_root() && owner != 0 && user_of(pid).is_some_and(|user| user != owner) {
                return Err(std::io::Error::other(format!(
                    "the file belongs to user {owner}, but process {pid} belongs to another user"
                )));
            }
            return Ok(Some(pid));
        }
        // A file whose process is gone will have no other one.
        let is_alive = number_in(file).ok().and_then(Pid::from_raw).is_some_and(is_alive);
        if !is_alive || Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

fn is_alive(pid: Pid) -> bool {
    !matches!(rustix::process::test_kill_process(pid), Err(Errno::SRCH))
}

/// The user of a process, where that can be seen.
fn user_of(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn number_in(file: &Path) -> Result<i32> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the pid file {}", file.display()))?;
    text.trim().parse().with_context(|| format!("the pid file {} contains no process id", file.display()))
}

fn tell(pid: Pid, signal: SignalNumber) -> Result<()> {
    let number = pid.as_raw_nonzero();
    kill_process(pid, signal).map_err(|error| match error {
        Errno::SRCH => anyhow!("there is no process {number}: the gateway has ended"),
        Errno::PERM => {
            anyhow!("process {number} belongs to another user; run this command as that user or as root")
        }
        error => anyhow!("cannot signal process {number}: {}", std::io::Error::from(error)),
    })
}

/// The reason for which an order was not carried out.
enum Refusal {
    /// That of the process.
    Refused(String),
    /// The process cannot be reached, or does not report.
    Other(anyhow::Error),
}

/// Sends the signal of an order, and waits for its outcome, which is printed.
fn order(pid: Pid, signal: SignalNumber, name: &str, limit: Duration) -> Result<ExitCode, Refusal> {
    let number = pid.as_raw_nonzero().get();
    let process = pidfd_open(pid, PidfdFlags::empty()).ok();
    let told = Outcomes::of(number);
    let before = told.as_ref().and_then(Outcomes::last);
    tell(pid, signal).map_err(Refusal::Other)?;
    let (Some(told), Some(before)) = (told, before) else {
        eprintln!("process {number} got the signal to {name}; its error log has the outcome");
        return Ok(ExitCode::SUCCESS);
    };
    let end = Instant::now() + limit;
    while Instant::now() < end {
        // In this order: a process may write its outcome and end.
        let has_ended = has_ended(process.as_ref());
        match told.last() {
            Some(last) if last.orders > before.orders => {
                return match last.result {
                    Ok(note) => {
                        println!("{}", if note.is_empty() { format!("{name}: done") } else { note });
                        Ok(ExitCode::SUCCESS)
                    }
                    Err(problem) => Err(Refusal::Refused(problem)),
                };
            }
            _ if has_ended => return Err(Refusal::Other(anyhow!("the process {number} has ended"))),
            _ => std::thread::sleep(PAUSE),
        }
    }
    let seconds = limit.as_secs();
    Err(Refusal::Other(anyhow!("the process {number} has not done it within {seconds} seconds: {name}")))
}

/// Whether a process is no more, or only waits for its parent to see that. Not by `/proc`: a process that is not dumpable
/// is not to be seen there with `hidepid`, as under `ProtectProc=invisible` of a unit.
fn has_ended(process: Option<&OwnedFd>) -> bool {
    let Some(process) = process else { return true };
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
