//! A random node, in proportion to its weight. A pick is O(1).

use super::alias_table::AliasTable;
use super::slow_start::SlowStart;
use super::{Group, PickContext, Policy};
use crate::endpoint::EndpointSet;

/// Weighted random choice.
#[derive(Debug, Default)]
pub(super) struct Random {
    slow_start: Option<SlowStart>,
    groups: Vec<AliasTable>,
}

impl Random {
    pub(super) fn new(slow_start: Option<SlowStart>) -> Random {
        Random { slow_start, ..Random::default() }
    }
}

impl Policy for Random {
    fn rebuild(&mut self, _: &EndpointSet, groups: &[Group]) {
        self.groups = groups.iter().map(|group| AliasTable::new(group, self.slow_start)).collect();
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let alias_table = self.groups.get(group)?;
        let at = alias_table.draw(context)?;
        Some(alias_table.members()[at].index)
    }
}
