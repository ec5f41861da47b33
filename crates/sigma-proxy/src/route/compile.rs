//! From routes to a [`Router`], all of them at once or the few that changed: patterns are read and
//! put into the trees, each at its place.

use std::cmp::Reverse;
use std::sync::Arc;

use sigma_config::resources::{Route, Service};
use sigma_config::settings::RouterKind;
use sigma_plugin::Scripts;
use sigma_plugin::scripts::RouteCondition;
use sigma_schema::cidr::CidrSet;
use sigma_schema::expr::{Expr, Variables};

use super::candidate::{Candidate, Conditions, MethodSet, PathCheck, Rank};
use super::host::HostPattern;
use super::media::MediaType;
use super::pattern::{Expression, Pattern, Rest};
use super::tree::{Direction, Tree};
use super::{Engine, Router, UriTree};

/// The parts of a route that the router needs.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteInput<'a> {
    /// Path patterns.
    pub uris: Vec<&'a str>,
    /// Host patterns of the route, or of its service; empty for all hosts.
    pub hosts: Vec<&'a str>,
    /// Methods.
    pub methods: MethodSet,
    /// Order among patterns with the same key; higher first.
    pub priority: i64,
    /// Client networks; empty for all.
    pub remote_addrs: CidrSet,
    /// Conditions on variables.
    pub vars: &'a Expr,
    /// Its condition in code.
    pub filter: Option<Filter<'a>>,
    /// Media types of request bodies; empty for all.
    pub consumes: &'a [String],
    /// Media types of responses; empty for all.
    pub produces: &'a [String],
    /// A wrong method gets 405 rather than 404.
    pub method_not_allowed: bool,
    /// Numbers of the listener names that the route serves; empty for all.
    pub listeners: Vec<u16>,
    /// Clients cannot reach the route.
    pub internal: bool,
    /// A disabled route is omitted: it shadows nothing.
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
        let own_hosts: Vec<&str> =
            route.hosts.iter().map(String::as_str).chain(route.host.as_deref()).collect();
        let hosts = match service {
            Some(service) if own_hosts.is_empty() => service.hosts.iter().map(String::as_str).collect(),
            _ => own_hosts,
        };
        let remote_addrs = match route.remote_addr {
            None => CidrSet::clone(&route.remote_addrs),
            Some(_) => {
                route.remote_addrs.as_slice().iter().chain(route.remote_addr.as_deref()).cloned().collect()
            }
        };
        RouteInput {
            uris: route.uris.iter().map(String::as_str).chain(route.uri.as_deref()).collect(),
            hosts,
            methods: MethodSet::of_names(&route.methods),
            priority: route.priority,
            remote_addrs,
            vars: &route.vars,
            filter: (!route.filter_func.is_unset())
                .then(|| Filter { route: route.id.as_str(), text: route.filter_func.text() }),
            consumes: &route.consumes,
            produces: &route.produces,
            method_not_allowed: route.method_not_allowed,
            listeners: route
                .listeners
                .iter()
                .map(|name| listener_number(name).unwrap_or(Self::NO_LISTENER))
                .collect(),
            internal: route.internal,
            enabled: route.status.is_on(),
        }
    }
}

/// A condition in code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter<'a> {
    /// The id of the route, for logs.
    pub route: &'a str,
    /// The text.
    pub text: &'a str,
}

impl Filter<'_> {
    /// Returns the condition; without an engine it never holds.
    fn compiled(self, scripts: &Engine) -> Arc<dyn RouteCondition> {
        match &scripts.0 {
            Some(scripts) => scripts.condition(self.route, self.text),
            None => Arc::new(Never),
        }
    }
}

/// A condition that no request fulfils.
#[derive(Debug)]
struct Never;

impl RouteCondition for Never {
    fn holds(&self, _: &dyn Variables) -> bool {
        false
    }
}

/// The change of one route.
#[derive(Debug, Clone)]
pub struct Change<'a> {
    /// The number of the route.
    pub number: u32,
    /// Its order and its content in the router: exactly the values with which it was added. `None` for a new route.
    pub before: Option<(u64, RouteInput<'a>)>,
    /// Its new order and content. `None` for a removed route.
    pub after: Option<(u64, RouteInput<'a>)>,
}

impl Router {
    /// Compiles routes: the number of each, its order and its content. The caller chooses the numbers, each for one
    /// route; [`Outcome::Route`](super::Outcome::Route) contains them. Candidates that are equal otherwise are tried
    /// by ascending order.
    pub fn compile<'a>(
        kind: RouterKind,
        routes: impl IntoIterator<Item = (u32, u64, RouteInput<'a>)>,
    ) -> Router {
        Router::empty(kind).with_routes(routes)
    }

    /// Returns this router with some routes changed, one change after the other. It shares everything else with this
    /// one: the time it takes depends on the changes and not on the number of routes, and so does the time to drop
    /// either of the two.
    #[must_use]
    pub fn changed(&self, changes: &[Change<'_>]) -> Router {
        let mut router = self.clone();
        // Parts that a router does not contain, such as upstreams and plugins, change most often.
        for change in changes.iter().filter(|change| change.before != change.after) {
            if let Some((order, input)) = &change.before {
                router.remove(change.number, *order, input);
            }
            if let Some((order, input)) = &change.after {
                router.put(change.number, *order, input);
            }
        }
        router
    }

    fn empty(kind: RouterKind) -> Router {
        Router {
            kind,
            uris: Tree::new(Direction::Forward),
            hosts: Tree::new(Direction::Backward),
            answer_405: 0,
            scripts: Engine::default(),
        }
    }

    /// Returns an empty router whose routes may have conditions in code.
    pub(crate) fn with_scripts(kind: RouterKind, scripts: Option<Arc<dyn Scripts>>) -> Router {
        Router { scripts: Engine(scripts), ..Router::empty(kind) }
    }

    /// Adds routes; see [`Router::compile`].
    #[must_use]
    pub(crate) fn with_routes<'a>(
        mut self,
        routes: impl IntoIterator<Item = (u32, u64, RouteInput<'a>)>,
    ) -> Router {
        for (number, order, input) in routes {
            self.put(number, order, &input);
        }
        self
    }

    fn put(&mut self, number: u32, order: u64, input: &RouteInput<'_>) {
        if !input.is_reachable() {
            return;
        }
        self.answer_405 += u32::from(input.method_not_allowed);
        let conditions = Conditions::of(self.kind, input, &self.scripts).map(Arc::new);
        let entries: Vec<(Pattern<'_>, Candidate)> = input
            .patterns(self.kind, number, order)
            .map(|(mut pattern, rank)| {
                let path = PathCheck::of(std::mem::replace(&mut pattern.rest, Rest::Free));
                (pattern, Candidate::new(rank, input, conditions.clone(), path))
            })
            .collect();
        let put = |tree: &mut UriTree| {
            for (pattern, candidate) in &entries {
                tree.at(&pattern.key).insert(pattern.kind, candidate.clone());
            }
        };
        let hosts = self.tree_hosts(input);
        for host in &hosts {
            put(self.hosts.at(host.key()).of_mut(host.kind()));
        }
        if hosts.is_empty() {
            put(&mut self.uris);
        }
    }

    fn remove(&mut self, number: u32, order: u64, input: &RouteInput<'_>) {
        if !input.is_reachable() {
            return;
        }
        self.answer_405 = self.answer_405.saturating_sub(u32::from(input.method_not_allowed));
        let entries: Vec<(Pattern<'_>, Rank)> = input.patterns(self.kind, number, order).collect();
        let remove = |tree: &mut UriTree| {
            for (pattern, rank) in &entries {
                tree.reduce(&pattern.key, |candidates| candidates.remove(pattern.kind, rank));
            }
        };
        let hosts = self.tree_hosts(input);
        for host in &hosts {
            self.hosts.reduce(host.key(), |uris| remove(uris.of_mut(host.kind())));
        }
        if hosts.is_empty() {
            remove(&mut self.uris);
        }
    }

    /// Returns the host patterns whose uri trees a route belongs to; none if it belongs to the tree without a host.
    fn tree_hosts(&self, input: &RouteInput<'_>) -> Vec<HostPattern> {
        if !self.kind.has_host_tree() {
            return Vec::new();
        }
        let mut hosts: Vec<HostPattern> = input.hosts.iter().map(|host| HostPattern::parse(host)).collect();
        // Two spellings of one host are one host.
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

impl<'a> RouteInput<'a> {
    /// Returns true if there is any path for which the route is a candidate.
    fn is_reachable(&self) -> bool {
        self.enabled && !self.uris.is_empty()
    }

    /// Returns its patterns, with the rank of each.
    fn patterns(
        &self,
        kind: RouterKind,
        route: u32,
        order: u64,
    ) -> impl Iterator<Item = (Pattern<'a>, Rank)> {
        self.uris.iter().enumerate().map(move |(position, uri)| {
            // A pattern is part of a configuration, which is far below 4 GiB.
            let pattern_len = if kind == RouterKind::Ordered { 0 } else { uri.len() as u32 };
            let rank = Rank {
                priority: Reverse(self.priority),
                pattern_len: Reverse(pattern_len),
                order,
                route,
                uri: position as u32,
            };
            (Pattern::parse(kind, uri), rank)
        })
    }
}

impl Candidate {
    fn new(
        rank: Rank,
        input: &RouteInput<'_>,
        conditions: Option<Arc<Conditions>>,
        path: PathCheck,
    ) -> Candidate {
        Candidate {
            route: rank.route,
            uri: rank.uri,
            priority: rank.priority.0,
            pattern_len: rank.pattern_len.0,
            order: rank.order,
            conditions,
            path,
            methods: input.methods,
            method_not_allowed: input.method_not_allowed,
        }
    }
}

impl PathCheck {
    fn of(rest: Rest<'_>) -> PathCheck {
        match rest {
            Rest::Free => PathCheck::Free,
            Rest::Unnamed => PathCheck::Unnamed,
            Rest::Named(name) => PathCheck::Named(Arc::new(name)),
            Rest::Whole(template) => PathCheck::Template(Arc::new(template)),
            Rest::Regex(written) => match Expression::compile(written) {
                Some(expression) => PathCheck::Regex(Arc::new(expression)),
                None => PathCheck::Never,
            },
        }
    }
}

impl Conditions {
    /// Returns the conditions of a route in a router of `kind`, if it has any besides the method.
    pub(super) fn of(kind: RouterKind, input: &RouteInput<'_>, scripts: &Engine) -> Option<Conditions> {
        let hosts: &[&str] = if kind.has_host_tree() { &[] } else { &input.hosts };
        let conditions = Conditions {
            internal: input.internal,
            listeners: input.listeners.as_slice().into(),
            remote_addrs: input.remote_addrs.clone(),
            hosts: hosts.iter().map(|host| HostPattern::parse(host)).collect(),
            vars: input.vars.clone(),
            filter: input.filter.map(|filter| filter.compiled(scripts)),
            consumes: input.consumes.iter().map(|text| MediaType::parse(text)).collect(),
            produces: input.produces.iter().map(|text| MediaType::parse(text)).collect(),
        };
        (!conditions.is_empty()).then_some(conditions)
    }
}
