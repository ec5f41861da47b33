//! A program of the operator's that places records.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use sigma_config::acme::DnsHook;
use tokio::sync::Mutex;

use super::{Action, Proof};

/// How often it is looked whether a program has ended. It does things in a network.
const LOOK: Duration = Duration::from_millis(20);

/// The most of a program's output that is logged, in bytes; the rest is read and dropped.
const OUTPUT_MAX: usize = 2_048;

/// How long a program's output is awaited after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The program.
pub(super) struct Hook {
    command: Vec<String>,
    patience: Duration,
    /// One at a time: an order that runs out of time does not clean up while another record is placed.
    running: Arc<Mutex<()>>,
}

impl Hook {
    pub(super) fn new(settings: &DnsHook) -> Hook {
        let patience = Duration::from_secs(settings.timeout_s.into());
        Hook { command: settings.command.clone(), patience, running: Arc::default() }
    }

    /// Runs it to its end, even if the caller has ended.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it cannot be started, fails, or takes too long.
    pub(super) async fn run(&self, action: Action, proof: &Proof) -> Result<(), String> {
        let alone = Arc::clone(&self.running).lock_owned().await;
        let (program, arguments) = self.command.split_first().ok_or("`acme.dns.hook.command` is empty")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("SIGMA_ACME_ACTION", if action == Action::Present { "present" } else { "cleanup" })
            .env("SIGMA_ACME_DOMAIN", &proof.domain)
            .env("SIGMA_ACME_RECORD", proof.record.to_ascii())
            .env("SIGMA_ACME_VALUE", &proof.value)
            .stdin(Stdio::null())
            // So that it ends with all that it has started.
            .process_group(0);
        let (program, patience) = (program.clone(), self.patience);
        let run = tokio::task::spawn_blocking(move || {
            let ended = run(command, patience);
            drop(alone);
            ended
        });
        let ended = run.await.unwrap_or_else(|_| Err("cannot wait for it".to_owned()));
        ended.map_err(|reason| format!("`acme.dns.hook`: {program}: {reason}"))
    }
}

fn run(mut command: Command, patience: Duration) -> Result<(), String> {
    let (output, input) = std::io::pipe().map_err(|error| error.to_string())?;
    let copy = input.try_clone().map_err(|error| error.to_string())?;
    let child = command.stdout(copy).stderr(input).spawn().map_err(|error| error.to_string())?;
    // The pipe ends with the last process that has it.
    drop(command);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || read(output, &tell));
    let ended = wait(child, patience);
    // All of its group are gone; who has left the group may hold the pipe for as long as it likes.
    let said = told.recv_timeout(LAST_WORDS).unwrap_or_default();
    match ended? {
        status if status.success() => {
            tracing::debug!(output = said, "acme.dns.hook: done");
            Ok(())
        }
        status => Err(format!("it failed ({status}): {said}")),
    }
}

/// Waits for its end; after `patience` it is killed. Its children end with it.
fn wait(mut child: Child, patience: Duration) -> Result<ExitStatus, String> {
    let until = Instant::now() + patience;
    let group = Pid::from_child(&child);
    let end_group = || {
        // The group is empty already.
        let _ = kill_process_group(group, Signal::KILL);
    };
    loop {
        // Without reaping it yet, so that the group's number is not reused.
        match has_ended(group) {
            Ok(false) if Instant::now() < until => std::thread::sleep(LOOK),
            Ok(false) => {
                end_group();
                let _ = child.wait();
                return Err(format!("it took longer than {} s (`timeout_s`)", patience.as_secs()));
            }
            _ => {
                end_group();
                return child.wait().map_err(|error| error.to_string());
            }
        }
    }
}

/// Whether a child has ended; it stays as it is.
fn has_ended(child: Pid) -> rustix::io::Result<bool> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(child), options)?.is_some())
}

/// Reads to the end; tells the first of it, as a log can take it.
fn read(mut output: impl Read, tell: &std::sync::mpsc::Sender<String>) {
    let mut said = Vec::new();
    // Output before an error is used as well.
    let _ = output.by_ref().take(OUTPUT_MAX as u64).read_to_end(&mut said);
    let text = String::from_utf8_lossy(&said);
    // The receiver may have given up.
    let _ = tell.send(text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect());
    let _ = std::io::copy(&mut output, &mut std::io::sink());
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;

    /// Runs a script as a hook that has a second.
    async fn outcome(script: &str) -> Result<(), String> {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let hook = Hook::new(&DnsHook { command, timeout_s: 1 });
        let record = Name::from_ascii("_acme-challenge.a.test.").unwrap();
        let proof = Proof { domain: "a.test".to_owned(), record, value: "v-1_x".to_owned() };
        hook.run(Action::Present, &proof).await
    }

    #[tokio::test]
    async fn a_hook_gets_the_record_to_place() {
        let test = r#"test "$SIGMA_ACME_ACTION $SIGMA_ACME_DOMAIN $SIGMA_ACME_RECORD $SIGMA_ACME_VALUE" = \
            "present a.test _acme-challenge.a.test. v-1_x""#;
        assert_eq!(outcome(test).await, Ok(()));
    }

    #[tokio::test]
    async fn a_hook_that_fails_is_quoted_in_part() {
        let error = outcome("echo out; printf 'err\\033' >&2; exit 3").await.unwrap_err();
        let expected = "`acme.dns.hook`: /bin/sh: it failed (exit status: 3): out err";
        assert_eq!(error.trim_end(), expected);
        let error = outcome("head -c 100000 /dev/zero | tr '\\0' x; exit 1").await.unwrap_err();
        assert!(error.len() < OUTPUT_MAX + 200, "{}", error.len());
    }

    /// So are its children, which hold its output.
    #[tokio::test]
    async fn a_hook_that_does_not_end_is_killed() {
        let error = outcome("sleep 600 & sleep 600").await.unwrap_err();
        assert_eq!(error, "`acme.dns.hook`: /bin/sh: it took longer than 1 s (`timeout_s`)");
        assert_eq!(outcome("sleep 600 &").await, Ok(()));
        assert_eq!(outcome("setsid sleep 5 &").await, Ok(()));
    }
}
