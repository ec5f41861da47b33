//! systemd, or what else starts services and speaks as it does, if it has started this process.
//!
//! The service manager is notified when the gateway serves, reloads and stops, and that it is alive; the
//! gateway listens on sockets that it has bound. Without one, all of this does nothing.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use sigma_net::descriptors;

/// systemd.
#[derive(Debug, Default)]
pub(crate) struct Systemd {
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
        // Twice as often as it must be: a sign may come late.
        Systemd { period: limit.map(|limit| limit / 2), last: None }
    }

    /// Traffic is served.
    pub(crate) fn ready(&self) {
        tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
    }

    /// The configuration is read again; [`Systemd::ready`] ends it.
    pub(crate) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
            Err(error) => tracing::warn!(%error, "cannot notify systemd of a reload"),
        }
    }

    /// Open exchanges may finish.
    pub(crate) fn stopping(&self) {
        tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    }

    /// Another process is the service from now on.
    pub(crate) fn succeeded_by(&self, pid: u32) {
        tell(&[NotifyState::MainPid(pid), NotifyState::Ready]);
    }

    /// Everything is alive. To be called each second or so; notifications are sent only as often as
    /// necessary.
    pub(crate) fn alive(&mut self, now: Instant) {
        let Some(period) = self.period else { return };
        if self.last.is_none_or(|last| now.duration_since(last) >= period) {
            self.last = Some(now);
            tell(&[NotifyState::Watchdog]);
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd; check NOTIFY_SOCKET");
    }
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
