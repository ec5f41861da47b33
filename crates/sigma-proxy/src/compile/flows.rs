//! Stream routes: the parts from their service, and their router.

use std::sync::Arc;

use serde_json::Value;
use sigma_config::Config;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::{CircuitBreaker, Scheme, Service, StreamRoute, Upstream};
use sigma_config::table::Order;
use sigma_plugin::flow::FlowFacts;
use sigma_plugin::roster::Lookup;
use sigma_plugin::{Entry, FlowChain, FlowPlugin, Phase};
use sigma_schema::Problem;
use sigma_schema::id::Id;
use sigma_schema::plugins::{PluginSchemas, PluginScope};

use super::compiled::{Building, Compiled, is_off};
use super::{State, Task};
use crate::snapshot::flows::{FlowRoute, FlowRouter};
use crate::snapshot::{Snapshot, Target};

/// A placed stream route.
#[derive(Clone)]
pub(super) struct PlacedFlow {
    /// Its number in the lists of referrers.
    number: u32,
    order: Order,
    references: Vec<ResourceKey>,
    route: Arc<FlowRoute>,
}

fn service_of<'c>(config: &'c Config, route: &StreamRoute) -> Option<&'c Arc<Service>> {
    config.resources.services.get(route.service_id.as_ref()?.as_str())
}

/// Returns the referenced upstream of a stream route, and the field with the reference.
fn named<'c>(config: &'c Config, route: &StreamRoute) -> Option<(&'static str, &'c Arc<Upstream>)> {
    let of_id = |id: &Option<Id>| config.resources.upstreams.get(id.as_ref()?.as_str());
    if route.upstream_id.is_some() || route.upstream.is_some() {
        return Some(("upstream_id", of_id(&route.upstream_id)?));
    }
    let service = service_of(config, route)?;
    Some(("service_id", of_id(&service.upstream_id).or(service.upstream.as_ref())?))
}

/// Returns true if a stream route has an upstream with this id, directly or by its service.
pub(super) fn names_upstream(config: &Config, route: &StreamRoute, id: &str) -> bool {
    named(config, route).is_some_and(|(_, upstream)| upstream.id.as_str() == id)
}

impl Task<'_> {
    /// Compiles a stream route, with the plugins of its service.
    pub(super) fn compile_flow(&mut self, key: &ResourceKey, before: &State) -> Option<Arc<Compiled>> {
        let config = self.config;
        let route = config.resources.stream_routes.get(&key.id)?;
        let old = before.compiled.get(key);
        let mut building = Building { key, old: old.map(|old| &**old), upstreams: Vec::new(), task: self };
        if let Some((field, _)) = named(config, route).filter(|(_, it)| !it.scheme.carries_sessions()) {
            let problem = Problem::new(format!("{key}.{field}"), "unsupported", Scheme::NO_SESSIONS);
            building.fail(problem.hint("use an upstream with one of these schemes"));
        }
        if let Some(upstream) =
            route.upstream_id.as_ref().and_then(|id| config.resources.upstreams.get(id.as_str()))
        {
            building.warn_of_requests(&format!("upstreams/{}", upstream.id), upstream);
        }
        if let Some(upstream) = &route.upstream {
            building.warn_of_requests(&format!("{key}.upstream"), upstream);
            building.upstream(key.to_string(), ".upstream", upstream);
        }
        let (mut flows, resource) = (Vec::new(), format!("/apisix/{key}"));
        for (name, conf) in route.plugins.iter() {
            if let Some(kind) = building.task.roster.get(name).cloned() {
                building.plugin_upstreams(&kind, PluginScope::Stream, conf);
            }
            flows.extend(building.flow_entry(name, conf, &resource));
        }
        if let Some(service) = service_of(config, route) {
            let resource = format!("/apisix/services/{}", service.id);
            for (name, conf) in
                service.plugins.iter().filter(|(name, _)| !route.plugins.contains_key(&**name))
            {
                flows.extend(building.flow_of_service(name, conf, &resource));
            }
        }
        let upstreams = building.upstreams.into_boxed_slice();
        Some(Arc::new(Compiled { flows: flows.into(), upstreams, ..Compiled::default() }))
    }
}

impl Building<'_, '_> {
    /// Returns a plugin of a stream route's service. A plugin for requests alone that could reject one is an error:
    /// its effect would be missing.
    fn flow_of_service(
        &mut self,
        name: &str,
        conf: &Arc<Value>,
        resource: &str,
    ) -> Option<Arc<Entry<dyn FlowPlugin>>> {
        let roster = Arc::clone(self.task.roster);
        if roster.schema(name, PluginScope::Stream).is_some() {
            return self.flow_entry(name, conf, resource);
        }
        if is_off(conf) || roster.is_ignored(name) {
            return None;
        }
        let guards = [Phase::Rewrite, Phase::Access, Phase::BeforeProxy];
        if roster.get(name).is_some_and(|kind| !guards.iter().any(|phase| kind.phases().contains(*phase))) {
            return None;
        }
        if roster.get(name).is_some_and(|kind| kind.schema(PluginScope::Stream).is_some()) {
            self.refuse_unknown(name);
            return None;
        }
        let message = format!("plugin {name} of its service needs requests, which a stream lacks");
        let hint = "give the stream route its own service, or the `upstream_id` of this service";
        let place = format!("{}.service_id", self.key);
        self.fail(Problem::new(place, "conflict", message).hint(hint));
        None
    }

    fn flow_entry(
        &mut self,
        name: &str,
        conf: &Arc<Value>,
        resource: &str,
    ) -> Option<Arc<Entry<dyn FlowPlugin>>> {
        let roster = Arc::clone(self.task.roster);
        if roster.get(name).is_none() {
            if !is_off(conf) && !roster.is_ignored(name) {
                self.refuse_unknown(name);
            }
            return None;
        }
        let known = self.old.and_then(|old| old.flows.iter().find(|entry| entry.name() == name));
        let is_same = |known: &&Arc<Entry<dyn FlowPlugin>>| {
            known.conf == *conf
                && known.metadata == self.metadata(name)
                && !self.task.sources.secrets.has_changed(conf)
        };
        if let Some(same) = known.filter(is_same).filter(|_| !self.task.is_renewed) {
            return Some(Arc::clone(same));
        }
        let mut revealed = Value::clone(conf);
        self.task.sources.secrets.reveal(&mut revealed);
        match roster.build_flow(name, conf, revealed, resource, self, self.task.node) {
            Ok(entry) => Some(Arc::new(entry)),
            Err(reason) => {
                self.refuse(name, reason);
                None
            }
        }
    }

    /// Warns of settings of an upstream without effect on sessions.
    fn warn_of_requests(&self, place: &str, upstream: &Upstream) {
        let breaker = upstream.circuit_breaker.as_deref();
        let answers =
            breaker.and_then(|breaker| breaker.fallback.as_ref()).is_some_and(|it| it.status.is_some());
        let usual = CircuitBreaker::default().failure_status_codes;
        let fields = [
            (
                "circuit_breaker.failure_status_codes",
                breaker.is_some_and(|it| it.failure_status_codes != usual),
            ),
            ("circuit_breaker.fallback.status", answers),
            ("adaptive_concurrency", upstream.adaptive_concurrency.is_some()),
            ("session_affinity", upstream.session_affinity.is_some()),
            ("stick_table", upstream.stick_table.as_deref().is_some_and(|table| !table.address)),
            ("retry_policy", upstream.retry_policy.is_some()),
            ("deadline", upstream.deadline.is_some()),
        ];
        for (field, _) in fields.iter().filter(|(_, is_there)| *is_there) {
            let name = field.rsplit('.').next().unwrap_or(field);
            let hint = match *field {
                "session_affinity" | "stick_table" => {
                    "; `stick_table: { address: true }` keeps a client's sessions on one node"
                }
                _ => "",
            };
            tracing::warn!("{place}.{field}: `{name}` has no effect on the sessions of a stream route{hint}");
        }
    }
}

impl State {
    /// Places changed, new and removed stream routes.
    pub(super) fn place_flows(&mut self, snapshot: &mut Snapshot, config: &Config, ids: &[Box<str>]) {
        for id in ids {
            let former = self.flows.remove(id);
            let routes = &config.resources.stream_routes;
            let number = former.as_ref().map(|former| former.number);
            if let Some((route, order)) = routes.get(id).zip(routes.order(id)) {
                let number = number.unwrap_or_else(|| self.route_numbers.take());
                let references: Vec<ResourceKey> = references(route).collect();
                for key in &references {
                    self.referrers.entry(key.clone()).or_default().insert(number);
                }
                self.forget_flow(former, number, &references);
                let route = Arc::new(self.flow(config, route));
                self.flows.insert(id.clone(), PlacedFlow { number, order, references, route });
            } else if let Some(number) = number {
                self.forget_flow(former, number, &[]);
                self.route_numbers.give(number);
            }
        }
        let mut placed: Vec<&PlacedFlow> = self.flows.values().collect();
        placed.sort_by_key(|placed| placed.order);
        snapshot.flows =
            Arc::new(FlowRouter::new(placed.into_iter().map(|placed| Arc::clone(&placed.route))));
    }

    /// Removes references that a stream route does not have any more.
    fn forget_flow(&mut self, former: Option<PlacedFlow>, number: u32, still: &[ResourceKey]) {
        let gone = former.into_iter().flat_map(|former| former.references);
        for key in gone.filter(|key| !still.contains(key)) {
            if let Some(numbers) = self.referrers.get_mut(&key) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.referrers.remove(&key);
                    self.forget_absent_upstream(&key);
                }
            }
        }
    }

    fn flow(&mut self, config: &Config, route: &StreamRoute) -> FlowRoute {
        let service = service_of(config, route);
        let facts = FlowFacts {
            id: route.id.as_str().into(),
            name: route.name.clone(),
            service_id: route.service_id.as_ref().map(|id| id.as_str().into()),
            service_name: service.and_then(|service| service.name.clone()),
        };
        let key = ResourceKey::new(Kind::StreamRoute, route.id.as_str());
        let target = self.flow_target(config, route, service);
        let compiled = self.compiled.get(&key).filter(|_| !target.is_unguarded());
        let chain = FlowChain::new(compiled.into_iter().flat_map(|compiled| compiled.flows.iter().cloned()));
        FlowRoute::new(route, facts, target, chain)
    }

    fn flow_target(
        &mut self,
        config: &Config,
        route: &StreamRoute,
        service: Option<&Arc<Service>>,
    ) -> Target {
        let is_closed = |kind, id: &Id| config.resources.is_closed(&ResourceKey::new(kind, id.as_str()));
        if is_closed(Kind::StreamRoute, &route.id)
            || route.service_id.as_ref().is_some_and(|id| is_closed(Kind::Service, id))
        {
            return Target::Closed;
        }
        if route.service_id.is_some() && service.is_none() {
            return Target::NoService;
        }
        let own = route.upstream.is_some().then(|| format!("stream_routes/{}", route.id));
        self.leads_to(route.upstream_id.as_ref(), own, service.map(|service| &**service))
    }
}

/// Returns the resources that a stream route refers to.
fn references(route: &StreamRoute) -> impl Iterator<Item = ResourceKey> {
    let of = |kind, id: &Option<Id>| id.as_ref().map(|id| ResourceKey::new(kind, id.as_str()));
    [of(Kind::Service, &route.service_id), of(Kind::Upstream, &route.upstream_id)].into_iter().flatten()
}
