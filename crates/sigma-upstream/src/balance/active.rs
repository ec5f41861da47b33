//! Requests that are under way, by node.

use super::Member;
use super::kept::Kept;
use crate::identity::EndpointId;

/// Counts of one worker. Busy nodes that left stay known until their requests end, and count again
/// if they come back; a node that is listed in two groups has one count.
#[derive(Debug, Default)]
pub(super) struct Active {
    counts: Kept<u32>,
    total: u64,
}

impl Active {
    /// The slots of the members of new groups, in their order.
    pub(super) fn rebuild<'g>(&mut self, groups: impl Iterator<Item = &'g [Member]>) -> Vec<Vec<usize>> {
        self.counts.begin();
        let slots = groups.map(|group| group.iter().map(|m| self.counts.stay(m.id)).collect()).collect();
        self.counts.forget(|active| *active > 0, |_| {});
        slots
    }

    /// Requests on the node in this slot.
    #[inline]
    pub(super) fn at(&self, slot: usize) -> u32 {
        *self.counts.at(slot)
    }

    /// Requests on all nodes.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// An attempt begins. The node may be of a set that was replaced since it was picked.
    pub(super) fn start(&mut self, id: EndpointId) {
        let slot = self.counts.slot(id);
        *self.counts.at_mut(slot) += 1;
        self.total += 1;
    }

    /// An attempt ended.
    pub(super) fn end(&mut self, id: EndpointId) {
        if let Some(active) = self.counts.of(id)
            && *active > 0
        {
            *active -= 1;
            self.total -= 1;
        }
    }
}
