//! From routes to a [`Router`]: patterns are read, sorted once, and laid out as flat trees.

use std::cmp::Reverse;
use std::collections::HashMap;

use sigma_config::cidr::CidrSet;
use sigma_config::expr::Expr;
use sigma_config::resources::{Route, Service};
use sigma_config::settings::RouterKind;

use super::Router;
use super::candidate::{Candidate, Conditions, ConditionsAt, MethodSet, PathCheck};
use super::forest::{Direction, Forest, Key};
use super::host::{HostPattern, HostTree};
use super::media::MediaType;
use super::params::NameTable;
use super::pattern::{Pattern, Rest, Template};

/// What the router needs to know of one route.
#[derive(Debug, Clone)]
pub struct RouteInput<'a> {
    /// Path patterns.
    pub uris: Vec<&'a str>,
    /// Host patterns: the route's, or those of its service if it has none; empty for all hosts.
    pub hosts: Vec<&'a str>,
    /// Methods.
    pub methods: MethodSet,
    /// Order among patterns with the same key; higher first.
    pub priority: i64,
    /// Client networks; empty for all.
    pub remote_addrs: CidrSet,
    /// Conditions on variables.
    pub vars: &'a Expr,
    /// Media types of request bodies; empty for all.
    pub consumes: &'a [String],
    /// Media types of answers; empty for all.
    pub produces: &'a [String],
    /// Whether a wrong method is answered 405 rather than 404.
    pub method_not_allowed: bool,
    /// Numbers of the listener names that the route serves; empty for all.
    pub listeners: Vec<u16>,
    /// A disabled route is left out: it shadows nothing.
    pub enabled: bool,
}

impl<'a> RouteInput<'a> {
    /// The number of no listener.
    pub const NO_LISTENER: u16 = u16::MAX;

    /// Reads a route as it is configured. `service` is the one it refers to; `listener_number`
    /// numbers listener names as [`Request::listener`](super::Request::listener) does, below
    /// [`RouteInput::NO_LISTENER`]. A name that no listener has serves nothing.
    pub fn of(
        route: &'a Route,
        service: Option<&'a Service>,
        listener_number: impl Fn(&str) -> Option<u16>,
    ) -> RouteInput<'a> {
        let own_hosts: Vec<&str> = route.hosts.iter().chain(&route.host).map(String::as_str).collect();
        let hosts = match service {
            Some(service) if own_hosts.is_empty() => service.hosts.iter().map(String::as_str).collect(),
            _ => own_hosts,
        };
        let remote_addrs = match route.remote_addr {
            None => route.remote_addrs.clone(),
            Some(_) => route.remote_addrs.as_slice().iter().chain(&route.remote_addr).cloned().collect(),
        };
        RouteInput {
            uris: route.uris.iter().chain(&route.uri).map(String::as_str).collect(),
            hosts,
            methods: MethodSet::of_names(&route.methods),
            priority: route.priority,
            remote_addrs,
            vars: &route.vars,
            consumes: &route.consumes,
            produces: &route.produces,
            method_not_allowed: route.method_not_allowed,
            listeners: route
                .listeners
                .iter()
                .map(|name| listener_number(name).unwrap_or(Self::NO_LISTENER))
                .collect(),
            enabled: route.status != 0,
        }
    }
}

impl Router {
    /// Compiles routes. Their order is the order in which equal candidates are tried; a route's
    /// position in the slice is its number in [`Outcome::Route`](super::Outcome::Route).
    pub fn compile(kind: RouterKind, routes: &[RouteInput<'_>]) -> Router {
        let mut compiler = Compiler::new(kind);
        for (number, route) in routes.iter().enumerate().filter(|(_, route)| route.enabled) {
            compiler.add(number as u32, route);
        }
        compiler.finish()
    }
}

/// One pattern of one route in one uri tree.
struct Entry<'a> {
    key: Key<'a>,
    priority: Reverse<i64>,
    /// Length of the whole pattern: longer ones come first.
    len: Reverse<usize>,
    candidate: Candidate,
}

struct Compiler<'a> {
    kind: RouterKind,
    entries: Vec<Entry<'a>>,
    /// The uri tree of each host pattern, from 1; 0 is that of routes without hosts.
    trees: HashMap<HostPattern, u32>,
    conditions: Vec<Conditions>,
    templates: Vec<Template>,
    names: NameTable,
    answers_405: bool,
}

impl<'a> Compiler<'a> {
    fn new(kind: RouterKind) -> Compiler<'a> {
        Compiler {
            kind,
            entries: Vec::new(),
            trees: HashMap::new(),
            conditions: Vec::new(),
            templates: Vec::new(),
            names: NameTable::default(),
            answers_405: false,
        }
    }

    fn add(&mut self, number: u32, route: &RouteInput<'a>) {
        self.answers_405 |= route.method_not_allowed;
        let trees = self.trees_of(route);
        let conditions = self.conditions_of(route);
        for &uri in &route.uris {
            let pattern = Pattern::parse(self.kind, uri, &mut self.names);
            let path = match pattern.rest {
                Rest::Free => PathCheck::Free,
                Rest::Captured(name) => PathCheck::Captured(name),
                Rest::Whole(template) => {
                    self.templates.push(template);
                    PathCheck::Template(self.templates.len() as u32 - 1)
                }
            };
            let (methods, method_not_allowed) = (route.methods, route.method_not_allowed);
            let candidate = Candidate { route: number, conditions, path, methods, method_not_allowed };
            for &tree in &trees {
                self.entries.push(Entry {
                    key: Key { tree, bytes: pattern.key.as_bytes(), kind: pattern.kind },
                    priority: Reverse(route.priority),
                    len: Reverse(uri.len()),
                    candidate,
                });
            }
        }
    }

    /// The uri trees that a route belongs to.
    fn trees_of(&mut self, route: &RouteInput<'_>) -> Vec<u32> {
        if self.kind != RouterKind::RadixtreeHostUri || route.hosts.is_empty() {
            return vec![0];
        }
        let mut trees: Vec<u32> = Vec::with_capacity(route.hosts.len());
        for host in &route.hosts {
            let next = self.trees.len() as u32 + 1;
            let tree = *self.trees.entry(HostPattern::parse(host)).or_insert(next);
            // Two spellings of one host are one host.
            if !trees.contains(&tree) {
                trees.push(tree);
            }
        }
        trees
    }

    fn conditions_of(&mut self, route: &RouteInput<'_>) -> Option<ConditionsAt> {
        let hosts: &[&str] = if self.kind == RouterKind::RadixtreeHostUri { &[] } else { &route.hosts };
        let conditions = Conditions {
            listeners: route.listeners.as_slice().into(),
            remote_addrs: route.remote_addrs.clone(),
            hosts: hosts.iter().map(|host| HostPattern::parse(host)).collect(),
            vars: route.vars.clone(),
            consumes: route.consumes.iter().map(|text| MediaType::parse(text)).collect(),
            produces: route.produces.iter().map(|text| MediaType::parse(text)).collect(),
        };
        if conditions.is_empty() {
            return None;
        }
        self.conditions.push(conditions);
        ConditionsAt::new(self.conditions.len() as u32)
    }

    fn finish(mut self) -> Router {
        // Stable: what is equal here stays in the order of insertion.
        self.entries.sort_by(|a, b| (a.key, a.priority, a.len).cmp(&(b.key, b.priority, b.len)));
        let keys: Vec<Key<'_>> = self.entries.iter().map(|entry| entry.key).collect();
        let uri_trees = self.trees.len() as u32 + 1;
        let hosts = (!self.trees.is_empty())
            .then(|| HostTree::build(self.trees.iter().map(|(pattern, tree)| (pattern, *tree))));
        Router {
            kind: self.kind,
            uris: Forest::build(Direction::Forward, uri_trees, &keys),
            candidates: self.entries.iter().map(|entry| entry.candidate).collect(),
            hosts,
            conditions: self.conditions.into_boxed_slice(),
            templates: self.templates.into_boxed_slice(),
            names: self.names.into_names(),
            answers_405: self.answers_405,
        }
    }
}
