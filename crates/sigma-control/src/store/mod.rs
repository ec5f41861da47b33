//! Stores: where resources live while the gateway runs.
//!
//! Every store keeps records under keys such as `routes/1`, numbers its changes by a revision that
//! only grows, writes by compare-and-swap, and tells its watchers what changed. The gateway loads
//! once and then follows the watch from that revision; nobody asks where a store keeps its data.
//!
//! | store | where | for |
//! |---|---|---|
//! | [`Embedded`](embedded::Embedded) | a file on local disk | one machine, nothing to install |
//! | [`Etcd`](etcd::Etcd) | an etcd cluster, in APISIX's layout | many machines |
//! | [`Memory`](memory::Memory) | nowhere | tests, and tools that check a configuration |

pub mod memory;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::mpsc;

/// A future that a store returns.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// One value with its key, which has no prefix and no leading slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// E.g. `routes/1`.
    pub key: String,
    /// JSON text.
    pub value: Bytes,
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

/// What must hold for a transaction to be carried out.
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

/// Changes that happen together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// All are carried out, in one revision where the store can.
    pub writes: Vec<Write>,
}

/// A change that a watcher is told of.
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

/// What a watcher receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Changes of one revision, or of several that came together.
    Changed {
        /// The store is at this revision now.
        revision: u64,
        /// In the order in which they happened.
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

/// Events that may wait for the watcher before the store holds back.
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
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A condition did not hold: another write came between.
    #[error("value changed before overwritten")]
    Conflict,
    /// The store cannot be reached, or refuses; the text says which.
    #[error("{0}")]
    Unavailable(String),
    /// What the store holds cannot be read; the text names the place.
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

    /// A number that no call has returned before and that is above every revision so far: the
    /// source of generated ids.
    fn next_id(&self) -> Pending<'_, u64>;

    /// Follows the changes after `revision`.
    fn watch(self: Arc<Self>, revision: u64) -> Watch;

    /// How it is.
    fn status(&self) -> StoreStatus;
}
