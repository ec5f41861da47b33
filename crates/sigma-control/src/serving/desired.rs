//! The desired configuration: the resources of the store. Invalid ones are quarantined: the last good form
//! stays if it lets no request pass that the new one guards, else the resource is closed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use sigma_config::crypt::Keyring;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::Decoration;
use sigma_config::stored::{self, AllowedFiles, AnyResource};
use sigma_config::table::Order;
use sigma_config::{Checked, Config, QuarantinedItem, Surroundings};
use sigma_schema::Problem;
use sigma_schema::document::{JsonError, strict_json};
use sigma_schema::plugins::PluginSchemas;

use crate::serving::clock::unix_seconds;
use crate::serving::quarantined::{Quarantined, Standing};
use crate::store::history::{DECORATIONS, decoration, is_resource};
use crate::store::{Change, Contents, Event, Record};

type Schemas = Arc<dyn PluginSchemas>;

/// A resource, and what should be known of it.
type Read = (AnyResource, Vec<Problem>);

/// Warnings that are kept of one object at most: who writes it learns of the first ones, mends them
/// and asks again.
const WARNINGS_PER_OBJECT: usize = 16;

/// How a resource was before a change.
#[derive(Debug, Clone)]
struct Former {
    resource: AnyResource,
    created: u64,
    closed: bool,
}

/// The changes of a batch of events, and the former state.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    before: HashMap<ResourceKey, Option<Former>>,
    /// Refused ones, which are tried once more.
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

    /// How a resource was before, and when it was created; None if it did not change.
    pub(crate) fn former(&self, key: &ResourceKey) -> Option<Option<(AnyResource, u64)>> {
        let former = self.before.get(key)?;
        Some(former.as_ref().map(|former| (former.resource.clone(), former.created)))
    }

    /// Whether nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_empty()
    }
}

/// Most resources that are searched for the warnings about one of them: some milliseconds.
const LOOKED_AT_MAX: usize = 5_000;

/// The revisions of the store that a configuration has.
#[derive(Debug, Clone, Copy, Default)]
struct StoreRevisions {
    /// The newest one that is known.
    current: u64,
    /// The one in which resources were last changed, or read whole.
    read: u64,
    /// The one of the newest change of resources that is known.
    changed: u64,
}

/// The configuration that is to be served.
#[derive(Clone)]
pub(crate) struct Desired {
    /// Settings of the file, resources of the file or the store.
    pub(crate) config: Config,
    plugins: Schemas,
    keyring: Keyring,
    revisions: StoreRevisions,
    /// The written form of each resource, by kind and id, to find the changes on a reload.
    written: BTreeMap<Kind, HashMap<Box<str>, Written>>,
    hasher: RandomState,
    quarantine: BTreeMap<ResourceKey, Quarantined>,
    /// Resources that are valid by themselves but could not be compiled: they may fit when something else has
    /// changed. Each with its revision of creation.
    refused: HashMap<ResourceKey, (AnyResource, u64)>,
    /// The store's objects below services: costs of fields of their schemas, by service and id. None for one
    /// that could never be read.
    decorations: BTreeMap<Box<str>, BTreeMap<Box<str>, Option<Decoration>>>,
    /// A configuration is in force, which a change that cannot be read leaves as it is.
    is_serving: bool,
    /// Services below which something has changed that is not in them yet.
    redecorated: BTreeSet<Box<str>>,
    /// Warnings about the file.
    file_warnings: Vec<Problem>,
    /// The same of the store's objects.
    warnings: BTreeMap<ResourceKey, Vec<Problem>>,
}

/// Which form of a resource was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Written {
    revision: u64,
    /// A hash of the value: a restored backup may have another value in the same revision.
    value: u64,
}

impl Desired {
    /// Begins with the file's content.
    pub(crate) fn new(checked: Checked, plugins: Schemas, keyring: Keyring) -> Desired {
        let mut desired = Desired {
            config: Config::default(),
            plugins,
            keyring,
            revisions: StoreRevisions::default(),
            written: BTreeMap::new(),
            hasher: RandomState::new(),
            quarantine: BTreeMap::new(),
            refused: HashMap::new(),
            decorations: BTreeMap::new(),
            is_serving: false,
            redecorated: BTreeSet::new(),
            file_warnings: Vec::new(),
            warnings: BTreeMap::new(),
        };
        desired.replace_file(checked);
        desired
    }

    /// Applies a file with all resources.
    pub(crate) fn replace_file(&mut self, checked: Checked) {
        let Checked { config, warnings, quarantined, .. } = checked;
        (self.config, self.file_warnings) = (config, warnings);
        self.quarantine.clear();
        self.refused.clear();
        for QuarantinedItem { key, problems, .. } in quarantined {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let standing = self.standing(&key);
            self.set_aside(key, problems.join("; "), 0, standing);
        }
    }

    /// Applies the settings of a file whose resources are in a store.
    pub(crate) fn replace_settings(&mut self, checked: Checked) {
        let resources = std::mem::take(&mut self.config.resources);
        (self.config, self.file_warnings) = (Config { resources, ..checked.config }, checked.warnings);
    }

    /// Checks all of the store's content again, with other plugins.
    ///
    /// # Errors
    /// Returns the problems of objects that the former plugins accepted.
    pub(crate) fn renew(&mut self, plugins: Schemas, contents: &Contents) -> Result<(), Vec<Problem>> {
        let before: BTreeSet<ResourceKey> = self.quarantine.keys().cloned().collect();
        (self.plugins, self.written, self.refused) = (plugins, BTreeMap::new(), HashMap::new());
        self.reload(contents, &mut Batch::default());
        let refused = self.quarantine.values().filter(|one| !before.contains(&one.key));
        let problems = refused.map(|one| Problem::new(one.key.to_string(), "plugin", &*one.reason));
        let problems = Vec::from_iter(problems);
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Returns warnings: about the file, then about the store's objects, whose pointers begin with their
    /// keys.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.file_warnings.iter().chain(self.warnings.values().flatten())
    }

    /// The enabled plugins.
    pub(crate) fn plugins(&self) -> Arc<dyn PluginSchemas> {
        Arc::clone(&self.plugins)
    }

    /// The store's revision that the configuration shows.
    pub(crate) fn revision(&self) -> u64 {
        self.revisions.current
    }

    /// The revision in which resources were last changed, or read whole: what else is in the store moves
    /// [`Desired::revision`] alone.
    pub(crate) fn read_at(&self) -> u64 {
        self.revisions.read
    }

    /// The revision of the newest change of resources that is known. After everything was read that is the newest
    /// write: a deletion leaves nothing.
    pub(crate) fn changed(&self) -> u64 {
        self.revisions.changed
    }

    /// The revision in which a resource was written; 0 for one of the file.
    pub(crate) fn modified(&self, key: &ResourceKey) -> u64 {
        self.written(key).map_or(0, |written| written.revision)
    }

    /// The highest revision among the resources of each kind that has some.
    pub(crate) fn newest(&self) -> Vec<(Kind, u64)> {
        let highest =
            |of_kind: &HashMap<Box<str>, Written>| of_kind.values().map(|written| written.revision).max();
        self.written.iter().filter_map(|(kind, of_kind)| Some((*kind, highest(of_kind)?))).collect()
    }

    fn written(&self, key: &ResourceKey) -> Option<&Written> {
        self.written.get(&key.kind)?.get(&*key.id)
    }

    /// Returns the configuration as if these resources were served in these forms, and others deleted. None where there
    /// are more resources than can be looked at for each write.
    pub(crate) fn with(&self, puts: &[AnyResource], deletes: &[ResourceKey]) -> Option<Config> {
        if self.written.values().map(HashMap::len).sum::<usize>().max(puts.len()) > LOOKED_AT_MAX {
            return None;
        }
        let mut config = self.config.clone();
        for resource in puts {
            let created = self.created(&resource.key()).unwrap_or(u64::MAX);
            config.resources.put(self.decorated(resource.clone()), created);
        }
        for key in deletes {
            config.resources.remove(key);
        }
        Some(config)
    }

    fn created(&self, key: &ResourceKey) -> Option<u64> {
        self.config.resources.order(key).map(Order::created)
    }

    /// Returns the objects that are not served as they are in the store.
    pub(crate) fn quarantine(&self) -> impl Iterator<Item = &Quarantined> {
        self.quarantine.values()
    }

    /// Applies an event of the store; notes its changes in `batch`.
    pub(crate) fn absorb(&mut self, event: Event, batch: &mut Batch) {
        self.is_serving = true;
        match event {
            Event::Changed { revision, changes } => {
                if changes.iter().any(|change| is_resource(change.key())) {
                    self.revisions.read = revision;
                    self.revisions.changed = revision;
                }
                for change in changes {
                    match change {
                        Change::Put(record) => self.put(&record, batch),
                        Change::Delete { key, .. } => self.delete(&key, batch),
                    }
                }
                self.redecorate(batch);
                self.revisions.current = revision;
            }
            Event::Reloaded(contents) => self.reload(&contents, batch),
            Event::Lost(reason) => {
                tracing::error!(reason, "the store is unreachable; the last configuration stays in force");
            }
            Event::Regained { revision } => tracing::info!(revision, "the store is reachable again"),
        }
    }

    /// Restores forms from before a restart, so that a resource that is invalid now has a last good form.
    pub(crate) fn remember(&mut self, earlier: &[Record]) {
        earlier.iter().for_each(|record| self.put(record, &mut Batch::default()));
        self.redecorate(&mut Batch::default());
    }

    /// Takes over everything that is in a store.
    pub(crate) fn reload(&mut self, contents: &Contents, batch: &mut Batch) {
        let present: HashSet<&str> = contents.records.iter().map(|record| record.key.as_str()).collect();
        let written = self
            .written
            .iter()
            .flat_map(|(kind, of_kind)| of_kind.keys().map(|id| ResourceKey::new(*kind, &**id)));
        let known = written.chain(self.quarantine.keys().cloned()).map(|key| key.to_string());
        let decorations = self.decorations.iter().flat_map(|(service, of_service)| {
            of_service.keys().map(move |id| format!("services/{service}/{DECORATIONS}/{id}"))
        });
        let gone: Vec<String> =
            known.chain(decorations).filter(|key| !present.contains(key.as_str())).collect();
        gone.iter().for_each(|key| self.delete(key, batch));
        for record in &contents.records {
            self.put(record, batch);
        }
        self.redecorate(batch);
        self.revisions.current = contents.revision;
        self.revisions.read = contents.revision;
        self.revisions.changed =
            self.newest().into_iter().map(|(_, revision)| revision).max().unwrap_or_default();
    }

    /// Takes a decoration over. One that cannot be read leaves the form before it; without one the service has costs
    /// that are not known.
    fn decorate(&mut self, record: &Record) {
        let Some((service, id)) = decoration(&record.key).filter(|(_, id)| !id.is_empty()) else { return };
        let value = serde_json::from_slice(&record.value).map_err(|error| error.to_string());
        match value.and_then(|value: Value| Decoration::of_record(&value)) {
            Ok(read) => {
                let of_service = self.decorations.entry(service.into()).or_default();
                if of_service.get(id).is_none_or(|known| known.as_ref() != Some(&read)) {
                    of_service.insert(id.into(), Some(read));
                    self.redecorated.insert(service.into());
                }
            }
            Err(reason) => {
                let key = &record.key;
                tracing::error!(
                    key,
                    reason,
                    "cannot read a cost decoration; its last valid form stays in force, if there is one"
                );
                let of_service = self.decorations.entry(service.into()).or_default();
                if !of_service.contains_key(id) {
                    of_service.insert(id.into(), None);
                    self.redecorated.insert(service.into());
                }
            }
        }
    }

    fn undecorate(&mut self, key: &str) {
        let Some((service, id)) = decoration(key) else { return };
        let Some(of_service) = self.decorations.get_mut(service) else { return };
        if of_service.remove(id).is_some() {
            self.redecorated.insert(service.into());
        }
        if of_service.is_empty() {
            self.decorations.remove(service);
        }
    }

    /// Merges changed objects below services into them.
    fn redecorate(&mut self, batch: &mut Batch) {
        for service in std::mem::take(&mut self.redecorated) {
            let key = ResourceKey::new(Kind::Service, &*service);
            let closed = self.config.resources.is_closed(&key);
            let Some(Former { resource, created, .. }) = self.former(&key) else { continue };
            self.replace(key.clone(), resource, created, batch);
            if closed {
                self.config.resources.close(key);
            }
        }
    }

    /// Returns a resource with the store's objects below it.
    fn decorated(&self, resource: AnyResource) -> AnyResource {
        let AnyResource::Service(mut service) = resource else { return resource };
        let below = self.decorations.get(service.id.as_str());
        if below.is_some() || !service.graphql_cost_decorations.is_unset() {
            let below = below.into_iter().flat_map(BTreeMap::values).cloned();
            Arc::make_mut(&mut service).graphql_cost_decorations.set().set_below(below);
        }
        AnyResource::Service(service)
    }

    fn put(&mut self, record: &Record, batch: &mut Batch) {
        let Some(key) = ResourceKey::parse(&record.key) else { return self.decorate(record) };
        let written = Written { revision: record.modified, value: self.hasher.hash_one(&record.value) };
        let of_kind = self.written.entry(key.kind).or_default();
        if of_kind.insert(key.id.as_str().into(), written) == Some(written) {
            return;
        }
        self.refused.remove(&key);
        match self.read(&key, record) {
            Ok((resource, warnings)) => {
                self.quarantine.remove(&key);
                self.warn(&key, warnings);
                self.replace(key.clone(), resource, record.created, batch);
            }
            Err((value, reason)) => {
                let standing = self.hold_place(&key, value.as_ref(), record.created, batch);
                self.set_aside(key, reason, record.modified, standing);
            }
        }
    }

    fn warn(&mut self, key: &ResourceKey, mut warnings: Vec<Problem>) {
        warnings.truncate(WARNINGS_PER_OBJECT);
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        match warnings.is_empty() {
            true => drop(self.warnings.remove(key)),
            false => drop(self.warnings.insert(key.clone(), warnings)),
        }
    }

    /// Puts a resource in, and notes how it was before.
    fn replace(&mut self, key: ResourceKey, resource: AnyResource, created: u64, batch: &mut Batch) {
        let former = self.former(&key);
        self.config.resources.put(self.decorated(resource), created);
        batch.before.entry(key).or_insert(former);
    }

    fn former(&self, key: &ResourceKey) -> Option<Former> {
        let resource = self.config.resources.get(key)?;
        let (created, closed) = (self.created(key)?, self.config.resources.is_closed(key));
        Some(Former { resource, created, closed })
    }

    /// Returns the resource and warnings about it; or the problem, with the value if it could be read at all.
    fn read(&self, key: &ResourceKey, record: &Record) -> Result<Read, (Option<Value>, String)> {
        let mut value = strict_json(&record.value).map_err(|error| match error {
            JsonError::Syntax(error) => (None, format!("the value is not JSON: {error}")),
            error => (None, error.to_string()),
        })?;
        self.keyring.decrypt_resource(key.kind, &mut value, &*self.plugins);
        for plugin in stored::skipped_plugins(key.kind, &value, &*self.plugins) {
            tracing::warn!(%key, plugin, "the plugin is unknown or not enabled, and is ignored");
        }
        let (plugins, settings) = (&*self.plugins, &self.config.settings);
        let unknown = settings.compat.unknown_fields;
        let files = AllowedFiles::of(settings).check(key.kind, Some(&key.id), &value, plugins);
        let resource = match files.and_then(|()| stored::read(key, &value, plugins, unknown)) {
            Ok(resource) => resource,
            Err(reason) => return Err((Some(value), reason)),
        };
        let (router, trusts_proxies) = (settings.router.http, !settings.trusted_addresses.is_empty());
        let around = Surroundings { plugins, unknown, router, now: unix_seconds(), trusts_proxies };
        let warnings = stored::warnings(key.kind, Some(&key.id), &value, &around);
        Ok((resource, warnings.into_iter().map(|problem| problem.within(&key.to_string())).collect()))
    }

    /// Decides on the replacement of an invalid record. `value` is None if nothing of it can be read.
    fn hold_place(
        &mut self,
        key: &ResourceKey,
        value: Option<&Value>,
        created: u64,
        batch: &mut Batch,
    ) -> Standing {
        let value = value.filter(|value| value.is_object());
        let last = self.former(key);
        if self.is_serving && last.is_none() && !stored::tells_whom(key, value.unwrap_or(&Value::Null)) {
            // Its guards are unknown, and the present state is no more open than it was before.
            return Standing::LeftOut;
        }
        let outline = stored::outline(key, value.unwrap_or(&Value::Null));
        match (last, outline) {
            (Some(last), outline) if !last.closed => {
                let outline = outline
                    .filter(|written| value.is_some() && !stored::may_stand_in(&last.resource, written));
                let Some(outline) = outline else { return Standing::LastGood };
                self.close(key, outline, created, batch);
            }
            (None, None) => return Standing::LeftOut,
            // Where the new form cannot be read at all, the resource is closed.
            (Some(_), None) => {}
            (_, Some(outline)) => self.close(key, outline, created, batch),
        }
        Standing::Closed
    }

    /// Puts a resource in that only keeps its place.
    fn close(&mut self, key: &ResourceKey, outline: AnyResource, created: u64, batch: &mut Batch) {
        self.replace(key.clone(), outline, created, batch);
        self.config.resources.close(key.clone());
    }

    fn delete(&mut self, key: &str, batch: &mut Batch) {
        let Some(key) = ResourceKey::parse(key) else { return self.undecorate(key) };
        self.quarantine.remove(&key);
        self.refused.remove(&key);
        self.warnings.remove(&key);
        if let Some(of_kind) = self.written.get_mut(&key.kind) {
            of_kind.remove(&*key.id);
        }
        let former = self.former(&key);
        if self.config.resources.remove(&key).is_some() {
            batch.before.entry(key).or_insert(former);
        }
    }

    /// Reverts a resource that turned out to be unusable, by itself or after a change of its references. Its
    /// last good form stays if it may stand in; otherwise its place is kept.
    pub(crate) fn revert(&mut self, key: &ResourceKey, reason: String, batch: &mut Batch) {
        batch.retried.retain(|retried| retried != key);
        let Some(Former { resource: refused, created, .. }) = self.former(key) else {
            // Its deletion is what cannot be.
            if let Some(Some(former)) = batch.before.remove(key) {
                self.config.resources.put(former.resource, former.created);
                self.set_aside(key.clone(), reason, self.revisions.current, Standing::LastGood);
            }
            return;
        };
        self.refused.insert(key.clone(), (refused.clone(), created));
        let last = batch.before.get(key).cloned().flatten();
        let standing = match last {
            Some(last) if !last.closed && stored::may_stand_in(&last.resource, &refused) => {
                batch.before.remove(key);
                self.config.resources.put(last.resource, last.created);
                Standing::LastGood
            }
            last => {
                if !self.keep_place(key) {
                    batch.before.remove(key);
                } else if last.is_none() && !batch.holds(key) {
                    let former = Former { resource: refused, created, closed: false };
                    batch.before.insert(key.clone(), Some(former));
                }
                self.standing(key)
            }
        };
        let revision = self.written(key).map_or(self.revisions.current, |written| written.revision);
        self.set_aside(key.clone(), reason, revision, standing);
    }

    /// A resource turned out to be unusable before anything is served: its place is kept. Whether
    /// that changed anything.
    pub(crate) fn keep_out(&mut self, key: &ResourceKey, reason: String) -> bool {
        let Some(Former { resource, created, closed: false }) = self.former(key) else { return false };
        self.refused.insert(key.clone(), (resource, created));
        self.keep_place(key);
        let revision = self.written(key).map_or(self.revisions.current, |written| written.revision);
        let standing = self.standing(key);
        self.set_aside(key.clone(), reason, revision, standing);
        true
    }

    /// Closes an existing resource, or removes it if it serves no request by itself; returns whether it still
    /// has a place.
    fn keep_place(&mut self, key: &ResourceKey) -> bool {
        if stored::has_place(key.kind) {
            self.config.resources.close(key.clone());
            return true;
        }
        self.config.resources.remove(key);
        false
    }

    /// Returns the replacement of a resource that has just been refused.
    fn standing(&self, key: &ResourceKey) -> Standing {
        if self.config.resources.is_closed(key) { Standing::Closed } else { Standing::LeftOut }
    }

    /// Adds those that were refused when they were compiled to a batch that may let them fit.
    pub(crate) fn retry(&mut self, may_fit: impl Fn(&ResourceKey) -> bool, batch: &mut Batch) {
        let keys: Vec<ResourceKey> = self.refused.keys().filter(|key| may_fit(key)).cloned().collect();
        for key in keys {
            let Some((resource, created)) = self.refused.remove(&key) else { continue };
            self.replace(key.clone(), resource, created, batch);
            batch.retried.push(key);
        }
    }

    /// A batch is in force.
    pub(crate) fn settle(&mut self, batch: &Batch) {
        batch.retried.iter().for_each(|key| drop(self.quarantine.remove(key)));
    }

    fn set_aside(&mut self, key: ResourceKey, reason: String, revision: u64, standing: Standing) {
        let known = self.quarantine.get(&key);
        let told = (revision, &reason, standing);
        if known.is_some_and(|known| (known.revision, &known.reason, known.standing) == told) {
            return;
        }
        let served = standing.name();
        let origin = if revision == 0 { "file" } else { "store" };
        tracing::error!(%key, reason, revision, served, "an object of the {origin} is quarantined");
        // The same revision is not read again; a later one is.
        let of_kind = self.written.entry(key.kind).or_default();
        of_kind.entry(key.id.as_str().into()).or_default().revision = revision;
        let since = SystemTime::now();
        let quarantined = Quarantined { key: key.clone(), reason, since, revision, standing };
        self.quarantine.insert(key, quarantined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sigma_schema::plugins::NoPlugins;

    fn record(key: &str, value: &str, modified: u64) -> Record {
        Record { key: key.into(), value: value.as_bytes().into(), created: 1, modified }
    }

    fn changed(revision: u64, changes: Vec<Change>) -> Event {
        Event::Changed { revision, changes }
    }

    fn desired() -> Desired {
        Desired::new(Checked::default(), Arc::new(NoPlugins), Keyring::new(&[]).unwrap())
    }

    const GOOD: &str = r#"{"uri":"/a","upstream":{"nodes":{"127.0.0.1:1":1}}}"#;

    #[test]
    fn an_invalid_object_leaves_the_last_good_form() {
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
            (quarantined.len(), quarantined[0].revision, quarantined[0].standing),
            (1, 2, Standing::LastGood)
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

    /// A service contains the store's objects below it, in any order of arrival.
    #[test]
    fn decorations_are_in_their_services() {
        let mut desired = desired();
        let at = |id: &str| format!("services/s/graphql_cost_decorations/{id}");
        let put = |key: &str, value: &str| Change::Put(record(key, value, 1));
        let paths = |desired: &Desired| -> Vec<String> {
            let Some(service) = desired.config.resources.services.get("s") else { return Vec::new() };
            let of = |name| service.graphql_cost_decorations.ending_in(name);
            ["a", "b"].into_iter().flat_map(of).map(|one| one.field_path.names().join(".")).collect()
        };
        let mut check = |changes: Vec<Change>, touched: usize, expected: &[&str]| {
            let mut batch = Batch::default();
            desired.absorb(changed(2, changes), &mut batch);
            assert_eq!(paths(&desired), expected);
            assert_eq!(batch.keys().len(), touched, "{expected:?}");
        };
        check(vec![put(&at("1"), r#"{"id":"1","field_path":"Query.a"}"#)], 0, &[]);
        let own = r#"{"graphql_cost_decorations":[{"field_path":"Query.b"}]}"#;
        check(vec![put("services/s", own)], 1, &["Query.a", "Query.b"]);
        check(vec![put(&at("2"), r#"{"field_path":"T.a"}"#)], 1, &["Query.a", "T.a", "Query.b"]);
        check(vec![put(&at("2"), "garbage")], 0, &["Query.a", "T.a", "Query.b"]);
        let gone = |id: &str| Change::Delete { key: at(id), revision: 2 };
        check(vec![gone("1"), gone("4")], 1, &["T.a", "Query.b"]);
        let contents = Contents { revision: 3, records: vec![record("services/s", own, 1)] };
        let mut batch = Batch::default();
        desired.reload(&contents, &mut batch);
        assert_eq!((batch.keys().len(), paths(&desired)), (1, vec!["Query.b".to_owned()]));
    }

    /// A decoration that could never be read is no reason to let queries through for less.
    #[test]
    fn costs_are_unknown_with_a_decoration_that_cannot_be_read() {
        let mut desired = desired();
        let at = |id: &str| format!("services/s/graphql_cost_decorations/{id}");
        let put = |key: &str, value: &str| Change::Put(record(key, value, 1));
        let gone = |id: &str| Change::Delete { key: at(id), revision: 2 };
        let mut check = |changes: Vec<Change>, touched: usize, expected: bool| {
            let mut batch = Batch::default();
            desired.absorb(changed(2, changes), &mut batch);
            let service = desired.config.resources.services.get("s").unwrap();
            assert_eq!(service.graphql_cost_decorations.is_partial(), expected);
            assert_eq!(batch.keys().len(), touched);
        };
        check(vec![put(&at("1"), "garbage"), put("services/s", "{}")], 1, true);
        check(vec![put(&at("1"), "{}"), put(&at("2"), r#"{"field_path":"T.a"}"#)], 1, true);
        check(vec![put(&at("1"), r#"{"field_path":"T.b"}"#)], 1, false);
        check(vec![put(&at("3"), "[]")], 1, true);
        check(vec![gone("3")], 1, false);
    }

    /// A restored backup may bring another value in the revision that was known.
    #[test]
    fn a_reload_sees_another_value_in_the_same_revision() {
        let mut desired = desired();
        let with = |value: &str| Contents { revision: 1, records: vec![record("routes/1", value, 1)] };
        desired.reload(&with(GOOD), &mut Batch::default());
        let mut batch = Batch::default();
        desired.reload(&with(&GOOD.replace("/a", "/b")), &mut batch);
        assert_eq!(batch.keys().len(), 1);
        let mut batch = Batch::default();
        desired.reload(&with(&GOOD.replace("/a", "/b")), &mut batch);
        assert!(batch.is_empty());
    }

    #[test]
    fn the_good_form_from_before_a_restart_stays() {
        let mut desired = desired();
        desired.remember(&[record("routes/1", GOOD, 1)]);
        let contents = Contents { revision: 2, records: vec![record("routes/1", "garbage", 2)] };
        desired.reload(&contents, &mut Batch::default());
        let standing: Vec<_> = desired.quarantine().map(|one| (one.revision, one.standing)).collect();
        assert_eq!(standing, [(2, Standing::LastGood)]);
        assert_eq!((desired.config.resources.routes.len(), desired.revision()), (1, 2));
    }

    #[test]
    fn a_change_is_taken_back() {
        let mut desired = desired();
        let mut batch = Batch::default();
        desired.absorb(changed(1, vec![Change::Put(record("routes/1", GOOD, 1))]), &mut Batch::default());
        let before = desired.config.clone();
        let other = record("routes/1", &GOOD.replace("127.0.0.1", "127.0.0.2"), 2);
        desired.absorb(
            changed(2, vec![Change::Put(other), Change::Put(record("routes/2", GOOD, 2))]),
            &mut batch,
        );
        for key in batch.keys() {
            desired.revert(&key, "no".into(), &mut batch);
        }
        let key = ResourceKey::new(Kind::Route, "2");
        // One has a good form, of the other nothing but its place is served.
        let kept = |desired: &Desired| {
            let first = ResourceKey::new(Kind::Route, "1");
            let resources = &desired.config.resources;
            assert_eq!(resources.get(&first), before.resources.get(&first));
            (resources.is_closed(&first), resources.is_closed(&key))
        };
        assert_eq!((kept(&desired), batch.keys()), ((false, true), vec![key.clone()]));
        assert_eq!(desired.quarantine().count(), 2);
        // A refused resource is tried once more, and stays refused or comes into force.
        for succeeds in [false, true] {
            let mut batch = Batch::default();
            desired.retry(|refused| *refused == key, &mut batch);
            assert_eq!((batch.keys(), kept(&desired)), (vec![key.clone()], (false, false)));
            if succeeds {
                desired.settle(&batch);
            } else {
                desired.revert(&key, "no".into(), &mut batch);
                assert_eq!((kept(&desired), desired.quarantine().count()), ((false, true), 2));
            }
        }
        assert_eq!(desired.quarantine().map(|one| one.key.to_string()).collect::<Vec<_>>(), ["routes/1"]);
    }

    /// The form before stays only where it lets nothing through that the new one guards.
    #[test]
    fn a_more_open_form_does_not_replace() {
        let check = |key: &str, good: &str, bad: &str, expected: Standing| {
            let mut desired = desired();
            desired.absorb(changed(1, vec![Change::Put(record(key, good, 1))]), &mut Batch::default());
            assert_eq!(desired.quarantine().count(), 0, "{good}");
            desired.absorb(changed(2, vec![Change::Put(record(key, bad, 2))]), &mut Batch::default());
            let standing = desired.quarantine().next().map(|one| one.standing);
            assert_eq!(standing, Some(expected), "{key}: {good} -> {bad}");
            let key = ResourceKey::parse(key).unwrap();
            assert_eq!(desired.config.resources.is_closed(&key), expected == Standing::Closed);
        };
        let with = |more: &str| GOOD.replace("\"/a\"", &format!("\"/a\",{more}"));
        check("routes/1", GOOD, "garbage", Standing::LastGood);
        check("routes/1", GOOD, "{\"uri\":7}", Standing::LastGood);
        check("routes/1", GOOD, &with("\"timeout\":7"), Standing::LastGood);
        check("routes/1", GOOD, &with("\"plugins\":{\"gone\":{}}"), Standing::Closed);
        check("routes/1", GOOD, &with("\"timeout\":7,\"service_id\":\"1\""), Standing::Closed);
        check("routes/1", GOOD, &with("\"vars\":[[\"a\",\"nonsense\",1]]"), Standing::LastGood);
        check("routes/1", &with("\"vars\":[[\"a\",\"==\",1]]"), &with("\"vars\":7"), Standing::Closed);
        check("routes/1", GOOD, &with("\"timeout\":7,\"status\":0"), Standing::Closed);
        check("routes/1", GOOD, &with("\"timeout\":7").replace("/a", "/b"), Standing::Closed);
        check("global_rules/1", "{\"plugins\":{}}", "[1]", Standing::LastGood);
        check("global_rules/1", "{\"plugins\":{}}", "{\"plugins\":{\"gone\":{}}}", Standing::Closed);
        check("services/1", "{}", "{\"plugins\":{\"gone\":{}}}", Standing::Closed);
        check("plugin_configs/1", "{\"plugins\":{}}", "{\"plugins\":7}", Standing::LastGood);
        let consumer = |more: &str| format!("{{\"username\":\"jack\"{more}}}");
        check("consumers/jack", &consumer(""), &consumer(",\"plugins\":{\"gone\":{}}"), Standing::Closed);
        check("consumers/jack", &consumer(""), &consumer(",\"group_id\":\"g\",\"desc\":7"), Standing::Closed);
    }

    /// Without a form before it, the place is kept of everything of which it is known.
    #[test]
    fn a_resource_that_was_never_good_keeps_its_place() {
        let check = |key: &str, bad: &str, expected: Standing| {
            let mut desired = desired();
            let mut batch = Batch::default();
            desired.absorb(changed(1, vec![Change::Put(record(key, bad, 1))]), &mut batch);
            let standing = desired.quarantine().next().map(|one| one.standing);
            assert_eq!(
                (standing, batch.keys().len()),
                (Some(expected), usize::from(expected == Standing::Closed)),
                "{key}: {bad}"
            );
            // It goes as it came.
            desired.absorb(changed(2, vec![Change::Delete { key: key.into(), revision: 2 }]), &mut batch);
            assert_eq!(
                (desired.quarantine().count(), desired.config.resources.keys().len()),
                (0, 0),
                "{key}"
            );
        };
        check("routes/1", r#"{"uri":"/a","plugins":{"gone":{}}}"#, Standing::Closed);
        check("routes/1", r#"{"uris":["/a",7],"methods":"GET","vars":7}"#, Standing::Closed);
        check("routes/1", r#"{"uri":7}"#, Standing::LeftOut);
        check("routes/1", "garbage", Standing::LeftOut);
        check("global_rules/1", r#"{"plugins":{"gone":{}}}"#, Standing::Closed);
        check("services/1", "garbage", Standing::Closed);
        check("consumers/jack", "garbage", Standing::Closed);
        check("ssls/1", r#"{"snis":["a.test"],"cert":"x"}"#, Standing::Closed);
        check("ssls/1", r#"{"cert":"x"}"#, Standing::LeftOut);
        check("plugin_metadata/cors", "garbage", Standing::LeftOut);
    }

    /// A change that cannot be read leaves the present state in force. At a start nothing is in force, and
    /// all is closed.
    #[test]
    fn unreadable_changes_are_not_applied() {
        let rows = [
            ("global_rules/1", "garbage"),
            ("global_rules/1", ""),
            ("global_rules/1", "null"),
            ("global_rules/1", "[1]"),
            ("global_rules/1", "{\"plugins\":"),
            ("global_rules/1", "{}"),
            ("global_rules/1", "{\"plugins\":\"key-auth\"}"),
            ("global_rules/1", "{\"plugins\":[1]}"),
            ("global_rules/1", "{\"plugins\":{},\"plugins\":{}}"),
            ("global_rules/1", "{\"plugins\":{\"cors\":{},\"cors\":{}}}"),
            ("stream_routes/1", "garbage"),
            ("stream_routes/1", "{\"server_port\":\"x\"}"),
            ("stream_routes/1", "{\"remote_addr\":7,\"upstream_id\":\"1\"}"),
            ("stream_routes/1", "{\"sni\":[]}"),
        ];
        for (key, value) in rows {
            let place = ResourceKey::parse(key).unwrap();
            let good = record("routes/1", GOOD, 1);
            let all = |more| Contents { revision: 2, records: vec![good.clone(), record(key, value, more)] };
            let shown = |desired: &Desired| {
                let standing = desired.quarantine().next().map(|one| (one.key.clone(), one.standing));
                (standing, desired.config.resources.is_closed(&place))
            };
            let mut running = desired();
            running.absorb(changed(1, vec![Change::Put(good.clone())]), &mut Batch::default());
            let mut batch = Batch::default();
            running.absorb(changed(2, vec![Change::Put(record(key, value, 2))]), &mut batch);
            assert!(batch.is_empty(), "{key}: {value}");
            let expected = (Some((place.clone(), Standing::LeftOut)), false);
            assert_eq!(shown(&running), expected, "{key}: {value}");
            // Nor by reading all again, as after a lost watch.
            running.absorb(Event::Reloaded(all(2)), &mut Batch::default());
            assert_eq!(shown(&running), expected, "{key}: {value}");
            let mut starting = desired();
            starting.reload(&all(2), &mut Batch::default());
            let closed = (Some((place.clone(), Standing::Closed)), true);
            if value != "{}" {
                assert_eq!(shown(&starting), closed, "{key}: {value}");
            }
        }
    }
}
