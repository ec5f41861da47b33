//! Consistent hashing with bounded loads: a key whose node has more than its share of the requests goes to another
//! one (Mirrokni, Thorup, Zadimoghaddam). The other node is chosen by a jump that depends on the key alone (Chen,
//! Coleman, Shrivastava), so that the overflow does not overload a neighbour.
//!
//! The bound of a node is, as in Envoy, `factor` percent of the mean for its weight. At 100 % and above, the bounds
//! of all nodes add up to more than the requests, so that one of them has room. A pick stays O(1) while few nodes are
//! full.

use super::active::Active;
use super::{Group, Member, PickContext, below, mix};
use crate::identity::EndpointId;

/// The jumps before all members are scanned.
const JUMPS: u64 = 32;

/// The loads of the nodes of all groups, and their bounds.
#[derive(Debug)]
pub(super) struct Bounded {
    /// Percent of the mean
    factor: u16,
    active: Active,
    groups: Vec<Loads>,
}

#[derive(Debug)]
struct Loads {
    /// By member.
    slots: Vec<usize>,
    /// The sum of the weights of usable members.
    weight: u64,
}

impl Bounded {
    pub(super) fn new(factor: u16) -> Bounded {
        Bounded { factor, active: Active::default(), groups: Vec::new() }
    }

    pub(super) fn rebuild(&mut self, groups: &[Group]) {
        let slots = self.active.rebuild(groups.iter().map(Vec::as_slice));
        let weight = |group: &Group| group.iter().filter(|m| m.usable).map(|m| u64::from(m.weight)).sum();
        self.groups =
            groups.iter().zip(slots).map(|(group, slots)| Loads { slots, weight: weight(group) }).collect();
    }

    /// Returns `at`, the key's own member, if it has room; else the first with room in an order that depends on
    /// `hash`; without one, the member that is the least over its bound.
    pub(super) fn settle(
        &self,
        group: usize,
        members: &[Member],
        hash: u64,
        at: usize,
        context: &PickContext<'_>,
    ) -> usize {
        let Some(loads) = self.groups.get(group) else { return at };
        if self.has_room(loads, members, at) {
            return at;
        }
        let left = |at: usize| {
            members[at].usable && members[at].weight > 0 && !context.tried.contains(members[at].id)
        };
        let count = members.len();
        let mut jumps = (0..JUMPS).map(|jump| below(mix(hash, jump + 1), count as u64) as usize);
        if let Some(other) = jumps.find(|&at| left(at) && self.has_room(loads, members, at)) {
            return other;
        }
        let start = below(mix(hash, 0), count as u64) as usize;
        let mut least = at;
        for other in (start..count).chain(0..start).filter(|&at| left(at)) {
            if self.has_room(loads, members, other) {
                return other;
            }
            if self.fill(loads, members, other) < self.fill(loads, members, least) {
                least = other;
            }
        }
        least
    }

    /// Returns the request limit of a member.
    fn bound(&self, loads: &Loads, member: &Member) -> u64 {
        let all = (u128::from(self.active.total() + 1) * u128::from(self.factor)).div_ceil(100);
        let own = (all * u128::from(member.weight)).div_ceil(u128::from(loads.weight.max(1)));
        u64::try_from(own).unwrap_or(u64::MAX).max(1)
    }

    fn has_room(&self, loads: &Loads, members: &[Member], at: usize) -> bool {
        u64::from(self.active.at(loads.slots[at])) < self.bound(loads, &members[at])
    }

    /// Returns the used part of a member's bound.
    fn fill(&self, loads: &Loads, members: &[Member], at: usize) -> f64 {
        f64::from(self.active.at(loads.slots[at])) / self.bound(loads, &members[at]) as f64
    }

    pub(super) fn start(&mut self, id: EndpointId) {
        self.active.start(id);
    }

    pub(super) fn end(&mut self, id: EndpointId) {
        self.active.end(id);
    }
}
