//! The graceful end of a worker: idle connections close first, exchanges may finish, long-lived sessions leave at
//! spread times, and the rest is cut at the deadline.

use std::cell::Cell;
use std::task::{Context, Poll};

use sigma_config::settings::Timeouts;
use sigma_http::{Fault, FaultKind};
use sigma_net::Deadline;

/// The phase of a worker's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Phase {
    #[default]
    Serving,
    /// Each response is the last one of its connection.
    Draining,
    /// Connections without a request close as well.
    Closing,
    Over,
}

/// The times of a drain, as they were set at its start.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    drain_ms: u32,
    spread_percent: u8,
    goodbye_ms: u32,
}

/// The drain of one worker.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    phase: Cell<Phase>,
    times: Cell<Times>,
}

impl Drain {
    pub(crate) fn begin(&self, timeouts: &Timeouts) {
        let Timeouts { drain_ms, drain_spread_percent, goodbye_ms, .. } = *timeouts;
        self.times.set(Times { drain_ms, spread_percent: drain_spread_percent, goodbye_ms });
        self.phase.set(Phase::Draining);
    }

    pub(crate) fn close_idle(&self) {
        self.phase.set(Phase::Closing);
    }

    pub(crate) fn end(&self) {
        self.phase.set(Phase::Over);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.phase.get() != Phase::Serving
    }

    pub(crate) fn closes_idle(&self) -> bool {
        self.phase.get() >= Phase::Closing
    }

    /// Ready when the time of exchanges has ended. Its caller also waits with a [`Deadline`], which wakes it to check.
    pub(crate) fn poll_over(&self) -> Poll<Result<(), Fault>> {
        match self.phase.get() {
            Phase::Over => Poll::Ready(Err(Fault::new(FaultKind::Stopping, "the gateway stops"))),
            _ => Poll::Pending,
        }
    }
}

/// The end of one long-lived session in a drain.
#[derive(Debug, Default)]
pub(crate) struct Leave {
    /// The session's turn, and then the end of its closing handshake; None before the drain.
    deadline: Option<Deadline>,
    has_begun: bool,
}

/// The action for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Stay,
    /// Start the closing handshake; returned once
    Begin,
    /// End, even if the peers have not closed
    End,
}

impl Leave {
    /// Returns the current action for the session; `random` spreads the time of its turn. The caller must also wait
    /// with its own [`Deadline`].
    pub(crate) fn turn(
        &mut self,
        drain: &Drain,
        random: impl FnOnce() -> u64,
        task: &mut Context<'_>,
    ) -> Turn {
        let deadline = match &self.deadline {
            Some(deadline) => deadline,
            None if !drain.has_begun() => return Turn::Stay,
            None => {
                let deadline = self.deadline.insert(Deadline::new());
                deadline.set(drain.times.get().leaves_after_ms(random()));
                deadline
            }
        };
        if deadline.poll_expired(task).is_pending() {
            return Turn::Stay;
        }
        if std::mem::replace(&mut self.has_begun, true) {
            return Turn::End;
        }
        deadline.set(drain.times.get().goodbye_ms.into());
        // Registers the task for its end.
        let _ = deadline.poll_expired(task);
        Turn::Begin
    }
}

impl Times {
    /// Returns the time after the start of a drain at which one session leaves, by `random`.
    fn leaves_after_ms(self, random: u64) -> u64 {
        let last = u64::from(self.drain_ms.saturating_sub(self.goodbye_ms));
        let part = last * u64::from(self.spread_percent) / 100;
        last - random % (part + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_leave_in_a_part_of_the_time() {
        let check = |drain_ms: u32, goodbye_ms: u32, spread_percent: u8, (first, last): (u64, u64)| {
            let times = Times { drain_ms, goodbye_ms, spread_percent };
            let at: Vec<u64> = (0..=last - first).map(|n| times.leaves_after_ms(n)).collect();
            assert_eq!(at.iter().min(), Some(&first), "{times:?}");
            assert_eq!(at.iter().max(), Some(&last), "{times:?}");
            assert!(times.leaves_after_ms(u64::MAX) <= last, "{times:?}");
        };
        check(30_000, 1_000, 50, (14_500, 29_000));
        check(30_000, 1_000, 100, (0, 29_000));
        check(30_000, 1_000, 0, (29_000, 29_000));
        // The time only suffices for the closing handshakes.
        check(500, 1_000, 50, (0, 0));
        check(0, 0, 50, (0, 0));
    }
}
