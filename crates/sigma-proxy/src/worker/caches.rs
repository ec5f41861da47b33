//! The cache zones known to one worker.

use std::cell::RefCell;
use std::sync::Arc;

use sigma_cache::{Zone, Zones};
use sigma_plugin::Node;
use sigma_plugin::cache::CacheRule;

/// A worker's handles of the shared zones, so that a look-up takes no lock.
pub(crate) struct Caches {
    all: Arc<Zones>,
    known: RefCell<Vec<(Box<str>, Arc<Zone>)>>,
}

impl Caches {
    pub(crate) fn new(node: &Node) -> Caches {
        Caches { all: node.part(Zones::default), known: RefCell::default() }
    }

    /// Returns the zone of a rule.
    pub(crate) fn zone(&self, rule: &CacheRule) -> Arc<Zone> {
        let mut known = self.known.borrow_mut();
        if let Some((_, zone)) = known.iter().find(|(name, _)| *name == rule.zone) {
            return Arc::clone(zone);
        }
        let zone = self.all.zone(&rule.zone, rule.zone_bytes, rule.disk.as_ref());
        known.push((rule.zone.clone(), Arc::clone(&zone)));
        zone
    }
}
