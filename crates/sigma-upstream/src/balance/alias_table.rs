//! Weighted random draws in constant time for any number of members (Walker's alias method, with integers).

use super::slow_start::{SlowStart, Warming};
use super::{Member, PickContext, below, look, mix, weighted};

/// The number of draws before all members are scanned. A draw misses on a tried or excluded member, which are few.
const DRAWS: u64 = 8;

/// The same with warming members, which skip most draws.
const DRAWS_WARMING: u64 = 64;

/// The distance between the two draws of one pick.
const SALTS: u64 = 2 * DRAWS_WARMING;

/// The usable members of a group with weight.
#[derive(Debug)]
pub(super) struct AliasTable {
    members: Vec<Member>,
    /// By member; empty if all weights are equal.
    cells: Vec<Cell>,
    /// The sum of the weights, which is also the content of each cell.
    total: u64,
    warming: Option<Warming>,
}

/// An equal part of all draws, shared by two members.
#[derive(Debug, Clone, Copy)]
struct Cell {
    /// The part of `total` that belongs to the cell's own member.
    own: u64,
    /// The member that has the rest.
    other: usize,
}

impl AliasTable {
    /// Members without weight take part only if there are no others.
    pub(super) fn new(group: &[Member], slow_start: Option<SlowStart>) -> AliasTable {
        let members = weighted(group);
        let total = members.iter().map(|m| u64::from(m.weight)).sum();
        let equal = members.windows(2).all(|pair| pair[0].weight == pair[1].weight);
        let cells = if equal { Vec::new() } else { cells(&members, total) };
        AliasTable { warming: Warming::of(slow_start, &members), members, cells, total }
    }

    /// Returns the members that can be drawn.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the sum of the weights.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the position of an untried member; None if all were tried.
    #[inline]
    pub(super) fn draw(&self, context: &PickContext<'_>) -> Option<usize> {
        self.draw_but(context, 0, None)
    }

    /// Returns positions of two different members; the second is None if only one is left.
    #[inline]
    pub(super) fn draw_two(&self, context: &PickContext<'_>) -> Option<(usize, Option<usize>)> {
        let first = self.draw(context)?;
        Some((first, self.draw_but(context, SALTS, Some(first))))
    }

    fn draw_but(&self, context: &PickContext<'_>, salt: u64, but: Option<usize>) -> Option<usize> {
        let fits = |at: usize| Some(at) != but && !context.tried.contains(self.members[at].id);
        if self.members.len() <= usize::from(but.is_some()) {
            return None;
        }
        let mut at = 0;
        let draws = if self.warming.is_some() { DRAWS_WARMING } else { DRAWS };
        for again in salt..salt + draws {
            at = self.toss(if again == 0 { context.random } else { mix(context.random, again) });
            let takes = |warming: &Warming| {
                warming.takes(&self.members[at], context.now_ms, mix(context.random, !again))
            };
            if fits(at) && self.warming.as_ref().is_none_or(takes) {
                return Some(at);
            }
        }
        (at..self.members.len()).chain(0..at).find(|&at| fits(at))
    }

    /// There is a member.
    #[inline]
    fn toss(&self, random: u64) -> usize {
        look();
        let scaled = u128::from(random) * self.members.len() as u128;
        let (at, rest) = ((scaled >> 64) as usize, scaled as u64);
        match self.cells.get(at) {
            Some(cell) if below(rest, self.total) >= cell.own => cell.other,
            _ => at,
        }
    }
}

/// Fills cells of `total` each: heavy members fill up the cells of light ones.
fn cells(members: &[Member], total: u64) -> Vec<Cell> {
    let parts = members.len() as u64;
    let share = |m: &Member| u64::from(m.weight) * parts;
    let mut cells: Vec<Cell> =
        members.iter().enumerate().map(|(at, m)| Cell { own: share(m), other: at }).collect();
    let (mut light, mut heavy): (Vec<usize>, Vec<usize>) =
        (0..members.len()).partition(|&at| cells[at].own < total);
    while let (Some(&giver), Some(taker)) = (heavy.last(), light.pop()) {
        let lacking = total - cells[taker].own;
        cells[taker].other = giver;
        cells[giver].own -= lacking;
        if cells[giver].own < total {
            heavy.pop();
            light.push(giver);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::Tried;
    use crate::identity::EndpointId;

    fn member(at: usize, weight: u32) -> Member {
        Member {
            index: at,
            id: EndpointId::numbered(at),
            weight,
            priority: 0,
            usable: true,
            in_service: true,
            since_ms: None,
        }
    }

    #[test]
    fn cells_add_up_to_the_weights() {
        for weights in [vec![1, 3], vec![5, 1, 1], vec![u32::MAX, 1, 7, 0, 100], vec![1; 4], vec![9, 2, 2, 9]]
        {
            let members: Vec<Member> = weights.iter().enumerate().map(|(at, &w)| member(at, w)).collect();
            let alias_table = AliasTable::new(&members, None);
            let mut parts = vec![0u64; alias_table.members.len()];
            for (at, cell) in alias_table.cells.iter().enumerate() {
                parts[at] += cell.own;
                parts[cell.other] += alias_table.total - cell.own;
            }
            if !alias_table.cells.is_empty() {
                let n = alias_table.members.len() as u64;
                let want: Vec<u64> = alias_table.members.iter().map(|m| u64::from(m.weight) * n).collect();
                assert_eq!(parts, want, "{weights:?}");
            }
        }
    }

    #[test]
    fn tried_members_are_not_drawn() {
        let alias_table = AliasTable::new(&[member(0, 1000), member(1, 1), member(2, 1)], None);
        let mut tried = Tried::default();
        for want in [3, 2, 1] {
            let context =
                PickContext { session: None, subset: None, key: None, tried: &tried, now_ms: 0, random: 99 };
            let (first, second) = alias_table.draw_two(&context).unwrap();
            assert_eq!((Some(first) != second, second.is_some()), (true, want > 1));
            assert!(!tried.contains(alias_table.members[first].id));
            tried.insert(alias_table.members[first].id);
        }
        let context =
            PickContext { session: None, subset: None, key: None, tried: &tried, now_ms: 0, random: 99 };
        assert_eq!(alias_table.draw_two(&context), None);
        assert_eq!(AliasTable::new(&[], None).draw_two(&context), None);
    }
}
