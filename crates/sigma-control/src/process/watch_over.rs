//! Whether the workers are alive.

use sigma_config::process::Process;
use sigma_proxy::{Gateway, Heartbeat};

/// A worker's thread is no more.
pub(crate) const ENDED: &str = "a worker thread has ended";
/// A worker's thread does nothing.
pub(crate) const STUCK: &str = "a worker does not respond";

/// Between two looks pass so many milliseconds.
const LOOK_MS: u32 = 1_000;

/// A parent that could not help is queried again after so many looks.
const ASK_AGAIN: u32 = 10;

/// Observations of the workers.
#[derive(Debug, Default)]
pub(crate) struct WatchOver {
    heartbeat: Heartbeat,
    /// The last problem, and how often it was seen in a row.
    problem: Option<(&'static str, u32)>,
}

impl WatchOver {
    /// Checks the workers, once a second. Returns the problem with them; it is logged once.
    pub(crate) fn look(&mut self, gateway: &Gateway, settings: &Process) -> Option<&'static str> {
        let looks = settings.stuck_worker_ms.div_ceil(LOOK_MS);
        let stuck = self.heartbeat.look(gateway.inheritance().counters(), looks.max(1)).filter(|_| looks > 0);
        let problem = if gateway.has_lost_a_worker() { Some(ENDED) } else { stuck.map(|_| STUCK) };
        let before = self.problem.map(|(problem, _)| problem);
        self.problem = problem.map(|now| match self.problem {
            Some((before, times)) if before == now => (now, times.saturating_add(1)),
            _ => (now, 0),
        });
        match (before == problem, problem, stuck) {
            (false, Some(STUCK), Some(worker)) => tracing::error!(
                worker,
                "a worker has not responded for {looks} s: a task in it blocks or loops"
            ),
            (false, None, _) if before == Some(STUCK) => tracing::warn!("all workers respond again"),
            _ => {}
        }
        problem
    }

    /// Whether the problem is to be reported to the parent now.
    pub(crate) fn is_to_be_told(&self) -> bool {
        self.problem.is_some_and(|(_, times)| times % ASK_AGAIN == 0)
    }
}
