//! The nodes of a table, with stable numbers.

use std::collections::HashMap;
use std::sync::Arc;

use super::HashNode;
use crate::identity::EndpointId;

/// No position.
pub(crate) const NONE: u32 = u32::MAX;

/// The number of nodes sampled to measure the similarity of two lists.
const SAMPLE: usize = 16;

/// The nodes of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct HashNodes {
    /// By number.
    listed: Vec<Option<Listed>>,
    number_of: HashMap<EndpointId, u32>,
    free: Vec<u32>,
}

#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) node: HashNode,
    pub(super) name: Arc<str>,
}

/// The difference of two tables.
pub(super) struct Change {
    pub(super) hash_nodes: HashNodes,
    /// Numbers that are free now.
    pub(super) gone: Vec<u32>,
    /// New numbers. None of them is among the freed ones.
    pub(super) new: Vec<u32>,
}

impl HashNodes {
    /// Returns the position in `nodes` of each number, [`NONE`] for free ones; None if they are not the nodes of the
    /// table.
    pub(crate) fn places(&self, nodes: &[HashNode]) -> Option<Box<[u32]>> {
        if self.number_of.len() != nodes.len() {
            return None;
        }
        let mut places = vec![NONE; self.listed.len()].into_boxed_slice();
        let mut next = 0;
        for (place, node) in (0..).zip(nodes) {
            let number = self.number(node, next)?;
            places[number as usize] = place;
            next = number + 1;
        }
        Some(places)
    }

    /// Returns the number of a node that is unchanged in the table; `next` is its number if the order is unchanged.
    fn number(&self, node: &HashNode, next: u32) -> Option<u32> {
        let is_it = |number: u32| {
            self.listed.get(number as usize).and_then(Option::as_ref).is_some_and(|it| it.node == *node)
        };
        if is_it(next) {
            return Some(next);
        }
        self.number_of.get(&node.id).copied().filter(|number| is_it(*number))
    }

    /// Returns how many of some of the nodes are in the table.
    pub(super) fn likeness(&self, nodes: &[HashNode]) -> usize {
        let some = nodes.iter().step_by((nodes.len() / SAMPLE).max(1));
        some.filter(|node| self.number_of.contains_key(&node.id)).count()
    }

    /// Returns the hash nodes for other nodes. A changed node gets another number.
    pub(super) fn changed(
        former: Option<&HashNodes>,
        nodes: &[HashNode],
        name: &dyn Fn(usize) -> String,
    ) -> Change {
        let mut hash_nodes = former.cloned().unwrap_or_default();
        let mut stays = vec![false; hash_nodes.listed.len()];
        let (mut coming, mut next) = (Vec::new(), 0);
        for (at, node) in nodes.iter().enumerate() {
            match hash_nodes.number(node, next) {
                Some(number) => {
                    stays[number as usize] = true;
                    next = number + 1;
                }
                None => coming.push(at),
            }
        }
        let is_gone =
            |number: &u32| !stays[*number as usize] && hash_nodes.listed[*number as usize].is_some();
        let gone: Vec<u32> = (0..stays.len() as u32).filter(is_gone).collect();
        for &number in &gone {
            if let Some(listed) = hash_nodes.listed[number as usize].take() {
                hash_nodes.number_of.remove(&listed.node.id);
            }
        }
        let new = coming.into_iter().map(|at| hash_nodes.add(nodes[at], name(at).into())).collect();
        hash_nodes.free.extend_from_slice(&gone);
        Change { hash_nodes, gone, new }
    }

    fn add(&mut self, node: HashNode, name: Arc<str>) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.listed.push(None);
            // A set has far fewer nodes.
            self.listed.len() as u32 - 1
        });
        self.listed[number as usize] = Some(Listed { node, name });
        self.number_of.insert(node.id, number);
        number
    }

    pub(super) fn of(&self, number: u32) -> Option<&Listed> {
        self.listed.get(number as usize)?.as_ref()
    }

    /// Returns the name of a node.
    pub(super) fn name(&self, number: u32) -> &str {
        self.of(number).map_or("", |listed| &listed.name)
    }

    /// Returns numbers and nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Listed)> {
        (0..).zip(&self.listed).filter_map(|(number, listed)| Some((number, listed.as_ref()?)))
    }
}
