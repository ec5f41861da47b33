//! From desired to served resources: reveal secrets, compile, resolve names, publish, and revert failures.
//!
//! A change waits twice: for secrets before it is compiled, for names after. Waiting happens outside of the
//! state, whose lock is held between two waits and never over one: so queries are answered during a change.
//! The result of a change ([`Whole`], [`Part`]) is put into force by the supervisor, which begins the next
//! one only then; or it is dropped, and leaves nothing behind.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sigma_config::Config;
use sigma_config::dns::Dns;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::{Secret, Ssl};
use sigma_discovery::FollowedDocuments;
use sigma_net::tls::KeyPassphrases;
use sigma_plugin::Roster;
use sigma_proxy::compile::{CertificateSource, Sources};
use sigma_proxy::{Changed, Compiler, Failure, Snapshot};
use sigma_schema::Problem;

use crate::serving::acme::Ordered;
use crate::serving::desired::{Batch, Desired};
use crate::serving::endpoints::{Endpoints, Pending};
use crate::serving::files::Files;
use crate::serving::geo_files::GeoFiles;
use crate::serving::plugin_files::AllPlugins;
use crate::serving::plugins::Rosters;
use crate::serving::references::References;
use crate::serving::revealed::Revealed;
use crate::serving::secret::Secrets;
use crate::store::Event;

/// Compiles, and knows the snapshot in force.
pub(crate) struct Publisher {
    secrets: Secrets,
    state: Mutex<State>,
}

/// The snapshot in force, and its sources.
pub(crate) struct State {
    pub(crate) desired: Desired,
    /// The effects of the current change on `desired`.
    pub(crate) batch: Batch,
    pub(crate) endpoints: Endpoints,
    /// The store's revision that is in force.
    pub(crate) published: u64,
    /// The snapshot in force; None before the start has ended.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    compiler: Compiler,
    revealed: Revealed,
    references: References,
    files: Files,
    /// The databases in force.
    geo_files: GeoFiles,
    /// Certificates that the gateway orders itself, if it does.
    pub(crate) ordered: Option<Arc<Ordered>>,
}

/// A whole configuration that is ready to come into force.
#[must_use]
pub(crate) struct Whole {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) desired: Desired,
    /// The plugins that come into force with it, if they have changed.
    pub(crate) plugins: Option<(AllPlugins, Rosters)>,
    /// The followed documents that come into force with it, if there are some.
    pub(crate) documents: Option<FollowedDocuments>,
    compiler: Compiler,
    geo_files: GeoFiles,
    pending: Pending,
}

/// A change of resources that is ready to come into force.
#[must_use]
pub(crate) struct Part {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Keys of upstreams that are gone; None if everything was compiled again.
    gone: Option<Vec<String>>,
    pending: Pending,
}

impl Publisher {
    /// Begins with `desired`, which serves nothing. `endpoints` have no upstreams yet.
    pub(crate) fn new(
        desired: Desired,
        endpoints: Endpoints,
        compiler: Compiler,
        secrets: Secrets,
        ordered: Option<Arc<Ordered>>,
        files: Files,
    ) -> Publisher {
        let state = State {
            endpoints,
            desired,
            batch: Batch::default(),
            published: 0,
            snapshot: None,
            compiler,
            revealed: Revealed::default(),
            references: References::default(),
            files,
            geo_files: GeoFiles::default(),
            ordered,
        };
        Publisher { secrets, state: Mutex::new(state) }
    }

    /// Locks and returns the state. To be held for a moment: everything else waits for it.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // All who lock it are tasks of one thread. A panic in between ends its task, and the state that it has left is
        // still the best response to a query.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles a whole configuration; its names are resolved when this returns. If it `closes`, what
    /// cannot be compiled is closed; else it stops all.
    pub(crate) async fn compile(&self, desired: Desired, closes: bool) -> Result<Whole, Vec<Failure>> {
        self.compile_with(desired, closes, None).await
    }

    /// As [`Publisher::compile`], with other plugins than those in force.
    pub(crate) async fn compile_with(
        &self,
        mut desired: Desired,
        closes: bool,
        plugins: Option<Arc<Roster>>,
    ) -> Result<Whole, Vec<Failure>> {
        let in_force = self.state().geo_files.clone();
        let geo_files = in_force.follow(&desired.config.settings.geoip).await;
        let geo_files = geo_files.map_err(|problem| vec![Failure { key: None, problem }])?;
        loop {
            let config = &desired.config;
            let wanted = self.state().references.wanted(config, &config.resources.keys());
            self.look_up(accesses(config), wanted).await;
            let compiled = self.state().compile(config, desired.revision(), &geo_files, plugins.as_ref());
            let failures = match compiled {
                Ok((compiler, snapshot, mut pending)) => {
                    pending.resolve(start_wait(&config.settings.dns)).await;
                    let (plugins, documents) = (None, None);
                    return Ok(Whole { snapshot, desired, plugins, documents, compiler, geo_files, pending });
                }
                Err(failures) => failures,
            };
            if !closes || failures.iter().any(|failure| failure.key.is_none()) {
                return Err(failures);
            }
            let mut has_closed = false;
            for Failure { key, problem } in &failures {
                has_closed |= key.as_ref().is_some_and(|key| desired.keep_out(key, problem.to_string()));
            }
            // Each round closes something, so that there is an end to them.
            if !has_closed {
                return Err(failures);
            }
        }
    }

    /// A whole configuration is in force.
    pub(crate) fn adopt(&self, whole: Whole) {
        let Whole { snapshot, desired, compiler, geo_files, pending, .. } = whole;
        let mut state = self.state();
        state.endpoints.commit(pending, &snapshot);
        (state.desired, state.compiler, state.published) = (desired, compiler, snapshot.revision);
        state.snapshot = Some(snapshot);
        state.geo_files = geo_files;
        let State { desired, files, .. } = &mut *state;
        files.pairs.in_force(desired.config.resources.ssls.iter().filter_map(|ssl| ssl.files()));
        state.order();
    }

    /// Records an event of the store; it comes into force with [`Publisher::change`].
    pub(crate) fn absorb(&self, event: Event) {
        let mut state = self.state();
        let State { desired, batch, .. } = &mut *state;
        desired.absorb(event, batch);
    }

    /// Compiles the recorded changes. Resources that cannot be compiled are quarantined, the rest is served
    /// all the same. A change without an effect comes into force as well, for its revision. None if there is
    /// nothing to put into force.
    pub(crate) async fn change(&self) -> Option<Part> {
        let (accesses, wanted) = {
            let mut state = self.state();
            let State { desired, batch, references, published, .. } = &mut *state;
            if batch.is_empty() && desired.revision() == *published {
                return None;
            }
            let decisive = |key: &ResourceKey| {
                matches!(key.kind, Kind::Secret | Kind::PluginMetadata | Kind::Proto | Kind::Ssl)
            };
            if batch.keys().iter().any(decisive) {
                desired.retry(|_| true, batch);
            }
            (accesses(&desired.config), references.wanted(&desired.config, &batch.keys()))
        };
        let holders = self.look_up(accesses, wanted).await;
        self.compile_change(holders).await
    }

    /// Requests all secrets after a pause, so that [`Publisher::refresh`] need not wait for any.
    pub(crate) fn look_ahead(&self, pause: Duration) -> impl Future<Output = ()> + use<> {
        let (secrets, wanted) = (self.secrets.clone(), self.state().references.all());
        async move {
            tokio::time::sleep(pause).await;
            secrets.look_ahead(wanted).await;
        }
    }

    /// Looks up all secrets again, and recompiles the holders of changed ones.
    pub(crate) async fn refresh(&self) -> Option<Part> {
        let (accesses, wanted) = {
            let state = self.state();
            (accesses(&state.desired.config), state.references.all())
        };
        let holders = self.look_up(accesses, wanted).await;
        if holders.is_empty() {
            return None;
        }
        tracing::info!(resources = holders.len(), "secrets changed in their secret manager");
        self.compile_change(holders).await
    }

    /// Whether a database of addresses has become another one; to be asked at intervals.
    pub(crate) fn has_new_places(&self) -> bool {
        self.state().geo_files.have_changed()
    }

    /// Reads the databases of addresses that have changed.
    pub(crate) async fn refresh_places(&self) -> Option<Part> {
        let geo_files = self.state().geo_files.clone();
        let (geo_files, is_new) = geo_files.refreshed().await;
        self.state().geo_files = geo_files;
        if is_new { self.compile_change(Vec::new()).await } else { None }
    }

    /// Whether the files of certificates are to be read again; to be asked at intervals.
    pub(crate) fn has_new_pairs(&self) -> bool {
        self.state().files.pairs.have_changed()
    }

    /// Reads the changed files of certificates, and recompiles the resources that show them.
    pub(crate) async fn refresh_pairs(&self) -> Option<Part> {
        let ssls = {
            let mut state = self.state();
            let State { desired, files, .. } = &mut *state;
            let with_files = |ssl: &&Arc<Ssl>| ssl.files().is_some();
            let keys = desired.config.resources.ssls.iter().filter(with_files);
            let keys: Vec<_> = keys.map(|ssl| ResourceKey::new(Kind::Ssl, ssl.id.as_str())).collect();
            if files.pairs.refresh() { keys } else { Vec::new() }
        };
        if ssls.is_empty() { None } else { self.compile_change(ssls).await }
    }

    /// Recompiles ssls whose certificates were ordered.
    pub(crate) async fn show(&self, ssls: Vec<ResourceKey>) -> Option<Part> {
        self.compile_change(ssls).await
    }

    async fn compile_change(&self, holders: Vec<ResourceKey>) -> Option<Part> {
        let (mut part, wait) = {
            let mut state = self.state();
            let wait = change_wait(&state.desired.config.settings.dns);
            (state.compile_change(holders)?, wait)
        };
        part.pending.resolve(wait).await;
        Some(part)
    }

    /// A change of resources is in force.
    pub(crate) fn adopt_part(&self, part: Part) {
        let Part { snapshot, gone, pending } = part;
        let mut state = self.state();
        match gone {
            Some(gone) => state.endpoints.commit_changed(pending, &gone),
            None => state.endpoints.commit(pending, &snapshot),
        }
        state.published = snapshot.revision;
        state.snapshot = Some(snapshot);
        let State { desired, batch, .. } = &mut *state;
        desired.settle(&std::mem::take(batch));
        state.order();
    }

    /// Looks up references; returns the resources with a changed value.
    async fn look_up(&self, accesses: Vec<Arc<Secret>>, wanted: BTreeSet<String>) -> Vec<ResourceKey> {
        let names: Vec<String> = wanted.into_iter().collect();
        let mut values = Value::from(names.clone());
        let mut unresolved = Vec::new();
        if !names.is_empty() {
            self.secrets.set_accesses(accesses);
            unresolved = self.secrets.resolve(&mut values).await;
        }
        let found = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut state = self.state();
        let State { references, revealed, .. } = &mut *state;
        revealed.note_refusals(&names, &unresolved);
        references.holders(revealed.learn(names.into_iter().zip(found.map(str::to_owned))))
    }
}

impl State {
    /// Orders the certificates that the snapshot in force needs.
    fn order(&self) {
        if let Some(ordered) = &self.ordered {
            ordered.want(&self.desired.config.resources);
        }
    }

    fn compile(
        &mut self,
        config: &Config,
        revision: u64,
        geo_files: &GeoFiles,
        plugins: Option<&Arc<Roster>>,
    ) -> Result<(Compiler, Arc<Snapshot>, Pending), Vec<Failure>> {
        let mut planning = self.endpoints.plan();
        let sources = Sources {
            endpoints: &mut planning,
            secrets: &self.revealed,
            files: &mut self.files,
            geography: geo_files.geography(),
            ordered: source(self.ordered.as_ref()),
            passphrases: KeyPassphrases::default(),
        };
        let (compiler, snapshot) = match plugins {
            Some(plugins) => {
                self.compiler.with_roster(Arc::clone(plugins)).compile(config, revision, sources)?
            }
            None => self.compiler.compile(config, revision, sources)?,
        };
        Ok((compiler, snapshot, planning.into_pending()))
    }

    /// Compiles the changes. `holders` are resources whose secrets have changed.
    fn compile_change(&mut self, mut holders: Vec<ResourceKey>) -> Option<Part> {
        let State { desired, batch, endpoints, compiler, revealed, files, geo_files, ordered, .. } = self;
        desired.retry(|refused| holders.contains(refused), batch);
        holders.retain(|holder| !batch.holds(holder));
        loop {
            let (mut keys, revision) = (batch.keys(), desired.revision());
            keys.extend(holders.iter().cloned());
            let mut planning = endpoints.plan();
            let (geography, ordered) = (geo_files.geography(), source(ordered.as_ref()));
            let (endpoints, passphrases) = (&mut planning, KeyPassphrases::default());
            let sources = Sources { endpoints, secrets: revealed, files, geography, ordered, passphrases };
            let failures = match compiler.change(&desired.config, &keys, revision, sources) {
                Ok(Changed { snapshot, gone }) => {
                    return Some(Part { snapshot, gone, pending: planning.into_pending() });
                }
                Err(failures) => failures,
            };
            for (key, reason) in blame(&failures, &keys) {
                match holders.iter().position(|holder| *holder == key) {
                    Some(place) => {
                        holders.swap_remove(place);
                        tracing::error!(%key, reason, "a new secret is invalid; the last one stays in use");
                    }
                    // Its references stay known: it is tried again when one of them changes.
                    None => desired.revert(&key, reason, batch),
                }
            }
            // Nothing is left that could be at fault.
            if keys.is_empty() {
                *batch = Batch::default();
                return None;
            }
        }
    }
}

fn source(ordered: Option<&Arc<Ordered>>) -> Option<&dyn CertificateSource> {
    ordered.map(|ordered| &**ordered as &dyn CertificateSource)
}

/// The accesses to secret managers.
fn accesses(config: &Config) -> Vec<Arc<Secret>> {
    config.resources.secrets.iter().cloned().collect()
}

fn start_wait(dns: &Dns) -> Duration {
    Duration::from_millis(dns.start_wait_ms.into())
}

fn change_wait(dns: &Dns) -> Duration {
    Duration::from_millis(dns.change_wait_ms.into())
}

/// Which resources of a batch are at fault. A failure of a resource outside of it, which the batch has
/// caused, blames the whole batch; but a failure of one that shows the certificate of an ssl is its own,
/// since the ssl may be right in its new form.
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
