//! The node with the fewest active requests for its weight.
//!
//! Score = (active + 1) / weight; weight 0 is infinite. A pick is one pass over the group, O(n):
//! for the group sizes in use that is cheaper than keeping a heap ordered at every start and end.
//! Counts are kept per identity, so a node that is listed in two groups has one count.

use std::collections::HashMap;

use super::{Group, Outcome, PickContext, Policy};
use crate::identity::EndpointId;

/// Fewest active requests for the weight.
#[derive(Debug, Default)]
pub(super) struct LeastConn {
    /// Active requests and whether the node is in the set.
    slots: Vec<Slot>,
    slot_of: HashMap<EndpointId, usize>,
    groups: Vec<Vec<Candidate>>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    id: EndpointId,
    active: u32,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    index: usize,
    id: EndpointId,
    weight: u32,
    slot: usize,
}

impl Policy for LeastConn {
    fn rebuild(&mut self, groups: &[Group]) {
        // Idle slots of nodes that left go; busy ones stay until their requests end, and count
        // again if the node comes back.
        self.slots.retain(|slot| slot.active > 0);
        self.slot_of = self.slots.iter().enumerate().map(|(at, s)| (s.id, at)).collect();
        let mut slot = |id: EndpointId| {
            *self.slot_of.entry(id).or_insert_with(|| {
                self.slots.push(Slot { id, active: 0 });
                self.slots.len() - 1
            })
        };
        self.groups = groups
            .iter()
            .map(|group| {
                let usable = group.iter().filter(|m| m.usable);
                usable
                    .map(|m| Candidate { index: m.index, id: m.id, weight: m.weight, slot: slot(m.id) })
                    .collect()
            })
            .collect();
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let candidates = self.groups.get(group)?;
        let left = candidates.iter().filter(|c| !context.tried.contains(c.id));
        let mut best: Option<(u64, &Candidate)> = None;
        for candidate in left {
            let load = u64::from(self.slots[candidate.slot].active) + 1;
            if best.is_none_or(|(least, b)| less((load, candidate.weight), (least, b.weight))) {
                best = Some((load, candidate));
            }
        }
        best.map(|(_, candidate)| candidate.index)
    }

    fn start(&mut self, id: EndpointId) {
        if let Some(&slot) = self.slot_of.get(&id) {
            self.slots[slot].active += 1;
        } else {
            // Picked from a set that was replaced before the attempt began.
            self.slot_of.insert(id, self.slots.len());
            self.slots.push(Slot { id, active: 1 });
        }
    }

    fn end(&mut self, id: EndpointId, _outcome: Outcome) {
        if let Some(&slot) = self.slot_of.get(&id) {
            let active = &mut self.slots[slot].active;
            *active = active.saturating_sub(1);
        }
    }
}

/// Whether load / weight of `a` is less than that of `b`, compared without dividing; weight 0 is
/// infinite, and among infinite ones the load decides.
fn less(a: (u64, u32), b: (u64, u32)) -> bool {
    match (a.1, b.1) {
        (0, 0) => a.0 < b.0,
        (0, _) => false,
        (_, 0) => true,
        _ => a.0 * u64::from(b.1) < b.0 * u64::from(a.1),
    }
}
