//! Smooth weighted round robin: over Σ(weights)/gcd picks every node gets exactly weight/gcd, and
//! the picks of a node are spread evenly over that period (the algorithm of nginx).
//!
//! A pick is O(1) for equal weights and O(n) otherwise. Excluding tried nodes also takes O(n).

use super::{Group, Member, PickContext, Policy, below, weighted};

/// Smooth weighted round robin.
#[derive(Debug)]
pub(super) struct RoundRobin {
    seed: u64,
    groups: Vec<Wheel>,
}

#[derive(Debug)]
struct Wheel {
    members: Vec<Member>,
    /// What each member is owed; the sum is 0 between picks.
    owed: Vec<i64>,
    total: i64,
    /// Plain rotation, which is what the algorithm yields for equal weights.
    equal: bool,
    next: usize,
}

impl RoundRobin {
    /// `seed` rotates the order, so that workers do not all begin with the same node.
    pub(super) fn new(seed: u64) -> RoundRobin {
        RoundRobin { seed, groups: Vec::new() }
    }
}

impl Policy for RoundRobin {
    fn rebuild(&mut self, groups: &[Group]) {
        let mut old = std::mem::take(&mut self.groups);
        self.groups = groups
            .iter()
            .map(|group| {
                let fresh = Wheel::new(group, self.seed);
                // The same members (only an address changed, say): go on where we were.
                match old.iter().position(|wheel| wheel.members == fresh.members) {
                    Some(at) => old.swap_remove(at),
                    None => fresh,
                }
            })
            .collect();
    }

    #[inline]
    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let wheel = self.groups.get_mut(group)?;
        if wheel.equal { wheel.rotate(context) } else { wheel.settle(context) }
    }
}

impl Wheel {
    fn new(group: &Group, seed: u64) -> Wheel {
        let mut members = weighted(group);
        let start = below(seed, members.len() as u64) as usize;
        members.rotate_left(start);
        Wheel {
            owed: vec![0; members.len()],
            total: members.iter().map(|m| i64::from(m.weight)).sum(),
            equal: members.windows(2).all(|pair| pair[0].weight == pair[1].weight),
            next: 0,
            members,
        }
    }

    #[inline]
    fn rotate(&mut self, context: &PickContext<'_>) -> Option<usize> {
        for _ in 0..self.members.len() {
            let at = self.next;
            self.next = if at + 1 == self.members.len() { 0 } else { at + 1 };
            let member = &self.members[at];
            if !context.tried.contains(member.id) {
                return Some(member.index);
            }
        }
        None
    }

    fn settle(&mut self, context: &PickContext<'_>) -> Option<usize> {
        if !context.tried.is_empty() {
            return self.settle_among(context);
        }
        let mut best = 0;
        for at in 0..self.members.len() {
            self.owed[at] += i64::from(self.members[at].weight);
            if self.owed[at] > self.owed[best] {
                best = at;
            }
        }
        *self.owed.get_mut(best)? -= self.total;
        Some(self.members[best].index)
    }

    /// A retry: only nodes not tried gain and pay, so that the others are owed what they were.
    fn settle_among(&mut self, context: &PickContext<'_>) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut total = 0;
        for (at, member) in self.members.iter().enumerate() {
            if context.tried.contains(member.id) {
                continue;
            }
            let weight = i64::from(member.weight);
            self.owed[at] += weight;
            total += weight;
            if best.is_none_or(|b| self.owed[at] > self.owed[b]) {
                best = Some(at);
            }
        }
        let best = best?;
        self.owed[best] -= total;
        Some(self.members[best].index)
    }
}
