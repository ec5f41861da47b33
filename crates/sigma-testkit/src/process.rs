//! Processes that are killed when the test program ends, by a panic, a signal or a time limit too.
//!
//! The kernel sends the signal when the *thread* that started the process ends (PR_SET_PDEATHSIG), and a test may
//! start a gateway in a thread of its own. So one thread starts all of them, and lives as long as the program. A
//! process that these start themselves, such as the successor of an upgrade, does not get the signal.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A command, and where its process is sent.
type Order = (Command, Sender<io::Result<Child>>);

static STARTER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
    let (sender, receiver) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, reply) in receiver {
            // The test may have ended.
            let _ = reply.send(command.spawn());
        }
    });
    Mutex::new(sender)
});

/// Returns a command that runs `program`; start it with [`spawn`].
///
/// # Errors
/// Returns an error if there is no such program.
pub(crate) fn command(program: &str) -> io::Result<Command> {
    // Programs of administrators are not in every user's path.
    let folders = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let mut found = std::env::split_paths(&folders).map(|folder| folder.join(program));
    let path = found.find(|path| path.is_file());
    let path =
        path.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no program {program}")))?;
    // It requests the signal for its own process and becomes the shell, which becomes the program, unless the request
    // came too late.
    const IF_PARENT_LIVES: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;
    let parent = std::process::id().to_string();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "sh", "-c", IF_PARENT_LIVES, &parent]).arg(path);
    Ok(command)
}

/// Starts a process that is killed when this program ends.
///
/// # Errors
/// Returns the error of the operating system.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let (sender, receiver) = channel();
    let starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ended = |_| io::Error::other("the thread that starts processes has ended");
    starter.send((command, sender)).map_err(|_| ended(std::sync::mpsc::RecvError))?;
    receiver.recv().map_err(ended)?
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_process_outlives_the_thread_that_started_it() {
        let start = || {
            let mut command = command("cat").unwrap();
            command.stdin(Stdio::piped());
            spawn(command).unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success(), "it ended at the end of its input, not by a signal");
    }

    /// A program whose only thread ends while its child runs: this test program again, killed.
    #[test]
    fn a_process_ends_with_the_program_that_started_it() {
        const CHILD: &str = "SIGMA_TESTKIT_IS_CHILD";
        if std::env::var_os(CHILD).is_some() {
            let mut command = command("sleep").unwrap();
            command.arg("600").stdout(Stdio::null()).stderr(Stdio::null());
            println!("\npid {}", spawn(command).unwrap().id());
            std::thread::park();
        }
        let name = "process::tests::a_process_ends_with_the_program_that_started_it";
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", name, "--nocapture"]).env(CHILD, "1").stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines().map_while(Result::ok);
        let pid = lines.filter_map(|line| line.strip_prefix("pid ").map(str::to_owned)).next().unwrap();
        let command_line = || std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(crate::until(crate::DEADLINE, || !command_line().contains("600")));
    }
}
