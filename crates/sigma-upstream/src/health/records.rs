//! The targets of one upstream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::{Health, HealthEpoch, Place};
use crate::endpoint::{Address, lock};

/// What is known about the endpoints of one upstream. Nodes that come get a record, those that stay
/// keep theirs, and one that nobody uses any more is forgotten. Control side only.
#[derive(Debug, Default)]
pub struct HealthRecords {
    /// Its key; empty if nobody is told of its nodes.
    upstream: Arc<str>,
    epoch: Arc<HealthEpoch>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    records: HashMap<Target, Weak<Health>>,
    /// How many records there may be until those without a user are looked for.
    sweep_at: usize,
    /// How many workers count for outlier detection; None without it.
    workers: Option<usize>,
}

/// Which endpoint a record is of: names may share an address, and a name may have several.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Target {
    host: String,
    port: u16,
    address: Address,
}

/// Below this many records nobody looks for those without a user.
const SWEEP_MIN: usize = 64;

impl HealthRecords {
    /// Those of the upstream with this key, whose changes are told.
    pub(super) fn of_upstream(key: &str) -> HealthRecords {
        HealthRecords { upstream: key.into(), ..HealthRecords::default() }
    }

    /// The record of this endpoint: the existing one while anybody uses it, else a new one, which is
    /// healthy.
    pub fn of(&self, host: &str, port: u16, address: &Address) -> Arc<Health> {
        let target = Target { host: host.to_owned(), port, address: address.clone() };
        let mut known = lock(&self.known);
        if let Some(health) = known.records.get(&target).and_then(Weak::upgrade) {
            return health;
        }
        if known.records.len() >= known.sweep_at.max(SWEEP_MIN) {
            known.sweep();
        }
        let mut health = Health::new(Arc::clone(&self.epoch));
        if !self.upstream.is_empty() {
            let (host, address) = (target.host.clone(), target.address.clone());
            health.place =
                Some(Box::new(Place { upstream: Arc::clone(&self.upstream), host, port, address }));
        }
        if let Some(workers) = known.workers {
            health.compare(workers);
        }
        let health = Arc::new(health);
        known.records.insert(target, Arc::downgrade(&health));
        health
    }

    /// Outlier detection compares the endpoints from now on, by what so many workers count.
    pub fn compare(&self, workers: usize) {
        let mut known = lock(&self.known);
        known.workers = Some(workers);
        known.records.values().filter_map(Weak::upgrade).for_each(|health| health.compare(workers));
    }

    /// What moves when one of the endpoints becomes usable or unusable.
    pub fn epoch(&self) -> &Arc<HealthEpoch> {
        &self.epoch
    }

    /// How many records are in use.
    pub fn live(&self) -> usize {
        let mut known = lock(&self.known);
        known.sweep();
        known.records.len()
    }
}

impl Known {
    fn sweep(&mut self) {
        self.records.retain(|_, health| health.strong_count() > 0);
        self.sweep_at = self.records.len() * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Event, Limits};
    use super::*;

    const LIMITS: Limits = Limits { successes: 1, http_failures: 2, tcp_failures: 1, timeouts: 1 };

    #[test]
    fn records_are_kept_while_they_are_used() {
        let records = HealthRecords::default();
        let at = |n: u16| Address::Tcp(([127, 0, 0, 1], n).into());
        let of = |n: u16| records.of("a", n, &at(n));
        let stays = of(1);
        stays.apply(Event::TcpFailure, LIMITS);
        (2..2000).for_each(|n| drop(of(n)));
        assert!(Arc::ptr_eq(&stays, &of(1)) && !stays.usable());
        assert!(lock(&records.known).records.len() <= SWEEP_MIN);
        assert!(!Arc::ptr_eq(&stays, &records.of("b", 1, &at(1))), "names may share an address");
        assert_eq!(records.live(), 1);
        drop(stays);
        assert!(of(1).usable() && records.live() == 0);
    }
}
