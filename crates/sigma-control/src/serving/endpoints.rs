//! Endpoints of all upstreams: names resolved, health checked, published into their cells.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sigma_config::Problem;
use sigma_config::resources::{self, PassHost, Scheme};
use sigma_net::tls::{Authorities, ClientTls};
use sigma_proxy::Snapshot;
use sigma_proxy::snapshot::EndpointSource;
use sigma_upstream::dns::{Resolver, Watch, resolve_initial};
use sigma_upstream::endpoint::{UpstreamCell, plan_nodes};
use sigma_upstream::health::checker::{CheckerSpec, Checkers, TargetStatus};
use sigma_upstream::health::plan::Plan;
use sigma_upstream::identity::EndpointIds;
use tokio::task::JoinHandle;

/// How long a start or a reload waits for names; what is not resolved then is asked for again at once.
pub(crate) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a change of the store, which the changes after it wait for. Until a name is resolved
/// its upstream answers 503, no other one.
pub(crate) const CHANGE_RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// What was made for a snapshot that is not committed yet.
struct Pending {
    key: String,
    plan: Option<Arc<Plan>>,
    cell: Arc<UpstreamCell>,
}

/// A name watch in force; ends when dropped.
struct Watching {
    cell: Arc<UpstreamCell>,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The upstreams' endpoints on the control side.
#[derive(Default)]
pub(crate) struct Fleet {
    ids: Arc<EndpointIds>,
    checkers: Checkers,
    resolver: Option<Resolver>,
    pending: Vec<Pending>,
    /// In the order of `pending`.
    watches: Vec<Watch>,
    watching: HashMap<String, Watching>,
    /// The upstreams whose nodes are checked.
    checked: HashMap<String, CheckerSpec>,
    /// What references to secrets stand for.
    revealed: HashMap<String, String>,
    /// References that stand for something else than in what was committed last.
    changed: HashSet<String>,
    /// Authorities that may vouch for nodes, by file; read once.
    authorities: Vec<(Option<PathBuf>, Authorities)>,
}

impl Fleet {
    /// Resolves the names of upstreams compiled since the last commit, as far as `timeout` allows.
    pub(crate) async fn settle(&mut self, timeout: Duration) {
        if !self.watches.iter().any(Watch::has_names) {
            return;
        }
        resolve_initial(&mut self.watches, timeout).await;
        for (pending, watch) in self.pending.iter().zip(&self.watches) {
            if watch.has_names() {
                pending.cell.publish(Arc::new(watch.endpoints()));
            }
        }
    }

    /// Forgets what was made for a snapshot that is not to come into force.
    pub(crate) fn discard(&mut self) {
        self.pending.clear();
        self.watches.clear();
    }

    /// Watches names and checks health of exactly the upstreams of `snapshot`. Within a runtime.
    pub(crate) fn commit(&mut self, snapshot: &Snapshot) {
        self.watch_pending();
        let mut watching = std::mem::take(&mut self.watching);
        self.checked.clear();
        for upstream in snapshot.upstreams() {
            let kept = watching.remove(&upstream.key).filter(|w| Arc::ptr_eq(&w.cell, &upstream.cell));
            if let Some(kept) = kept {
                self.watching.insert(upstream.key.clone(), kept);
            }
            if let Some(plan) = &upstream.checks {
                let (key, plan, cell) = (upstream.key.clone(), Arc::clone(plan), Arc::clone(&upstream.cell));
                self.checked.insert(key.clone(), CheckerSpec { key, plan, cell });
            }
        }
        self.checkers.commit(self.checked.values().cloned().collect());
    }

    /// As [`Fleet::commit`], for a snapshot that differs from the one committed before only in
    /// upstreams compiled since then, and in those whose keys are `gone`.
    pub(crate) fn commit_changed(&mut self, gone: &[String]) {
        let mut checks_changed = self.watch_pending();
        for key in gone {
            self.watching.remove(key);
            checks_changed |= self.checked.remove(key).is_some();
        }
        if checks_changed {
            self.checkers.commit(self.checked.values().cloned().collect());
        }
    }

    /// Begins to watch names of upstreams compiled since the last commit; whether any is checked,
    /// or was before.
    fn watch_pending(&mut self) -> bool {
        let mut checks_changed = false;
        // Taken, not drained: a first load leaves room for every upstream there is.
        let (pending, watches) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.watches));
        for (pending, watch) in pending.into_iter().zip(watches) {
            checks_changed |= self.checked.remove(&pending.key).is_some();
            if let Some(plan) = pending.plan {
                let (key, cell) = (pending.key.clone(), Arc::clone(&pending.cell));
                self.checked.insert(key.clone(), CheckerSpec { key, plan, cell });
                checks_changed = true;
            }
            if watch.has_names() {
                let task = tokio::spawn(watch.run(Arc::clone(&pending.cell)));
                self.watching.insert(pending.key, Watching { cell: pending.cell, task });
            } else {
                self.watching.remove(&pending.key);
            }
        }
        checks_changed
    }

    /// Knows from now on what references to secrets stand for; returns those that have stood for
    /// something else, until the next call.
    pub(crate) fn learn(&mut self, revealed: impl IntoIterator<Item = (String, String)>) -> &HashSet<String> {
        self.changed.clear();
        for (reference, secret) in revealed {
            match self.revealed.get_mut(&reference) {
                Some(known) if *known == secret => {}
                Some(known) => {
                    *known = secret;
                    self.changed.insert(reference);
                }
                None => drop(self.revealed.insert(reference, secret)),
            }
        }
        &self.changed
    }

    /// Key, kind of probe and health of the targets of every checked upstream.
    pub(crate) fn health(&self) -> Vec<(String, &'static str, Vec<TargetStatus>)> {
        let keys = self.checkers.keys().into_iter();
        let probe = |key: &str| self.checked.get(key).map_or("http", |spec| spec.plan.probe_name());
        keys.filter_map(|key| Some((key.to_owned(), probe(key), self.checkers.status(key)?))).collect()
    }

    fn resolver(&mut self) -> Result<Resolver, String> {
        if let Some(resolver) = &self.resolver {
            return Ok(resolver.clone());
        }
        // Without a usable resolver configuration, addresses still work; names are asked of this
        // machine, which says why they fail.
        let resolver = Resolver::from_system().or_else(|error| {
            tracing::warn!(%error, "asking the name server of this machine instead");
            Resolver::with_servers(&[std::net::SocketAddr::from(([127, 0, 0, 1], 53))])
        });
        let resolver = resolver.map_err(|error| error.to_string())?;
        self.resolver = Some(resolver.clone());
        Ok(resolver)
    }
}

/// Refuses a scheme that this version does not speak.
pub(crate) fn spoken(key: &str, scheme: Scheme) -> Result<(), Problem> {
    if matches!(scheme, Scheme::Http | Scheme::Https | Scheme::Grpc | Scheme::Grpcs) {
        return Ok(());
    }
    let text = "this version speaks http, https, grpc and grpcs to nodes";
    Err(Problem::new(format!("{key}.scheme"), "unsupported", text).hint("use one of these"))
}

/// How the nodes of an upstream are checked, if they are.
pub(crate) fn plan(
    key: &str,
    config: &resources::Upstream,
    probes: Option<&ClientTls>,
) -> Result<Option<Arc<Plan>>, Problem> {
    let rewrite_host =
        (config.pass_host == PassHost::Rewrite).then_some(config.upstream_host.as_deref()).flatten();
    let Some(checks) = &config.checks else { return Ok(None) };
    let plan = Plan::compile(checks, rewrite_host, probes).map_err(|error| {
        Problem::new(format!("{key}.checks{}", error.pointer.replace('/', ".")), "checks", error.message)
    })?;
    Ok(Some(Arc::new(plan)))
}

impl EndpointSource for Fleet {
    fn endpoints(
        &mut self,
        key: &str,
        config: &resources::Upstream,
        probes: Option<&ClientTls>,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem> {
        spoken(key, config.scheme)?;
        let plan = plan(key, config, probes)?;
        let health = if plan.is_some() { self.checkers.records(key) } else { Arc::default() };
        let nodes = plan_nodes(config.scheme, &config.nodes);
        let resolver = self.resolver().map_err(|error| Problem::new(key, "resolver", error))?;
        let watch = Watch::new(resolver, nodes, Arc::clone(&self.ids), health);
        let cell = Arc::new(UpstreamCell::new(Arc::new(watch.endpoints())));
        self.pending.push(Pending { key: key.to_owned(), plan: plan.clone(), cell: Arc::clone(&cell) });
        self.watches.push(watch);
        Ok((cell, plan))
    }

    fn authorities(&mut self, file: Option<&Path>) -> Result<Authorities, String> {
        let known = self.authorities.iter().find(|(known, _)| known.as_deref() == file);
        if let Some((_, authorities)) = known {
            return Ok(authorities.clone());
        }
        let authorities = match file {
            None => Authorities::system().map_err(|error| error.to_string())?,
            Some(path) => {
                let failed =
                    |error: &dyn std::fmt::Display| format!("cannot use {}: {error}", path.display());
                let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
                Authorities::from_pem(&text).map_err(|error| failed(&error))?
            }
        };
        self.authorities.push((file.map(Path::to_owned), authorities.clone()));
        Ok(authorities)
    }

    fn read_file(&self, path: &Path) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    }

    fn has_changed(&self, conf: &serde_json::Value) -> bool {
        use serde_json::Value;
        if self.changed.is_empty() {
            return false;
        }
        match conf {
            Value::String(text) => self.changed.contains(text.as_str()),
            Value::Array(items) => items.iter().any(|item| self.has_changed(item)),
            Value::Object(members) => members.values().any(|member| self.has_changed(member)),
            _ => false,
        }
    }

    fn reveal(&self, conf: &mut serde_json::Value) {
        use serde_json::Value;
        match conf {
            Value::String(text) => {
                if let Some(secret) = self.revealed.get(text.as_str()) {
                    text.clone_from(secret);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.reveal(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.reveal(member)),
            _ => {}
        }
    }
}
