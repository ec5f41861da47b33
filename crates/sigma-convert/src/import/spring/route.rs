//! Routes: predicates, filters and target become a decision.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::build;
use super::super::decision::{Decision, Target};
use super::super::nodes::Node;
use super::super::report::Verdict;
use super::super::source::SourceLine;
use super::actions::Actions;
use super::definition::Definition;
use super::filters;
use super::model::Route;
use super::pattern::Named;
use super::predicates::{self, Conditions};
use super::settings::{Settings, find_in};
use super::target::{self, Timeouts, Uri};
use super::values::{Outcome, seconds};
use super::{PREFIXES, Translation, probes};

/// The remark on how paths are compared.
const PATHS: &str = "Sigma matches the decoded path, normalised without doubled slashes and dot segments; Spring \
                     matches the raw path.";

/// Everything about a route that its decision needs.
struct Parts {
    conditions: Conditions,
    actions: Actions,
    plugins: Map<String, Value>,
}

/// Reads the routes of all prefixes, in order.
fn read<'n>(settings: &'n Settings<'_>) -> Vec<Route<'n>> {
    let mut routes = Vec::new();
    for prefix in PREFIXES {
        let Some(list) = settings.find(&format!("{prefix}.routes")) else { continue };
        for node in list.elements() {
            let text = |name: &str| find_in(node, name).and_then(|node| settings.text(node));
            if text("enabled").is_some_and(|text| text == "false") {
                continue;
            }
            let definitions = |name: &str| -> Vec<Definition> {
                let elements = find_in(node, name).map(Node::elements).unwrap_or_default();
                elements.into_iter().filter_map(|node| Definition::read(node, settings)).collect()
            };
            let place =
                find_in(node, "id").or_else(|| find_in(node, "uri")).map_or(node.place, |node| node.place);
            routes.push(Route {
                id: text("id").unwrap_or_else(|| format!("route-{}", routes.len() + 1)),
                place,
                uri: text("uri").unwrap_or_default(),
                order: text("order").and_then(|text| text.trim().parse().ok()).unwrap_or(0),
                predicates: definitions("predicates"),
                filters: definitions("filters"),
                metadata: find_in(node, "metadata"),
            });
        }
    }
    routes
}

impl<'t> Translation<'t, '_> {
    /// Converts all routes.
    pub(super) fn routes(&mut self) {
        let settings = self.settings;
        let defaults: Vec<Definition> = PREFIXES
            .iter()
            .filter_map(|prefix| settings.find(&format!("{prefix}.default-filters")))
            .flat_map(Node::elements)
            .filter_map(|node| Definition::read(node, settings))
            .collect();
        let mut routes = read(settings);
        routes.extend(self.located());
        // The sort is stable: equal orders keep the order of the file.
        routes.sort_by_key(|route| route.order);
        let paths: Vec<String> = routes.iter().flat_map(Route::paths).collect();
        if let Some(place) = routes.iter().map(|route| route.place).min() {
            let line = place.line.saturating_sub(1).max(1);
            self.tell(SourceLine { line, ..place }, Verdict::Differs, PATHS);
        }
        let mut groups: HashMap<String, usize> = HashMap::new();
        for route in &routes {
            self.route(route, &defaults, &paths, &routes, &mut groups);
        }
    }

    /// Routes that the discovery locator makes of known services.
    fn located(&mut self) -> Vec<Route<'t>> {
        let settings = self.settings;
        let locator =
            PREFIXES.iter().find_map(|prefix| settings.find(&format!("{prefix}.discovery.locator")));
        let text =
            |name: &str| locator.and_then(|node| find_in(node, name)).and_then(|node| settings.text(node));
        let Some(place) = locator
            .and_then(|node| find_in(node, "enabled"))
            .filter(|_| text("enabled").as_deref() == Some("true"))
            .map(|node| node.place)
        else {
            return Vec::new();
        };
        let services = target::known_services(settings);
        if services.is_empty() {
            let remark =
                "Sigma does not create routes from a registry: write a route `/NAME/**` for each service.";
            self.tell(place, Verdict::NotPossible, remark);
        }
        let lower = text("lower-case-service-id").as_deref() == Some("true");
        let route = |service: &String| {
            let name = if lower { service.to_lowercase() } else { service.clone() };
            let definition = |name: &str, args: &[(&str, String)]| Definition {
                name: name.to_owned(),
                place,
                source: String::new(),
                args: args.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
            };
            Route {
                id: format!("locator-{service}"),
                place,
                uri: format!("lb://{service}"),
                order: 0,
                predicates: vec![definition("Path", &[("patterns", format!("/{name}/**"))])],
                filters: vec![definition(
                    "RewritePath",
                    &[
                        ("regexp", format!("/{name}/?(?<remaining>.*)")),
                        ("replacement", "/${remaining}".to_owned()),
                    ],
                )],
                metadata: None,
            }
        };
        services.iter().map(route).collect()
    }

    fn route(
        &mut self,
        route: &Route<'t>,
        defaults: &[Definition],
        paths: &[String],
        all: &[Route<'t>],
        groups: &mut HashMap<String, usize>,
    ) {
        let Some(parts) = self.parts(route, defaults, paths) else { return };
        let Parts { conditions, mut actions, plugins } = parts;
        if conditions.never {
            self.tell(route.place, Verdict::Done, "");
            return;
        }
        let uri = Uri::read(&route.uri);
        let uri_place = route.place;
        let mut decision = Decision::new(route.place, route.id.clone(), Target::Drop);
        let share = conditions.weight.as_ref().filter(|(group, _)| !is_uniform(group, all));
        if let (Some((group, _)), None) = (&conditions.weight, share) {
            let first = *groups.entry(group.clone()).or_insert(self.plan.decisions.len());
            if first != self.plan.decisions.len() {
                return; // The first route of the group stands for all.
            }
        }
        decision.target = match (&actions.closed, &uri) {
            (Some(reason), _) => Target::Closed(reason.clone()),
            (None, Err(reason)) => {
                self.tell(uri_place, Verdict::NotPossible, format!("{reason} The route answers 503."));
                Target::Closed(reason.clone())
            }
            (None, Ok(Uri::Forward(path))) => {
                let text = format!("`{path}` is a handler in the application's code; the route returns 503.");
                self.tell(uri_place, Verdict::NotPossible, text.clone());
                Target::Closed(text)
            }
            (None, Ok(Uri::Nothing)) if actions.redirect.is_none() => {
                self.tell(uri_place, Verdict::NotPossible, "The URI has no target; the route returns 503.");
                Target::Closed("no target".to_owned())
            }
            (None, Ok(uri)) => match conditions.weight.as_ref().filter(|_| share.is_none()) {
                Some((group, _)) => Target::Upstream(self.group(group, &actions, all)),
                None => Target::Upstream(self.upstream(uri, &actions, route)),
            },
        };
        decision.plugins = plugins;
        decision.paths = conditions.paths.clone();
        decision.hosts = conditions.hosts.clone();
        decision.methods = conditions.methods.clone();
        decision.conditions = conditions.vars.clone();
        if let Some((group, _)) = share {
            decision.conditions.push(self.share(group, route, all));
        }
        if !matches!(decision.target, Target::Closed(_)) {
            decision.fields.insert("enable_websocket".to_owned(), true.into());
            if let Some(cache) = actions.cache.take() {
                decision.fields.insert("cache".to_owned(), cache);
            }
        }
        if !actions.variables.is_empty() {
            let variables = self.plan.settings.entry("variables".to_owned()).or_insert_with(|| json!({}));
            for (name, map) in std::mem::take(&mut actions.variables) {
                variables[name] = map;
            }
        }
        self.probes.extend(probes::of(route, &conditions));
        self.plan.decisions.push(decision);
    }

    /// Reads predicates and filters, and adds their remarks.
    fn parts(&mut self, route: &Route<'t>, defaults: &[Definition], paths: &[String]) -> Option<Parts> {
        let mut conditions = Conditions::default();
        let mut closed = self.common.closed.clone();
        for it in &route.predicates {
            match conditions.add(it, self.settings) {
                predicates::Outcome::Done => self.tell(it.place, Verdict::Done, ""),
                predicates::Outcome::Differs(text) => self.tell(it.place, Verdict::Differs, text),
                predicates::Outcome::Unknown(text) => {
                    self.tell_guard(it.place, text.clone());
                    closed.get_or_insert(text);
                }
            }
        }
        let serves = |path: &str| paths.iter().any(|pattern| serves(pattern, path));
        let id = build::id(&route.id).replace(['-', '.'], "_");
        let mut named: Vec<Named> = conditions.variables.iter().map(|name| Named::of_path(name)).collect();
        let of_host = |name: &String| format!("host_{id}_{name}");
        named.extend(
            conditions
                .host_variables
                .keys()
                .map(|name| Named { name: name.clone(), variable: format!("var_{}", of_host(name)) }),
        );
        let mut reader = filters::Reader {
            settings: self.settings,
            variables: &named,
            serves: &serves,
            actions: Actions::default(),
        };
        let mut outcomes = Vec::new();
        for it in defaults.iter().chain(&route.filters) {
            outcomes.push((it.place, reader.add(it)));
        }
        let mut actions = reader.actions;
        for (name, entries) in &conditions.host_variables {
            let map = json!({"map": "$host", "regex": entries, "default": ""});
            actions.variables.insert(of_host(name), map);
        }
        for (place, outcome) in outcomes {
            match outcome {
                Outcome::Done => self.tell(place, Verdict::Done, ""),
                Outcome::NoEffect(text) => self.tell(place, Verdict::NoEffect, text),
                Outcome::Differs(text) => self.tell(place, Verdict::Differs, text),
                Outcome::Closed(text) => {
                    self.tell(place, Verdict::NotPossible, format!("{text} The route answers 503."));
                }
                Outcome::Guard(text) => self.tell_guard(place, text),
            }
        }
        let own = route.metadata.and_then(|node| find_in(node, "cors"));
        let own = own.map(|node| super::server::cors_rules(node, self.settings, "^/"));
        let cors: Vec<super::code::Cors> = own.into_iter().chain(self.common.cors.iter().cloned()).collect();
        if !cors.is_empty() {
            actions.code.request.insert(0, super::code::cors_request(&cors));
            actions.code.response.insert(0, super::code::cors_response(&cors));
            actions.code.own_responses.push(super::code::PREFLIGHT.to_owned());
        }
        let mut plugins = actions.plugins(&id);
        for (name, fields) in &self.common.plugins {
            plugins.entry(name.clone()).or_insert_with(|| fields.clone());
        }
        if actions.closed.is_some() && closed.is_none() {
            self.tell(route.place, Verdict::NotPossible, "The route returns 503; see its filters.");
        }
        actions.closed = closed.or(actions.closed.take());
        Some(Parts { conditions, actions, plugins })
    }

    /// The id of the upstream for a URI and the actions of a route.
    fn upstream(&mut self, uri: &Uri, actions: &Actions, route: &Route<'t>) -> String {
        let time = |name: &str| {
            let node = find_in(route.metadata?, name)?;
            seconds(&self.settings.text(node)?)
        };
        let read = time("response-timeout");
        let read = match actions.resilience.time_limit {
            Some(limit) => Some(read.filter(|read| *read > 0.0).map_or(limit, |read| read.min(limit))),
            None => read,
        };
        let timeouts = Timeouts { connect: time("connect-timeout"), read };
        let made = target::upstream(uri, &actions.host, timeouts, self.settings);
        if let Some(text) = made.missing {
            self.tell(route.place, Verdict::NotPossible, text);
        }
        let mut fields = made.fields;
        if let Some(retries) = actions.resilience.retries {
            fields.insert("retries".to_owned(), retries.into());
        }
        if let Some(policy) = &actions.resilience.retry {
            fields.insert("retry_policy".to_owned(), policy.clone());
        }
        if let Some(breaker) = &actions.resilience.breaker {
            fields.insert("circuit_breaker".to_owned(), breaker.clone());
        }
        self.upstream_id(&uri.name(), Value::Object(fields))
    }

    /// The id of an upstream with these fields.
    fn upstream_id(&mut self, name: &str, fields: Value) -> String {
        let text = fields.to_string();
        if let Some(id) = self.upstreams.get(&text) {
            return id.clone();
        }
        let is_free = |id: &String| !self.upstreams.values().any(|known| known == id);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let id = std::iter::once(name.to_owned()).chain(numbered).find(is_free).unwrap_or_default();
        self.upstreams.insert(text, id.clone());
        self.plan.upstreams.push((id.clone(), fields));
        id
    }

    /// The condition for the share of a route in its group, whose routes differ.
    fn share(&mut self, group: &str, route: &Route<'t>, all: &[Route<'t>]) -> Value {
        let weights: Vec<(&str, u64)> = all
            .iter()
            .filter_map(|other| Some((other.id.as_str(), weight_in(group, other)?)))
            .filter(|(_, weight)| *weight > 0)
            .collect();
        let total: u64 = weights.iter().map(|(_, weight)| weight).sum::<u64>().max(1);
        let last = weights.last().map_or("", |(id, _)| *id);
        #[expect(clippy::cast_precision_loss, reason = "weights are small")]
        let percent = |weight: u64| (weight as f64 * 10_000.0 / total as f64).round() / 100.0;
        let shares: Vec<Value> = weights[..weights.len().saturating_sub(1)]
            .iter()
            .map(|(id, weight)| json!({"percent": percent(*weight), "value": id}))
            .collect();
        let name = format!("weight_{}", build::id(group).replace(['-', '.'], "_"));
        let variables = self.plan.settings.entry("variables".to_owned()).or_insert_with(|| json!({}));
        variables[&name] = json!({"map": "$request_id", "shares": shares, "default": last});
        json!([format!("var_{name}"), "==", route.id])
    }

    /// The upstream of a group of weighted routes.
    fn group(&mut self, group: &str, actions: &Actions, all: &[Route<'t>]) -> String {
        let mut members = Vec::new();
        for route in all {
            let Some(weight) = weight_in(group, route) else { continue };
            if let Ok(uri) = Uri::read(&route.uri) {
                let id = self.upstream(&uri, actions, route);
                self.tell(route.place, Verdict::Done, "");
                members.push(json!({"upstream_id": id, "weight": weight}));
            }
        }
        self.upstream_id(&build::id(&format!("group-{group}")), json!({"members": members}))
    }
}

/// The weight of a route in a group.
fn weight_in(group: &str, route: &Route<'_>) -> Option<u64> {
    let is_weight =
        |it: &&Definition| it.name.eq_ignore_ascii_case("weight") && it.one("group") == Some(group);
    route.predicates.iter().find(is_weight)?.one("weight")?.trim().parse().ok()
}

/// Whether the routes of a group differ in their targets and weights alone.
fn is_uniform(group: &str, all: &[Route<'_>]) -> bool {
    let texts = |list: &[Definition]| -> Vec<String> {
        let others = list.iter().filter(|it| !it.name.eq_ignore_ascii_case("weight"));
        others.map(|it| format!("{} {:?}", it.name, it.args)).collect()
    };
    let mut routes = all.iter().filter(|route| weight_in(group, route).is_some());
    let Some(first) = routes.next() else { return true };
    routes.all(|route| {
        texts(&route.predicates) == texts(&first.predicates) && texts(&route.filters) == texts(&first.filters)
    })
}

/// Whether a pattern of a route serves a path.
fn serves(pattern: &str, path: &str) -> bool {
    use super::super::decision::Path;
    let paths = super::pattern::paths(pattern, true).unwrap_or_default();
    paths.iter().any(|it| match it {
        Path::Exact(text) => text == path,
        Path::Prefix(text) => path.starts_with(text.as_str()),
        Path::Segments(text) => {
            path.strip_prefix(text.as_str()).is_some_and(|it| it.is_empty() || it.starts_with('/'))
        }
        Path::Regex { pattern, .. } => regex::Regex::new(pattern).is_ok_and(|regex| regex.is_match(path)),
    })
}
