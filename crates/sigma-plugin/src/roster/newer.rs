//! The replacement of a roster in a running gateway.

use std::sync::Arc;

use super::Roster;

impl Roster {
    /// Replaces this roster for all that share it: plugins in files have changed. This one stays in memory, a few
    /// kilobytes, because callers hold references to its parts.
    pub fn supersede(&self, newer: &Arc<Roster>) {
        let newest = self.newest();
        if !std::ptr::eq(newest, Arc::as_ptr(newer)) {
            // The newest one has no newer one, and one thread publishes configurations.
            let _ = newest.newer.set(Arc::clone(newer));
        }
    }

    /// Returns the roster that is in force.
    pub(super) fn newest(&self) -> &Roster {
        let mut newest = self;
        while let Some(newer) = newest.newer.get() {
            newest = newer;
        }
        newest
    }
}

impl std::fmt::Debug for Roster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.plugins.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use sigma_schema::plugins::PluginSchemas;

    use super::*;
    use crate::{Descriptor, Kind};

    #[test]
    fn all_that_share_a_roster_see_the_newest_one() {
        let roster = |name: &'static str| {
            let kind = Descriptor { name, ..Descriptor::BASE };
            Arc::new(Roster::new([Arc::new(kind) as Arc<dyn Kind>], None))
        };
        let (first, second, third) = (roster("a"), roster("b"), roster("c"));
        let shared = Arc::clone(&first);
        first.supersede(&second);
        // The enabled plugins may be all plugins: then the same roster comes twice.
        first.supersede(&second);
        assert_eq!((shared.names(), shared.get("a").is_none()), (vec!["b"], true));
        shared.supersede(&third);
        assert_eq!((first.names(), second.names(), third.names()), (vec!["c"], vec!["c"], vec!["c"]));
    }
}
