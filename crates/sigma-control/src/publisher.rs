//! From what is to be served to what is served: compile, publish, and take back what cannot be.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use sigma_config::kind::ResourceKey;
use sigma_config::reference::is_reference;
use sigma_config::resources::Plugins;
use sigma_config::{Config, Problem};
use sigma_proxy::{Changed, Compiler, Failure, Gateway, Snapshot};

use crate::desired::{Batch, Desired};
use crate::fleet::Fleet;
use crate::secret::Secrets;

/// Compiles, and remembers what is in force.
pub(crate) struct Publisher {
    pub(crate) compiler: Compiler,
    pub(crate) fleet: Fleet,
    secrets: Secrets,
}

impl Publisher {
    pub(crate) fn new(compiler: Compiler, secrets: Secrets) -> Publisher {
        Publisher { compiler, fleet: Fleet::default(), secrets }
    }

    /// Compiles a whole configuration; names are resolved when this returns. What it needs to go
    /// on is returned with it, and to be given to [`Publisher::adopt`] once it is in force.
    pub(crate) async fn compile(
        &mut self,
        config: &Config,
        revision: u64,
    ) -> Result<(Compiler, Arc<Snapshot>), Vec<Failure>> {
        self.reveal(config, &config.resources.keys()).await;
        match self.compiler.compile(config, revision, &mut self.fleet) {
            Ok(compiled) => {
                self.fleet.settle();
                Ok(compiled)
            }
            Err(failures) => {
                self.fleet.discard();
                Err(failures)
            }
        }
    }

    /// A compiled configuration is in force.
    pub(crate) fn adopt(&mut self, compiler: Compiler, snapshot: &Snapshot) {
        self.compiler = compiler;
        self.fleet.commit(snapshot);
    }

    /// Compiles what a batch changed and puts it into force. Resources that cannot be compiled are
    /// quarantined, the rest of the batch is applied all the same.
    pub(crate) async fn publish(
        &mut self,
        desired: &mut Desired,
        mut batch: Batch,
        gateway: &mut Gateway,
    ) -> Option<Arc<Snapshot>> {
        self.reveal(&desired.config, &batch.keys()).await;
        while !batch.is_empty() {
            let (keys, revision) = (batch.keys(), desired.revision());
            match self.compiler.change(&desired.config, &keys, revision, &mut self.fleet) {
                Ok(Changed { snapshot, gone }) => {
                    self.fleet.settle();
                    gateway.publish(&snapshot);
                    match gone {
                        Some(gone) => self.fleet.commit_changed(&gone),
                        None => self.fleet.commit(&snapshot),
                    }
                    return Some(snapshot);
                }
                Err(failures) => {
                    self.fleet.discard();
                    let blamed = blame(&failures, &keys);
                    for (key, reason) in blamed {
                        desired.revert(&key, reason, &mut batch);
                    }
                }
            }
        }
        None
    }

    /// Looks up the secrets that plugins of these resources refer to.
    async fn reveal(&mut self, config: &Config, keys: &[ResourceKey]) {
        let mut references = HashMap::new();
        for plugins in keys.iter().filter_map(|key| plugins_of(config, key)) {
            plugins.values().for_each(|conf| note_references(conf, &mut references));
        }
        if references.is_empty() {
            return;
        }
        self.secrets.set_accesses(config.resources.secrets.iter().cloned());
        let names: Vec<String> = references.into_keys().collect();
        let mut values = Value::from(names.clone());
        self.secrets.resolve(&mut values).await;
        let found = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        self.fleet.learn(names.into_iter().zip(found.map(str::to_owned)));
    }
}

/// Which resources of a batch are at fault. A failure of one outside of it, which the batch has
/// brought about, is that of the whole batch.
fn blame(failures: &[Failure], keys: &[ResourceKey]) -> Vec<(ResourceKey, String)> {
    let at_fault = |failure: &Failure| {
        let key = failure.key.as_ref().filter(|key| keys.contains(key))?;
        Some((key.clone(), failure.problem.to_string()))
    };
    let blamed: Vec<_> = failures.iter().filter_map(at_fault).collect();
    if !blamed.is_empty() {
        return blamed;
    }
    let reason = failures.iter().map(|f| f.problem.to_string()).collect::<Vec<_>>().join("; ");
    keys.iter().map(|key| (key.clone(), reason.clone())).collect()
}

/// The problems of a configuration that cannot be compiled.
pub(crate) fn problems(failures: Vec<Failure>) -> Vec<Problem> {
    failures.into_iter().map(|failure| failure.problem).collect()
}

fn plugins_of<'c>(config: &'c Config, key: &ResourceKey) -> Option<&'c Plugins> {
    use sigma_config::kind::Kind;
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

fn note_references(value: &Value, into: &mut HashMap<String, ()>) {
    match value {
        Value::String(text) if is_reference(text) => drop(into.insert(text.clone(), ())),
        Value::Array(items) => items.iter().for_each(|item| note_references(item, into)),
        Value::Object(members) => members.values().for_each(|member| note_references(member, into)),
        _ => {}
    }
}
