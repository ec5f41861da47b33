//! The state of the runner of plugins in other languages, for metrics and the status page.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The last lines of output that are kept.
pub const LAST_LINES: usize = 10;

/// The state of the process of a runner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunnerPhase {
    /// No plugin uses a runner.
    #[default]
    Unused,
    /// The operator starts it: the gateway only connects.
    External,
    /// Its process runs.
    Running,
    /// Its process has ended, and starts again after a pause.
    Waiting,
}

/// The reason of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerFailure {
    /// It does not accept connections.
    Refused,
    /// It does not respond in time.
    Timeout,
    /// It breaks off, or answers wrongly.
    Broken,
}

/// Facts of the process of a runner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunnerFacts {
    /// The state of the process.
    pub phase: RunnerPhase,
    /// The socket.
    pub socket: String,
    /// The process, while it runs.
    pub pid: Option<u32>,
    /// The starts of the process, the first one included.
    pub starts: u64,
    /// The reason of its last end.
    pub last_end: Option<String>,
    /// The pause before its next start, in seconds.
    pub pause_s: Option<u64>,
}

/// The state of the runner of a gateway; a part of the [`crate::Node`].
#[derive(Debug, Default)]
pub struct RunnerState {
    facts: Mutex<RunnerFacts>,
    lines: Mutex<VecDeque<String>>,
    calls: AtomicU64,
    refused: AtomicU64,
    timeouts: AtomicU64,
    broken: AtomicU64,
}

impl RunnerPhase {
    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            RunnerPhase::Unused => "unused",
            RunnerPhase::External => "external",
            RunnerPhase::Running => "running",
            RunnerPhase::Waiting => "waiting",
        }
    }
}

impl RunnerState {
    /// Changes the facts of the process.
    pub fn change(&self, change: impl FnOnce(&mut RunnerFacts)) {
        change(&mut lock(&self.facts));
    }

    /// Returns the facts of the process.
    pub fn facts(&self) -> RunnerFacts {
        lock(&self.facts).clone()
    }

    /// Keeps a line of output.
    pub fn note(&self, line: &str) {
        let mut lines = lock(&self.lines);
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// Returns the last lines of output.
    pub fn lines(&self) -> Vec<String> {
        lock(&self.lines).iter().cloned().collect()
    }

    /// Counts a call.
    pub fn called(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed call.
    pub fn failed(&self, reason: RunnerFailure) {
        let counter = match reason {
            RunnerFailure::Refused => &self.refused,
            RunnerFailure::Timeout => &self.timeouts,
            RunnerFailure::Broken => &self.broken,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the failed calls by their reasons.
    pub fn failures(&self) -> [(&'static str, u64); 3] {
        [("refused", &self.refused), ("timeout", &self.timeouts), ("broken", &self.broken)]
            .map(|(reason, counter)| (reason, counter.load(Ordering::Relaxed)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock loses at most one fact.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_and_failures_are_kept() {
        let state = RunnerState::default();
        (0..LAST_LINES + 2).for_each(|number| state.note(&number.to_string()));
        let lines = state.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[9].as_str()), (LAST_LINES, "2", "11"));
        state.called();
        state.failed(RunnerFailure::Timeout);
        assert_eq!((state.calls(), state.failures()[1]), (1, ("timeout", 1)));
        assert_eq!(state.facts().phase.as_str(), "unused");
        state.change(|facts| facts.phase = RunnerPhase::Running);
        assert_eq!(state.facts().phase, RunnerPhase::Running);
    }
}
