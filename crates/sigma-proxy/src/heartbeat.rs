//! Signs of life of the workers, looked at now and then.

use std::sync::Arc;

use sigma_observe::counters::WorkerCounters;

/// What was seen of the workers. Looks are counted, not time: a machine that was asleep is not taken for a worker
/// that stands still.
#[derive(Debug, Default)]
pub struct Heartbeat {
    /// For each worker, what moves, and the looks since it did.
    seen: Vec<(u64, u32)>,
}

impl Heartbeat {
    /// Looks at the workers. Returns the number of one that has not moved for so many looks.
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
