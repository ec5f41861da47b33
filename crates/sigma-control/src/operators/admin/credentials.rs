//! An index of the identities of all consumers and their credentials.
//!
//! The identity of a consumer must be unique. Reading all of them for every write would take as long as there
//! are consumers, so they are read once, when the first such write comes, and the store's changes are
//! followed from there.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sigma_config::crypt::Keyring;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_schema::plugins::PluginSchemas;
use tokio::sync::watch;

use super::secrecy;
use crate::store::{Change, Contents, Event, Record, Store, StoreError};

/// How long the watch may be behind what this process has written itself.
const CATCH_UP: Duration = Duration::from_secs(1);

/// The attribute of a plugin, and its value, that identifies a consumer.
type Identity = (Box<str>, Box<str>);

/// Everything that is needed to read a record.
pub(super) struct Reader {
    pub(super) keyring: Keyring,
    pub(super) plugins: Arc<dyn PluginSchemas>,
}

/// The index, once it is needed.
#[derive(Default)]
pub(super) struct Credentials {
    following: tokio::sync::Mutex<Option<Following>>,
    /// The newest revision that this process has written: earlier changes must be known.
    written: Mutex<u64>,
}

/// An index, and how far it has come.
struct Following {
    index: Arc<Mutex<Index>>,
    at: watch::Receiver<u64>,
}

#[derive(Default)]
struct Index {
    owners: HashMap<Identity, BTreeSet<ResourceKey>>,
    identities: HashMap<ResourceKey, Vec<Identity>>,
}

impl Credentials {
    /// This process has written something.
    pub(super) fn wrote(&self, revision: u64) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        *written = revision.max(*written);
    }

    /// The newest revision that this process has written; 0 before the first write.
    pub(super) fn newest_written(&self) -> u64 {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the consumers and credentials with this value of a plugin's attribute, in the order of their keys. Writes of this process count at once, writes of others soon.
    pub(super) async fn owners(
        &self,
        store: &Arc<dyn Store>,
        reader: &Arc<Reader>,
        plugin: &str,
        value: &str,
    ) -> Result<Vec<ResourceKey>, StoreError> {
        let written = self.newest_written();
        let mut following = self.following.lock().await;
        let caught_up = match following.as_mut() {
            // Without its task an index knows nothing new.
            Some(known) if known.at.has_changed().is_err() => false,
            Some(known) => {
                let arrived = known.at.wait_for(|at| *at >= written);
                tokio::time::timeout(CATCH_UP, arrived).await.is_ok_and(|seen| seen.is_ok())
            }
            None => false,
        };
        if !caught_up {
            *following = None;
        }
        let known = match following.take() {
            Some(known) => following.insert(known),
            None => following.insert(follow(store, reader).await?),
        };
        let index = lock(&known.index);
        let owners = index.owners.get(&(Box::from(plugin), Box::from(value)));
        Ok(owners.into_iter().flatten().cloned().collect())
    }
}

/// Reads everything, and follows the changes until there are no more callers.
async fn follow(store: &Arc<dyn Store>, reader: &Arc<Reader>) -> Result<Following, StoreError> {
    let contents = store.load().await?;
    let (told, at) = watch::channel(contents.revision);
    let index = Arc::new(Mutex::new(Index::default()));
    let mut changes = Arc::clone(store).watch(contents.revision);
    lock(&index).reload(&contents, reader);
    let (followed, reader) = (Arc::downgrade(&index), Arc::clone(reader));
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = changes.recv() => event,
                () = told.closed() => return,
            };
            let (Some(event), Some(index)) = (event, followed.upgrade()) else { return };
            let revision = match event {
                Event::Changed { revision, changes } => {
                    lock(&index).apply(&changes, &reader);
                    revision
                }
                Event::Reloaded(contents) => {
                    lock(&index).reload(&contents, &reader);
                    contents.revision
                }
                Event::Lost(_) | Event::Regained { .. } => continue,
            };
            told.send_replace(revision);
        }
    });
    Ok(Following { index, at })
}

fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    // Nothing that holds the lock can leave the index half changed.
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Index {
    fn reload(&mut self, contents: &Contents, reader: &Reader) {
        *self = Index::default();
        contents.records.iter().for_each(|record| self.put(record, reader));
    }

    fn apply(&mut self, changes: &[Change], reader: &Reader) {
        for change in changes {
            match change {
                Change::Put(record) => self.put(record, reader),
                Change::Delete { key, .. } => {
                    if let Some(key) = ResourceKey::parse(key) {
                        self.remove(&key);
                    }
                }
            }
        }
    }

    fn put(&mut self, record: &Record, reader: &Reader) {
        let Some(key) = ResourceKey::parse(&record.key) else { return };
        if !matches!(key.kind, Kind::Consumer | Kind::Credential) {
            return;
        }
        self.remove(&key);
        // A value that cannot be read identifies no consumer.
        let Ok(mut value) = serde_json::from_slice::<Value>(&record.value) else { return };
        secrecy::open(&reader.keyring, key.kind, &mut value, &*reader.plugins);
        let identities: Vec<Identity> = identities(&value, &*reader.plugins)
            .map(|(plugin, _, value)| (Box::from(plugin), Box::from(value)))
            .collect();
        for identity in &identities {
            self.owners.entry(identity.clone()).or_default().insert(key.clone());
        }
        if !identities.is_empty() {
            self.identities.insert(key, identities);
        }
    }

    fn remove(&mut self, key: &ResourceKey) {
        for identity in self.identities.remove(key).unwrap_or_default() {
            if let Some(owners) = self.owners.get_mut(&identity) {
                owners.remove(key);
                if owners.is_empty() {
                    self.owners.remove(&identity);
                }
            }
        }
    }
}

/// Returns the identities of a consumer or credential: plugin, its attribute, and its value.
pub(super) fn identities<'v>(
    value: &'v Value,
    plugins: &'v dyn PluginSchemas,
) -> impl Iterator<Item = (&'v str, &'v str, &'v str)> {
    let confs = value.get("plugins").and_then(Value::as_object).into_iter().flatten();
    confs.filter_map(|(plugin, conf)| {
        let attribute = plugins.unique_attribute(plugin)?;
        Some((plugin.as_str(), attribute, conf.get(attribute)?.as_str()?))
    })
}
