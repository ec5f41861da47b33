//! Which of several gateways orders: the one that holds a key of their store.
//!
//! The key goes with its lease. Each write of the holder depends on the revision of the key, so that one that
//! was away for longer than it knows writes nothing any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Mutex;

use crate::store::{Condition, Store, StoreError, Transaction, Write};

/// Of the lease, the part that the holder does not count on: the store's clock and its way there.
const RESERVE: f64 = 0.2;

/// The lease is renewed so often within its time.
const RENEWALS: u32 = 3;

/// The right to order, as one gateway sees it.
pub(super) struct Lead {
    store: Arc<dyn Store>,
    key: String,
    /// The holder, for people who look into the store.
    holder: Bytes,
    lease: Duration,
    held: Arc<Mutex<Option<Held>>>,
}

#[derive(Clone, Copy)]
struct Held {
    /// The fencing value: the store's revision when the key was last written.
    revision: u64,
    renewed: Instant,
}

impl Lead {
    pub(super) fn new(store: Arc<dyn Store>, key: String, holder: Bytes, lease: Duration) -> Lead {
        Lead { store, key, holder, lease, held: Arc::default() }
    }

    /// How long a holder may wait until it requests more.
    pub(super) fn period(&self) -> Duration {
        self.lease / RENEWALS
    }

    /// Takes the lead if it is free, and renews it if it is time. Returns whether this gateway has it.
    pub(super) async fn hold(&self) -> bool {
        self.hold_at(Instant::now()).await
    }

    async fn hold_at(&self, now: Instant) -> bool {
        let mut held = Arc::clone(&self.held).lock_owned().await;
        *held = held.filter(|held| self.is_valid(held, now));
        let condition = match &*held {
            Some(held) if now.duration_since(held.renewed) < self.period() => return true,
            Some(held) => Condition::ModifiedAt { key: self.key.clone(), revision: held.revision },
            None => Condition::Absent { key: self.key.clone() },
        };
        let write = Write::Put { key: self.key.clone(), value: self.holder.clone(), ttl: Some(self.lease) };
        let transaction = Transaction { conditions: vec![condition], writes: vec![write] };
        let store = Arc::clone(&self.store);
        // Its own task: a caller may leave before the store responds, and the key would then have a revision that is
        // not known here.
        let renewal = tokio::spawn(async move {
            match store.commit(transaction).await {
                // The lease counts from before the store was queried.
                Ok(revision) => *held = Some(Held { revision, renewed: now }),
                Err(StoreError::Conflict) => *held = None,
                // The result of the write is unknown: the lead ends when its lease does.
                Err(_) => {}
            }
            held.is_some()
        });
        renewal.await.unwrap_or(false)
    }

    /// Ready when this gateway has lost the lead; it is renewed until then.
    pub(super) async fn lost(&self) {
        while self.hold().await {
            tokio::time::sleep(self.period() / 2).await;
        }
    }

    /// Writes, if this gateway has the lead at that moment.
    ///
    /// # Errors
    /// Returns `Conflict` if it has not.
    pub(super) async fn commit(&self, writes: Vec<Write>) -> Result<u64, StoreError> {
        self.commit_at(Instant::now(), writes).await
    }

    async fn commit_at(&self, now: Instant, writes: Vec<Write>) -> Result<u64, StoreError> {
        // No renewal happens meanwhile.
        let held = self.held.lock().await;
        let held = held.filter(|held| self.is_valid(held, now)).ok_or(StoreError::Conflict)?;
        let condition = Condition::ModifiedAt { key: self.key.clone(), revision: held.revision };
        self.store.commit(Transaction { conditions: vec![condition], writes }).await
    }

    /// Releases the lead.
    pub(super) async fn resign(&self) {
        let mut held = self.held.lock().await;
        let Some(held) = held.take() else { return };
        let condition = Condition::ModifiedAt { key: self.key.clone(), revision: held.revision };
        let writes = vec![Write::Delete { key: self.key.clone() }];
        // Without a response the lease ends it.
        let _ = self.store.commit(Transaction { conditions: vec![condition], writes }).await;
    }

    fn is_valid(&self, held: &Held, now: Instant) -> bool {
        now.duration_since(held.renewed) < self.lease.mul_f64(1.0 - RESERVE)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Notify, Semaphore};

    use super::*;
    use crate::store::memory::Memory;
    use crate::store::{Contents, Pending, Record, StoreStatus, Watch};

    const KEY: &str = "data_plane/acme/leader";

    fn gateway(store: &Arc<Memory>, lease: Duration) -> Lead {
        Lead::new(Arc::clone(store) as _, KEY.to_owned(), Bytes::from_static(b"{}"), lease)
    }

    fn put(key: &str) -> Vec<Write> {
        vec![Write::Put { key: key.to_owned(), value: Bytes::new(), ttl: None }]
    }

    #[tokio::test]
    async fn one_leads_and_only_its_writes_count() {
        let store = Arc::new(Memory::default());
        let long = Duration::from_secs(3_600);
        let (one, two) = (gateway(&store, long), gateway(&store, long));
        assert_eq!(one.commit(put("x")).await, Err(StoreError::Conflict));
        assert!(one.hold().await && one.hold().await);
        assert!(!two.hold().await);
        assert!(one.commit(put("x")).await.is_ok());
        assert_eq!(two.commit(put("x")).await, Err(StoreError::Conflict));
        one.resign().await;
        assert_eq!(one.commit(put("x")).await, Err(StoreError::Conflict));
        assert!(two.hold().await);
        // Its key is taken away, and given to another one, before it knows.
        let writes = vec![Write::Delete { key: KEY.to_owned() }];
        store.commit(Transaction { conditions: Vec::new(), writes }).await.unwrap();
        assert!(one.hold().await);
        assert_eq!(two.commit(put("y")).await, Err(StoreError::Conflict));
        assert!(store.get("y").await.unwrap().is_none());
    }

    /// A store without a clock: the lease ends here, and is there still.
    #[tokio::test]
    async fn a_lease_that_is_over_counts_no_more() {
        let store = Arc::new(Memory::default());
        let one = gateway(&store, Duration::from_secs(15));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(one.hold_at(start).await);
        assert!(one.commit_at(at(11), put("x")).await.is_ok());
        assert_eq!(one.commit_at(at(12), put("x")).await, Err(StoreError::Conflict));
        // The key is there, and is not known to be its own.
        assert!(!one.hold_at(at(12)).await);
        assert_eq!(one.commit(put("x")).await, Err(StoreError::Conflict));
    }

    #[tokio::test]
    async fn a_lease_is_renewed_while_it_is_held() {
        let store = Arc::new(Memory::default());
        let one = gateway(&store, Duration::from_secs(15));
        let start = Instant::now();
        let mut written = Vec::new();
        for second in 0..12 {
            assert!(one.hold_at(start + Duration::from_secs(second)).await);
            written.push(store.get(KEY).await.unwrap().unwrap().modified);
        }
        assert_eq!(written, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]);
        assert!(one.commit_at(start + Duration::from_secs(20), put("x")).await.is_ok());
    }

    /// A store that responds to a transaction only when the test lets it.
    struct Slow {
        inner: Arc<Memory>,
        written: Notify,
        responses: Semaphore,
    }

    impl Store for Slow {
        fn load(&self) -> Pending<'_, Contents> {
            self.inner.load()
        }

        fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>> {
            self.inner.get(key)
        }

        fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>> {
            self.inner.list(prefix)
        }

        fn commit(&self, transaction: Transaction) -> Pending<'_, u64> {
            Box::pin(async move {
                let revision = self.inner.commit(transaction).await;
                self.written.notify_one();
                self.responses.acquire().await.expect("never closed").forget();
                revision
            })
        }

        fn next_id(&self) -> Pending<'_, u64> {
            self.inner.next_id()
        }

        fn watch(self: Arc<Self>, revision: u64) -> Watch {
            Arc::clone(&self.inner).watch(revision)
        }

        fn status(&self) -> StoreStatus {
            self.inner.status()
        }
    }

    /// An order may end while the lead is renewed: its certificate is still written.
    #[tokio::test]
    async fn a_renewal_ends_though_its_caller_left() {
        let store = Slow { inner: Arc::default(), written: Notify::new(), responses: Semaphore::new(1) };
        let store = Arc::new(store);
        let lease = Duration::from_secs(15);
        let one = Lead::new(Arc::clone(&store) as _, KEY.to_owned(), Bytes::new(), lease);
        let start = Instant::now();
        assert!(one.hold_at(start).await);
        store.written.notified().await;
        let later = start + one.period();
        tokio::select! {
            _ = one.hold_at(later) => panic!("the store has not responded"),
            () = store.written.notified() => {}
        }
        store.responses.add_permits(2);
        assert!(one.commit_at(later, put("x")).await.is_ok());
    }
}
