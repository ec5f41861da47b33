//! The running gateway, as operators may ask it and tell it.
//!
//! Responses are read from published state of the gateway's parts, and never wait: not for a change, nor for open
//! exchanges when the process stops. Orders are [`Command`]s, which the supervisor carries out one after the other.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use http::StatusCode;
use serde_json::{Value, json};
use sigma_config::discovery::Registry;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::Upstream;
use sigma_config::settings::Settings;
use sigma_config::stored::{self, AnyResource};
use sigma_config::table::Order;
use sigma_discovery::{DocumentFollower, SelfRegistration};
use sigma_http::FaultKind;
use sigma_observe::counters::{Counter, Totals, WorkerCounters, merge};
use sigma_plugin::Node;
use sigma_plugin::facts::Measure;
use sigma_plugin::runner_state::RunnerState;
use sigma_plugin::script_counts::ScriptBoard;
use sigma_proxy::tap::TapBoard;
use sigma_proxy::{Inheritance, Pressure, Snapshot};
use sigma_schema::Problem;
use sigma_upstream::health::NodeState;
use sigma_upstream::health::checker::TargetStatus;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::operators::admin::Proposal;
use crate::operators::control_api::{Asked, HealthReport, InForce, Inspect, NO_ORDERS, Revisions};
use crate::operators::instruments::Instruments;
use crate::operators::live::Live;
use crate::operators::members::Members;
use crate::operators::nodes::{self, UpstreamNodes, add_reason, status_name};
use crate::operators::refused_call::RefusedCall;
use crate::operators::stress::{self, REMOVED, StressCall, StressPlan, StressRuns, Targets};
use crate::operators::{
    caches, certificates, documents, orders as order_measures, registration, registries, runner, scripts,
};
use crate::serving::acme as orders;
use crate::serving::clock::unix_seconds;
use crate::serving::edit::Edit;
use crate::serving::endpoints::Endpoints;
use crate::serving::publisher::{self, Publisher};
use crate::serving::purges::Purges;
use crate::serving::quarantined::Quarantined;
use crate::store::{Store, StoreStatus};

/// An operator's order to the process. The reply has the result.
#[derive(Debug)]
pub(crate) enum Command {
    /// Read the file again.
    Reload(Option<oneshot::Sender<Result<(), String>>>),
    /// Change nodes of the running configuration; in memory only.
    Edit(Edit, oneshot::Sender<Result<(), String>>),
}

/// Why no command is carried out any more.
pub(crate) const STOPPING: &str = "the process is stopping";

/// The running gateway.
pub(crate) struct Running {
    instruments: Instruments,
    node: Arc<Node>,
    publisher: Arc<Publisher>,
    store: Option<Arc<dyn Store>>,
    discovery: DiscoveryClients,
    members: Arc<Members>,
    purges: Arc<Purges>,
    /// Why traffic should go elsewhere; None if it need not.
    unready: Arc<Mutex<Option<&'static str>>>,
    reloads: Reloads,
    started: Instant,
    orders: ProcessOrders,
    /// The warnings that come from resources together, of the snapshot in force.
    together: Mutex<Option<(Weak<Snapshot>, Vec<Problem>)>>,
    stress: StressRuns,
}

/// The connections to registries and configuration centres.
#[derive(Default)]
struct DiscoveryClients {
    /// The followed documents.
    follower: Option<Arc<DocumentFollower>>,
    /// The registration of this gateway, while it serves.
    registration: OnceLock<SelfRegistration>,
}

/// The orders of operators to the process.
struct ProcessOrders {
    commands: mpsc::Sender<Command>,
    /// It has to stop, during any other work.
    stop: Notify,
}

/// The reloads of the configuration file.
#[derive(Default)]
struct Reloads {
    count: AtomicU64,
    /// Why the last one failed.
    problem: Mutex<Option<String>>,
}

impl Reloads {
    fn add(&self, problem: Option<String>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

impl Running {
    /// One that is not ready yet, and where its commands go.
    pub(crate) fn new(
        inheritance: &Inheritance,
        live: Arc<Live>,
        publisher: Arc<Publisher>,
        store: Option<Arc<dyn Store>>,
        members: Arc<Members>,
        purges: Arc<Purges>,
        commands: mpsc::Sender<Command>,
    ) -> Running {
        Running {
            instruments: Instruments::new(inheritance, live),
            node: Arc::clone(inheritance.node()),
            publisher,
            store,
            discovery: DiscoveryClients::default(),
            members,
            purges,
            unready: Arc::new(Mutex::new(Some("the process is starting"))),
            reloads: Reloads::default(),
            started: Instant::now(),
            orders: ProcessOrders { commands, stop: Notify::new() },
            together: Mutex::new(None),
            stress: StressRuns::default(),
        }
    }

    /// Begins a stress test of an upstream in force.
    fn start_stress(&self, upstream: &str, body: Option<&Value>) -> Result<Value, RefusedCall> {
        let plan = StressPlan::read(body).map_err(RefusedCall::bad)?;
        let cell = {
            let state = self.publisher.state();
            let all = state.snapshot.iter().flat_map(|snapshot| snapshot.upstreams());
            let found = all.into_iter().find(|candidate| candidate.key == upstream);
            let none = || RefusedCall::new(StatusCode::NOT_FOUND, format!("{upstream} has no upstream"));
            let found = found.ok_or_else(none)?;
            stress::check(upstream, &found.config).map_err(RefusedCall::bad)?;
            Arc::clone(&found.cell)
        };
        let targets = Targets::find(upstream, cell, &plan).map_err(RefusedCall::bad)?;
        let (publisher, unready) = (Arc::clone(&self.publisher), Arc::clone(&self.unready));
        let in_force = move |upstream: &str| match *unready.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(reason.to_owned()),
            None => publisher.state().endpoints.cell(upstream).ok_or_else(|| REMOVED.to_owned()),
        };
        self.stress.start(upstream, plan, targets, &self.instruments.live, in_force)
    }

    /// Adds the followed documents.
    pub(crate) fn with_documents(mut self, follower: Option<Arc<DocumentFollower>>) -> Running {
        self.discovery.follower = follower;
        self
    }

    /// The followed documents, if there are some.
    pub(crate) fn follower(&self) -> Option<&DocumentFollower> {
        self.discovery.follower.as_deref()
    }

    /// Begins to register this gateway, if the settings have it register. Within a runtime.
    pub(crate) fn register(&self, settings: &Settings) {
        if let Some(registration) = &settings.registration {
            let servers = settings.discovery.clone().unwrap_or_default();
            self.discovery.registration.get_or_init(|| SelfRegistration::begin(registration, &servers));
        }
    }

    /// The registration of this gateway, if it registers.
    pub(crate) fn registration(&self) -> Option<&SelfRegistration> {
        self.discovery.registration.get()
    }

    /// Tells load balancers from now on why traffic should go elsewhere, or that it need not.
    pub(crate) fn set_unready(&self, reason: Option<&'static str>) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Why traffic should go elsewhere; None if it need not.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the warnings about a change that come from resources together. None while the gateway does not know all
    /// writes up to `revision`.
    pub(crate) fn foresee(&self, proposal: &Proposal, revision: u64) -> Option<Vec<Problem>> {
        let (before, after, plugins) = {
            let desired = &self.publisher.state().desired;
            if desired.revision() < revision {
                return None;
            }
            let after = desired.with(&proposal.puts, &proposal.deletes);
            (desired.config.clone(), after, desired.plugins())
        };
        let Some(after) = after else { return Some(Vec::new()) };
        if proposal.is_whole {
            return Some(stored::warnings_together(&after, &*plugins));
        }
        let changed = proposal.puts.iter().map(AnyResource::key).chain(proposal.deletes.iter().cloned());
        Some(stored::warnings_of_change(&changed.collect(), &before, &after, &*plugins))
    }

    /// Returns the warnings that come from the resources of a store together. Warnings of a file already include them.
    fn warnings_together(&self) -> Vec<Problem> {
        if self.store.is_none() {
            return Vec::new();
        }
        let (snapshot, config, plugins) = {
            let state = self.publisher.state();
            let Some(snapshot) = &state.snapshot else { return Vec::new() };
            (Arc::downgrade(snapshot), state.desired.with(&[], &[]), state.desired.plugins())
        };
        let mut known = self.together.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.as_ref().is_some_and(|(of, _)| of.ptr_eq(&snapshot)) {
            let found = config.map(|config| stored::warnings_together(&config, &*plugins));
            *known = Some((snapshot, found.unwrap_or_default()));
        }
        known.as_ref().map(|(_, found)| found.clone()).unwrap_or_default()
    }

    /// The file was read again.
    pub(crate) fn reloaded(&self, problem: Option<String>) {
        self.reloads.add(problem);
    }

    /// How often the file was read again.
    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.count.load(Ordering::Relaxed)
    }

    /// Why it was not taken over the last time.
    pub(crate) fn last_problem(&self) -> Option<String> {
        self.reloads.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Since when the process runs.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Has a command carried out. Waits if others are before it; false if the process is stopping.
    pub(crate) async fn tell(&self, command: Command) -> bool {
        self.orders.commands.send(command).await.is_ok()
    }

    /// Stops the process, during any other work.
    pub(crate) fn stop(&self) {
        self.orders.stop.notify_one();
    }

    /// Waits until an operator has the process stop.
    pub(crate) async fn is_to_stop(&self) {
        self.orders.stop.notified().await;
    }

    /// The counters of every worker.
    pub(crate) fn counters(&self) -> &[Arc<WorkerCounters>] {
        &self.instruments.counters
    }

    /// Returns the process's use of its limits.
    pub(crate) fn pressure(&self) -> Arc<Pressure> {
        self.node.part(Pressure::default)
    }

    /// The counters of all workers together.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = merge(&self.instruments.counters);
        // Loggers among the plugins write access lines as well.
        totals.add(Counter::AccessLinesDropped, self.node.lost_lines());
        totals
    }

    /// Returns the objects that are not served as they are in the store.
    pub(crate) fn quarantine(&self) -> Vec<Quarantined> {
        self.publisher.state().desired.quarantine().cloned().collect()
    }

    /// Returns the publisher of changes.
    pub(crate) fn publisher(&self) -> &Arc<Publisher> {
        &self.publisher
    }

    /// Whether a listener takes sessions for stream routes.
    pub(crate) fn has_streams(&self) -> bool {
        let snapshot = self.publisher.state().snapshot.clone();
        snapshot.is_some_and(|snapshot| snapshot.settings.listeners.iter().any(|one| one.stream.is_some()))
    }

    /// The highest revision among the resources of each kind that has some.
    pub(crate) fn newest(&self) -> Vec<(Kind, u64)> {
        self.publisher.state().desired.newest()
    }

    /// Numbers of the control plane: how the registries of services do, when certificates expire, and
    /// what caches keep.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        let (reports, outliers, snapshot) = {
            let state = self.publisher.state();
            let outliers = nodes::measure(state.endpoints.nodes().into_iter());
            (state.endpoints.registries(), outliers, state.snapshot.clone())
        };
        let expiry = snapshot.as_deref().map(certificates::measure);
        let orders = order_measures::measures(&self.standing().unwrap_or_default());
        let caches = caches::measures(self.purges.zones());
        let registries = registries::measures(&reports).into_iter();
        let extensions = scripts::measures(&self.instruments.scripts)
            .into_iter()
            .chain(runner::measures(&self.instruments.runner));
        let registries = registries.chain(documents::measures(self.follower()));
        let registries = registries.chain(registration::measures(self.registration()));
        registries.chain(expiry).chain(orders).chain(caches).chain([outliers]).chain(extensions).collect()
    }

    /// Where it is said which exchanges operators want to see.
    pub(crate) fn taps(&self) -> &Arc<TapBoard> {
        &self.instruments.taps
    }

    /// The counters of scripts.
    pub(crate) fn scripts(&self) -> &ScriptBoard {
        &self.instruments.scripts
    }

    /// The state of the plugin runner.
    pub(crate) fn runner(&self) -> &RunnerState {
        &self.instruments.runner
    }

    /// This gateway among the others of its store.
    pub(crate) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// All gateways of the store, as [`Inspect::members`] tells them.
    pub(crate) fn listed(&self) -> Asked<'static, Value> {
        Box::pin(self.members.list())
    }

    /// Has caches forget, here and on the other gateways of the store.
    pub(crate) fn purges(&self) -> &Arc<Purges> {
        &self.purges
    }

    /// How the orders of certificates stand; None if none are ordered.
    pub(crate) fn standing(&self) -> Option<Vec<orders::Standing>> {
        let ordered = self.publisher.state().ordered.clone();
        ordered.map(|ordered| ordered.standing())
    }

    /// Health of all checked upstreams, nodes in the form of APISIX's `/v1/healthcheck`.
    pub(crate) fn upstreams(&self) -> Value {
        let upstreams = health_by_upstream(&self.publisher.state().endpoints).into_iter();
        upstreams.map(|(key, _, nodes)| json!({"name": key, "nodes": nodes})).collect()
    }
}

impl Inspect for Running {
    fn in_force(&self, kind: Kind) -> Vec<InForce> {
        in_force(&self.publisher.state(), kind)
    }

    fn health(&self) -> Vec<HealthReport> {
        let reports = health_by_upstream(&self.publisher.state().endpoints).into_iter();
        reports
            .filter_map(|(key, check, nodes)| {
                Some(HealthReport { key: ResourceKey::parse(&key)?, check, nodes })
            })
            .collect()
    }

    fn registry(&self, registry: Registry) -> Option<Value> {
        self.publisher.state().endpoints.dump(registry)
    }

    fn registry_file(&self, registry: Registry) -> Option<Asked<'static, Result<Value, String>>> {
        let stored = self.publisher.state().endpoints.stored(registry)?;
        Some(Box::pin(stored))
    }

    fn nodes(&self) -> Vec<UpstreamNodes> {
        let state = self.publisher.state();
        let routes = &state.desired.config.resources.routes;
        let uri = |key: &str| {
            let route = routes.get(key.strip_prefix("routes/")?)?;
            let first = || route.uris.first().map(String::as_str);
            route.uri.as_deref().or_else(first).map(str::to_owned)
        };
        let all = state.endpoints.nodes().into_iter();
        let nodes = all.map(|(key, set)| UpstreamNodes {
            uri: uri(key),
            ..UpstreamNodes::of(key, &set, state.endpoints.is_checked(key))
        });
        nodes.collect()
    }

    fn set_node_state(&self, upstream: &str, node: &str, wanted: NodeState) -> Result<NodeState, String> {
        self.publisher.state().endpoints.set_node_state(upstream, node, wanted)
    }

    fn stress(&self, call: StressCall<'_>) -> Result<Value, RefusedCall> {
        match call {
            StressCall::List => Ok(self.stress.list()),
            StressCall::Show(upstream) => self.stress.show(upstream),
            StressCall::Start(upstream, body) => self.start_stress(upstream, body),
            StressCall::Stop(upstream) => self.stress.stop(upstream),
        }
    }

    fn certificates(&self) -> Vec<Value> {
        let snapshot = self.publisher.state().snapshot.clone();
        snapshot.map(|snapshot| certificates::listed(&snapshot, unix_seconds())).unwrap_or_default()
    }

    fn orders(&self) -> Option<Vec<Value>> {
        Some(self.standing()?.iter().map(orders::Standing::shown).collect())
    }

    fn order_now(&self, ssl: &str) -> Asked<'_, Result<(), RefusedCall>> {
        let (ordered, ssl) = (self.publisher.state().ordered.clone(), ssl.to_owned());
        Box::pin(async move {
            let ordered = ordered.ok_or_else(|| RefusedCall::new(StatusCode::NOT_FOUND, NO_ORDERS))?;
            ordered.order_now(&ssl, unix_seconds()).await.map_err(|refused| {
                let status = match refused {
                    orders::Unwilling::Unknown => StatusCode::NOT_FOUND,
                    orders::Unwilling::TooSoon { .. } => StatusCode::TOO_MANY_REQUESTS,
                    orders::Unwilling::Lost(_) => StatusCode::SERVICE_UNAVAILABLE,
                };
                RefusedCall::new(status, refused.to_string())
            })
        })
    }

    fn revisions(&self) -> Revisions {
        let together = self.warnings_together();
        let state = self.publisher.state();
        Revisions {
            store: self.store.as_ref().map_or_else(file, |store| store.status()),
            published: state.published,
            workers: self.instruments.counters.iter().map(|counters| counters.revision()).collect(),
            quarantined: state.desired.quarantine().cloned().collect(),
            warnings: state.desired.warnings().cloned().chain(together).collect(),
        }
    }

    fn live(&self) -> Value {
        let mut seen = self.instruments.live.look();
        let counters = self.totals().render_json(&fault_names());
        let reasons = FaultKind::ALL.iter().map(|kind| {
            let row = kind.row();
            (row.word.to_owned(), json!({"meaning": row.meaning, "remedy": row.plain_remedy()}))
        });
        seen["lua"] = scripts::shown(&self.instruments.scripts);
        seen["runner"] = runner::shown(&self.instruments.runner);
        seen["reasons"] = reasons.collect::<serde_json::Map<_, _>>().into();
        seen["since_start"] = json!({
            "uptime_seconds": self.started.elapsed().as_secs(),
            "workers": self.instruments.counters.len(),
            // The rendered text is JSON.
            "counters": serde_json::from_str::<Value>(&counters).unwrap_or_default(),
        });
        seen
    }

    fn members(&self) -> Asked<'static, Value> {
        self.listed()
    }

    fn server_info(&self) -> Asked<'static, Value> {
        Box::pin(self.members.server_info())
    }

    fn reload(&self) -> Asked<'_, Result<(), String>> {
        Box::pin(async {
            let (reply, answer) = oneshot::channel();
            match self.tell(Command::Reload(Some(reply))).await {
                true => answer.await.unwrap_or_else(|_| Err(STOPPING.to_owned())),
                false => Err(STOPPING.to_owned()),
            }
        })
    }
}

/// The names of faults, by the number of their kind.
pub(crate) fn fault_names() -> Vec<&'static str> {
    FaultKind::ALL.iter().map(|kind| kind.error_type()).collect()
}

/// The status of a configuration that comes from a file.
fn file() -> StoreStatus {
    StoreStatus { kind: "file", revision: 0, lost: None, copied: None }
}

/// Returns the resources of a kind; during a change, still the former ones.
fn in_force(state: &publisher::State, kind: Kind) -> Vec<InForce> {
    let publisher::State { desired, batch, .. } = state;
    let resources = &desired.config.resources;
    let gone = batch.keys().into_iter().filter(|key| resources.get(key).is_none());
    let keys = resources.keys().into_iter().chain(gone).filter(|key| key.kind == kind);
    let shown = |key: ResourceKey| {
        let (resource, created) = match batch.former(&key) {
            Some(former) => former?,
            None => (resources.get(&key)?, resources.order(&key).map_or(0, Order::created)),
        };
        Some(InForce {
            created,
            modified: desired.modified(&key),
            has_domain: has_domain(&resource),
            value: value_of(&resource),
            key,
        })
    };
    keys.filter_map(shown).collect()
}

/// Key, kind of probe and nodes of every checked upstream.
fn health_by_upstream(endpoints: &Endpoints) -> Vec<(String, &'static str, Vec<Value>)> {
    let node = |target: TargetStatus| {
        let standing = target.standing;
        let mut node = json!({
            "ip": target.ip,
            "port": target.port,
            "hostname": target.hostname,
            "status": status_name(standing),
            "counter": {
                "success": standing.successes,
                "http_failure": standing.http_failures,
                "tcp_failure": standing.tcp_failures,
                "timeout_failure": standing.timeouts,
            },
        });
        add_reason(&mut node, standing, target.ejected_until_ms);
        node
    };
    let upstreams = endpoints.health().into_iter();
    upstreams.map(|(key, probe, targets)| (key, probe, targets.into_iter().map(node).collect())).collect()
}

fn value_of(resource: &AnyResource) -> Value {
    let value = match resource {
        AnyResource::Route(route) => serde_json::to_value(route),
        AnyResource::Service(service) => serde_json::to_value(service),
        AnyResource::Upstream(upstream) => serde_json::to_value(upstream),
        AnyResource::PluginMetadata(metadata) => serde_json::to_value(metadata),
        // The Control API shows no other kind; certificates and consumers hold secrets.
        _ => Ok(Value::Null),
    };
    // None of the types has a map with keys that are no strings, nor a serializer that fails.
    value.unwrap_or_default()
}

fn has_domain(resource: &AnyResource) -> bool {
    let named = |upstream: &Upstream| {
        let is_name = |host: &str| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host.parse::<IpAddr>().is_err() && !host.starts_with("unix:")
        };
        upstream.nodes.iter().any(|node| is_name(&node.host))
    };
    match resource {
        AnyResource::Route(route) => route.upstream.as_deref().is_some_and(named),
        AnyResource::Service(service) => service.upstream.as_deref().is_some_and(named),
        AnyResource::Upstream(upstream) => named(upstream),
        _ => false,
    }
}
