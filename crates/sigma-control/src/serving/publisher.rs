//! From what is to be served to what is served: compile, publish, and take back what cannot be.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::{Config, Problem};
use sigma_proxy::{Changed, Compiler, Failure, Gateway, Snapshot};

use crate::serving::desired::{Batch, Desired};
use crate::serving::endpoints::{CHANGE_RESOLVE_TIMEOUT, Fleet, RESOLVE_TIMEOUT};
use crate::serving::references::References;
use crate::serving::secret::Secrets;

/// Compiles, and remembers what is in force.
pub(crate) struct Publisher {
    pub(crate) compiler: Compiler,
    pub(crate) fleet: Fleet,
    secrets: Secrets,
    references: References,
    /// The store's revision that is in force.
    published: u64,
}

impl Publisher {
    pub(crate) fn new(compiler: Compiler, secrets: Secrets) -> Publisher {
        let (fleet, references) = (Fleet::default(), References::default());
        Publisher { compiler, fleet, secrets, references, published: 0 }
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
                self.fleet.settle(RESOLVE_TIMEOUT).await;
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
        self.published = snapshot.revision;
    }

    /// Compiles what a batch changed and puts it into force. Resources that cannot be compiled are
    /// quarantined, the rest of the batch is applied all the same. A batch that changes nothing is
    /// published as well, for the revision that it brings.
    pub(crate) async fn publish(
        &mut self,
        desired: &mut Desired,
        mut batch: Batch,
        gateway: &mut Gateway,
    ) -> Option<Arc<Snapshot>> {
        if batch.is_empty() && desired.revision() == self.published {
            return None;
        }
        let decisive =
            |key: &ResourceKey| matches!(key.kind, Kind::Secret | Kind::PluginMetadata | Kind::Ssl);
        if batch.keys().iter().any(decisive) {
            desired.retry(|_| true, &mut batch);
        }
        let holders = self.reveal(&desired.config, &batch.keys()).await;
        self.put_into_force(desired, batch, holders, gateway).await
    }

    /// Asks for all secrets after a pause, so that [`Publisher::refresh`] need not wait for any.
    pub(crate) fn look_ahead(&self, pause: Duration) -> impl Future<Output = ()> + use<> {
        let (secrets, wanted) = (self.secrets.clone(), self.references.all());
        async move {
            tokio::time::sleep(pause).await;
            secrets.look_ahead(wanted).await;
        }
    }

    /// Looks up all secrets again, and puts those into force that have changed at their manager.
    pub(crate) async fn refresh(
        &mut self,
        desired: &mut Desired,
        gateway: &mut Gateway,
    ) -> Option<Arc<Snapshot>> {
        let holders = self.look_up(&desired.config, self.references.all()).await;
        if holders.is_empty() {
            return None;
        }
        tracing::info!(resources = holders.len(), "secrets have changed at their manager");
        self.put_into_force(desired, Batch::default(), holders, gateway).await
    }

    /// `holders` are resources whose secrets have changed.
    async fn put_into_force(
        &mut self,
        desired: &mut Desired,
        mut batch: Batch,
        mut holders: Vec<ResourceKey>,
        gateway: &mut Gateway,
    ) -> Option<Arc<Snapshot>> {
        desired.retry(|refused| holders.contains(refused), &mut batch);
        holders.retain(|holder| !batch.holds(holder));
        loop {
            let (mut keys, revision) = (batch.keys(), desired.revision());
            keys.extend(holders.iter().cloned());
            match self.compiler.change(&desired.config, &keys, revision, &mut self.fleet) {
                Ok(Changed { snapshot, gone }) => {
                    self.fleet.settle(CHANGE_RESOLVE_TIMEOUT).await;
                    gateway.publish(&snapshot);
                    match gone {
                        Some(gone) => self.fleet.commit_changed(&gone),
                        None => self.fleet.commit(&snapshot),
                    }
                    self.published = revision;
                    desired.settle(&batch);
                    return Some(snapshot);
                }
                Err(failures) => {
                    self.fleet.discard();
                    for (key, reason) in blame(&failures, &keys) {
                        match holders.iter().position(|holder| *holder == key) {
                            Some(place) => {
                                holders.swap_remove(place);
                                tracing::error!(%key, reason, "a new secret cannot be used, the last one stays");
                            }
                            // Its references stay known: it is tried again when one of them changes.
                            None => desired.revert(&key, reason, &mut batch),
                        }
                    }
                    // Nothing is left that could be at fault.
                    if keys.is_empty() {
                        return None;
                    }
                }
            }
        }
    }

    /// Looks up the secrets that these resources refer to, and returns which resources refer to one
    /// that has changed.
    async fn reveal(&mut self, config: &Config, keys: &[ResourceKey]) -> Vec<ResourceKey> {
        self.references.note(config, keys);
        // Another access to a secret manager may change every secret.
        let all = keys.iter().any(|key| key.kind == Kind::Secret);
        let wanted = if all { self.references.all() } else { self.references.of(keys) };
        self.look_up(config, wanted).await
    }

    /// Looks up references; returns the resources with one that stands for something else than before.
    async fn look_up(&mut self, config: &Config, wanted: BTreeSet<String>) -> Vec<ResourceKey> {
        let names: Vec<String> = wanted.into_iter().collect();
        let mut values = Value::from(names.clone());
        if !names.is_empty() {
            self.secrets.set_accesses(config.resources.secrets.iter().cloned());
            self.secrets.resolve(&mut values).await;
        }
        let found = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        self.references.holders(self.fleet.learn(names.into_iter().zip(found.map(str::to_owned))))
    }
}

/// Which resources of a batch are at fault. A failure of one outside of it, which the batch has
/// brought about, is that of the whole batch; but that of one which shows the certificate of an ssl
/// is its own, since the ssl may be right in its new form.
fn blame(failures: &[Failure], keys: &[ResourceKey]) -> Vec<(ResourceKey, String)> {
    let has_ssl = keys.iter().any(|key| key.kind == Kind::Ssl);
    let at_fault = |failure: &Failure| {
        let key = failure.key.as_ref().filter(|key| has_ssl || keys.contains(key))?;
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
