//! A real etcd for the tests of stores, and short helpers.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::Duration;

use sigma_control::store::etcd::{Etcd, EtcdOptions};
use sigma_control::store::{Condition, Event, Transaction, Watch, Write};
pub(crate) use sigma_testkit::EtcdServer;

/// How long anything may take before the test has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Stores in an etcd.
pub(crate) trait EtcdExt {
    /// Options with short times, so that losses are noticed within a test.
    fn options(&self) -> EtcdOptions;

    /// A store with these options.
    fn store(&self) -> Etcd {
        Etcd::new(self.options()).unwrap()
    }
}

impl EtcdExt for EtcdServer {
    fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.endpoint()],
            timeout: Duration::from_secs(2),
            watch_timeout: Duration::from_secs(2),
            resync_delay: Duration::from_millis(200),
            ..EtcdOptions::default()
        }
    }
}

pub(crate) fn put(key: &str, value: &str) -> Write {
    Write::Put { key: key.into(), value: value.to_owned().into(), ttl: None }
}

pub(crate) fn put_for(key: &str, value: &str, ttl: Duration) -> Write {
    Write::Put { key: key.into(), value: value.to_owned().into(), ttl: Some(ttl) }
}

pub(crate) fn delete(key: &str) -> Write {
    Write::Delete { key: key.into() }
}

pub(crate) fn absent(key: &str) -> Condition {
    Condition::Absent { key: key.into() }
}

pub(crate) fn at(key: &str, revision: u64) -> Condition {
    Condition::ModifiedAt { key: key.into(), revision }
}

pub(crate) fn always(writes: impl Into<Vec<Write>>) -> Transaction {
    Transaction { conditions: Vec::new(), writes: writes.into() }
}

pub(crate) fn when(conditions: impl Into<Vec<Condition>>, writes: impl Into<Vec<Write>>) -> Transaction {
    Transaction { conditions: conditions.into(), writes: writes.into() }
}

/// The next event.
pub(crate) async fn next(watch: &mut Watch) -> Event {
    tokio::time::timeout(DEADLINE, watch.recv())
        .await
        .expect("an event in time")
        .expect("a watch that goes on")
}

/// Waits for an event that `wanted` accepts; others are passed over.
pub(crate) async fn until<T>(watch: &mut Watch, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let search = async {
        loop {
            if let Some(found) = wanted(&watch.recv().await.expect("a watch that goes on")) {
                return found;
            }
        }
    };
    tokio::time::timeout(DEADLINE, search).await.expect("the event in time")
}
