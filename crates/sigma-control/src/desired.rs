//! What is to be served: the configuration as the store has it, less what is invalid there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use sigma_config::Config;
use sigma_config::crypt::Keyring;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::plugins::PluginSchemas;
use sigma_config::stored::{self, AnyResource};
use sigma_config::table::Order;

use crate::store::{Change, Contents, Event, Record};

/// An object of the store that is not served as it stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its key, such as `routes/1`.
    pub key: String,
    /// What is wrong with it.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// The store's revision in which it was written.
    pub revision: u64,
    /// Whether an earlier form of it is served instead; otherwise it is left out.
    pub last_good_served: bool,
}

/// What a batch of events changed, and how it was before.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    before: HashMap<ResourceKey, Option<(AnyResource, u64)>>,
    /// Those of them that were refused before, and are tried once more.
    retried: Vec<ResourceKey>,
}

impl Batch {
    /// The keys of what changed.
    pub(crate) fn keys(&self) -> Vec<ResourceKey> {
        self.before.keys().cloned().collect()
    }

    /// Whether a resource is among what changed.
    pub(crate) fn holds(&self, key: &ResourceKey) -> bool {
        self.before.contains_key(key)
    }

    /// Whether nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_empty()
    }
}

/// The configuration that is to be served.
pub(crate) struct Desired {
    /// Settings of the file, resources of the file or the store.
    pub(crate) config: Config,
    plugins: Arc<dyn PluginSchemas>,
    keyring: Keyring,
    revision: u64,
    /// The revision in which each resource was written, to tell on a reload what has changed.
    modified: HashMap<ResourceKey, u64>,
    quarantine: BTreeMap<ResourceKey, Quarantined>,
    /// Of these, what is valid by itself but could not be compiled: it may fit when something else
    /// has changed. With it goes when it was created.
    refused: HashMap<ResourceKey, (AnyResource, u64)>,
}

impl Desired {
    /// Begins with what the file says.
    pub(crate) fn new(config: Config, plugins: Arc<dyn PluginSchemas>, keyring: Keyring) -> Desired {
        let (modified, quarantine, refused) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Desired { config, plugins, keyring, revision: 0, modified, quarantine, refused }
    }

    /// The store's revision that the configuration shows.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision in which a resource was written; 0 for one of the file.
    pub(crate) fn modified(&self, key: &ResourceKey) -> u64 {
        self.modified.get(key).copied().unwrap_or_default()
    }

    /// The highest revision among the resources of each kind that has some.
    pub(crate) fn newest(&self) -> Vec<(Kind, u64)> {
        let mut newest: BTreeMap<Kind, u64> = BTreeMap::new();
        for (key, revision) in &self.modified {
            let highest = newest.entry(key.kind).or_default();
            *highest = (*highest).max(*revision);
        }
        newest.into_iter().collect()
    }

    fn created(&self, key: &ResourceKey) -> Option<u64> {
        self.config.resources.order(key).map(Order::created)
    }

    /// What is not served as it stands in the store.
    pub(crate) fn quarantine(&self) -> impl Iterator<Item = &Quarantined> {
        self.quarantine.values()
    }

    /// Takes over what a store tells; notes in `batch` what that changes.
    pub(crate) fn absorb(&mut self, event: Event, batch: &mut Batch) {
        match event {
            Event::Changed { revision, changes } => {
                for change in changes {
                    match change {
                        Change::Put(record) => self.put(&record, batch),
                        Change::Delete { key, .. } => self.delete(&key, batch),
                    }
                }
                self.revision = revision;
            }
            Event::Reloaded(contents) => self.reload(&contents, batch),
            Event::Lost(reason) => {
                tracing::error!(reason, "the store cannot be reached; the last configuration is served on");
            }
            Event::Regained { revision } => tracing::info!(revision, "the store can be reached again"),
        }
    }

    /// Takes over everything that is in a store.
    pub(crate) fn reload(&mut self, contents: &Contents, batch: &mut Batch) {
        let present: HashSet<&str> = contents.records.iter().map(|record| record.key.as_str()).collect();
        let known = self.modified.keys().chain(self.quarantine.keys());
        let gone: Vec<String> =
            known.map(ResourceKey::to_string).filter(|key| !present.contains(key.as_str())).collect();
        gone.iter().for_each(|key| self.delete(key, batch));
        for record in &contents.records {
            self.put(record, batch);
        }
        self.revision = contents.revision;
    }

    fn put(&mut self, record: &Record, batch: &mut Batch) {
        let Some(key) = ResourceKey::parse(&record.key) else { return };
        if self.modified.get(&key) == Some(&record.modified) {
            return;
        }
        self.refused.remove(&key);
        match self.read(&key, record) {
            Ok(resource) => {
                self.quarantine.remove(&key);
                let created = self.created(&key);
                let before = self.config.resources.put(resource, record.created);
                self.modified.insert(key.clone(), record.modified);
                batch.before.entry(key).or_insert(before.zip(created));
            }
            Err(reason) => self.set_aside(key, reason, record.modified),
        }
    }

    fn read(&self, key: &ResourceKey, record: &Record) -> Result<AnyResource, String> {
        let mut value: Value = serde_json::from_slice(&record.value)
            .map_err(|error| format!("the value is not JSON: {error}"))?;
        self.keyring.decrypt_resource(key.kind, &mut value, &*self.plugins);
        for plugin in stored::skipped_plugins(key.kind, &value, &*self.plugins) {
            tracing::warn!(%key, plugin, "the plugin is not known or not enabled, and left out");
        }
        stored::read(key, &value, &*self.plugins)
    }

    fn delete(&mut self, key: &str, batch: &mut Batch) {
        let Some(key) = ResourceKey::parse(key) else { return };
        self.quarantine.remove(&key);
        self.refused.remove(&key);
        self.modified.remove(&key);
        let created = self.created(&key).unwrap_or_default();
        if let Some(before) = self.config.resources.remove(&key) {
            batch.before.entry(key).or_insert(Some((before, created)));
        }
    }

    /// A resource of the batch turned out to be unusable: its last good form stays.
    pub(crate) fn revert(&mut self, key: &ResourceKey, reason: String, batch: &mut Batch) {
        batch.retried.retain(|retried| retried != key);
        let created = self.created(key);
        let refused = match batch.before.remove(key) {
            Some(Some((before, created))) => self.config.resources.put(before, created),
            Some(None) => self.config.resources.remove(key),
            None => None,
        };
        if let Some(refused) = refused.zip(created) {
            self.refused.insert(key.clone(), refused);
        }
        let revision = self.modified.get(key).copied().unwrap_or(self.revision);
        self.set_aside(key.clone(), reason, revision);
    }

    /// A resource turned out to be unusable before anything is served: it is left out.
    pub(crate) fn leave_out(&mut self, key: &ResourceKey, reason: String) {
        let created = self.created(key);
        if let Some(refused) = self.config.resources.remove(key).zip(created) {
            self.refused.insert(key.clone(), refused);
        }
        let revision = self.modified.get(key).copied().unwrap_or(self.revision);
        self.set_aside(key.clone(), reason, revision);
    }

    /// Adds those that were refused when they were compiled to a batch that may let them fit.
    pub(crate) fn retry(&mut self, may_fit: impl Fn(&ResourceKey) -> bool, batch: &mut Batch) {
        let keys: Vec<ResourceKey> = self.refused.keys().filter(|key| may_fit(key)).cloned().collect();
        for key in keys {
            let Some((resource, created)) = self.refused.remove(&key) else { continue };
            let before_created = self.created(&key);
            let before = self.config.resources.put(resource, created);
            batch.before.entry(key.clone()).or_insert(before.zip(before_created));
            batch.retried.push(key);
        }
    }

    /// A batch is in force.
    pub(crate) fn settle(&mut self, batch: &Batch) {
        batch.retried.iter().for_each(|key| drop(self.quarantine.remove(key)));
    }

    fn set_aside(&mut self, key: ResourceKey, reason: String, revision: u64) {
        let known = self.quarantine.get(&key);
        if known.is_some_and(|known| (known.revision, &known.reason) == (revision, &reason)) {
            return;
        }
        let last_good_served = self.config.resources.get(&key).is_some();
        tracing::error!(%key, reason, revision, last_good_served, "an object of the store is invalid");
        // The same revision is not read again; a later one is.
        self.modified.insert(key.clone(), revision);
        let (shown, since) = (key.to_string(), SystemTime::now());
        let quarantined = Quarantined { key: shown, reason, since, revision, last_good_served };
        self.quarantine.insert(key, quarantined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sigma_config::plugins::NoPlugins;

    fn record(key: &str, value: &str, modified: u64) -> Record {
        Record { key: key.into(), value: value.to_owned().into(), created: 1, modified }
    }

    fn changed(revision: u64, changes: Vec<Change>) -> Event {
        Event::Changed { revision, changes }
    }

    fn desired() -> Desired {
        Desired::new(Config::default(), Arc::new(NoPlugins), Keyring::new(&[]).unwrap())
    }

    const GOOD: &str = r#"{"uri":"/a","upstream":{"nodes":{"127.0.0.1:1":1}}}"#;

    #[test]
    fn what_is_invalid_leaves_the_last_good_form() {
        let mut desired = desired();
        let mut batch = Batch::default();
        let put = |value, revision| changed(revision, vec![Change::Put(record("routes/1", value, revision))]);
        desired.absorb(put(GOOD, 1), &mut batch);
        assert_eq!(batch.keys().len(), 1);
        let mut batch = Batch::default();
        desired.absorb(put(r#"{"uri":7}"#, 2), &mut batch);
        assert!(batch.is_empty());
        let quarantined: Vec<_> = desired.quarantine().cloned().collect();
        assert_eq!(
            (quarantined.len(), quarantined[0].revision, quarantined[0].last_good_served),
            (1, 2, true)
        );
        assert_eq!(desired.config.resources.routes.len(), 1);
        desired.absorb(put(&GOOD.replace("/a", "/b"), 3), &mut batch);
        assert_eq!((batch.keys().len(), desired.quarantine().count(), desired.revision()), (1, 0, 3));
    }

    #[test]
    fn a_reload_changes_what_differs_only() {
        let mut desired = desired();
        let contents = |records: &[Record], revision| Contents { revision, records: records.to_vec() };
        let [a, b] = [record("routes/1", GOOD, 1), record("routes/2", GOOD, 2)];
        desired.reload(&contents(&[a.clone(), b], 2), &mut Batch::default());
        let mut batch = Batch::default();
        desired
            .reload(&contents(&[a, record("routes/3", GOOD, 3), record("x/", "init_dir", 3)], 3), &mut batch);
        let mut keys: Vec<String> = batch.keys().iter().map(ToString::to_string).collect();
        keys.sort();
        assert_eq!(keys, ["routes/2", "routes/3"]);
    }

    #[test]
    fn a_change_is_taken_back() {
        let mut desired = desired();
        let mut batch = Batch::default();
        desired.absorb(changed(1, vec![Change::Put(record("routes/1", GOOD, 1))]), &mut Batch::default());
        let before = desired.config.clone();
        let other = record("routes/1", &GOOD.replace("/a", "/b"), 2);
        desired.absorb(
            changed(2, vec![Change::Put(other), Change::Put(record("routes/2", GOOD, 2))]),
            &mut batch,
        );
        for key in batch.keys() {
            desired.revert(&key, "no".into(), &mut batch);
        }
        assert_eq!(desired.config, before);
        assert_eq!(desired.quarantine().count(), 2);
        // What was refused is tried once more, and stays refused or is in force.
        let key = ResourceKey::new(Kind::Route, "2");
        for succeeds in [false, true] {
            let mut batch = Batch::default();
            desired.retry(|refused| *refused == key, &mut batch);
            assert_eq!((batch.keys(), desired.config.resources.routes.len()), (vec![key.clone()], 2));
            if succeeds {
                desired.settle(&batch);
            } else {
                desired.revert(&key, "no".into(), &mut batch);
                assert_eq!((desired.config == before, desired.quarantine().count()), (true, 2));
            }
        }
        assert_eq!(desired.quarantine().map(|one| one.key.as_str()).collect::<Vec<_>>(), ["routes/1"]);
    }
}
