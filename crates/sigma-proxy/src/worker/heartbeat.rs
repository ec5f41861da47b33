//! Signs of life of the workers, checked now and then.

use std::sync::Arc;

use sigma_observe::counters::WorkerCounters;

/// The progress of the workers at the last checks. Checks are counted, not time: after a machine was asleep no worker
/// counts as blocked.
#[derive(Debug, Default)]
pub struct Heartbeat {
    /// For each worker, its counter, and the checks since it changed.
    seen: Vec<(u64, u32)>,
}

impl Heartbeat {
    /// Checks the workers. Returns the number of a worker that has not moved for so many checks.
    pub fn look(&mut self, workers: &[Arc<WorkerCounters>], looks: u32) -> Option<usize> {
        self.seen.resize(workers.len(), (0, 0));
        for (worker, (beats, still)) in workers.iter().zip(&mut self.seen) {
            let now = worker.beats();
            *still = if now == *beats { still.saturating_add(1) } else { 0 };
            *beats = now;
        }
        self.seen.iter().position(|(_, still)| *still >= looks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_move_is_noticed_until_it_does() {
        let workers: Vec<Arc<WorkerCounters>> = (0..2).map(|_| Arc::default()).collect();
        let mut heartbeat = Heartbeat::default();
        let mut look = |moving: &[usize]| {
            moving.iter().for_each(|&worker| workers[worker].beat());
            heartbeat.look(&workers, 3)
        };
        assert_eq!([look(&[0, 1]), look(&[0]), look(&[0])], [None; 3]);
        assert_eq!([look(&[0]), look(&[0])], [Some(1); 2]);
        assert_eq!([look(&[1]), look(&[0]), look(&[1])], [None; 3]);
        assert_eq!([look(&[1]), look(&[1]), look(&[0, 1])], [None, Some(0), None]);
    }
}
