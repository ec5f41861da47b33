//! The history of the configuration: every change with its author, its result here, and how objects were before.
//!
//! It only watches: the maker of a change reports it and continues. Its own thread writes to its own file,
//! `history.redb` next to the store; on an etcd each node keeps its own observations. Missed changes, because the
//! process was killed between a write and its version or because the disk is slow, are found by comparing the present
//! with the known state, and recorded as changes by an unknown author.
//!
//! Values are kept as the store has them, with their secrets encrypted.

mod file;
mod recorder;
#[cfg(test)]
mod tests;
mod version;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sigma_config::kind::ResourceKey;
use tokio::sync::oneshot;

use super::{Change, Contents, Event, StoreError};
pub(crate) use file::Target;
use file::{HistoryFile, Item};
use recorder::{Recorder, RecorderMessage};
pub use version::{Author, By, Difference, Operation, Outcome, State, Summary, Unserved, Version, cleaned};

/// The prefix of the names of settings among the keys.
pub(crate) const SETTINGS: &str = "settings/";
/// Most messages that wait for the thread; further changes are found by comparing later.
const QUEUE: usize = 4096;
/// The same in bytes of values. They are the store's own values, and only held longer.
const QUEUE_BYTES: usize = 64 << 20;
/// A question takes no longer; the file may be open in the process before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What is kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Versions.
    pub count: u64,
    /// The age of the oldest, in milliseconds.
    pub age_ms: u64,
    /// The size of former values.
    pub bytes: u64,
}

impl From<&sigma_config::history::History> for Limits {
    fn from(settings: &sigma_config::history::History) -> Limits {
        Limits {
            count: settings.keep.into(),
            age_ms: u64::from(settings.days) * 24 * 60 * 60 * 1000,
            bytes: settings.bytes,
        }
    }
}

/// How much a response may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DifferenceLimits {
    /// Objects.
    pub(crate) objects: usize,
    /// Bytes of their values; one object is always returned.
    pub(crate) bytes: usize,
}

/// The path of a history, and its subject.
#[derive(Debug, Clone)]
pub struct HistoryLocation {
    /// The file; None for memory.
    pub file: Option<PathBuf>,
    /// Another text drops the present content: for example the etcd prefix.
    pub subject: String,
    /// The author of unclaimed changes.
    pub others: By,
}

/// The history of a gateway.
pub struct History {
    thread: SyncSender<RecorderMessage>,
    shared: Arc<Shared>,
}

/// State that the thread and its callers share.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes of values in the queue.
    queued: AtomicUsize,
    /// Something did not get into the queue, or not into the file.
    has_missed: AtomicBool,
    /// Why the file is not open.
    problem: Mutex<Option<String>>,
}

impl History {
    /// Begins to write at a place. The thread ends with the value, or when [`History::close`] is called.
    ///
    /// # Errors
    /// Returns an error if there is no further thread.
    pub fn begin(place: HistoryLocation, limits: Limits) -> std::io::Result<History> {
        let (thread, told) = sync_channel(QUEUE);
        let shared = Arc::<Shared>::default();
        let recorder = Recorder::new(place, limits, Arc::clone(&shared));
        std::thread::Builder::new().name("sigma-history".into()).spawn(move || {
            // It begins before the control thread steps back, and has most to do right after a start.
            sigma_net::worker::yield_to_workers();
            recorder.run(&told);
        })?;
        Ok(History { thread, shared })
    }

    /// Reports the whole content of the store. Differences from the known state become a version.
    pub fn found(&self, contents: &Contents) {
        let own = contents.records.iter().filter(|record| is_resource(&record.key));
        let items = own.map(|record| Item {
            key: record.key.clone(),
            modified: record.modified,
            value: Some(Arc::clone(&record.value)),
        });
        self.tell(RecorderMessage::Everything { revision: contents.revision, items: items.collect() });
    }

    /// Reports an event of the store.
    pub fn hear(&self, event: &Event) {
        match event {
            Event::Changed { changes, .. } => {
                let mut items: Vec<(u64, Item)> = Vec::new();
                for change in changes {
                    let (at, item) = match change {
                        Change::Put(record) => {
                            let value = Some(Arc::clone(&record.value));
                            (
                                record.modified,
                                Item { key: record.key.clone(), modified: record.modified, value },
                            )
                        }
                        Change::Delete { key, revision } => {
                            (*revision, Item { key: key.clone(), modified: 0, value: None })
                        }
                    };
                    if is_resource(&item.key) {
                        items.push((at, item));
                    }
                }
                if !items.is_empty() {
                    self.tell(RecorderMessage::Changes(items));
                }
            }
            Event::Reloaded(contents) => self.found(contents),
            Event::Lost(_) | Event::Regained { .. } => {}
        }
    }

    /// Tells whose write of the store a revision is, and which version it brings back.
    pub fn wrote(&self, revision: u64, author: Author, rollback_to: Option<u64>) {
        self.tell(RecorderMessage::Author { revision, author: author.cleaned(), rollback_to });
    }

    /// Reports the content of a file that has come into force, or only its settings where a store has the
    /// rest: values by their keys.
    pub fn file(&self, author: Author, values: BTreeMap<String, Vec<u8>>) {
        let items =
            values.into_iter().map(|(key, value)| Item { key, modified: 0, value: Some(value.into()) });
        self.tell(RecorderMessage::File { author: author.cleaned(), items: items.collect() });
    }

    /// Reports that a file was refused.
    pub fn refused(&self, author: Author, reason: &str) {
        let reason = cleaned(reason, version::REASON_BYTES);
        self.tell(RecorderMessage::Refused { author: author.cleaned(), reason });
    }

    /// Reports that everything up to a revision is in force, but for these.
    pub fn settled(&self, revision: u64, quarantined: Vec<Unserved>) {
        self.tell(RecorderMessage::Settled { revision, quarantined });
    }

    /// Whether something was missed since it was last asked, so that [`History::found`] is to be called.
    pub fn has_missed(&self) -> bool {
        self.shared.has_missed.swap(false, Ordering::AcqRel)
    }

    /// Closes the file: another process opens it. Nothing is kept from now on.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        // The queue is full, or the thread has gone: the file closes with the process.
        if self.thread.try_send(RecorderMessage::Close(reply)).is_ok() {
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, closed).await;
        }
    }

    /// Versions before `before`, the newest first; of one key, if one is named.
    pub(crate) async fn list(
        &self,
        limit: usize,
        before: Option<u64>,
        key: Option<String>,
    ) -> Result<Vec<Version>, StoreError> {
        self.ask(move |file| file.list(limit, before, key.as_deref())).await
    }

    /// A version, if it is kept.
    pub(crate) async fn version(&self, number: u64) -> Result<Option<Version>, StoreError> {
        self.ask(move |file| file.version(number)).await
    }

    /// Returns the differences between the states after two versions, as many as there is room for, and the
    /// number of objects.
    pub(crate) async fn between(
        &self,
        from: u64,
        to: u64,
        of: Option<String>,
        limits: DifferenceLimits,
    ) -> Result<(Vec<Difference>, usize), StoreError> {
        self.ask(move |file| file.between(from, to, of.as_deref(), limits)).await
    }

    /// Returns the changes that restore objects to their state right after a version. None if the newest
    /// changes that `present` shows are not known yet.
    pub(crate) async fn target(&self, number: u64, present: &Contents) -> Result<Option<Target>, StoreError> {
        let own = present.records.iter().filter(|record| is_resource(&record.key));
        let present = own.map(|record| (record.key.clone(), record.modified)).collect();
        self.ask(move |file| file.target(number, &present)).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&HistoryFile) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let asked = self.thread.try_send(RecorderMessage::Query(Box::new(move |file| {
            // The caller may have gone.
            let _ = reply.send(question(file));
        })));
        let unavailable = || {
            let problem = self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let reason = problem.unwrap_or_else(|| "it is busy; repeat the call".to_owned());
            StoreError::Unavailable(format!("cannot read the history: {reason}"))
        };
        if asked.is_err() {
            return Err(unavailable());
        }
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(error))) => {
                Err(StoreError::Unavailable(format!("cannot read the history: {error}; check the disk")))
            }
            Ok(Err(_)) | Err(_) => Err(unavailable()),
        }
    }

    /// Puts something into the queue, unless it is full.
    fn tell(&self, told: RecorderMessage) {
        let bytes = told.bytes();
        let queued = self.shared.queued.fetch_add(bytes, Ordering::AcqRel);
        let sent = match queued > 0 && queued + bytes > QUEUE_BYTES {
            true => Err(()),
            false => self.thread.try_send(told).map_err(|error| match error {
                TrySendError::Full(_) | TrySendError::Disconnected(_) => (),
            }),
        };
        if sent.is_err() {
            self.shared.queued.fetch_sub(bytes, Ordering::AcqRel);
            self.shared.miss("the history is too slow; it lacks the authors of some changes");
        }
    }
}

impl Shared {
    /// Notes that something is missing, and tells once until that is mended.
    fn miss(&self, what: &str) {
        if !self.has_missed.swap(true, Ordering::AcqRel) {
            tracing::error!("{what}");
        }
    }
}

/// Whether a key of the store is one of the configuration.
pub(crate) fn is_resource(key: &str) -> bool {
    ResourceKey::parse(key).is_some() || decorated_service(key).is_some()
}

/// The folder of the costs of a service's fields.
pub(crate) const DECORATIONS: &str = "graphql_cost_decorations";

/// The service that a decoration belongs to.
pub(crate) fn decorated_service(key: &str) -> Option<&str> {
    decoration(key).map(|(service, _)| service)
}

/// The service and the identity of a decoration.
pub(crate) fn decoration(key: &str) -> Option<(&str, &str)> {
    let (service, rest) = key.strip_prefix("services/")?.split_once('/')?;
    Some((service, rest.strip_prefix(DECORATIONS)?.strip_prefix('/')?))
}
