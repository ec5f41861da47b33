//! A gateway process under test.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::notifications::Notifications;
use crate::peer::Peer;
use crate::ports::{self, free_port};
use crate::socket::Address;
use crate::{DEADLINE, process, secrets, until};

/// Generous, because a debug build starts on a loaded machine.
const START: Duration = Duration::from_secs(20);

/// A running gateway with its own folder. Dropping it kills the process; when the test is
/// panicking, its stderr is printed first. A log that holds a secret of any configuration fails the test.
#[derive(Debug)]
pub struct Gateway {
    /// The binary and its options.
    program: Vec<String>,
    child: Child,
    notifications: Notifications,
    dir: TempDir,
    config: PathBuf,
    ports: Ports,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    listen: u16,
    status: u16,
    admin: u16,
    control: u16,
}

/// The standard streams, through which a gateway gets listening sockets.
const STREAMS: usize = 3;

impl Ports {
    fn choose() -> Ports {
        Ports { listen: free_port(), status: free_port(), admin: free_port(), control: free_port() }
    }

    /// Binds the addresses that `config` names, for the gateway: none when it starts can be taken by another process.
    ///
    /// A configuration with `{port}` binds that port itself, perhaps on another address. Only three sockets fit.
    fn bind(self, config: &str) -> Result<Vec<TcpListener>> {
        let names_port = config.contains("{port}");
        let places = [
            ("{listen}", self.listen),
            ("{admin}", self.admin),
            ("{status}", self.status),
            ("{control}", self.control),
        ];
        let named = places.into_iter().filter(|(place, _)| config.contains(place));
        let bound = named.filter(|(place, _)| !(names_port && *place == "{listen}")).take(STREAMS);
        bound
            .map(|(place, port)| ports::bind(port).with_context(|| format!("{place} is the port {port}")))
            .collect()
    }
}

impl Gateway {
    /// Starts `binary run -c FILE` on `config` and waits until it serves.
    ///
    /// In `config`, `{listen}` becomes the gateway's address (`127.0.0.1:port`), `{port}` its port,
    /// `{status}`, `{admin}` and `{control}` addresses for the status listener, the Admin API and the
    /// Control API, and `{dir}` the gateway's folder. `SIGMA_IO=io_uring` runs all gateways on it, and `SIGMA_SANDBOX=full`
    /// in the sandbox unless they have settings of the process.
    pub fn start(binary: &str, config: &str) -> Result<Gateway> {
        Gateway::start_file(binary, "sigma.yaml", config)
    }

    /// Starts it with this name of the file, which may matter to the format.
    pub fn start_file(binary: &str, name: &str, config: &str) -> Result<Gateway> {
        Gateway::start_program(&[binary], name, config)
    }

    /// Starts it with an option of `run`.
    pub fn start_with(binary: &str, option: &str, config: &str) -> Result<Gateway> {
        Gateway::start_program(&[binary, option], "sigma.yaml", config)
    }

    fn start_program(program: &[&str], name: &str, config: &str) -> Result<Gateway> {
        let dir = tempfile::tempdir().context("temporary folder")?;
        let path = dir.path().join(name);
        let config = match std::env::var("SIGMA_IO") {
            Ok(io) if name == "sigma.yaml" => with_io(config, &io),
            _ => config.to_owned(),
        };
        let config = match std::env::var("SIGMA_SANDBOX") {
            Ok(sandbox) if name == "sigma.yaml" => with_sandbox(&config, &sandbox),
            _ => config,
        };
        secrets::note(&config);
        let ports = Ports::choose();
        fs::write(&path, fill(&config, ports, dir.path()))?;
        let program: Vec<String> = program.iter().map(|&part| part.to_owned()).collect();
        let notifications = Notifications::bind()?;
        let child = run(&program, &path, dir.path(), &notifications, ports.bind(&config)?)?;
        let mut gateway = Gateway { program, child, notifications, dir, config: path, ports };
        gateway.await_ready()?;
        Ok(gateway)
    }

    /// Kills it with `kill -9`, like a power failure. Its folder stays for [`Gateway::start_again`].
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends `kill -9` while others still use it; [`Gateway::kill`] waits for its end.
    pub fn strike(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    /// Starts it again on its folder and ports, after it has ended; its output is the output of this run.
    pub fn start_again(&mut self) -> Result<()> {
        self.notifications.received().clear();
        // It binds its ports itself, which no other process takes meanwhile: they belong to this test program.
        self.child = run(&self.program, &self.config, self.dir.path(), &self.notifications, Vec::new())?;
        self.await_ready()
    }

    /// Stops it at any point (SIGSTOP).
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues it.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn await_ready(&mut self) -> Result<()> {
        let mut exited = None;
        let serves = until(START, || {
            exited = self.child.try_wait().ok().flatten();
            exited.is_some() || self.notifications.received().contains("READY=1")
        });
        match exited {
            Some(status) => bail!("the gateway ended with {status}:\n{}", self.stderr()),
            None => ensure!(serves, "the gateway is not ready after {START:?}:\n{}", self.stderr()),
        }
        Ok(())
    }

    /// Waits for a notification to the service manager that begins so; it and earlier ones do not count again.
    pub fn notifies(&self, line: &str) -> bool {
        until(START, || self.notifications.take(line))
    }

    /// Returns the notifications to the service manager that no call of [`Gateway::notifies`] has waited for.
    pub fn notifications(&self) -> String {
        self.notifications.received().clone()
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> Address {
        Address::loopback(self.ports.listen)
    }

    /// Returns the address of its status listener, if the configuration used `{status}`.
    pub fn status_address(&self) -> Address {
        Address::loopback(self.ports.status)
    }

    /// Returns the address of its Admin API, if the configuration used `{admin}`.
    pub fn admin_address(&self) -> Address {
        Address::loopback(self.ports.admin)
    }

    /// Returns the address of its Control API, if the configuration used `{control}`.
    pub fn control_address(&self) -> Address {
        Address::loopback(self.ports.control)
    }

    /// Opens a new client connection.
    pub fn connect(&self) -> Result<Peer> {
        Peer::connect(&self.address())
    }

    /// Returns the folder with its configuration and relative files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns its process id: of the first process, or of its successor if the configuration has a `pid_file:
    /// {dir}/sigma.pid`.
    pub fn pid(&self) -> u32 {
        self.pid_in_file().unwrap_or_else(|| self.child.id())
    }

    fn pid_in_file(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.dir.path().join("sigma.pid")).ok()?.trim().parse().ok()?;
        // Another process may have the number by now.
        runs_with(pid, self.dir.path()).then_some(pid)
    }

    /// Requests an upgrade (SIGUSR2). It happens later; poll for its effect.
    pub fn upgrade(&self) -> Result<()> {
        self.signal(Signal::USR2)
    }

    /// Returns its output on stderr so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }

    /// Waits until its output on stderr contains a text.
    ///
    /// # Panics
    /// It does not; with the whole output.
    pub fn await_log(&self, text: &str) {
        assert!(
            until(DEADLINE, || self.stderr().contains(text)),
            "no `{text}` in the log:\n{}",
            self.stderr()
        );
    }

    /// Returns the number of a counter on the page of its status listener. The name ends with the labels, if it has any.
    ///
    /// # Panics
    /// There is no such counter.
    pub fn counter(&self, name: &str) -> u64 {
        let page =
            Peer::connect(&self.status_address()).and_then(|mut status| status.get("/status/counters"));
        let page = page.expect("the page of counters").text();
        let start = format!("{name} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name} is missing in\n{page}"))
    }

    /// Returns its output on stdout so far.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.dir.path().join("stdout")).unwrap_or_default()
    }

    /// Replaces the configuration file; placeholders keep their values.
    pub fn rewrite(&self, config: &str) -> Result<()> {
        // Written aside and moved, as an operator's tool would, so that no reload reads half a file.
        let aside = self.config.with_extension("new");
        secrets::note(config);
        fs::write(&aside, fill(config, self.ports, self.dir.path()))?;
        Ok(fs::rename(aside, &self.config)?)
    }

    /// Requests a reload (SIGHUP). It happens later; poll for its effect.
    pub fn reload(&self) -> Result<()> {
        self.signal(Signal::HUP)
    }

    /// Asks it to reopen its log files (SIGUSR1).
    pub fn reopen_logs(&self) -> Result<()> {
        self.signal(Signal::USR1)
    }

    /// Asks it to drain and end (SIGTERM).
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Drains and waits for the end.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.terminate()?;
        self.wait(START)
    }

    /// Waits until the process has ended by itself.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let mut status = None;
        until(limit, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        status.with_context(|| format!("still running after {limit:?}:\n{}", self.stderr()))
    }

    /// Returns the peak resident memory in KiB, from `/proc`.
    pub fn peak_memory_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Returns the same once it has not grown for a quarter of a second: parts of a gateway start after it listens,
    /// even later on a busy machine, and must not count as growth in a test.
    pub fn settled_memory_kib(&self) -> Result<u64> {
        let (mut last, mut since) = (self.peak_memory_kib()?, Instant::now());
        let is_settled = until(START, || {
            let now = self.peak_memory_kib().unwrap_or(0);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_millis(250)
        });
        ensure!(is_settled, "the gateway grew for {START:?}, to {last} KiB:\n{}", self.stderr());
        Ok(last)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid())?;
        let pid = Pid::from_raw(pid).context("process id 0")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already; another failure cannot be reported here.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its successors, and the gateways of a parent, would continue without it; one may be starting another.
        until(START, || match runs_in(self.dir.path()) {
            Some(pid) => kill_process(pid, Signal::KILL).is_err(),
            None => true,
        });
        if std::thread::panicking() {
            eprintln!("--- stderr of the gateway\n{}", self.stderr());
            return;
        }
        let leaked = secrets::leaked(self.dir.path());
        assert!(leaked.is_empty(), "logs hold secrets of configurations: {leaked:?}");
    }
}

/// Returns the running processes that the main thread of `pid` has started.
pub fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| !command_line(*pid).is_empty()).collect()
}

/// Returns the command line of a process, which every user may read; the links in `/proc/PID` of a process that is
/// not dumpable are for root alone. Empty if it has ended.
fn command_line(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// Returns true if a process was started with a file in this folder, which is a test's own.
fn runs_with(pid: u32, dir: &Path) -> bool {
    let (line, mut dir) = (command_line(pid), dir.as_os_str().as_encoded_bytes().to_vec());
    dir.push(b'/');
    line.windows(dir.len()).any(|part| part == dir)
}

/// Returns a process that works in this folder, which is a test's own, or a gateway that was started with a file in
/// it.
fn runs_in(dir: &Path) -> Option<Pid> {
    let mut pids = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let works_here = |pid: u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir);
    let pid = pids.find(|pid| works_here(*pid) || (is_program(*pid) && runs_with(*pid, dir)))?;
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Returns true if a process is one of Sigma's: the clients of a test have paths of its folder as arguments, too.
fn is_program(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sigma"))
}

/// Starts a gateway with these listening sockets.
///
/// A socket that other processes of the test must not get closes on exec, so a child gets it only as a standard
/// stream. A shell moves the streams to the descriptors of `LISTEN_FDS`, and opens the real ones.
fn run(
    program: &[String],
    config: &Path,
    dir: &Path,
    notifications: &Notifications,
    sockets: Vec<TcpListener>,
) -> Result<Child> {
    const SCRIPTS: [&str; STREAMS + 1] = [
        "exec </dev/null",
        "exec 3<&0 </dev/null",
        "exec 3<&0 4<&1 </dev/null",
        "exec 3<&0 4<&1 5<&2 </dev/null",
    ];
    let (binary, options) = program.split_first().context("no binary is named")?;
    let count = sockets.len();
    let move_sockets = SCRIPTS[count];
    let mut streams = sockets.into_iter().map(|socket| Stdio::from(OwnedFd::from(socket)));
    let mut next = || streams.next().unwrap_or_else(Stdio::null);
    let mut command = process::command("sh")?;
    command
        .arg("-c")
        .arg(format!(
            "{move_sockets} >\"$1\" 2>\"$2\"; shift 2; export LISTEN_PID=$$ LISTEN_FDS={count}; exec \"$@\""
        ))
        .arg("sh")
        .args([dir.join("stdout"), dir.join("stderr")])
        .args([OsStr::new(binary), OsStr::new("run"), OsStr::new("-c"), config.as_os_str()])
        .args(options)
        .current_dir(dir)
        // The default pid file is in the folder of the test, too.
        .env("RUNTIME_DIRECTORY", dir.join("run"))
        .env("NOTIFY_SOCKET", notifications.path())
        .stdin(next())
        .stdout(next())
        .stderr(next());
    process::spawn(command).with_context(|| format!("start {binary}"))
}

/// Returns `config` with the setting `io`, in YAML or JSON, unless it has it.
fn with_io(config: &str, io: &str) -> String {
    if config.lines().any(|line| line.trim_start().starts_with("io:")) {
        return config.to_owned();
    }
    with_setting(config, "io", &format!("\"{io}\""))
}

/// Returns `config` with a sandbox, unless it has settings of the process.
fn with_sandbox(config: &str, sandbox: &str) -> String {
    if config.contains("process:") || config.contains("\"process\":") {
        return config.to_owned();
    }
    with_setting(config, "process", &format!("{{ \"sandbox\": \"{sandbox}\" }}"))
}

/// Returns `config`, in YAML or JSON, with a setting, whose value is JSON.
fn with_setting(config: &str, name: &str, value: &str) -> String {
    if let Some(rest) = config.trim_start().strip_prefix('{') {
        return format!("{{ \"{name}\": {value}, {rest}");
    }
    let first = config.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let indent = &first[..first.len() - first.trim_start().len()];
    format!("{indent}{name}: {value}\n{config}")
}

fn fill(config: &str, ports: Ports, dir: &Path) -> String {
    config
        .replace("{listen}", &format!("127.0.0.1:{}", ports.listen))
        .replace("{port}", &ports.listen.to_string())
        .replace("{status}", &format!("127.0.0.1:{}", ports.status))
        .replace("{admin}", &format!("127.0.0.1:{}", ports.admin))
        .replace("{control}", &format!("127.0.0.1:{}", ports.control))
        .replace("{dir}", &dir.display().to_string())
}
