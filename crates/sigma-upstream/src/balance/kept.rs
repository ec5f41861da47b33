//! State of a policy for each node, kept over rebuilds.

use std::collections::HashMap;

use crate::identity::EndpointId;

/// Values by node. A node keeps its slot while it is known, so that a pick needs no look-up.
#[derive(Debug)]
pub(super) struct PerNode<T> {
    slots: Vec<Slot<T>>,
    slot_of: HashMap<EndpointId, usize>,
    free: Vec<usize>,
    /// Counts rebuilds, to separate current nodes from removed ones.
    round: u32,
    /// The expected slot of the next node: groups mostly keep their order.
    next: usize,
}

#[derive(Debug)]
struct Slot<T> {
    /// None if the slot is free.
    id: Option<EndpointId>,
    round: u32,
    value: T,
}

impl<T> Default for PerNode<T> {
    fn default() -> PerNode<T> {
        PerNode { slots: Vec::new(), slot_of: HashMap::new(), free: Vec::new(), round: 0, next: 0 }
    }
}

impl<T: Default> PerNode<T> {
    /// Starts a rebuild: then call [`PerNode::stay`] for each node and [`PerNode::forget`].
    pub(super) fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.next = 0;
    }

    /// Returns the slot of a node in the new groups.
    pub(super) fn stay(&mut self, id: EndpointId) -> usize {
        let expected = self.slots.get(self.next).is_some_and(|slot| slot.id == Some(id));
        let slot = if expected { self.next } else { self.slot(id) };
        self.slots[slot].round = self.round;
        self.next = slot + 1;
        slot
    }

    /// Removes nodes without a group, except those whose value is still `wanted`; `gone` gets the removed values.
    pub(super) fn forget(&mut self, wanted: impl Fn(&T) -> bool, mut gone: impl FnMut(T)) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if slot.round != self.round
                && !wanted(&slot.value)
                && let Some(id) = slot.id.take()
            {
                self.slot_of.remove(&id);
                gone(std::mem::take(&mut slot.value));
                self.free.push(at);
            }
        }
    }

    /// Returns the slot of a node; a new node gets one.
    pub(super) fn slot(&mut self, id: EndpointId) -> usize {
        if let Some(&known) = self.slot_of.get(&id) {
            return known;
        }
        let slot = Slot { id: Some(id), round: self.round, value: T::default() };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.slot_of.insert(id, at);
        at
    }

    /// Returns the value of a node, if it is known.
    pub(super) fn of(&mut self, id: EndpointId) -> Option<&mut T> {
        let slot = *self.slot_of.get(&id)?;
        Some(&mut self.slots[slot].value)
    }

    #[inline]
    pub(super) fn at(&self, slot: usize) -> &T {
        &self.slots[slot].value
    }

    #[inline]
    pub(super) fn at_mut(&mut self, slot: usize) -> &mut T {
        &mut self.slots[slot].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_nodes_keep_their_slot_and_value() {
        let id = EndpointId::numbered;
        let mut kept = PerNode::<u32>::default();
        let mut rebuild = |nodes: &[usize]| -> Vec<(usize, u32)> {
            kept.begin();
            let slots: Vec<usize> = nodes.iter().map(|&node| kept.stay(id(node))).collect();
            kept.forget(|value| *value == 7, |_| {});
            for (slot, node) in slots.iter().zip(nodes) {
                *kept.at_mut(*slot) = *node as u32;
            }
            slots.iter().map(|slot| (*slot, *kept.at(*slot))).collect()
        };
        assert_eq!(rebuild(&[5, 6, 7, 8]), [(0, 5), (1, 6), (2, 7), (3, 8)]);
        assert_eq!(rebuild(&[8, 5]), [(3, 8), (0, 5)]);
        // 6 was removed and its slot is free; 7 was still wanted.
        assert_eq!(rebuild(&[5, 9, 7, 10]), [(0, 5), (1, 9), (2, 7), (4, 10)]);
        assert_eq!(kept.of(id(8)), None);
        assert_eq!(kept.of(id(7)), Some(&mut 7));
    }
}
