//! The node with the fewest active requests for its weight.
//!
//! Score = (active + 1) / weight; weight 0 is infinite. A pick is one pass over the group, O(n): for usual group
//! sizes that is cheaper than a heap that is updated at every start and end. For thousands of nodes use
//! `least_request`. Nodes with the same score take turns, so that sequential requests are spread.

use super::active::Active;
use super::{Group, Member, Outcome, PickContext, Policy};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// Fewest active requests for the weight.
#[derive(Debug, Default)]
pub(super) struct LeastConn {
    active: Active,
    groups: Vec<Vec<Candidate>>,
    /// The place in each group at which the next pick begins.
    turns: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    index: usize,
    id: EndpointId,
    weight: u32,
    slot: usize,
}

impl Policy for LeastConn {
    fn rebuild(&mut self, _: &EndpointSet, groups: &[Group]) {
        let usable = |group: &Group| group.iter().filter(|m| m.usable).copied().collect();
        let groups: Vec<Vec<Member>> = groups.iter().map(usable).collect();
        let slots = self.active.rebuild(groups.iter().map(Vec::as_slice));
        let candidate =
            |(m, slot): (&Member, usize)| Candidate { index: m.index, id: m.id, weight: m.weight, slot };
        self.groups = groups
            .iter()
            .zip(slots)
            .map(|(group, slots)| group.iter().zip(slots).map(candidate).collect())
            .collect();
        self.turns.resize(self.groups.len(), 0);
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let candidates = self.groups.get(group)?;
        let turn = self.turns.get_mut(group)?;
        let start = (*turn).min(candidates.len());
        let in_turn = candidates.iter().enumerate();
        let in_turn = in_turn.clone().skip(start).chain(in_turn.take(start));
        let mut best: Option<(WeightedLoad, usize, &Candidate)> = None;
        for (at, candidate) in in_turn.filter(|(_, candidate)| !context.tried.contains(candidate.id)) {
            let requests = u64::from(self.active.at(candidate.slot)) + 1;
            let load = WeightedLoad { requests, weight: candidate.weight };
            if best.is_none_or(|(least, ..)| load.is_less_than(least)) {
                best = Some((load, at, candidate));
            }
        }
        let (_, at, candidate) = best?;
        *turn = (at + 1) % candidates.len();
        Some(candidate.index)
    }

    fn start(&mut self, id: EndpointId) {
        self.active.start(id);
    }

    fn end(&mut self, id: EndpointId, _outcome: Outcome) {
        self.active.end(id);
    }
}

/// The active requests of a member in relation to its weight.
#[derive(Debug, Clone, Copy)]
struct WeightedLoad {
    requests: u64,
    weight: u32,
}

impl WeightedLoad {
    /// Compares requests / weight without a division. Weight 0 counts as an infinite load; of two such, the requests
    /// decide.
    fn is_less_than(self, other: WeightedLoad) -> bool {
        match (self.weight, other.weight) {
            (0, 0) => self.requests < other.requests,
            (0, _) => false,
            (_, 0) => true,
            _ => self.requests * u64::from(other.weight) < other.requests * u64::from(self.weight),
        }
    }
}
