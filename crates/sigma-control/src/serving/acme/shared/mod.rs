//! Shared state of several gateways on one etcd: the account, certificates and attempts, and the responses to an
//! authority that checks a proof. One of them orders (`lead`); all of them answer, and show the ordered certificates.
//!
//! It is in a folder next to the resources, and each gateway follows it (`seen`). Private keys are sealed by the
//! keyring of `data_encryption`. A gateway records its active responses, so that the authority is called only when all
//! of them have the responses.

mod lead;
mod seen;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sigma_config::crypt::Keyring;
use tokio::sync::Notify;

use self::lead::Lead;
use self::seen::{CERTIFICATES, DEMANDS, FOLDER, PROOFS, SharedCertificates};
use super::kept::{Record, account_name};
use super::proofs::Proof;
use crate::store::{Event, Store, StoreError, Transaction, Write};

pub(super) use self::seen::Heard;

/// Where gateways say that they are there.
const GATEWAYS: &str = "data_plane/acme/gateways/";

/// Pause between two looks whether all gateways give the proofs, and between two attempts to write.
const LOOK: Duration = Duration::from_millis(200);

/// Within its lease a gateway says so often that it is there.
const TIMES: u32 = 3;

/// All gateways serve the proofs after this many leases: one that has died is gone after one.
const LEASES: u32 = 2;

/// The record of a gateway.
#[derive(Default, Serialize, Deserialize)]
struct Presence {
    /// The revision of the proofs that it gives.
    proofs: u64,
}

/// A store that several gateways share.
pub(super) struct Shared {
    store: Arc<dyn Store>,
    keyring: Keyring,
    /// The key under which this gateway says that it is there.
    own: String,
    lease: Duration,
    lead: Lead,
    seen: Mutex<SharedCertificates>,
    /// Changes may have been missed.
    is_behind: AtomicBool,
    /// There is something to say of this gateway.
    news: Notify,
}

/// Who orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Orders {
    /// Another gateway, or none yet.
    Another,
    /// This gateway, with all that is known of ssls.
    This,
}

impl Shared {
    pub(super) fn new(store: Arc<dyn Store>, keyring: Keyring, lease: Duration) -> Shared {
        let name = format!("{:016x}", fastrand::u64(..));
        let holder = Bytes::from(json!({ "gateway": name }).to_string());
        let lead = Lead::new(Arc::clone(&store), format!("{FOLDER}leader"), holder, lease);
        Shared {
            store,
            keyring,
            own: format!("{GATEWAYS}{name}"),
            lease,
            lead,
            seen: Mutex::default(),
            is_behind: AtomicBool::new(true),
            news: Notify::new(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, SharedCertificates> {
        // Each change of it is whole at once.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a gateway waits at most until it looks again who orders.
    pub(super) fn period(&self) -> Duration {
        self.lead.period()
    }

    /// Whether this gateway orders. It takes that over if no other does; one that cannot read all
    /// certificates of the others does not, for it would order all of them again.
    pub(super) async fn who_orders(&self) -> Orders {
        let can_read = self.seen().records().is_some();
        if can_read && self.lead.hold().await {
            return Orders::This;
        }
        self.lead.resign().await;
        Orders::Another
    }

    /// Ready when another gateway may order.
    pub(super) async fn lost(&self) {
        self.lead.lost().await;
    }

    /// Returns the records of all ssls; None as long as a part of them cannot be read.
    pub(super) fn records(&self) -> Option<BTreeMap<String, Record>> {
        self.seen().records()
    }

    /// Processes an event of the store. Returns the news in it.
    pub(super) fn hear(&self, event: &Event) -> Vec<Heard> {
        let open = |sealed: &str| self.keyring.decrypt(sealed);
        match event {
            Event::Changed { changes, .. } => {
                let mut seen = self.seen();
                changes.iter().filter_map(|change| seen.hear(change, open)).collect()
            }
            Event::Reloaded(contents) => self.seen().replace(&contents.records, open),
            Event::Lost(_) => Vec::new(),
            Event::Regained { .. } => {
                self.is_behind.store(true, Ordering::Relaxed);
                self.news.notify_one();
                Vec::new()
            }
        }
    }

    /// Reads changes that the watch may have missed. Returns the news in them.
    ///
    /// # Errors
    /// Returns an error if the store cannot be reached, or an event came meanwhile: it is to be called again.
    pub(super) async fn catch_up(&self) -> Result<Vec<Heard>, StoreError> {
        let before = self.seen().changes();
        let records = self.store.list(FOLDER).await?;
        let mut seen = self.seen();
        if seen.changes() != before {
            return Err(StoreError::Conflict);
        }
        self.is_behind.store(false, Ordering::Relaxed);
        Ok(seen.replace(&records, |sealed| self.keyring.decrypt(sealed)))
    }

    /// Whether there may be something that this gateway has not heard.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// This gateway gives the proofs that it has heard of: tells the others.
    pub(super) fn has_news(&self) {
        self.news.notify_one();
    }

    /// Says that this gateway is there and which proofs it gives; then waits until that is to be said again.
    pub(super) async fn be_there(&self) {
        let presence = Presence { proofs: self.seen().proofs() };
        let value = serde_json::to_vec(&presence).unwrap_or_default().into();
        let write = Write::Put { key: self.own.clone(), value, ttl: Some(self.lease) };
        let said = self.store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await;
        let pause = if said.is_ok() && !self.is_behind() { self.lease / TIMES } else { LOOK };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.news.notified() => {}
        }
    }

    /// Writes the record of an ssl, if this gateway orders. As long as it does, it tries again.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it orders no more, or the keyring seals nothing.
    pub(super) async fn write(&self, record: &Record) -> Result<(), String> {
        let mut sealed = record.clone();
        if !record.key.reveal().is_empty() {
            sealed.key = self.seal(record.key.reveal())?.as_str().into();
        }
        let revision = self.put(format!("{CERTIFICATES}{}", record.ssl), json!(sealed), None).await?;
        // It counts from now on, and not from when the watch tells it.
        self.seen().keep(record, revision);
        Ok(())
    }

    /// The account at a directory.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is one that cannot be read.
    pub(super) async fn account<T: DeserializeOwned>(&self, directory: &str) -> Result<Option<T>, String> {
        let key = format!("{FOLDER}{}", account_name(directory));
        let Some(record) = self.store.get(&key).await.map_err(unreached)? else { return Ok(None) };
        let sealed: Value = serde_json::from_slice(&record.value).unwrap_or_default();
        let text = sealed["account"].as_str().and_then(|sealed| self.keyring.decrypt(sealed));
        let text = text.ok_or("no key of `data_encryption.keyring` decrypts the account in the store")?;
        serde_json::from_str(&text).map_err(|error| format!("cannot read the account in the store: {error}"))
    }

    /// Keeps the account at a directory, if this gateway orders.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it orders no more, or the keyring seals nothing.
    pub(super) async fn write_account(
        &self,
        directory: &str,
        account: &impl Serialize,
    ) -> Result<(), String> {
        let sealed = self.seal(&json!(account).to_string())?;
        self.put(format!("{FOLDER}{}", account_name(directory)), json!({ "account": sealed }), None)
            .await
            .map(drop)
    }

    /// Has all gateways give these proofs, this one among them; returns when they do.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if one of them does not in time, or this gateway orders no more.
    pub(super) async fn give(&self, proofs: &[Proof], patience: Duration) -> Result<(), String> {
        let revision = self.put(PROOFS.to_owned(), json!(proofs), Some(patience)).await?;
        let mut missing = String::new();
        let all_give = async {
            loop {
                match self.lacking(revision).await {
                    Ok(None) => return,
                    Ok(Some(gateway)) => missing = gateway,
                    Err(error) => missing = error.to_string(),
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let in_time = tokio::time::timeout(self.lease * LEASES, all_give).await;
        in_time
            .map_err(|_| format!("a gateway of this store does not publish challenge responses: {missing}"))
    }

    /// A gateway that does not give the proofs of this revision yet.
    async fn lacking(&self, revision: u64) -> Result<Option<String>, StoreError> {
        let there = self.store.list(GATEWAYS).await?;
        let gives = |value: &[u8]| {
            serde_json::from_slice::<Presence>(value).is_ok_and(|presence| presence.proofs >= revision)
        };
        if !there.iter().any(|record| record.key == self.own) {
            return Ok(Some(self.own.clone()));
        }
        Ok(there.into_iter().find(|record| !gives(&record.value)).map(|record| record.key))
    }

    /// Tells the gateway that orders, which may be this one, that an ssl is to be ordered now.
    ///
    /// # Errors
    /// Returns an error if the store cannot be reached.
    pub(super) async fn demand(&self, ssl: &str) -> Result<(), StoreError> {
        let key = format!("{DEMANDS}{ssl}");
        let write = Write::Put { key, value: Bytes::from_static(b"{}"), ttl: Some(self.lease) };
        self.store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.map(drop)
    }

    /// Has the proofs given no longer. Without a response their time ends them.
    pub(super) async fn withdraw(&self) {
        let _ = self.lead.commit(vec![Write::Delete { key: PROOFS.to_owned() }]).await;
    }

    /// Leaves orders to the others.
    pub(super) async fn leave_orders(&self) {
        self.lead.resign().await;
    }

    /// This process ends.
    pub(super) async fn leave(&self) {
        self.lead.resign().await;
        let writes = vec![Write::Delete { key: self.own.clone() }];
        // Without a response the lease ends it.
        let _ = self.store.commit(Transaction { conditions: Vec::new(), writes }).await;
    }

    fn seal(&self, text: &str) -> Result<String, String> {
        self.keyring
            .encrypt(text)
            .ok_or_else(|| "`data_encryption.keyring` has no key for encryption".to_owned())
    }

    async fn put(&self, key: String, value: Value, ttl: Option<Duration>) -> Result<u64, String> {
        let value = Bytes::from(value.to_string());
        loop {
            let write = Write::Put { key: key.clone(), value: value.clone(), ttl };
            match self.lead.commit(vec![write]).await {
                Ok(revision) => return Ok(revision),
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(LOOK).await,
                Err(StoreError::Conflict) => {
                    return Err(
                        "another gateway orders certificates, or `store` (etcd) is unreachable".to_owned()
                    );
                }
                Err(error) => return Err(unreached(error)),
            }
        }
    }
}

fn unreached(error: StoreError) -> String {
    format!("`store`: {error}")
}
