//! A random node, in proportion to its weight. A pick is O(1).

use super::urn::Urn;
use super::{Group, PickContext, Policy};
use crate::endpoint::EndpointSet;

/// Weighted random choice.
#[derive(Debug, Default)]
pub(super) struct Random {
    groups: Vec<Urn>,
}

impl Policy for Random {
    fn rebuild(&mut self, _: &EndpointSet, groups: &[Group]) {
        self.groups = groups.iter().map(|group| Urn::new(group)).collect();
    }

    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize> {
        let urn = self.groups.get(group)?;
        let at = urn.draw(context)?;
        Some(urn.members()[at].index)
    }
}
