//! Nodes by the hash of a key, from a ring (`chash`) or Maglev's table.
//!
//! Tables contain unhealthy nodes too, and nodes in maintenance: to skip one moves only its own keys.

use std::collections::HashMap;
use std::sync::Arc;

use super::bounded::Bounded;
use super::{Group, Member, Outcome, PickContext, Policy, look};
use crate::endpoint::EndpointSet;
use crate::hashing::{self, NONE, Table};
use crate::identity::EndpointId;

/// Chooses with one kind of table.
#[derive(Debug)]
pub(super) struct Hashed<T> {
    bounded: Option<Bounded>,
    groups: Vec<Keyed<T>>,
}

/// A group with its table.
#[derive(Debug)]
struct Keyed<T> {
    table: Arc<T>,
    members: Vec<Member>,
    /// The positions of members, by their numbers in the table.
    places: Box<[u32]>,
    /// A usable member has weight.
    has_weight: bool,
}

impl<T> Hashed<T> {
    /// Returns a policy, optionally with bounded loads in percent of the mean.
    pub(super) fn new(bounded_load: Option<u16>) -> Hashed<T> {
        Hashed { bounded: bounded_load.map(Bounded::new), groups: Vec::new() }
    }
}

impl<T: Table> Policy for Hashed<T> {
    fn rebuild(&mut self, set: &EndpointSet, groups: &[Group]) {
        let former = std::mem::take(&mut self.groups);
        let mut by_first: HashMap<EndpointId, Vec<usize>> = HashMap::new();
        for (number, keyed) in former.iter().enumerate() {
            if let Some(first) = keyed.members.first() {
                by_first.entry(first.id).or_default().push(number);
            }
        }
        let keyed = |(number, group): (usize, &Group)| {
            let node = |m: &Member| set.endpoints[m.index].hash_node(m.weight);
            let like = group.first().and_then(|first| by_first.get(&first.id)).into_iter().flatten();
            let own = former.get(number).into_iter().chain(like.map(|&at| &former[at]));
            let candidates = T::made_ahead(&set.made_ahead).iter().chain(own.map(|keyed| &keyed.table));
            let name = |at: usize| set.endpoints[group[at].index].hash_name();
            let (table, places) = hashing::table(group.iter().map(node).collect(), &name, candidates);
            let has_weight = group.iter().any(|m| m.usable && m.weight > 0);
            Keyed { table, members: group.clone(), places, has_weight }
        };
        self.groups = groups.iter().enumerate().map(keyed).collect();
        if let Some(bounded) = &mut self.bounded {
            bounded.rebuild(groups);
        }
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let keyed = self.groups.get(group)?;
        let hash = T::hash(context.key.unwrap_or_default());
        let at = keyed.find(hash, context)?;
        let at = match &self.bounded {
            Some(bounded) => bounded.settle(group, &keyed.members, hash, at, context),
            None => at,
        };
        Some(keyed.members[at].index)
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

impl<T: Table> Keyed<T> {
    /// Returns the usable, untried member for a key.
    fn find(&self, hash: u64, context: &PickContext<'_>) -> Option<usize> {
        let is_left = |m: &Member| m.usable && !context.tried.contains(m.id);
        // Checked by node, as they are few, before the walk of a table that may have millions of points.
        if !T::FINDS_SHARELESS {
            let some_left =
                context.tried.is_empty() || self.members.iter().any(|m| m.weight > 0 && is_left(m));
            if !self.has_weight || !some_left {
                return None;
            }
        }
        let place = |number: u32| self.places.get(number as usize).copied().unwrap_or(NONE) as usize;
        let may = |number: u32| {
            look();
            self.members.get(place(number)).is_some_and(is_left)
        };
        self.table.find(hash, &may).map(place)
    }
}
