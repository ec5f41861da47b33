//! A gateway that a parent has started.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, pidfd_open, waitid,
};
use sigma_net::descriptors;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::link::Word;
use crate::process::handover::{Channel, left_open};
use crate::process::program::Program;

/// Events of children.
pub(super) enum Event {
    /// One has said something.
    Said(Pid, Word, Vec<OwnedFd>),
    /// One has ended, as this says.
    Ended(Pid, String, i32),
}

/// A gateway that runs.
pub(super) struct Child {
    pub(super) pid: Pid,
    pub(super) link: Arc<Channel>,
    pub(super) started: Instant,
    pub(super) heard: Instant,
    /// It ships lines of the parent's error log.
    pub(super) takes_lines: bool,
    /// Sockets that it is just telling.
    pub(super) telling: Vec<OwnedFd>,
}

impl Child {
    /// Starts the program. The channel is its predecessor's. Its events are sent to `events`.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(super) fn start(program: &Program, events: &mpsc::Sender<Event>) -> io::Result<(Child, Channel)> {
        let ((link, link_end), (predecessor, predecessor_end)) = (Channel::pair()?, Channel::pair()?);
        let mut command = program.command();
        left_open(&mut command, Some(&predecessor_end), Some(&link_end))?;
        let pid = i32::try_from(command.spawn()?.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a process without an id"))?;
        Ok((Child::of(pid, link, events)?, predecessor))
    }

    /// The child that has this id and is at the other end of the channel.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(super) fn of(pid: Pid, link: Channel, events: &mpsc::Sender<Event>) -> io::Result<Child> {
        let (link, now) = (Arc::new(link), Instant::now());
        let ended = descriptors::watch(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)?;
        tokio::spawn(watch(pid, ended, events.clone()));
        tokio::spawn(hear(pid, Arc::clone(&link), events.clone()));
        Ok(Child { pid, link, started: now, heard: now, takes_lines: false, telling: Vec::new() })
    }

    pub(super) fn signal(&self, signal: Signal) {
        // Its end is reported as an event.
        let _ = kill_process(self.pid, signal);
    }
}

/// Tells how a child has ended.
async fn watch(pid: Pid, ended: AsyncFd<OwnedFd>, events: mpsc::Sender<Event>) {
    // It is readable at the end, and stays so.
    let _ = ended.readable().await;
    let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
    let (text, code) = match status {
        Ok(Some(status)) => exit_text_and_code(&status),
        Ok(None) | Err(_) => ("it has ended".to_owned(), 1),
    };
    let _ = events.send(Event::Ended(pid, text, code)).await;
}

/// The end of a process in words, and the exit status that a shell would show.
fn exit_text_and_code(status: &WaitIdStatus) -> (String, i32) {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => (format!("exit status {code}"), code),
        (None, Some(signal)) => (format!("signal {signal}"), 128 + signal),
        (None, None) => ("it has ended".to_owned(), 1),
    }
}

/// Reports the messages of a child, until it ends.
async fn hear(pid: Pid, link: Arc<Channel>, events: mpsc::Sender<Event>) {
    loop {
        match link.hear().await {
            Ok(Some((word, descriptors))) => {
                if events.send(Event::Said(pid, word, descriptors)).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::error!(pid = pid.as_raw_nonzero().get(), %error, "received an unknown message from a gateway");
                return;
            }
        }
    }
}
