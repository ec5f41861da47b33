//! Of two nodes drawn by weight, the one with the lower cost: its latency times its pending requests (peak EWMA of
//! linkerd and Finagle). A pick is O(1).
//!
//! A latency above the estimate becomes the estimate at once (the peak); one below it moves the estimate by its age.
//! Without measurements the estimate decays, so that a slow node gets requests again. Pending requests count by
//! weight: a node of twice the mean weight may have twice as many.

use super::alias_table::AliasTable;
use super::kept::PerNode;
use super::slow_start::SlowStart;
use super::{Group, Outcome, PickContext, Policy};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// The time in which an estimate loses all but 1/e.
const DECAY_MS: f64 = 10_000.0;

/// The estimate of a node without measurements.
const INITIAL_MS: f64 = 30.0;

/// Power of two choices on latency and pending requests.
#[derive(Debug, Default)]
pub(super) struct PeakEwma {
    slow_start: Option<SlowStart>,
    stats: PerNode<Stat>,
    groups: Vec<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    alias_table: AliasTable,
    /// The slots of the table's members.
    slots: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Stat {
    estimate_ms: f64,
    /// The time of the estimate; None until the first use of the node.
    at_ms: Option<u64>,
    pending: u32,
}

impl Default for Stat {
    fn default() -> Stat {
        Stat { estimate_ms: INITIAL_MS, at_ms: None, pending: 0 }
    }
}

impl Stat {
    /// Returns the part of the estimate that is left at `now_ms`. It begins to age at its first use.
    fn kept(&mut self, now_ms: u64) -> f64 {
        let age_ms = now_ms.saturating_sub(*self.at_ms.get_or_insert(now_ms));
        (-(age_ms as f64) / DECAY_MS).exp()
    }

    fn measured(&mut self, latency_ms: f64, now_ms: u64) {
        let kept = self.kept(now_ms);
        let average = self.estimate_ms * kept + latency_ms * (1.0 - kept);
        self.estimate_ms = average.max(latency_ms);
        self.at_ms = Some(now_ms);
    }

    /// Returns the cost of one more request; `weight` is relative to the mean.
    fn cost(&mut self, weight: f64, now_ms: u64) -> f64 {
        self.estimate_ms * self.kept(now_ms) * (f64::from(self.pending) / weight + 1.0)
    }
}

impl PeakEwma {
    pub(super) fn new(slow_start: Option<SlowStart>) -> PeakEwma {
        PeakEwma { slow_start, ..PeakEwma::default() }
    }
}

impl Policy for PeakEwma {
    fn rebuild(&mut self, _: &EndpointSet, groups: &[Group]) {
        self.stats.begin();
        let drawn = |group: &Group| {
            // The state of a node stays while the node is unusable.
            for member in group {
                self.stats.stay(member.id);
            }
            let alias_table = AliasTable::new(group, self.slow_start);
            let slots = alias_table.members().iter().map(|m| self.stats.stay(m.id)).collect();
            Drawn { alias_table, slots }
        };
        self.groups = groups.iter().map(drawn).collect();
        self.stats.forget(|stat| stat.pending > 0, |_| {});
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let Drawn { alias_table, slots } = self.groups.get(group)?;
        let members = alias_table.members();
        let (first, second) = alias_table.draw_two(context)?;
        let Some(second) = second else { return Some(members[first].index) };
        let mean = alias_table.total() as f64 / members.len() as f64;
        let mut cost = |at: usize| {
            self.stats.at_mut(slots[at]).cost(f64::from(members[at].weight) / mean, context.now_ms)
        };
        let at = if cost(second) < cost(first) { second } else { first };
        Some(members[at].index)
    }

    fn start(&mut self, id: EndpointId) {
        let slot = self.stats.slot(id);
        self.stats.at_mut(slot).pending += 1;
    }

    fn end(&mut self, id: EndpointId, outcome: Outcome) {
        let Some(stat) = self.stats.of(id) else { return };
        stat.pending = stat.pending.saturating_sub(1);
        if let Some(latency_ms) = outcome.latency_ms {
            stat.measured(latency_ms, outcome.now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_jump_up_and_glide_down() {
        let mut stat = Stat::default();
        stat.measured(50.0, 1_000);
        assert_eq!(stat.estimate_ms, 50.0);
        // At the same moment nothing has aged.
        stat.measured(10.0, 1_000);
        assert_eq!(stat.estimate_ms, 50.0);
        stat.measured(10.0, 11_000);
        let w = (-1.0f64).exp();
        assert!((stat.estimate_ms - (50.0 * w + 10.0 * (1.0 - w))).abs() < 1e-9);
        // Reading decays it; twice the pending requests at the doubled weight cost the same.
        assert!((stat.cost(1.0, 21_000) - stat.estimate_ms * w).abs() < 1e-9);
        stat.pending = 4;
        let doubled = stat.cost(2.0, 21_000);
        stat.pending = 2;
        assert_eq!(doubled, stat.cost(1.0, 21_000));
    }
}
