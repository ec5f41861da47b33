//! systemd, or what else starts services and speaks as it does, if it has started this process.
//!
//! The service manager is notified when the gateway serves, reloads and stops, and that it is alive; the
//! gateway listens on sockets that it has bound. Without one, all of this does nothing.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use sigma_net::descriptors;

/// The most notifications that wait for room; the oldest is dropped for a further one.
const UNSENT: usize = 16;

/// systemd.
#[derive(Debug, Default)]
pub(crate) struct Systemd {
    /// `NOTIFY_SOCKET`: where it receives notifications.
    socket: Option<PathBuf>,
    /// Notifications that its socket had no room for. They are sent with the next one, and every second: a service
    /// manager that does not read must not stop the control thread.
    unsent: RefCell<VecDeque<String>>,
    /// How often it wants a sign of life.
    period: Option<Duration>,
    last: Option<Instant>,
}

impl Systemd {
    /// The one that has started this process, or the process whose place this one takes.
    pub(crate) fn of_environment(is_successor: bool) -> Systemd {
        let limit = match sd_notify::watchdog_enabled() {
            // The interval is the same for both; only the number of the process differs.
            None if is_successor => number("WATCHDOG_USEC").map(Duration::from_micros),
            limit => limit,
        };
        let socket = std::env::var_os("NOTIFY_SOCKET").map(PathBuf::from);
        // Twice as often as it must be: a sign may come late.
        Systemd { socket, period: limit.map(|limit| limit / 2), ..Systemd::default() }
    }

    /// Traffic is served.
    pub(crate) fn ready(&self) {
        self.notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
    }

    /// The configuration is read again; [`Systemd::ready`] ends it.
    pub(crate) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.notify(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
            Err(error) => tracing::warn!(%error, "cannot notify systemd of a reload"),
        }
    }

    /// Open exchanges may finish.
    pub(crate) fn stopping(&self) {
        self.notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    }

    /// Another process is the service from now on.
    pub(crate) fn succeeded_by(&self, pid: u32) {
        self.notify(&[NotifyState::MainPid(pid), NotifyState::Ready]);
    }

    /// Everything is alive. To be called each second or so; notifications are sent only as often as
    /// necessary.
    pub(crate) fn alive(&mut self, now: Instant) {
        self.send();
        let Some(period) = self.period else { return };
        if self.last.is_none_or(|last| now.duration_since(last) >= period) {
            self.last = Some(now);
            self.notify(&[NotifyState::Watchdog]);
        }
    }

    fn notify(&self, states: &[NotifyState<'_>]) {
        let mut unsent = self.unsent.borrow_mut();
        if unsent.len() == UNSENT {
            unsent.pop_front();
        }
        unsent.push_back(states.iter().map(|state| format!("{state}\n")).collect());
        drop(unsent);
        self.send();
    }

    /// Sends the notifications that wait, as far as there is room.
    fn send(&self) {
        let mut unsent = self.unsent.borrow_mut();
        let Some(path) = &self.socket else { return unsent.clear() };
        if let Err(error) = send_to(path, &mut unsent)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::warn!(%error, "cannot notify systemd; check NOTIFY_SOCKET");
            unsent.clear();
        }
    }
}

fn send_to(path: &Path, texts: &mut VecDeque<String>) -> io::Result<()> {
    if texts.is_empty() {
        return Ok(());
    }
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    while let Some(text) = texts.front() {
        socket.send(text.as_bytes())?;
        texts.pop_front();
    }
    Ok(())
}

/// The number that a variable has.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The first descriptor that systemd passes (sd_listen_fds(3)).
const FIRST: u64 = 3;

/// The sockets that systemd has bound for this process. To be called once, before anything else is opened.
///
/// # Errors
/// Returns an error if they are not there.
pub(super) fn sockets() -> io::Result<Vec<OwnedFd>> {
    // Sockets for the starter of this process are not meant.
    if number("LISTEN_PID") != Some(std::process::id().into()) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS").unwrap_or_default();
    let numbers = FIRST..FIRST.saturating_add(count);
    numbers.map(|number| descriptors::adopt(i32::try_from(number).unwrap_or(i32::MAX))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the notifications in the queue of the socket.
    fn read(socket: &UnixDatagram) -> Vec<String> {
        let mut text = [0; 256];
        let mut read = Vec::new();
        while let Ok(len) = socket.recv(&mut text) {
            read.push(String::from_utf8_lossy(&text[..len]).into_owned());
        }
        read
    }

    #[test]
    fn a_socket_without_a_reader_gets_the_newest_notifications_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut systemd = Systemd { socket: Some(path), ..Systemd::default() };
        // The queue of the kernel has far less room.
        for pid in 0..5_000 {
            systemd.succeeded_by(pid);
        }
        assert!(read(&socket).concat().starts_with("MAINPID=0\nREADY=1\n"));
        systemd.stopping();
        let mut later = String::new();
        while !systemd.unsent.borrow().is_empty() {
            later += &read(&socket).concat();
            systemd.alive(Instant::now());
        }
        later += &read(&socket).concat();
        assert!(later.contains("MAINPID=4999\nREADY=1\n"), "{later}");
        assert!(later.ends_with("STOPPING=1\nSTATUS=draining\n"), "{later}");
    }

    #[test]
    fn a_missing_socket_drops_notifications() {
        let dir = tempfile::tempdir().unwrap();
        let systemd = Systemd { socket: Some(dir.path().join("notify")), ..Systemd::default() };
        systemd.ready();
        assert!(systemd.unsent.borrow().is_empty());
    }
}
