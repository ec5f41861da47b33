//! Power of two choices: of two nodes drawn by weight, the one with fewer active requests for its weight (Envoy's
//! `LEAST_REQUEST`). A pick is O(1).
//!
//! With equal weights this is exactly Envoy's rule. With other weights Envoy uses a schedule by weight / (active +
//! 1), which is O(log n). Here the draw keeps the shares of idle nodes at their weights, and the comparison of active
//! / weight the shares of busy ones.

use super::active::Active;
use super::alias_table::AliasTable;
use super::slow_start::SlowStart;
use super::{Group, Outcome, PickContext, Policy};
use crate::endpoint::EndpointSet;
use crate::identity::EndpointId;

/// Power of two choices on active requests.
#[derive(Debug, Default)]
pub(super) struct LeastRequest {
    slow_start: Option<SlowStart>,
    active: Active,
    groups: Vec<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    alias_table: AliasTable,
    /// The slots of the table's members.
    slots: Vec<usize>,
}

impl LeastRequest {
    pub(super) fn new(slow_start: Option<SlowStart>) -> LeastRequest {
        LeastRequest { slow_start, ..LeastRequest::default() }
    }
}

impl Policy for LeastRequest {
    fn rebuild(&mut self, _: &EndpointSet, groups: &[Group]) {
        let alias_tables: Vec<AliasTable> =
            groups.iter().map(|group| AliasTable::new(group, self.slow_start)).collect();
        let slots = self.active.rebuild(alias_tables.iter().map(AliasTable::members));
        self.groups = alias_tables
            .into_iter()
            .zip(slots)
            .map(|(alias_table, slots)| Drawn { alias_table, slots })
            .collect();
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let Drawn { alias_table, slots } = self.groups.get(group)?;
        let (first, second) = alias_table.draw_two(context)?;
        let load = |at: usize| (self.active.at(slots[at]), alias_table.members()[at].weight);
        let lighter = |other: usize| {
            let ((a, a_weight), (b, b_weight)) = (load(first), load(other));
            u64::from(b) * u64::from(a_weight) < u64::from(a) * u64::from(b_weight)
        };
        let at = second.filter(|&other| lighter(other)).unwrap_or(first);
        Some(alias_table.members()[at].index)
    }

    fn start(&mut self, id: EndpointId) {
        self.active.start(id);
    }

    fn end(&mut self, id: EndpointId, _outcome: Outcome) {
        self.active.end(id);
    }
}
