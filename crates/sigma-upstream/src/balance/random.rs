//! A random node, in proportion to its weight. A pick is O(log n), after retries O(n).

use super::{Group, Member, PickContext, Policy, below, weighted};

/// Weighted random choice.
#[derive(Debug, Default)]
pub(super) struct Random {
    groups: Vec<Draw>,
}

#[derive(Debug)]
struct Draw {
    members: Vec<Member>,
    /// Sum of the weights up to and including each member.
    sums: Vec<u64>,
}

impl Policy for Random {
    fn rebuild(&mut self, groups: &[Group]) {
        self.groups = groups.iter().map(Draw::new).collect();
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let draw = self.groups.get(group)?;
        if !context.tried.is_empty() {
            return draw.among(context);
        }
        let at = below(context.random, *draw.sums.last()?);
        let place = draw.sums.partition_point(|&sum| sum <= at);
        draw.members.get(place).map(|m| m.index)
    }
}

impl Draw {
    fn new(group: &Group) -> Draw {
        let members = weighted(group);
        let add = |sum: &mut u64, member: &Member| {
            *sum += u64::from(member.weight);
            Some(*sum)
        };
        let sums = members.iter().scan(0, add).collect();
        Draw { members, sums }
    }

    fn among(&self, context: &PickContext<'_>) -> Option<usize> {
        let left = || self.members.iter().filter(|m| !context.tried.contains(m.id));
        let mut at = below(context.random, left().map(|m| u64::from(m.weight)).sum());
        for member in left() {
            match at.checked_sub(u64::from(member.weight)) {
                Some(rest) => at = rest,
                None => return Some(member.index),
            }
        }
        None
    }
}
