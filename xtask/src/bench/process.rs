//! Processes pinned to a core: start, account, end.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::contender::Programs;
use super::launch::Running;

/// The core of the gateway under measurement.
pub(super) const GATEWAY_CORE: u32 = 0;
/// The core that load generator and origin share.
pub(super) const LOAD_CORE: u32 = 1;

/// How long a process may take to end after SIGTERM before it is killed: Sigma and Envoy may drain first.
const END_LIMIT: Duration = Duration::from_secs(3);
/// How long the kernel's clock ticks in `/proc/PID/stat` are: 100 a second on every Linux (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// A child process bound to one core. Dropping it ends it and waits for it.
pub(super) struct Pinned {
    child: Child,
}

impl Pinned {
    /// Starts `command` on `core`, its output going to `log`. The child also ends when this process dies.
    pub(super) fn start(core: u32, command: &[String], log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = pinned(core, command)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| {
                format!("cannot start {}: is util-linux (setpriv, taskset) there?", command[0])
            })?;
        Ok(Self { child })
    }

    /// Returns the id of the command itself, as the program that binds it to the core becomes the command.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time, user and system, that the process and its descendants have used so far.
    pub(super) fn cpu(&self) -> Duration {
        let ticks: u64 = self.family().iter().filter_map(|&pid| ticks(pid)).sum();
        TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// Resident memory of the process and its descendants in KiB; pages they share count once (PSS).
    pub(super) fn memory_kib(&self) -> u64 {
        let resident = |&pid: &u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            text.lines()
                .find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<u64>().ok())
        };
        self.family().iter().filter_map(resident).sum()
    }

    /// Fails if the process has ended.
    pub(super) fn expect_alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("it ended with {status}"),
            None => Ok(()),
        }
    }

    /// The process and all its descendants.
    fn family(&self) -> Vec<u32> {
        let all: Vec<(u32, u32)> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Some((pid, stat_field(pid, PARENT)?.try_into().ok()?)))
            .collect();
        let mut family = vec![self.child.id()];
        let mut next = 0;
        while let Some(&parent) = family.get(next) {
            family.extend(all.iter().filter(|&&(_, its_parent)| its_parent == parent).map(|&(pid, _)| pid));
            next += 1;
        }
        family
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Only ever this child, by its id: it has not been waited for, so the id is still its own.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let end = Instant::now() + END_LIMIT;
        while Instant::now() < end {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns `command` bound to `core`, which ends when its parent does.
pub(super) fn pinned(core: u32, command: &[String]) -> Command {
    let mut pinned = Command::new("setpriv");
    pinned.args(["--pdeathsig", "TERM", "taskset", "-c", &core.to_string()]).args(command);
    pinned
}

/// Places in `/proc/PID/stat`, counted after the closing parenthesis of the name (proc(5), fields 4, 14 and 15).
const PARENT: usize = 1;
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;

fn stat_field(pid: u32, place: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and parentheses, so fields are counted from the last one.
    text.rsplit_once(')')?.1.split_whitespace().nth(place)?.parse().ok()
}

fn ticks(pid: u32) -> Option<u64> {
    Some(stat_field(pid, USER_TICKS)? + stat_field(pid, SYSTEM_TICKS)?)
}

/// Returns a free loopback port.
pub(super) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Starts the origin and waits until it responds.
pub(super) fn origin(programs: &Programs, work: &Path) -> anyhow::Result<Running> {
    let port = free_port()?;
    let command = [programs.origin.display().to_string(), port.to_string()];
    let mut process = Pinned::start(LOAD_CORE, &command, &work.join("origin.log"))?;
    await_answer(&mut process, port, "", Duration::from_secs(5)).context("the origin does not answer")?;
    Ok(Running { process, port })
}

/// Polls `port` until it accepts a connection.
pub(super) fn await_listening(process: &mut Pinned, port: u16, limit: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(());
        }
        process.expect_alive()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("no listener on port {port} within {limit:?}")
}

/// Polls `port` until a request on a new connection gets 200; gives the time that took.
///
/// The request has further `fields`, each with its line end.
pub(super) fn await_answer(
    process: &mut Pinned,
    port: u16,
    fields: &str,
    limit: Duration,
) -> anyhow::Result<Duration> {
    let request = format!("GET /r/0/x HTTP/1.1\r\nHost: bench.local\r\n{fields}Connection: close\r\n\r\n");
    let start = Instant::now();
    while start.elapsed() < limit {
        if answers(port, &request) {
            return Ok(start.elapsed());
        }
        process.expect_alive()?;
        std::thread::sleep(Duration::from_micros(200));
    }
    bail!("no 200 on port {port} within {limit:?}")
}

fn answers(port: u16, request: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(request.as_bytes())?;
        let mut start = [0; 12];
        stream.read_exact(&mut start)?;
        Ok(&start == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}
