//! Endpoints of all upstreams: names resolved, health checked, published into their cells.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sigma_config::discovery::{Discovery, split_dns_service};
use sigma_config::dns::Dns;
use sigma_config::resources::{self, PassHost, Scheme};
use sigma_config::settings::Settings;
use sigma_discovery::{Registries, Registry, Report, ServiceQuery, Subscription};
use sigma_net::tls::ClientTls;
use sigma_proxy::Snapshot;
use sigma_proxy::compile::EndpointSource;
use sigma_schema::Problem;
use sigma_upstream::dns::{DnsService, Resolver, Times};
use sigma_upstream::endpoint::{Endpoint, EndpointSet, UpstreamCell};
use sigma_upstream::feed::{Feed, FeedError, NextNodes};
use sigma_upstream::health::checker::{CheckerSpec, Checkers, TargetStatus};
use sigma_upstream::health::outlier::Rules;
use sigma_upstream::health::plan::{Plan, Traffic};
use sigma_upstream::health::{Agreement, Findings, HealthEvents, HealthRecords, NodeState, StoredHealth};
use sigma_upstream::identity::EndpointIds;
use sigma_upstream::watch::{Source, Watch, resolve_initial};
use tokio::task::JoinHandle;

/// Upstreams that were compiled for a snapshot which is not in force yet. It is given to
/// [`Endpoints::commit`] with that snapshot; dropped, it leaves nothing behind.
#[derive(Default)]
#[must_use]
pub(crate) struct Pending {
    upstreams: Vec<Compiled>,
    /// In the order of `upstreams`.
    watches: Vec<Watch>,
}

struct Compiled {
    key: String,
    plan: Option<Arc<Plan>>,
    cell: Arc<UpstreamCell>,
    service: Option<Box<str>>,
    /// The operators' states of its nodes.
    node_states: BTreeMap<Box<str>, NodeState>,
}

impl Pending {
    /// Finds nodes and resolves their names, as far as `timeout` allows.
    pub(crate) async fn resolve(&mut self, timeout: Duration) {
        if !self.watches.iter().any(Watch::is_needed) {
            return;
        }
        resolve_initial(&mut self.watches, timeout).await;
        for (upstream, watch) in self.upstreams.iter().zip(&self.watches) {
            if watch.is_needed() {
                let next = watch.successor(Some(&upstream.cell.load()));
                upstream.cell.publish(Arc::new(next));
            }
        }
    }
}

/// A watch in force; ends when dropped.
struct Watching {
    cell: Arc<UpstreamCell>,
    /// The service that its nodes come from.
    service: Option<Box<str>>,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The upstreams' endpoints on the control side.
#[derive(Default)]
pub(crate) struct Endpoints {
    ids: Arc<EndpointIds>,
    /// How many workers there are.
    workers: usize,
    checkers: Checkers,
    dns: Dns,
    resolver: Option<Resolver>,
    discovery: Discovery,
    /// Asks the name servers of `discovery.dns`.
    service_resolver: Option<Resolver>,
    registries: Registries,
    watching: HashMap<String, Watching>,
    /// The endpoints of every upstream in force.
    cells: HashMap<String, Arc<UpstreamCell>>,
    /// The upstreams whose nodes are checked.
    checked: HashMap<String, CheckerSpec>,
}

/// Gives upstreams their endpoints during one compilation.
pub(crate) struct Planning<'e> {
    endpoints: &'e mut Endpoints,
    pending: Pending,
}

impl Planning<'_> {
    /// The compilation has ended.
    pub(crate) fn into_pending(self) -> Pending {
        self.pending
    }
}

impl Endpoints {
    /// Asks the name servers, and finds services, that the settings name. So many workers count what
    /// requests show of nodes.
    pub(crate) fn of(settings: &Settings, workers: usize) -> Endpoints {
        let (dns, discovery) = (settings.dns.clone(), settings.discovery.clone().unwrap_or_default());
        let registries = Registries::new(&discovery);
        Endpoints { workers, dns, discovery, registries, ..Endpoints::default() }
    }

    /// Reports health events to `events` when a node goes out or comes back.
    pub(crate) fn telling(self, events: HealthEvents) -> Endpoints {
        Endpoints { checkers: Checkers::telling(events), ..self }
    }

    /// Begins with the health of nodes before this process.
    pub(crate) fn begin_with_health(&mut self, kept: StoredHealth) {
        self.checkers.begin_with(kept);
    }

    /// Returns the health of nodes, for the next process.
    pub(crate) fn kept_health(&self) -> StoredHealth {
        self.checkers.kept()
    }

    /// Returns a number that changes with it.
    pub(crate) fn health_changes(&self) -> u64 {
        self.checkers.changes()
    }

    /// Drops the former health of nodes that have not come yet: it is too old.
    pub(crate) fn forget_earlier_health(&mut self) {
        self.checkers.forget_earlier();
    }

    /// The nodes that are out by what requests of this gateway have shown.
    pub(crate) fn findings(&self) -> Findings {
        self.checkers.findings()
    }

    /// Ejects nodes that other gateways have found unhealthy, as far as `agreement` allows.
    pub(crate) fn heed(&mut self, others: &[Arc<Findings>], agreement: &Agreement) {
        self.checkers.heed(others, agreement);
    }

    /// For one compilation.
    pub(crate) fn plan(&mut self) -> Planning<'_> {
        Planning { endpoints: self, pending: Pending::default() }
    }

    /// Watches nodes and checks health of exactly the upstreams of `snapshot`. Within a runtime.
    pub(crate) fn commit(&mut self, pending: Pending, snapshot: &Snapshot) {
        self.watch(pending);
        let mut watching = std::mem::take(&mut self.watching);
        self.checked.clear();
        self.cells.clear();
        for upstream in snapshot.upstreams() {
            let kept = watching.remove(&upstream.key).filter(|w| Arc::ptr_eq(&w.cell, &upstream.cell));
            if let Some(kept) = kept {
                self.watching.insert(upstream.key.clone(), kept);
            }
            self.cells.insert(upstream.key.clone(), Arc::clone(&upstream.cell));
            if let Some(plan) = &upstream.checks {
                let (key, plan, cell) = (upstream.key.clone(), Arc::clone(plan), Arc::clone(&upstream.cell));
                self.checked.insert(key.clone(), CheckerSpec { key, plan, cell });
            }
        }
        self.checkers.states().keep_configured(|key| self.cells.contains_key(key));
        self.checkers.commit(self.checked.values().cloned().collect());
    }

    /// As [`Endpoints::commit`], for a snapshot that differs from the one committed before only in
    /// the pending upstreams, and in those whose keys are `gone`.
    pub(crate) fn commit_changed(&mut self, pending: Pending, gone: &[String]) {
        let mut checks_changed = self.watch(pending);
        for key in gone {
            self.watching.remove(key);
            self.cells.remove(key);
            self.checkers.states().configure(key, BTreeMap::new());
            checks_changed |= self.checked.remove(key).is_some();
        }
        if checks_changed {
            self.checkers.commit(self.checked.values().cloned().collect());
        }
    }

    /// Begins to watch the nodes of pending upstreams; whether any is checked, or was before.
    fn watch(&mut self, pending: Pending) -> bool {
        let mut checks_changed = false;
        for (Compiled { key, plan, cell, service, node_states }, watch) in
            pending.upstreams.into_iter().zip(pending.watches)
        {
            let states = self.checkers.states();
            // Including states that were set since the nodes were planned.
            if states.configure(&key, node_states) || states.are_told() {
                self.want(&key, &cell.load().endpoints);
            }
            self.cells.insert(key.clone(), Arc::clone(&cell));
            checks_changed |= self.checked.remove(&key).is_some();
            if let Some(plan) = plan {
                let (key, cell) = (key.clone(), Arc::clone(&cell));
                self.checked.insert(key.clone(), CheckerSpec { key, plan, cell });
                checks_changed = true;
            }
            if watch.is_needed() {
                let task = tokio::spawn(watch.run(Arc::clone(&cell)));
                self.watching.insert(key, Watching { cell, service, task });
            } else {
                self.watching.remove(&key);
            }
        }
        checks_changed
    }

    /// Key, kind of probe and health of the targets of every checked upstream.
    pub(crate) fn health(&self) -> Vec<(String, &'static str, Vec<TargetStatus>)> {
        let keys = self.checkers.keys().into_iter();
        let probe = |key: &str| self.checked.get(key).map_or("http", |spec| spec.plan.probe_name());
        keys.filter_map(|key| Some((key.to_owned(), probe(key), self.checkers.status(key)?))).collect()
    }

    /// Returns whether checks, an agent or outlier detection judge the nodes of an upstream.
    pub(crate) fn is_checked(&self, key: &str) -> bool {
        self.checked.get(key).is_some_and(|spec| spec.plan.judges())
    }

    /// The nodes of every upstream in force, in order of their keys.
    pub(crate) fn nodes(&self) -> Vec<(&str, Arc<EndpointSet>)> {
        let mut all: Vec<_> = self.cells.iter().map(|(key, cell)| (key.as_str(), cell.load())).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    /// Returns the endpoints of an upstream in force.
    pub(crate) fn cell(&self, key: &str) -> Option<Arc<UpstreamCell>> {
        self.cells.get(key).cloned()
    }

    /// Puts a node, by its name or its address, into a state. Returns the resulting state: a node that the
    /// configuration takes out stays out.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no such node.
    pub(crate) fn set_node_state(
        &self,
        key: &str,
        node: &str,
        wanted: NodeState,
    ) -> Result<NodeState, String> {
        let cell = self.cells.get(key).ok_or_else(|| format!("{key} has no upstream"))?;
        let set = cell.load();
        let is_meant = |endpoint: &&Endpoint| endpoint.name() == node || endpoint.addr.to_string() == node;
        if !set.endpoints.iter().any(|endpoint| is_meant(&endpoint)) {
            return Err(format!("{key} has no node {node}; `GET /v1/nodes` lists its nodes"));
        }
        self.checkers.states().set(key, node, wanted)?;
        self.want(key, &set.endpoints);
        tracing::warn!(upstream = key, node, state = wanted.name(), "an operator set the state of a node");
        let held = set.endpoints.iter().filter(is_meant).map(|endpoint| endpoint.health.standing().wanted);
        Ok(held.max().unwrap_or(wanted))
    }

    /// Puts the nodes of an upstream into the states that are wanted now.
    fn want(&self, key: &str, nodes: &[Endpoint]) {
        let states = self.checkers.states();
        for node in nodes {
            node.health.want(states.of(key, &node.host, node.port, &node.addr));
        }
    }

    /// The feed of an upstream's nodes, if they are not configured.
    fn feed(&mut self, key: &str, config: &resources::Upstream) -> Result<Option<Box<dyn Feed>>, Problem> {
        if config.service_name.is_unset() {
            return Ok(None);
        }
        if let Some(registry) =
            config.discovery_type.parse::<Registry>().ok().filter(|it| *it != Registry::Dns)
        {
            return self.subscription(key, config, registry).map(Some);
        }
        let place = format!("{key}.service_name");
        let (host, port) = split_dns_service(&config.service_name)
            .map_err(|message| Problem::new(&place, "service", message).hint("write host or host:port"))?;
        let resolver = self.service_resolver().map_err(|error| Problem::new(&place, "resolver", error))?;
        let order = self.discovery.dns.as_ref().and_then(|dns| dns.order.as_deref());
        Ok(Some(Box::new(DnsService::new(resolver, host, port, order))))
    }

    /// The feed of a service in a registry that is not dns.
    fn subscription(
        &self,
        key: &str,
        config: &resources::Upstream,
        registry: Registry,
    ) -> Result<Box<dyn Feed>, Problem> {
        let wanted = ServiceQuery {
            registry,
            service: &config.service_name,
            args: config.discovery_args.as_deref(),
            grpc: matches!(config.scheme, Scheme::Grpc | Scheme::Grpcs),
        };
        let subscription = self.registries.follow(wanted).map_err(|wrong| {
            let place = format!("{key}.{}", wrong.place);
            Problem::new(place, "service", wrong.message).hint(wrong.hint)
        })?;
        Ok(Box::new(RegistryFeed(subscription)))
    }

    /// Returns the data of a registry, in APISIX's form; None without this registry.
    pub(crate) fn dump(&self, registry: Registry) -> Option<Value> {
        self.registries.dump(registry)
    }

    /// Returns the stored list of a registry for the next start; None if nothing is stored. Within a runtime.
    pub(crate) fn stored(
        &self,
        registry: Registry,
    ) -> Option<impl Future<Output = Result<Value, String>> + Send + use<>> {
        self.registries.stored(registry)
    }

    /// How the registries of services do.
    pub(crate) fn registries(&self) -> Vec<Report> {
        self.registries.reports()
    }

    fn service_resolver(&mut self) -> Result<Resolver, String> {
        if let Some(resolver) = &self.service_resolver {
            return Ok(resolver.clone());
        }
        let resolver = match &self.discovery.dns {
            None => self.resolver()?,
            Some(dns) => {
                let servers: Vec<_> = dns.servers.iter().map(|server| server.0).collect();
                let built = match &dns.resolv_conf {
                    Some(path) => configured(path),
                    None => Resolver::with_servers(&servers).map_err(|error| error.to_string()),
                };
                self.in_families(built.map_err(|error| format!("discovery.dns: {error}"))?)
            }
        };
        let resolver = resolver.refusing(&self.discovery.refused_networks);
        Ok(self.service_resolver.insert(resolver).clone())
    }

    fn in_families(&self, resolver: Resolver) -> Resolver {
        if self.dns.ipv6 { resolver } else { resolver.without_ipv6() }
    }

    fn resolver(&mut self) -> Result<Resolver, String> {
        if let Some(resolver) = &self.resolver {
            return Ok(resolver.clone());
        }
        // Without a usable resolver configuration, addresses still work; names are queried of this machine, which says
        // why they fail.
        let servers: Vec<SocketAddr> = self.dns.servers.iter().map(|server| server.0).collect();
        let resolver = match servers.is_empty() {
            false => Resolver::with_servers(&servers),
            true => Resolver::from_system().or_else(|error| {
                tracing::warn!(%error, "asking the name server of this machine instead");
                Resolver::with_servers(&[SocketAddr::from(([127, 0, 0, 1], 53))])
            }),
        };
        let seconds = |time: u32| Duration::from_secs(time.into());
        let times = Times {
            ttl_min: seconds(self.dns.ttl_min_s),
            ttl_max: seconds(self.dns.ttl_max_s),
            query: Duration::from_millis(self.dns.query_timeout_ms.into()),
        };
        let resolver = resolver.and_then(|resolver| resolver.timed(times));
        let resolver = self.in_families(resolver.map_err(|error| error.to_string())?);
        self.resolver = Some(resolver.clone());
        Ok(resolver)
    }
}

/// The nodes of a service in a registry.
#[derive(Debug)]
struct RegistryFeed(Subscription);

impl Feed for RegistryFeed {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn next(&mut self) -> NextNodes<'_> {
        Box::pin(async { self.0.next().await.map_err(FeedError::new) })
    }
}

/// Returns true if HTTPS records of its nodes' names count.
fn follows_https_records(config: &resources::Upstream) -> bool {
    let is_wanted = config.tls.as_ref().is_some_and(|tls| tls.https_records);
    is_wanted && matches!(config.scheme, Scheme::Https | Scheme::Grpcs)
}

/// Returns a key for the service of an upstream: nodes are the same as long as it is.
fn service_of(config: &resources::Upstream) -> Box<str> {
    let args = config.discovery_args.as_deref();
    let shown = args.map(|args| serde_json::to_string(args).unwrap_or_default()).unwrap_or_default();
    format!("{} {} {shown}", config.discovery_type.as_str(), config.service_name.as_str()).into()
}

/// The resolver by a file in the form of `/etc/resolv.conf`.
fn configured(path: &Path) -> Result<Resolver, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot use {}: {error}", path.display());
    let text = std::fs::read(path).map_err(|error| failed(&error))?;
    Resolver::with_conf(&text).map_err(|error| failed(&error))
}

/// Refuses a scheme that this version does not speak.
pub(crate) fn spoken(key: &str, scheme: Scheme) -> Result<(), Problem> {
    let is_of = |kind: &str| key.strip_prefix("/apisix/").unwrap_or(key).starts_with(kind);
    let for_requests = !is_of("upstreams/") && !is_of("services/") && !is_of("stream_routes/");
    match scheme {
        scheme if is_of("stream_routes/") && !scheme.carries_sessions() => {}
        Scheme::Tcp | Scheme::Tls | Scheme::Udp if for_requests => {}
        _ => return Ok(()),
    }
    let text = match for_requests {
        true => "routes support the schemes http, https, grpc, grpcs, fcgi and kafka",
        false => Scheme::NO_SESSIONS,
    };
    Err(Problem::new(format!("{key}.scheme"), "unsupported", text).hint("use one of these"))
}

/// How the nodes of an upstream are judged, if they are.
pub(crate) fn plan(
    key: &str,
    config: &resources::Upstream,
    probes: Option<&ClientTls>,
) -> Result<Option<Arc<Plan>>, Problem> {
    let rewrite_host =
        (config.pass_host == PassHost::Rewrite).then_some(config.upstream_host.as_deref()).flatten();
    let rules = config.outlier_detection.as_deref().map(Rules::compile);
    let Some(checks) = &config.checks else { return Ok(rules.map(|rules| Arc::new(Plan::comparing(rules)))) };
    let mut plan = Plan::compile(checks, rewrite_host, probes).map_err(|error| {
        Problem::new(format!("{key}.checks{}", error.pointer.replace('/', ".")), "checks", error.message)
    })?;
    if let Some(version) = config.proxy_protocol {
        plan.introduce(version);
    }
    if let Some(agent) = &mut plan.agent {
        let limits = config.limits.as_deref();
        agent.bounds = limits.is_some_and(|limits| limits.max_requests_per_node.is_some());
    }
    Ok(Some(Arc::new(Plan { outliers: rules, ..plan })))
}

impl EndpointSource for Planning<'_> {
    fn identities(&self) -> Arc<EndpointIds> {
        Arc::clone(&self.endpoints.ids)
    }

    fn endpoints(
        &mut self,
        key: &str,
        config: &resources::Upstream,
        probes: Option<&ClientTls>,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem> {
        spoken(key, config.scheme)?;
        let mut plan = plan(key, config, probes)?;
        let endpoints = &mut *self.endpoints;
        let health = match &plan {
            Some(_) => endpoints.checkers.records(key),
            None => Arc::new(HealthRecords::unchecked(key, endpoints.checkers.states())),
        };
        if let Some(plan) = plan.as_mut().and_then(Arc::get_mut) {
            let slows_down = plan.active.as_ref().is_some_and(|active| active.intervals.no_traffic.is_some());
            plan.traffic = slows_down.then(|| Traffic(health.traffic()));
            if plan.outliers.is_some() {
                health.compare(endpoints.workers);
            }
        }
        if let Some(plan) = &plan {
            endpoints.checkers.plan(key, plan);
        }
        let feed = endpoints.feed(key, config)?;
        let service = feed.is_some().then(|| service_of(config));
        let source = feed.map_or(Source::Configured(&config.nodes), Source::Fed);
        let mut resolver = endpoints.resolver().map_err(|error| Problem::new(key, "resolver", error))?;
        if service.is_some() {
            resolver = resolver.refusing(&endpoints.discovery.refused_networks);
        }
        let watch = Watch::new(resolver, config.scheme, source, Arc::clone(&endpoints.ids), health);
        let mut watch = watch.balanced(config.balance);
        if follows_https_records(config) {
            watch = watch.with_https_records();
        }
        if let Some(former) = endpoints.watching.get(key) {
            watch.inherit(&former.cell.load(), former.service == service);
        }
        let former = endpoints.cells.get(key).map(|cell| cell.load());
        let cell = Arc::new(UpstreamCell::new(Arc::new(watch.successor(former.as_deref()))));
        self.pending.upstreams.push(Compiled {
            key: key.to_owned(),
            plan: plan.clone(),
            cell: Arc::clone(&cell),
            service,
            node_states: config.node_states.clone(),
        });
        self.pending.watches.push(watch);
        Ok((cell, plan))
    }
}

#[cfg(test)]
mod tests {
    use sigma_config::resources::Node;

    use super::*;

    const NODES: u32 = 100;

    /// Does the requests of a compilation, and the commit after it. No two changes have a node in common.
    fn put(endpoints: &mut Endpoints, change: u32) -> Arc<UpstreamCell> {
        let node = |n: u32| {
            let [_, a, b, c] = (change * NODES + n).to_be_bytes();
            Node { host: format!("10.{a}.{b}.{c}").into(), port: Some(80), weight: 1, ..Node::default() }
        };
        let config = resources::Upstream {
            nodes: (0..NODES).map(node).collect(),
            checks: Some(Box::default()),
            ..resources::Upstream::default()
        };
        let mut planning = endpoints.plan();
        let (cell, plan) = planning.endpoints("upstreams/u", &config, None).expect("endpoints");
        assert!(plan.is_some());
        let pending = planning.into_pending();
        endpoints.commit_changed(pending, &[]);
        cell
    }

    #[tokio::test]
    async fn recompiled_upstreams_leave_nothing_behind() {
        let (mut endpoints, nodes) = (Endpoints::default(), NODES as usize);
        let mut cell = put(&mut endpoints, 0);
        for change in 1..200 {
            cell = put(&mut endpoints, change);
            // One that is discarded leaves nothing either.
            drop(endpoints.plan().endpoints("upstreams/u", &resources::Upstream::default(), None));
        }
        let records = endpoints.checkers.records("upstreams/u");
        assert_eq!((endpoints.ids.live(), records.live()), (nodes, nodes));
        assert!(endpoints.ids.indices() <= 5 * nodes, "{}", endpoints.ids.indices());
        drop(cell);
        endpoints.commit_changed(Pending::default(), &["upstreams/u".to_owned()]);
        let gone = async {
            // The loops of the checker end when they are polled next.
            while endpoints.ids.live() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("no identity is left");
        assert_eq!(records.live(), 0);
    }

    #[test]
    fn unreadable_name_servers_are_reported() {
        let dns = sigma_config::discovery::DnsDiscovery {
            resolv_conf: Some("/nowhere/resolv.conf".into()),
            ..Default::default()
        };
        let settings = Settings {
            discovery: Some(Discovery { dns: Some(dns), ..Discovery::default() }),
            ..Settings::default()
        };
        let config = resources::Upstream {
            service_name: "web.test".to_owned().into(),
            ..resources::Upstream::default()
        };
        let problem = Endpoints::of(&settings, 1)
            .plan()
            .endpoints("upstreams/u", &config, None)
            .map(drop)
            .expect_err("a problem");
        assert!(problem.to_string().contains("discovery.dns: cannot use /nowhere/resolv.conf"), "{problem}");
    }
}
