//! Consumers, their groups, and their identities.

use std::sync::Arc;

use sigma_config::Config;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources;
use sigma_plugin::{Consumer, Resource};

use super::State;
use crate::snapshot::Snapshot;

impl State {
    /// Sets a consumer with all its credentials, or removes it.
    pub(super) fn place_consumer(&mut self, snapshot: &mut Snapshot, config: &Config, name: &str) {
        let consumers = &mut snapshot.consumers;
        for (kind, key) in self.recognised.remove(name).unwrap_or_default() {
            consumers.remove_identity(kind.name(), &key, name);
        }
        let Some(resource) = config.resources.consumers.get(name) else {
            consumers.remove(name);
            return;
        };
        let consumer = Arc::new(self.consumer(config, resource));
        let mut recognised = Vec::new();
        let own = self.compiled.get(&ResourceKey::new(Kind::Consumer, name));
        for identity in own.iter().flat_map(|compiled| compiled.identities.iter()) {
            recognised.push((Arc::clone(&identity.kind), identity.key.clone()));
            consumers.put_identity(
                identity.kind.name(),
                &identity.key,
                Arc::new(identity.of(&consumer, None)),
            );
        }
        for (id, key) in credentials(config, name) {
            let compiled = self.compiled.get(&key);
            for identity in compiled.iter().flat_map(|compiled| compiled.identities.iter()) {
                recognised.push((Arc::clone(&identity.kind), identity.key.clone()));
                let found = Arc::new(identity.of(&consumer, Some(&id)));
                consumers.put_identity(identity.kind.name(), &identity.key, found);
            }
        }
        consumers.put(consumer);
        if !recognised.is_empty() {
            self.recognised.insert(name.into(), recognised);
        }
    }

    fn consumer(&self, config: &Config, resource: &Arc<resources::Consumer>) -> Consumer {
        let name = &*resource.username;
        let group = resource.group_id.as_ref().map(|id| id.as_str());
        let entries_of = |kind, id: &str| {
            let compiled = self.compiled.get(&ResourceKey::new(kind, id));
            compiled.map(|compiled| compiled.entries.to_vec()).unwrap_or_default()
        };
        let is_closed = |kind, id: &str| config.resources.is_closed(&ResourceKey::new(kind, id));
        let mut entries = group.map(|id| entries_of(Kind::ConsumerGroup, id)).unwrap_or_default();
        entries.extend(entries_of(Kind::Consumer, name));
        Consumer {
            name: name.into(),
            group_id: group.map(Box::from),
            closed: is_closed(Kind::Consumer, name)
                || group.is_some_and(|id| is_closed(Kind::ConsumerGroup, id)),
            group_missing: group.is_some_and(|id| config.resources.consumer_groups.get(id).is_none()),
            custom_id: resource.labels.get("custom_id").cloned(),
            resource: Some(Resource::new(Arc::clone(resource))),
            labels: resource.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            entries: entries.into_boxed_slice(),
        }
    }
}

/// Returns the names of the consumers of a group.
pub(super) fn members(config: &Config, group: &str) -> Vec<Box<str>> {
    let of_group = |c: &&Arc<resources::Consumer>| c.group_id.as_ref().is_some_and(|id| id.as_str() == group);
    config.resources.consumers.iter().filter(of_group).map(|consumer| consumer.username.clone()).collect()
}

/// Returns the credentials of a consumer: the id of each, and its key.
fn credentials(config: &Config, name: &str) -> Vec<(Box<str>, ResourceKey)> {
    let of_name = |credential: &Arc<resources::Credential>| {
        let (owner, id) = credential.owner_and_id()?;
        (owner == name).then(|| (id.into(), ResourceKey::new(Kind::Credential, &*credential.id)))
    };
    config.resources.credentials.iter().filter_map(of_name).collect()
}
