//! A report of a gateway: a record that goes with its lease when it is not renewed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Store, StoreError, Transaction, Write};

/// A record of this process in a store.
pub(crate) struct Report {
    store: Arc<dyn Store>,
    key: String,
    ttl: Duration,
    /// Its last value, and since when that holds; None if that is not known.
    told: Option<(Vec<u8>, Instant)>,
    fails: bool,
}

impl Report {
    /// Nothing is written yet. A written value is valid for `ttl`.
    pub(crate) fn new(store: Arc<dyn Store>, key: String, ttl: Duration) -> Report {
        Report { store, key, ttl, told: None, fails: false }
    }

    /// Whether the same value should be written again. With a third of its time gone there are two more
    /// attempts.
    pub(crate) fn is_due(&self) -> bool {
        self.told.as_ref().is_none_or(|(_, at)| at.elapsed() >= self.ttl / 3)
    }

    /// Makes sure that the record has `value` and its lease lives on. A failed write is tried at the next
    /// call; the first of several failures in a row is returned.
    ///
    /// # Errors
    /// Returns an error if the write failed, unless the last call had failed too.
    pub(crate) async fn tell(&mut self, value: Vec<u8>) -> Result<(), StoreError> {
        let at = Instant::now();
        let done = self.put(&value).await;
        self.told = done.is_ok().then_some((value, at));
        let failed_before = std::mem::replace(&mut self.fails, done.is_err());
        if failed_before { Ok(()) } else { done }
    }

    async fn put(&self, value: &[u8]) -> Result<(), StoreError> {
        // A lease that is kept alive is no change that every gateway would hear of.
        if self.told.as_ref().is_none_or(|(told, _)| told == value)
            && self.store.renew(&self.key, value).await?
        {
            return Ok(());
        }
        let write = Write::Put { key: self.key.clone(), value: value.to_vec().into(), ttl: Some(self.ttl) };
        self.store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.map(drop)
    }
}

/// Removes the record at `key`, within `limit`: without a response its lease ends it.
pub(crate) async fn take_back(store: &Arc<dyn Store>, key: &str, limit: Duration) {
    let writes = vec![Write::Delete { key: key.to_owned() }];
    let _ = tokio::time::timeout(limit, store.commit(Transaction { conditions: Vec::new(), writes })).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;

    #[tokio::test]
    async fn a_report_has_the_last_value() {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let mut report = Report::new(Arc::clone(&store), "data_plane/x".into(), Duration::from_secs(60));
        assert!(report.is_due());
        for value in [b"1", b"2"] {
            report.tell(value.to_vec()).await.unwrap();
            assert!(!report.is_due());
            assert_eq!(&*store.get("data_plane/x").await.unwrap().unwrap().value, value);
        }
        take_back(&store, "data_plane/x", Duration::from_secs(60)).await;
        assert_eq!(store.get("data_plane/x").await.unwrap(), None);
    }
}
