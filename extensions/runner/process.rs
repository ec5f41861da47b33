//! The process of the runner: started with the gateway, restarted when it ends, stopped at the gateway's end.
//!
//! All of it is a task of the control thread.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use sigma_net::exec::end_with_starter;
use sigma_plugin::Node;
use sigma_plugin::runner_state::RunnerPhase;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::runner::Runner;
use crate::tokens::CONF_EXPIRE_S;

/// The pause before a restart; doubled as long as the runner ends soon after its start.
const PAUSE_S: u64 = 3;
/// The longest pause.
const PAUSE_MAX_S: u64 = 60;
/// A runner that ran for this time has started well.
const STEADY: Duration = Duration::from_secs(60);
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);
/// The time for the end of the process at the end of the gateway.
const END: Duration = Duration::from_secs(3);
/// How often the end of a process is looked for if no signal reports it.
const LOOK: Duration = Duration::from_secs(1);
/// The longest line of output that is logged, in bytes; the rest is dropped.
const LINE_MAX: usize = 1_024;
/// The most lines of output that are logged in a second; more are counted.
const LINES_PER_SECOND: u32 = 100;

/// Variables about sockets, and about the supervision of the gateway itself.
const NOT_FOR_RUNNERS: [&str; 8] = [
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "SIGMA_STARTED_BY",
    "SIGMA_GOES_ON",
];

/// Starts the runner, once, and keeps it running to the end of the gateway.
pub(crate) fn supervise(runner: &Arc<Runner>, node: &Node) {
    if !runner.is_to_be_started() {
        return;
    }
    let (end, ending) = watch::channel(false);
    let (done, over) = tokio::sync::oneshot::channel::<()>();
    let runner = Arc::clone(runner);
    node.spawn(async move {
        run(&runner, ending).await;
        drop(done);
    });
    node.at_end(async move {
        let _ = end.send(true);
        let _ = timeout(END, over).await;
    });
}

/// Runs one process after the other, until the gateway ends.
async fn run(runner: &Runner, mut ending: watch::Receiver<bool>) {
    let mut failures = 0;
    loop {
        let began = Instant::now();
        match start(runner) {
            Ok(started) => {
                let pid = started.child.id();
                runner.state.change(|facts| {
                    (facts.phase, facts.pid) = (RunnerPhase::Running, Some(pid));
                    (facts.starts, facts.pause_s) = (facts.starts + 1, None);
                });
                let ended = follow(runner, started, &mut ending).await;
                runner.tokens.drop_all();
                runner.state.change(|facts| {
                    (facts.phase, facts.pid) = (RunnerPhase::Waiting, None);
                    facts.last_end = Some(ended.clone());
                });
                if *ending.borrow() {
                    runner.socket().map(std::fs::remove_file);
                    return;
                }
                let output = runner.last_lines();
                tracing::error!(status = ended, output, "ext-plugin: the runner ended");
            }
            Err(reason) => {
                tracing::error!("ext-plugin.cmd: cannot start the runner: {reason}");
                runner.state.change(|facts| facts.last_end = Some(format!("not started: {reason}")));
            }
        }
        failures = if began.elapsed() < STEADY { failures + 1 } else { 1 };
        let pause = pause_after(failures);
        tracing::warn!("ext-plugin: the runner restarts in {} s", pause.as_secs());
        runner.state.change(|facts| facts.pause_s = Some(pause.as_secs()));
        tokio::select! {
            () = sleep(pause) => {}
            // The other side is kept until the end.
            _ = ending.wait_for(|is_ending| *is_ending) => return,
        }
    }
}

/// Returns the pause after this many ends in a row.
fn pause_after(failures: u32) -> Duration {
    let factor = 1u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_secs(PAUSE_S.saturating_mul(factor).min(PAUSE_MAX_S))
}

/// A process, and its output.
struct Started {
    child: Child,
    output: Receiver,
}

fn start(runner: &Runner) -> Result<Started, String> {
    let (Some((program, arguments)), Some(socket)) = (runner.command(), runner.socket()) else {
        return Err("it is empty".to_owned());
    };
    make_room(socket)?;
    let (output, input) = std::io::pipe().map_err(|error| error.to_string())?;
    let copy = input.try_clone().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("APISIX_LISTEN_ADDRESS", format!("unix:{}", socket.display()))
        .env("APISIX_CONF_EXPIRE_TIME", CONF_EXPIRE_S.to_string())
        .stdin(Stdio::null())
        .stdout(copy)
        .stderr(input)
        // So that it ends with all that it has started.
        .process_group(0);
    for name in NOT_FOR_RUNNERS {
        command.env_remove(name);
    }
    end_with_starter(&mut command);
    let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let output = Receiver::from_owned_fd(OwnedFd::from(output)).map_err(|error| error.to_string());
    tracing::info!(pid = child.id(), socket = %socket.display(), "ext-plugin: the runner started");
    output.map(|output| Started { child, output })
}

/// Makes the folder of the socket, which belongs to this user alone, and removes the socket of an earlier runner.
fn make_room(socket: &Path) -> Result<(), String> {
    let wrong = |reason: String| format!("{}: {reason}", socket.display());
    if let Some(folder) = socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // A failure shows when the folder is used.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let facts = std::fs::metadata(folder).map_err(|error| wrong(error.to_string()))?;
        let is_shared = facts.mode() & 0o022 != 0 && facts.mode() & 0o1000 == 0;
        if !facts.is_dir() || (facts.uid() != geteuid().as_raw() && facts.uid() != 0) || is_shared {
            return Err(wrong("other users can write to its folder".to_owned()));
        }
    }
    match std::fs::symlink_metadata(socket) {
        Ok(facts) if facts.file_type().is_socket() => {
            std::fs::remove_file(socket).map_err(|error| wrong(error.to_string()))
        }
        Ok(_) => Err(wrong("the file is not a socket".to_owned())),
        Err(_) => Ok(()),
    }
}

/// Copies the output of a process until it ends; returns the reason of its end. It is stopped at the end of the gateway.
async fn follow(runner: &Runner, started: Started, ending: &mut watch::Receiver<bool>) -> String {
    let Started { mut child, output } = started;
    let mut lines = std::pin::pin!(copy_lines(output, |line| runner.state.note(line)));
    let mut has_output = true;
    let status = {
        let mut end = std::pin::pin!(end_of(&mut child, ending));
        loop {
            tokio::select! {
                status = &mut end => break status,
                () = &mut lines, if has_output => has_output = false,
            }
        }
    };
    if has_output {
        // Others may hold the pipe for as long as they like.
        let _ = timeout(GRACE, lines).await;
    }
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Waits for the end of a process, which comes with the end of the gateway at the latest.
async fn end_of(child: &mut Child, ending: &mut watch::Receiver<bool>) -> std::io::Result<ExitStatus> {
    let id = child.id();
    tokio::select! {
        status = exit_of(child) => return status,
        _ = ending.wait_for(|is_ending| *is_ending) => {}
    }
    send(id, Signal::TERM);
    if let Ok(status) = timeout(GRACE, exit_of(child)).await {
        return status;
    }
    send(id, Signal::KILL);
    exit_of(child).await
}

/// Sends a signal to a process that was not waited for, and to all that it has started.
fn send(id: u32, signal: Signal) {
    if let Some(group) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process_group(group, signal);
    }
}

/// Waits for the end of a process.
async fn exit_of(child: &mut Child) -> std::io::Result<ExitStatus> {
    // Before the first look: an end in between is not missed.
    let mut ends = signal(SignalKind::child());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match &mut ends {
            Ok(ends) => drop(timeout(LOOK, ends.recv()).await),
            Err(_) => sleep(LOOK).await,
        }
    }
}

/// Copies lines into the error log until the output ends.
async fn copy_lines(mut output: impl AsyncRead + Unpin, note: impl Fn(&str)) {
    let (mut lines, mut buffer) = (Lines::default(), vec![0; 8 << 10]);
    loop {
        match output.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => lines.take(&buffer[..length], Instant::now(), &note),
        }
    }
    lines.end(Instant::now(), &note);
}

/// Output, cut into lines.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    /// The second, and the number of its lines.
    second: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], now: Instant, note: &impl Fn(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = LINE_MAX - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if piece.len() > text.len() {
                self.end(now, note);
            }
        }
    }

    /// Logs the line so far.
    fn end(&mut self, now: Instant, note: &impl Fn(&str)) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(line.trim_ascii_end());
        // Terminals follow control characters.
        let line = line.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}");
        if line.is_empty() {
            return;
        }
        note(&line);
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            (self.second, self.logged) = (Some(now), 0);
        }
        if self.logged >= LINES_PER_SECOND {
            self.left_out += 1;
            return;
        }
        self.logged += 1;
        match std::mem::take(&mut self.left_out) {
            0 => tracing::warn!("ext-plugin: {line}"),
            left_out => tracing::warn!(left_out, "ext-plugin: {line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::Value;
    use sigma_config::ext_plugin::ExtPlugin;

    use super::*;

    #[test]
    fn pauses_grow_while_a_runner_ends_soon() {
        let pauses: Vec<u64> = (1..8).map(|failures| pause_after(failures).as_secs()).collect();
        assert_eq!(pauses, [3, 6, 12, 24, 48, 60, 60]);
        assert_eq!(pause_after(u32::MAX).as_secs(), 60);
    }

    #[test]
    fn lines_are_cut_and_cleaned() {
        let noted = RefCell::new(Vec::new());
        let note = |line: &str| noted.borrow_mut().push(line.to_owned());
        let (mut lines, now) = (Lines::default(), Instant::now());
        lines.take(b"one\ntw", now, &note);
        lines.take(b"o\r\n\n\x1b[2Jthree\n", now, &note);
        lines.take(&b"x".repeat(3 * LINE_MAX), now, &note);
        lines.take(b"\nlast", now, &note);
        lines.end(now, &note);
        let long = "x".repeat(LINE_MAX);
        assert_eq!(noted.into_inner(), ["one", "two", "\u{fffd}[2Jthree", &*long, "last"]);
    }

    #[test]
    fn lines_are_limited_by_time() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        let flood = b"x\n".repeat(LINES_PER_SECOND as usize + 5);
        lines.take(&flood, now, &|_| {});
        assert_eq!((lines.logged, lines.left_out), (LINES_PER_SECOND, 5));
        lines.take(b"x\n", now + Duration::from_secs(1), &|_| {});
        assert_eq!((lines.logged, lines.left_out), (1, 0));
    }

    /// Runs a script as the runner of a gateway until it has written `ready PID`; returns the rest of the line and the
    /// process.
    async fn started(script: &str, socket: &Path) -> (String, i32, Arc<Node>) {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let settings =
            ExtPlugin { cmd: Some(command), path: Some(socket.to_owned()), ..ExtPlugin::default() };
        let background = crate::testing::spawning(&tokio::runtime::Handle::current());
        let node = Arc::new(Node::new(background, Value::Null, String::new()));
        let runner = Arc::new(Runner::new(settings));
        supervise(&runner, &node);
        supervise(&runner, &node);
        loop {
            let lines = runner.last_lines();
            if let Some(rest) = lines.strip_prefix("ready ") {
                let (process, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                return (rest.to_owned(), process.parse().unwrap(), node);
            }
            tokio::task::yield_now().await;
        }
    }

    fn is_running(process: i32) -> bool {
        rustix::process::test_kill_process(Pid::from_raw(process).unwrap()).is_ok()
    }

    #[tokio::test]
    async fn a_runner_lives_as_long_as_its_gateway() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("new/runner.sock");
        let script = "echo ready $$ $APISIX_LISTEN_ADDRESS $APISIX_CONF_EXPIRE_TIME; exec sleep 600";
        let (rest, process, node) = started(script, &socket).await;
        assert_eq!(rest, format!("unix:{} 3600", socket.display()));
        assert!(is_running(process));
        node.end().await;
        assert!(!is_running(process));
    }

    #[tokio::test]
    async fn a_runner_that_ignores_sigterm_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; echo ready $$; while :; do sleep 1; done";
        let (_, process, node) = started(script, &folder.path().join("runner.sock")).await;
        let began = Instant::now();
        node.end().await;
        assert!(!is_running(process) && began.elapsed() >= GRACE);
    }

    #[test]
    fn only_sockets_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runner.sock");
        assert_eq!(make_room(&path), Ok(()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(make_room(&path), Ok(()));
        assert!(!path.exists());
        drop(listener);
        std::fs::write(&path, "").unwrap();
        assert!(make_room(&path).unwrap_err().ends_with(": the file is not a socket"));
        let open = folder.path().join("open");
        std::fs::create_dir(&open).unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&open, everybody).unwrap();
        let refused = make_room(&open.join("runner.sock")).unwrap_err();
        assert!(refused.ends_with(": other users can write to its folder"), "{refused}");
    }
}
