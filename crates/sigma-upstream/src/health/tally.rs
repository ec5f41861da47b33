//! Counts of workers for outlier detection.
//!
//! Each worker counts requests in its own block, with plain loads and stores, and the sweep sums up the blocks. Runs
//! of failures are counted for all workers together, and not written while a node responds well.

use std::sync::atomic::{AtomicU32, Ordering};

use super::outlier::{NodeOutcome, Rule, Rules, Totals};

/// The counts of one worker for one node, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Block {
    answers: AtomicU32,
    failures: AtomicU32,
    attempts: AtomicU32,
    local_failures: AtomicU32,
}

/// Adds one to a number that only the calling worker writes.
fn bump(cell: &AtomicU32) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The length of a run.
#[derive(Debug, Default)]
struct Streak(AtomicU32);

impl Streak {
    /// Extends the run; returns true at each multiple of `limit`. 0 is never reached.
    fn goes_on(&self, limit: u32) -> bool {
        limit > 0 && (self.0.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(limit)
    }

    /// Ends the run. Usually it has ended before, and nothing is written.
    fn ends(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// The counts of all workers for one node.
#[derive(Debug)]
pub(super) struct Tally {
    blocks: Box<[Block]>,
    server_errors: Streak,
    gateway_failures: Streak,
    local_origin: Streak,
}

impl Tally {
    /// Returns a tally for this number of workers.
    pub(super) fn new(workers: usize) -> Tally {
        let blocks = std::iter::repeat_with(Block::default).take(workers.max(1)).collect();
        Tally {
            blocks,
            server_errors: Streak::default(),
            gateway_failures: Streak::default(),
            local_origin: Streak::default(),
        }
    }

    /// Records an observation of the worker with this number, and calls `found` with the run rules that the node
    /// violates by it.
    #[inline]
    pub(super) fn note(&self, worker: usize, seen: NodeOutcome, rules: &Rules, mut found: impl FnMut(Rule)) {
        // A worker beyond the announced number is not counted.
        let Some(block) = self.blocks.get(worker) else { return };
        if rules.splits {
            bump(&block.attempts);
            match seen {
                NodeOutcome::Answer(_) => self.local_origin.ends(),
                NodeOutcome::LocalOriginFailure => {
                    bump(&block.local_failures);
                    if self.local_origin.goes_on(rules.limits.local_origin) {
                        found(Rule::ConsecutiveLocalOriginFailure);
                    }
                    return;
                }
            }
        }
        bump(&block.answers);
        let status = match seen {
            NodeOutcome::Answer(status) => status,
            NodeOutcome::LocalOriginFailure => 502,
        };
        if status < 500 {
            self.server_errors.ends();
            self.gateway_failures.ends();
            return;
        }
        bump(&block.failures);
        if self.server_errors.goes_on(rules.limits.server_errors) {
            found(Rule::Consecutive5xx);
        }
        if !matches!(status, 502..=504) {
            self.gateway_failures.ends();
        } else if self.gateway_failures.goes_on(rules.limits.gateway_failures) {
            found(Rule::ConsecutiveGatewayFailure);
        }
    }

    /// Returns the sums.
    pub(super) fn totals(&self) -> Totals {
        let read = |cell: &AtomicU32| cell.load(Ordering::Relaxed);
        let of = |block: &Block| Totals {
            answers: read(&block.answers),
            failures: read(&block.failures),
            attempts: read(&block.attempts),
            local_failures: read(&block.local_failures),
        };
        self.blocks.iter().map(of).fold(Totals::default(), Totals::plus)
    }

    /// Resets the runs.
    pub(super) fn begin_anew(&self) {
        self.server_errors.ends();
        self.gateway_failures.ends();
        self.local_origin.ends();
    }
}

#[cfg(test)]
mod tests {
    use sigma_config::resources::OutlierDetection;

    use super::*;

    /// Observations by letter: `.` 200, `4` 404, `5` 500, `g` 503, `x` no connection. The violated rules, by the
    /// position of the observation.
    fn check(rules: &Rules, seen: &str, want: &[(usize, Rule)]) -> Tally {
        let (tally, mut found) = (Tally::new(2), Vec::new());
        for (at, letter) in seen.chars().enumerate() {
            let seen = match letter {
                '.' => NodeOutcome::Answer(200),
                '4' => NodeOutcome::Answer(404),
                '5' => NodeOutcome::Answer(500),
                'g' => NodeOutcome::Answer(503),
                'x' => NodeOutcome::LocalOriginFailure,
                other => panic!("nothing is seen by {other}"),
            };
            tally.note(at % 2, seen, rules, |rule| found.push((at, rule)));
        }
        assert_eq!(found, want, "{seen}");
        tally
    }

    fn rules(change: impl FnOnce(&mut OutlierDetection)) -> Rules {
        let mut config = OutlierDetection {
            consecutive_5xx: 3,
            consecutive_gateway_failure: 2,
            consecutive_local_origin_failure: 2,
            ..OutlierDetection::default()
        };
        change(&mut config);
        Rules::compile(&config)
    }

    #[test]
    fn errors_in_a_row_are_counted_over_all_workers() {
        let rules = rules(|_| ());
        check(&rules, "55.55.55", &[]);
        check(&rules, "554555", &[(5, Rule::Consecutive5xx)]);
        check(&rules, "5gx", &[(2, Rule::Consecutive5xx), (2, Rule::ConsecutiveGatewayFailure)]);
        // A node that was not ejected is found again.
        check(&rules, "555555", &[(2, Rule::Consecutive5xx), (5, Rule::Consecutive5xx)]);
    }

    #[test]
    fn gateway_failures_are_separate_from_other_errors() {
        let rules = rules(|c| {
            (c.enforcing_consecutive_gateway_failure, c.consecutive_5xx) = (100, 0);
        });
        check(&rules, "g5g5g", &[]);
        check(&rules, "gg", &[(1, Rule::ConsecutiveGatewayFailure)]);
        check(&rules, "gx", &[(1, Rule::ConsecutiveGatewayFailure)]);
    }

    #[test]
    fn connection_failures_may_be_separate_from_responses() {
        let rules = rules(|c| c.split_external_local_origin_errors = true);
        let tally = check(&rules, "5x5x5", &[(4, Rule::Consecutive5xx)]);
        let totals = Totals { answers: 3, failures: 3, attempts: 5, local_failures: 2 };
        assert_eq!(tally.totals(), totals);
        check(&rules, "xx", &[(1, Rule::ConsecutiveLocalOriginFailure)]);
        check(&rules, "x5x", &[]);
    }

    #[test]
    fn a_row_can_be_reset() {
        let rules = rules(|_| ());
        let tally = check(&rules, "55", &[]);
        tally.begin_anew();
        tally.note(0, NodeOutcome::Answer(500), &rules, |rule| panic!("{rule:?}"));
        assert_eq!(tally.totals(), Totals { answers: 3, failures: 3, ..Totals::default() });
        tally.note(9, NodeOutcome::Answer(500), &rules, |rule| panic!("{rule:?}"));
        assert_eq!(tally.totals().answers, 3, "no worker has this number");
    }
}
