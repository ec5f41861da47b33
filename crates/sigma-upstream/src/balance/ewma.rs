//! Peak EWMA: of two random nodes, the one with the lower decayed latency.
//!
//! Weights are ignored. A pick is O(1), after retries O(n). Each worker keeps statistics of its own requests: shared
//! ones would put a contended write on the request path.

use super::kept::PerNode;
use super::{Group, Member, Outcome, PickContext, Policy, below, look};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// The time in which a measurement loses all but 1/e of its weight.
const DECAY_MS: f64 = 10_000.0;

/// Statistics without an update for this long are dropped.
const TTL_MS: u64 = 60_000;

/// Power of two choices on decayed latency.
#[derive(Debug, Default)]
pub(super) struct Ewma {
    stats: PerNode<Stat>,
    groups: Vec<Vec<Candidate>>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    index: usize,
    id: EndpointId,
    slot: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stat {
    latency_ms: f64,
    /// Unset until the first measurement, which then counts fully.
    touched_ms: Option<u64>,
}

impl Stat {
    /// Returns the average at `now_ms` after a measurement of `latency_ms`.
    fn after(self, latency_ms: f64, now_ms: u64) -> f64 {
        let idle_ms = self.touched_ms.map_or(u64::MAX, |touched| now_ms.saturating_sub(touched));
        let keep = if idle_ms > TTL_MS { 0.0 } else { (-(idle_ms as f64) / DECAY_MS).exp() };
        self.latency_ms * keep + latency_ms * (1.0 - keep)
    }
}

impl Policy for Ewma {
    fn rebuild(&mut self, _: &EndpointSet, groups: &[Group]) {
        self.stats.begin();
        let mut candidate = |m: &Member| {
            let slot = self.stats.stay(m.id);
            m.usable.then_some(Candidate { index: m.index, id: m.id, slot })
        };
        self.groups = groups.iter().map(|group| group.iter().filter_map(&mut candidate).collect()).collect();
        self.stats.forget(|_| false, |_| {});
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let candidates = self.groups.get(group)?;
        let fresh = |c: &&Candidate| !context.tried.contains(c.id);
        let left = match context.tried.is_empty() {
            true => candidates.len(),
            false => candidates.iter().filter(fresh).count(),
        };
        let nth = |n: usize| match context.tried.is_empty() {
            true => candidates.get(n),
            false => candidates.iter().filter(fresh).nth(n),
        };
        if left <= 1 {
            return nth(0).map(|c| c.index);
        }
        // Two independent draws from the halves of the random word; the second skips the first.
        let draw = |bits: u64, bound: usize| {
            look();
            below(bits << 32, bound as u64) as usize
        };
        let first = draw(context.random >> 32, left);
        let second = draw(context.random & 0xffff_ffff, left - 1);
        let second = second + usize::from(second >= first);
        let (a, b) = (nth(first)?, nth(second)?);
        let score = |c: &Candidate| self.stats.at(c.slot).after(0.0, context.now_ms);
        Some(if score(b) < score(a) { b.index } else { a.index })
    }

    fn end(&mut self, id: EndpointId, outcome: Outcome) {
        let Some(latency_ms) = outcome.latency_ms else { return };
        let Some(stat) = self.stats.of(id) else { return };
        let latency_ms = stat.after(latency_ms, outcome.now_ms);
        *stat = Stat { latency_ms, touched_ms: Some(outcome.now_ms) };
    }
}
