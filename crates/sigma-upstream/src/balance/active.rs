//! In-flight requests by node.

use super::Member;
use super::kept::PerNode;
use crate::identity::EndpointId;

/// The counts of one worker. Removed nodes keep their count until their requests end, also if they come back; a node
/// in two groups has one count.
#[derive(Debug, Default)]
pub(super) struct Active {
    counts: PerNode<u32>,
    total: u64,
}

impl Active {
    /// Returns the slots of the members of new groups, in their order.
    pub(super) fn rebuild<'g>(&mut self, groups: impl Iterator<Item = &'g [Member]>) -> Vec<Vec<usize>> {
        self.counts.begin();
        let slots = groups.map(|group| group.iter().map(|m| self.counts.stay(m.id)).collect()).collect();
        self.counts.forget(|active| *active > 0, |_| {});
        slots
    }

    /// Returns the requests on the node in this slot.
    #[inline]
    pub(super) fn at(&self, slot: usize) -> u32 {
        *self.counts.at(slot)
    }

    /// Returns the requests on all nodes.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Counts the start of an attempt. The node may belong to a set that was replaced since the pick.
    pub(super) fn start(&mut self, id: EndpointId) {
        let slot = self.counts.slot(id);
        *self.counts.at_mut(slot) += 1;
        self.total += 1;
    }

    /// Counts the end of an attempt.
    pub(super) fn end(&mut self, id: EndpointId) {
        if let Some(active) = self.counts.of(id)
            && *active > 0
        {
            *active -= 1;
            self.total -= 1;
        }
    }
}
