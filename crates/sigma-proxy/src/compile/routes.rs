//! Routes: the merge with service and plugin config, and their place in the router.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sigma_config::Config;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources;
use sigma_config::settings::variables::definitions_of_set;
use sigma_config::table::Order;
use sigma_plugin::context::{RouteFacts, RouteResources};
use sigma_plugin::scripts::SCRIPT;
use sigma_plugin::{Chain, Entry, Resource};
use sigma_schema::id::Id;

use super::State;
use crate::route::{Change, RouteInput};
use crate::snapshot::{Rare, Rewrite, Route, Snapshot, Target, Timeouts, number_of};

/// A placed route, and its input in the router.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) number: u32,
    order: Order,
    source: Arc<resources::Route>,
    service: Option<Arc<resources::Service>>,
}

/// Placed routes are found by their ids, which are only in the routes: there may be hundreds of thousands.
impl Borrow<str> for Placed {
    fn borrow(&self) -> &str {
        self.source.id.as_str()
    }
}

impl PartialEq for Placed {
    fn eq(&self, other: &Placed) -> bool {
        self.source.id == other.source.id
    }
}

impl Eq for Placed {}

impl Hash for Placed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.id.as_str().hash(state);
    }
}

impl Placed {
    pub(super) fn id(&self) -> &str {
        self.source.id.as_str()
    }

    fn input(&self, listener_names: &[String]) -> (u64, RouteInput<'_>) {
        (self.order.rank(), RouteInput::of(&self.source, self.service.as_deref(), numbering(listener_names)))
    }
}

/// Returns the routes of a configuration as the router's inputs, with their positions as numbers.
pub(crate) fn route_inputs<'c>(
    config: &'c Config,
    listener_names: &'c [String],
) -> impl Iterator<Item = (u32, u64, RouteInput<'c>)> {
    let input = |(order, route): (Order, &'c Arc<resources::Route>)| {
        (
            order.rank(),
            RouteInput::of(route, service_of(config, route).map(|s| &**s), numbering(listener_names)),
        )
    };
    let inputs = config.resources.routes.ordered().map(input);
    (0u32..).zip(inputs).map(|(number, (order, input))| (number, order, input))
}

fn numbering(listener_names: &[String]) -> impl Fn(&str) -> Option<u16> + '_ {
    |name| Some(number_of(listener_names, Some(name))).filter(|number| *number > 0)
}

fn service_of<'c>(config: &'c Config, route: &resources::Route) -> Option<&'c Arc<resources::Service>> {
    config.resources.services.get(route.service_id.as_ref()?.as_str())
}

fn plugin_config_of<'c>(
    config: &'c Config,
    route: &resources::Route,
) -> Option<&'c Arc<resources::PluginConfig>> {
    config.resources.plugin_configs.get(route.plugin_config_id.as_ref()?.as_str())
}

/// Returns the resources that a route refers to.
fn references(route: &resources::Route) -> impl Iterator<Item = ResourceKey> {
    let of = |kind, id: &Option<Id>| id.as_ref().map(|id| ResourceKey::new(kind, id.as_str()));
    [
        of(Kind::Service, &route.service_id),
        of(Kind::PluginConfig, &route.plugin_config_id),
        of(Kind::Upstream, &route.upstream_id),
    ]
    .into_iter()
    .flatten()
}

impl State {
    /// Places a route; the caller updates the router.
    pub(super) fn place_route(
        &mut self,
        snapshot: &mut Snapshot,
        config: &Config,
        route: &Arc<resources::Route>,
        number: u32,
        order: Order,
    ) {
        for key in references(route) {
            self.referrers.entry(key).or_default().insert(number);
        }
        let service = service_of(config, route).cloned();
        let compiled = self.route(snapshot, config, route, service.as_ref());
        snapshot.routes.set(number, Some(Arc::new(compiled)));
        self.routes.replace(Placed { number, order, source: Arc::clone(route), service });
    }

    /// Places changed, new and removed routes, and updates the router.
    pub(super) fn replace_routes(
        &mut self,
        snapshot: &mut Snapshot,
        config: &Config,
        ids: &BTreeSet<Box<str>>,
    ) {
        let before: Vec<Option<Placed>> = ids.iter().map(|id| self.take_out(id)).collect();
        for (id, before) in ids.iter().zip(&before) {
            let number = before.as_ref().map(|placed| placed.number);
            let routes = &config.resources.routes;
            match routes.get(id).zip(routes.order(id)) {
                Some((route, order)) => {
                    let number = number.unwrap_or_else(|| self.route_numbers.take());
                    self.place_route(snapshot, config, route, number, order);
                }
                None => {
                    if let Some(number) = number {
                        snapshot.routes.set(number, None);
                        self.route_numbers.give(number);
                    }
                }
            }
        }
        let names = Arc::clone(&snapshot.listener_names);
        let changes: Vec<Change<'_>> = ids
            .iter()
            .zip(&before)
            .filter_map(|(id, before)| {
                let after = self.routes.get(&**id);
                let number = after.or(before.as_ref())?.number;
                Some(Change {
                    number,
                    before: before.as_ref().map(|p| p.input(&names)),
                    after: after.map(|p| p.input(&names)),
                })
            })
            .collect();
        // A freed number may be reused: so removals come first.
        let (gone, stay): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| change.after.is_none());
        snapshot.router = snapshot.router.changed(&gone).changed(&stay);
    }

    /// Removes the place and references of a route.
    fn take_out(&mut self, id: &str) -> Option<Placed> {
        let placed = self.routes.take(id)?;
        for key in references(&placed.source) {
            if let Some(numbers) = self.referrers.get_mut(&key) {
                numbers.remove(&placed.number);
                if numbers.is_empty() {
                    self.referrers.remove(&key);
                    self.forget_absent_upstream(&key);
                }
            }
        }
        Some(placed)
    }

    fn route(
        &mut self,
        snapshot: &Snapshot,
        config: &Config,
        route: &Arc<resources::Route>,
        service: Option<&Arc<resources::Service>>,
    ) -> Route {
        let resources = RouteResources {
            route: Some(Resource::new(Arc::clone(route))),
            service: service.cloned().map(Resource::new),
            plugin_config: plugin_config_of(config, route).cloned().map(Resource::new),
        };
        let service = service.map(|service| &**service);
        let own = ResourceKey::new(Kind::Route, route.id.as_str());
        let target = self.target(config, route, service);
        let chain = if target.is_unguarded() { Arc::clone(&self.no_plugins) } else { self.chain(route) };
        let global =
            snapshot.global.stands_back_for(&chain).then(|| snapshot.global.standing_back_for(&chain));
        let regex = self.compiled.get(&own).and_then(|compiled| compiled.rewrite.clone());
        let rewrite = regex
            .zip(route.rewrite.as_ref())
            .map(|(regex, rewrite)| Rewrite { regex, replacement: rewrite.replacement.clone().into_bytes() });
        let rare = Rare {
            upgrades: route.upgrade_protocols.iter().map(|name| name.as_str().into()).collect(),
            timeouts: route.timeout.as_deref().map(|timeout| Timeouts::from(*timeout)),
            retry_policy: route.retry_policy.as_deref().map(Into::into),
            deadline: route.deadline.as_deref().map(Into::into),
            rewrite,
            cache: route
                .cache
                .as_ref()
                .or_else(|| service?.cache.as_ref())
                .map(|cache| Box::new(super::cache::order(cache, &config.settings.cache))),
            definitions: definitions_of_set(&route.set, snapshot.definitions.clone()),
        };
        let websocket = route.enable_websocket.or(service.and_then(|s| s.enable_websocket));
        let class = route.priority_class.or(service.and_then(|s| s.priority_class));
        let input = RouteInput::of(route, service, |_| None);
        Route {
            facts: Arc::new(RouteFacts {
                id: route.id.as_str().into(),
                name: route.name.clone(),
                service_id: route.service_id.as_ref().map(|id| id.as_str().into()),
                service_name: service.and_then(|service| service.name.clone()),
                uris: input.uris.into_iter().map(Into::into).collect(),
                hosts: input.hosts.into_iter().map(Into::into).collect(),
                resources,
            }),
            target,
            websocket: websocket.unwrap_or(false),
            priority_class: class.unwrap_or_default(),
            rare: rare.kept(),
            chain,
            global: global.map(Arc::new),
        }
    }

    /// Returns the plugins: the route's first, then its plugin config's, then its service's.
    fn chain(&self, route: &resources::Route) -> Arc<Chain> {
        let entries_of = |kind, id: &Id| -> &[Arc<Entry>] {
            self.compiled.get(&ResourceKey::new(kind, id.as_str())).map_or(&[], |compiled| &compiled.entries)
        };
        let service = route.service_id.as_ref().map_or(&[][..], |id| entries_of(Kind::Service, id));
        let config = route.plugin_config_id.as_ref().map_or(&[][..], |id| entries_of(Kind::PluginConfig, id));
        let own = entries_of(Kind::Route, &route.id);
        if service.is_empty() && config.is_empty() && own.is_empty() {
            return Arc::clone(&self.no_plugins);
        }
        let all = service.iter().chain(config).chain(own);
        // A script runs instead of all plugins; the route's comes before its service's.
        match all.clone().rfind(|entry| entry.name() == SCRIPT) {
            Some(script) => Arc::new(Chain::new([Arc::clone(script)])),
            None => Arc::new(Chain::new(all.cloned())),
        }
    }

    fn target(
        &mut self,
        config: &Config,
        route: &resources::Route,
        service: Option<&resources::Service>,
    ) -> Target {
        let is_closed = |kind, id: &Option<Id>| {
            let id = id.as_ref();
            id.is_some_and(|id| config.resources.is_closed(&ResourceKey::new(kind, id.as_str())))
        };
        let missing = |id: &Id| config.resources.plugin_configs.get(id.as_str()).is_none();
        if config.resources.is_closed(&ResourceKey::new(Kind::Route, route.id.as_str()))
            || is_closed(Kind::Service, &route.service_id)
            || is_closed(Kind::PluginConfig, &route.plugin_config_id)
        {
            return Target::Closed;
        }
        if route.service_id.is_some() && service.is_none() {
            return Target::NoService;
        }
        if route.plugin_config_id.as_ref().is_some_and(missing) {
            return Target::NoPluginConfig;
        }
        let own = route.upstream.is_some().then(|| format!("routes/{}", route.id));
        self.leads_to(route.upstream_id.as_ref(), own, service)
    }

    /// Returns the target of a route with a named upstream, `own` upstream, or a service: the first of these wins,
    /// and of a service's two the named one.
    pub(super) fn leads_to(
        &mut self,
        named: Option<&Id>,
        own: Option<String>,
        service: Option<&resources::Service>,
    ) -> Target {
        let of_id = |id: &Id| format!("upstreams/{id}");
        let of_service = || {
            let service = service?;
            let own = service.upstream.is_some().then(|| format!("services/{}", service.id));
            service.upstream_id.as_ref().map(of_id).or(own)
        };
        let Some(key) = named.map(of_id).or(own).or_else(of_service) else { return Target::NoUpstream };
        // A missing one has a number too, without an upstream.
        Target::Upstream(self.upstream_number(&key))
    }
}
