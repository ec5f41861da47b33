//! Maglev hashing (Eisenbud and others): a table that every node has an equal part of, and a pick is
//! one look-up, O(1).
//!
//! Shares are more even than on a ring, and the table is made faster; when a node comes or leaves, a
//! few keys of others move as well. The table holds unusable nodes too: a key that meets one looks
//! at further places, which depend on the key alone, so that a change of health moves only the keys
//! of its node.

use super::bounded::Bounded;
use super::names::Names;
use super::{Group, Member, Outcome, PickContext, Policy, look, mix};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// Places of a table: a prime, and Envoy's default. 256 KiB.
const PLACES: usize = 65_537;

/// Places that a key looks at before it goes through the nodes.
const LOOKS: u64 = 16;

/// A place that no node has taken.
const FREE: u32 = u32::MAX;

/// Maglev hashing.
#[derive(Debug)]
pub(super) struct Maglev {
    bounded: Option<Bounded>,
    /// Of the set that the tables were made for.
    generation: u64,
    groups: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    members: Vec<Member>,
    /// Hashes of the names, by member.
    hashes: Vec<u64>,
    /// Member positions.
    places: Box<[u32]>,
}

impl Maglev {
    /// With bounds on loads, in percent of the mean, if wanted.
    pub(super) fn new(bounded_load: Option<u16>) -> Maglev {
        Maglev { bounded: bounded_load.map(Bounded::new), generation: 0, groups: Vec::new() }
    }
}

impl Policy for Maglev {
    fn rebuild(&mut self, set: &EndpointSet, groups: &[Group]) {
        let mut old = std::mem::take(&mut self.groups);
        let same_set = std::mem::replace(&mut self.generation, set.generation) == set.generation;
        let names = std::cell::OnceCell::new();
        let table = |group: &Group| {
            // Building is the expensive part; a health flip leaves the places as they are.
            if same_set && let Some(at) = old.iter().position(|table| table.is_of(group)) {
                return Table { members: group.clone(), ..old.swap_remove(at) };
            }
            let names = names.get_or_init(|| Names::new(set));
            let hashes: Vec<u64> = group.iter().map(|m| hash(names.of(m).as_bytes())).collect();
            match old.iter().position(|table| table.fits(group, &hashes)) {
                Some(at) => Table { members: group.clone(), ..old.swap_remove(at) },
                None => Table::new(group.clone(), hashes),
            }
        };
        self.groups = groups.iter().map(table).collect();
        if let Some(bounded) = &mut self.bounded {
            bounded.rebuild(groups);
        }
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let table = self.groups.get(group)?;
        let key = hash(context.key.unwrap_or_default());
        let at = table.find(key, context)?;
        let at = match &self.bounded {
            Some(bounded) => bounded.settle(group, &table.members, (key, at), context),
            None => at,
        };
        Some(table.members[at].index)
    }

    fn start(&mut self, id: EndpointId) {
        if let Some(bounded) = &mut self.bounded {
            bounded.start(id);
        }
    }

    fn end(&mut self, id: EndpointId, _outcome: Outcome) {
        if let Some(bounded) = &mut self.bounded {
            bounded.end(id);
        }
    }
}

impl Table {
    fn new(members: Vec<Member>, hashes: Vec<u64>) -> Table {
        let places = fill(&members, &hashes);
        Table { members, hashes, places }
    }

    /// A member that may be used and was not tried. Those without weight are for the case that there is
    /// no other.
    fn find(&self, key: u64, context: &PickContext<'_>) -> Option<usize> {
        let left = |at: usize| {
            look();
            self.members[at].usable && !context.tried.contains(self.members[at].id)
        };
        let places = self.places.len() as u64;
        let looks = (0..LOOKS).map(|look| if look == 0 { key } else { mix(key, look) });
        let mut found = looks.map(|look| self.places[(look % places) as usize] as usize);
        found.find(|&at| left(at)).or_else(|| {
            // The highest of the hashes of key and node: the same on every gateway.
            let score = |&at: &usize| (self.members[at].weight > 0, mix(key, self.hashes[at]));
            (0..self.members.len()).filter(|&at| left(at)).max_by_key(score)
        })
    }

    /// Whether this is the table of `group`, whose set is the one of before.
    fn is_of(&self, group: &Group) -> bool {
        let alike = |(a, b): (&Member, &Member)| a.id == b.id && a.weight == b.weight;
        self.members.len() == group.len() && self.members.iter().zip(group).all(alike)
    }

    /// Whether the places of this table are right for `group` with these names.
    fn fits(&self, group: &Group, hashes: &[u64]) -> bool {
        let alike = |(a, b): (&Member, &Member)| a.weight == b.weight;
        self.hashes == hashes && self.members.iter().zip(group).all(alike)
    }
}

/// A node that takes places: those of its own permutation, one after the other.
struct Taker {
    at: u32,
    place: usize,
    step: usize,
    /// Places that it is still to take by its weight.
    quota: u64,
}

impl Taker {
    fn take(&mut self, places: &mut [u32]) {
        while places[self.place] != FREE {
            self.place = (self.place + self.step) % PLACES;
        }
        places[self.place] = self.at;
    }
}

/// The table of a group that is not empty. Nodes take places in turns until each has its part; what is
/// left by rounding goes round once more. Members without weight get none unless all are such.
fn fill(members: &[Member], hashes: &[u64]) -> Box<[u32]> {
    let weightless = members.iter().all(|m| m.weight == 0);
    let weight = |m: &Member| if weightless { 1 } else { u64::from(m.weight) };
    let total: u64 = members.iter().map(weight).sum();
    let taker = |(at, member): (usize, &Member)| Taker {
        at: at as u32,
        place: (mix(hashes[at], 1) % PLACES as u64) as usize,
        step: (mix(hashes[at], 2) % (PLACES as u64 - 1)) as usize + 1,
        quota: (u128::from(weight(member)) * PLACES as u128 / u128::from(total)) as u64,
    };
    let with_weight = members.iter().enumerate().filter(|(_, m)| weight(m) > 0);
    let mut takers: Vec<Taker> = with_weight.map(taker).collect();
    // So that the configured order does not matter.
    takers.sort_unstable_by_key(|taker| hashes[taker.at as usize]);
    let mut places = vec![FREE; PLACES].into_boxed_slice();
    let mut left = PLACES;
    let mut turns: Vec<usize> = (0..takers.len()).collect();
    loop {
        turns.retain(|&turn| takers[turn].quota > 0);
        if turns.is_empty() {
            break;
        }
        for &turn in &turns {
            takers[turn].take(&mut places);
            takers[turn].quota -= 1;
            left -= 1;
        }
    }
    takers.iter_mut().take(left).for_each(|taker| taker.take(&mut places));
    places
}

/// FNV-1a, whose bits are then mixed.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step), 0)
}
