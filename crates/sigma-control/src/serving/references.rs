//! Which resources refer to which secrets.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;
use sigma_config::Config;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::reference::is_reference;
use sigma_config::resources::{PluginMetadata, Plugins};

/// The references in the resources that are served, kept as these change.
#[derive(Debug, Default)]
pub(crate) struct References {
    by_resource: HashMap<ResourceKey, BTreeSet<String>>,
}

impl References {
    /// Reads these resources again.
    pub(crate) fn note(&mut self, config: &Config, keys: &[ResourceKey]) {
        for key in keys {
            let mut found = BTreeSet::new();
            for conf in plugins_of(config, key).into_iter().flat_map(|plugins| plugins.values()) {
                each_reference(conf, &mut found);
            }
            if let Some(metadata) = metadata_of(config, key) {
                metadata.settings.values().for_each(|value| each_reference(value, &mut found));
            }
            let material = key_material_of(config, key).into_iter().filter(|text| is_reference(text));
            found.extend(material.map(str::to_owned));
            if found.is_empty() {
                self.by_resource.remove(key);
            } else {
                self.by_resource.insert(key.clone(), found);
            }
        }
    }

    /// Reads these resources again; returns the references to look up for them.
    pub(crate) fn wanted(&mut self, config: &Config, keys: &[ResourceKey]) -> BTreeSet<String> {
        self.note(config, keys);
        // Another access to a secret manager may change every secret.
        let all = keys.iter().any(|key| key.kind == Kind::Secret);
        if all { self.all() } else { self.of(keys) }
    }

    /// All references of these resources.
    pub(crate) fn of(&self, keys: &[ResourceKey]) -> BTreeSet<String> {
        keys.iter().filter_map(|key| self.by_resource.get(key)).flatten().cloned().collect()
    }

    /// All references.
    pub(crate) fn all(&self) -> BTreeSet<String> {
        self.by_resource.values().flatten().cloned().collect()
    }

    /// The resources with any of these references.
    pub(crate) fn holders(&self, references: &HashSet<String>) -> Vec<ResourceKey> {
        if references.is_empty() {
            return Vec::new();
        }
        let holds = |found: &BTreeSet<String>| found.iter().any(|reference| references.contains(reference));
        let holders = self.by_resource.iter().filter(|(_, found)| holds(found));
        holders.map(|(key, _)| key.clone()).collect()
    }
}

fn plugins_of<'c>(config: &'c Config, key: &ResourceKey) -> Option<&'c Plugins> {
    let (resources, id) = (&config.resources, key.id.as_str());
    Some(match key.kind {
        Kind::Route => &resources.routes.get(id)?.plugins,
        Kind::Service => &resources.services.get(id)?.plugins,
        Kind::PluginConfig => &resources.plugin_configs.get(id)?.plugins,
        Kind::ConsumerGroup => &resources.consumer_groups.get(id)?.plugins,
        Kind::GlobalRule => &resources.global_rules.get(id)?.plugins,
        Kind::Consumer => &resources.consumers.get(id)?.plugins,
        Kind::Credential => &resources.credentials.get(id)?.plugins,
        _ => return None,
    })
}

fn metadata_of<'c>(config: &'c Config, key: &ResourceKey) -> Option<&'c PluginMetadata> {
    let metadata = || config.resources.plugin_metadata.get(key.id.as_str());
    if key.kind == Kind::PluginMetadata { metadata().map(|metadata| &**metadata) } else { None }
}

/// The texts of certificates and keys that may be references.
fn key_material_of<'c>(config: &'c Config, key: &ResourceKey) -> Vec<&'c str> {
    let (resources, id) = (&config.resources, key.id.as_str());
    let upstream = match key.kind {
        Kind::Ssl => {
            let Some(ssl) = resources.ssls.get(id) else { return Vec::new() };
            let pairs = ssl.pairs().flat_map(|(cert, key)| [cert, key]);
            return pairs.chain(ssl.client.iter().map(|client| &*client.ca)).collect();
        }
        Kind::Upstream => resources.upstreams.get(id).map(|upstream| &**upstream),
        Kind::Route => resources.routes.get(id).and_then(|route| route.upstream.as_deref()),
        Kind::Service => resources.services.get(id).and_then(|service| service.upstream.as_deref()),
        _ => None,
    };
    let Some(tls) = upstream.and_then(|upstream| upstream.tls.as_deref()) else { return Vec::new() };
    // The ssl that an upstream names may be new to a batch in which it is not.
    let named = tls.client_cert_id.as_ref().and_then(|id| resources.ssls.get(id.as_str()));
    let shown = named.into_iter().flat_map(|ssl| ssl.pairs()).flat_map(|(cert, key)| [cert, key]);
    let own =
        [tls.client_cert.as_deref(), tls.client_key.as_ref().map(|key| key.reveal()), tls.ca.as_deref()];
    shown.chain(own.into_iter().flatten()).collect()
}

fn each_reference(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if is_reference(text) => drop(found.insert(text.clone())),
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, found)),
        Value::Object(members) => members.values().for_each(|member| each_reference(member, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sigma_config::stored::AnyResource;

    #[test]
    fn holders_are_found_until_they_change() {
        let (mut config, mut references) = (Config::default(), References::default());
        let key = ResourceKey::new(Kind::Route, "1");
        let mut put = |text: &str, expected: &[&str]| {
            let route = serde_json::json!({"id": "1", "uri": "/", "plugins": {"some": {"deep": [text]}}});
            let route = serde_json::from_value(route).unwrap();
            config.resources.put(AnyResource::Route(route), 1);
            references.note(&config, std::slice::from_ref(&key));
            let all: Vec<String> = references.all().into_iter().collect();
            assert_eq!(all, expected);
            let asked = HashSet::from(["$env://KEY".to_owned()]);
            assert_eq!(references.holders(&asked).len(), usize::from(expected == ["$env://KEY"]));
        };
        put("$env://KEY", &["$env://KEY"]);
        put("$env://OTHER", &["$env://OTHER"]);
        put("plain", &[]);
    }
}
