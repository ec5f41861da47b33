//! Stores: where resources live while the gateway runs.
//!
//! Every store keeps records under keys such as `routes/1`, numbers its changes by a revision that only
//! grows, writes by compare-and-swap, and tells its watchers what changed. The gateway loads once and then
//! follows the watch from that revision; no caller depends on where a store keeps its data.
//!
//! | store | where | for |
//! |---|---|---|
//! | [`Embedded`](embedded::Embedded) | a file on local disk | one machine, nothing to install |
//! | [`Etcd`](etcd::Etcd) | an etcd cluster, in APISIX's layout | many machines |
//! | [`Mirrored`](copy::Mirrored) | as `Etcd`, with a copy on local disk | starting while etcd is away |
//! | [`Memory`](memory::Memory) | nowhere | tests, and tools that check a configuration |

pub mod copy;
pub mod embedded;
pub mod etcd;
mod feed;
pub mod history;
pub mod memory;
mod records;
pub(crate) mod report;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sigma_config::store::{Store as StoreSettings, StoreAccess, StoreKind, StoreTls};
use tokio::sync::mpsc;

use copy::{CopyFile, Mirrored};
use embedded::Embedded;
use etcd::{Access, Etcd, EtcdOptions, EtcdTls};

/// A future that a store returns.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// One value with its key, which has no prefix and no leading slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// E.g. `routes/1`.
    pub key: String,
    /// JSON text; in a store that others write to, it may be anything. Without room to spare: records are
    /// kept for long.
    pub value: Arc<[u8]>,
    /// The revision in which the key came into being.
    pub created: u64,
    /// The revision in which the value was written.
    pub modified: u64,
}

/// Everything in a store at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The revision.
    pub revision: u64,
    /// In the order of their keys.
    pub records: Vec<Record>,
}

/// The condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The key does not exist.
    Absent {
        /// The key.
        key: String,
    },
    /// The value was last written in this revision.
    ModifiedAt {
        /// The key.
        key: String,
        /// The revision.
        revision: u64,
    },
}

impl Condition {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Condition::Absent { key } | Condition::ModifiedAt { key, .. } => key,
        }
    }

    /// Whether it holds when this is what its key holds.
    #[must_use]
    pub fn holds(&self, record: Option<&Record>) -> bool {
        match self {
            Condition::Absent { .. } => record.is_none(),
            Condition::ModifiedAt { revision, .. } => record.is_some_and(|r| r.modified == *revision),
        }
    }
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets the value.
    Put {
        /// The key.
        key: String,
        /// JSON text.
        value: Bytes,
        /// The record disappears after this time, unless it is written again before.
        ttl: Option<Duration>,
    },
    /// Removes the key; no error if it does not exist.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// The key that it changes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }
}

/// Changes that happen together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// All are carried out, in one revision where the store can.
    pub writes: Vec<Write>,
}

/// A change in an event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A record was written.
    Put(Record),
    /// A key is gone.
    Delete {
        /// The key.
        key: String,
        /// The revision in which it went.
        revision: u64,
    },
}

impl Change {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Change::Put(record) => &record.key,
            Change::Delete { key, .. } => key,
        }
    }
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Changes of one revision, or of several that came together.
    Changed {
        /// The store is at this revision now.
        revision: u64,
        /// In the order in which they happened. Empty where something else than a record took
        /// the store to this revision.
        changes: Vec<Change>,
    },
    /// Changes were missed (compaction, a restored backup): here is all that there is now.
    Reloaded(Contents),
    /// The store cannot be reached; the reason. The store goes on trying by itself.
    Lost(String),
    /// The store can be reached again, and is at this revision.
    Regained {
        /// The revision.
        revision: u64,
    },
}

/// Receives events; the store stops watching when it is dropped.
pub type Watch = mpsc::Receiver<Event>;

/// The folder of what gateways report of themselves, under leases. It is no part of the configuration.
pub const REPORTS: &str = "data_plane/";

/// Events that may wait for the watcher; later ones wait in the store, or are replaced by [`Event::Reloaded`]
/// when that is too much.
pub const WATCH_QUEUE: usize = 1024;

/// Whether the store can be reached, for status pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStatus {
    /// `embedded`, `etcd` …
    pub kind: &'static str,
    /// The newest revision that is known.
    pub revision: u64,
    /// Since when and why it cannot be reached; None while it can.
    pub lost: Option<(SystemTime, String)>,
    /// The loaded content is the copy on local disk, written at this time, because the store could not be
    /// reached; None as soon as the store has been.
    pub copied: Option<SystemTime>,
}

/// The error of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A condition did not hold: another write came between.
    #[error("value changed before overwritten")]
    Conflict,
    /// The store cannot be reached, or refuses; the text says which.
    #[error("{0}")]
    Unavailable(String),
    /// Data of the store cannot be read; the text names the place.
    #[error("{0}")]
    Corrupt(String),
}

/// A store of resources. Methods may be called from any task of the control runtime.
pub trait Store: Send + Sync {
    /// Everything, at one revision.
    fn load(&self) -> Pending<'_, Contents>;

    /// One record.
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Record>>;

    /// All records whose key begins with `prefix`, in the order of their keys.
    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, Vec<Record>>;

    /// Carries out a transaction; returns its revision. An acknowledged write survives `kill -9`.
    fn commit(&self, transaction: Transaction) -> Pending<'_, u64>;

    /// Lets a record that was written with a time to live have all of it again, if it still says `value`; false if it
    /// does not, and has to be written. That is no change: the revision stays.
    fn renew<'a>(&'a self, _key: &'a str, _value: &'a [u8]) -> Pending<'a, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// The version of the server that keeps it; None without a server.
    fn version(&self) -> Pending<'_, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// A number that no call has returned before and that is above every revision so far: the
    /// source of generated ids.
    fn next_id(&self) -> Pending<'_, u64>;

    /// Follows the changes after `revision`; 0 means an empty state. From a revision whose successors are
    /// forgotten, the first event is [`Event::Reloaded`]. To be called within a tokio runtime.
    fn watch(self: Arc<Self>, revision: u64) -> Watch;

    /// Records in forms from before the last load, for those that have another one since or were quarantined;
    /// oldest first. A caller that reads them before the loaded content has the last good form of an invalid
    /// record, as if it had not been restarted.
    fn earlier(&self) -> Vec<Record> {
        Vec::new()
    }

    /// Reports which records are not served in their form of `revision`, so that their last good form is kept
    /// over a restart.
    fn judged(&self, _revision: u64, _quarantined: &[String]) {}

    /// Lets go of what only one process can have open. Reading continues; writing is refused.
    fn release(&self) -> Pending<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes it back: the other process has ended.
    fn take_back(&self) -> Pending<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// How it is.
    fn status(&self) -> StoreStatus;
}

/// Opens the store that the settings name. An etcd need not be there: [`Store::load`] tells.
pub async fn open(settings: &StoreSettings) -> Result<Arc<dyn Store>, StoreError> {
    #[cfg(test)]
    if let Some(store) = crate::simulation::seams::store() {
        return Ok(store);
    }
    let settings = settings.clone();
    // Files are read here, which may take as long as a disk likes.
    let opened = tokio::task::spawn_blocking(move || open_blocking(&settings)).await;
    opened.unwrap_or_else(|_| Err(StoreError::Unavailable("opening the store panicked".into())))
}

fn open_blocking(settings: &StoreSettings) -> Result<Arc<dyn Store>, StoreError> {
    match settings.kind {
        StoreKind::Embedded => Ok(Arc::new(Embedded::open(&settings.path)?)),
        StoreKind::Etcd => {
            let etcd = Etcd::new(etcd_options(settings)?)?;
            let copy = CopyFile::new(&settings.path, &settings.prefix);
            Ok(Arc::new(Mirrored::new(etcd, copy, settings.startup_retry)?))
        }
    }
}

fn etcd_options(settings: &StoreSettings) -> Result<EtcdOptions, StoreError> {
    let milliseconds = |number: u32| Duration::from_millis(number.into());
    Ok(EtcdOptions {
        endpoints: settings.endpoints.clone(),
        prefix: settings.prefix.clone(),
        user: settings.user.clone().zip(settings.password.clone()),
        tls: settings.tls.as_ref().map(etcd_tls).transpose()?.unwrap_or_default(),
        timeout: milliseconds(settings.timeout_ms),
        watch_timeout: milliseconds(settings.watch_timeout_ms),
        resync_delay: milliseconds(settings.resync_delay_ms),
        compare_interval: milliseconds(settings.compare_interval_ms),
        access: match settings.access {
            StoreAccess::ReadWrite => Access::ReadWrite,
            StoreAccess::ReadOnly => Access::ReadOnly,
        },
    })
}

fn etcd_tls(tls: &StoreTls) -> Result<EtcdTls, StoreError> {
    let read = |name: &str, path: &Path| {
        std::fs::read(path).map_err(|error| {
            StoreError::Unavailable(format!("`store.tls.{name}`: {}: {error}", path.display()))
        })
    };
    let ca = tls.ca.as_deref().map(|path| Ok((read("ca", path)?, path))).transpose()?;
    // With an empty file no certificate would be trusted, and etcd's would be blamed for it.
    if let Some((text, path)) = &ca
        && !matches!(CertificateDer::pem_slice_iter(text).next(), Some(Ok(_)))
    {
        let path = path.display();
        return Err(StoreError::Unavailable(format!(
            "`store.tls.ca`: {path}: it contains no certificate; name a PEM file with the certificates of the authorities"
        )));
    }
    let ca = ca.map(|(text, _)| text);
    let identity = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some((read("cert", cert)?, read("key", key)?)),
        _ => None,
    };
    Ok(EtcdTls { ca, identity, sni: tls.sni.clone() })
}
