//! One candidate for a path, and the conditions for its choice (routing.md §3.3).

use std::cmp::Reverse;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use sigma_http::Method;
use sigma_plugin::scripts::RouteCondition;
use sigma_schema::cidr::CidrSet;
use sigma_schema::expr::{Expr, Variables};

use super::host::HostPattern;
use super::media::{self, MediaType};
use super::params::Params;
use super::pattern::{Expression, Template, UNNAMED};

/// The facts about a request that the router reads. All of it is cheap except [`Request::variables`], which is only
/// requested routes with `vars`.
pub trait Request {
    /// The method.
    fn method(&self) -> Method;
    /// The path that routes are matched against: see [`normalized`](super::normalize::normalized).
    fn path(&self) -> &[u8];
    /// The host: lower case, without port and trailing dot; `_` if the request names none.
    fn host(&self) -> &[u8];
    /// Returns the Host header as it was sent; empty without one.
    fn raw_host(&self) -> &[u8];
    /// The client's address, if it is an IP address.
    fn remote_addr(&self) -> Option<IpAddr>;
    /// The number of the name of the listener that took the connection.
    fn listener(&self) -> u16;
    /// The Content-Type field.
    fn content_type(&self) -> Option<&[u8]>;
    /// The Accept field, several joined with commas.
    fn accept(&self) -> Option<&[u8]>;
    /// The variables that `vars` are about.
    fn variables(&self) -> &dyn Variables;
    /// Returns true for a request of the gateway itself, which may reach internal routes.
    fn is_internal(&self) -> bool {
        false
    }
}

/// A set of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodSet(u16);

impl MethodSet {
    /// Every method, unknown ones included.
    pub const ANY: MethodSet = MethodSet(u16::MAX);
    /// No method.
    pub const NONE: MethodSet = MethodSet(0);

    /// Returns the methods of a route: an empty list is any method. An unknown name adds no method, so a list of only
    /// unknown names matches no request.
    pub fn of_names<S: AsRef<str>>(names: &[S]) -> MethodSet {
        match names {
            [] => MethodSet::ANY,
            names => names
                .iter()
                .map(|name| Method::parse(name.as_ref().as_bytes()))
                .filter(|method| *method != Method::Other)
                .collect(),
        }
    }

    /// Returns true if `method` is in the set.
    pub const fn contains(self, method: Method) -> bool {
        self.0 & MethodSet::bit(method) != 0
    }

    /// Returns the methods of both sets.
    #[must_use]
    pub const fn union(self, other: MethodSet) -> MethodSet {
        MethodSet(self.0 | other.0)
    }

    const fn bit(method: Method) -> u16 {
        1 << method as u16
    }
}

impl FromIterator<Method> for MethodSet {
    fn from_iter<I: IntoIterator<Item = Method>>(methods: I) -> MethodSet {
        MethodSet(methods.into_iter().fold(0, |bits, method| bits | MethodSet::bit(method)))
    }
}

/// The value of an Allow field: `GET, POST`.
impl fmt::Display for MethodSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for method in Method::KNOWN {
            if self.contains(method) {
                write!(f, "{separator}{}", method.as_str())?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// One uri pattern of one route at one key.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// The route.
    pub(super) route: u32,
    /// The index of the pattern in its route.
    pub(super) uri: u32,
    pub(super) priority: i64,
    /// Length of the whole pattern in bytes.
    pub(super) pattern_len: u32,
    /// The order of the route.
    pub(super) order: u64,
    /// Its conditions, if it has any besides the method.
    pub(super) conditions: Option<Arc<Conditions>>,
    /// The check of the path after the key.
    pub(super) path: PathCheck,
    pub(super) methods: MethodSet,
    /// A wrong method gets 405.
    pub(super) method_not_allowed: bool,
}

/// The order of the candidates of a key. No two are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) priority: Reverse<i64>,
    /// Longer patterns come first; all are equal in an ordered router.
    pub(super) pattern_len: Reverse<u32>,
    pub(super) order: u64,
    pub(super) route: u32,
    pub(super) uri: u32,
}

impl Candidate {
    /// Returns its rank among the candidates of its key.
    pub(super) fn rank(&self) -> Rank {
        Rank {
            priority: Reverse(self.priority),
            pattern_len: Reverse(self.pattern_len),
            order: self.order,
            route: self.route,
            uri: self.uri,
        }
    }
}

/// The check of a path after the key.
#[derive(Debug, Clone)]
pub(super) enum PathCheck {
    /// Nothing more.
    Free,
    /// Nothing more; the rest of the path is captured as [`UNNAMED`](super::pattern::UNNAMED).
    Unnamed,
    /// Nothing more; the rest of the path is captured under this name. An `Arc<str>` would be two words, which would
    /// make all candidates larger.
    Named(Arc<String>),
    /// It must fit this template.
    Template(Arc<Template>),
    /// It must match this expression.
    Regex(Arc<Expression>),
    /// No path fits: the expression is invalid.
    Never,
}

impl PathCheck {
    /// Returns true if the path fits. If so its captures are in `params`; if not they are as before.
    #[inline]
    pub(super) fn matches(&self, path: &[u8], key_len: usize, params: &mut Params) -> bool {
        match self {
            PathCheck::Free => true,
            PathCheck::Unnamed => {
                params.push_only(UNNAMED, key_len..path.len());
                true
            }
            PathCheck::Named(name) => {
                params.push_only(name, key_len..path.len());
                true
            }
            PathCheck::Template(template) => template.matches(path, params),
            PathCheck::Regex(expression) => expression.matches(path, params),
            PathCheck::Never => false,
        }
    }
}

/// Conditions that few routes have, kept apart from the candidates so that those stay small.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Clients cannot reach the route.
    pub(super) internal: bool,
    /// Any of these listeners; empty for all.
    pub(super) listeners: Box<[u16]>,
    /// Any of these networks; empty for all.
    pub(super) remote_addrs: CidrSet,
    /// Any of these hosts; empty for all, and where the host tree decides.
    pub(super) hosts: Box<[HostPattern]>,
    /// The expression.
    pub(super) vars: Expr,
    /// The condition in code.
    pub(super) filter: Option<Arc<dyn RouteCondition>>,
    /// Media types of the request's body.
    pub(super) consumes: Box<[MediaType]>,
    /// Media types of the response.
    pub(super) produces: Box<[MediaType]>,
}

/// The condition that a request does not fulfil.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unmet {
    Internal,
    Listener,
    RemoteAddr,
    Host,
    Vars,
    Filter,
    Consumes,
    Produces,
}

impl Conditions {
    /// Returns true if there is nothing to check.
    pub(super) fn is_empty(&self) -> bool {
        !self.internal
            && self.listeners.is_empty()
            && self.remote_addrs.is_empty()
            && self.hosts.is_empty()
            && self.vars.is_empty()
            && self.filter.is_none()
            && self.consumes.is_empty()
            && self.produces.is_empty()
    }

    /// Checks all conditions but the media types.
    pub(super) fn check<Q: Request + ?Sized>(&self, request: &Q) -> Result<(), Unmet> {
        if self.internal && !request.is_internal() {
            return Err(Unmet::Internal);
        }
        if !self.listeners.is_empty() && !self.listeners.contains(&request.listener()) {
            return Err(Unmet::Listener);
        }
        if !self.remote_addrs.is_empty()
            && !request.remote_addr().is_some_and(|addr| self.remote_addrs.contains(addr))
        {
            return Err(Unmet::RemoteAddr);
        }
        if !self.hosts.is_empty() {
            let (host, raw_host) = (request.host(), request.raw_host());
            if !self.hosts.iter().any(|pattern| pattern.matches(host, raw_host)) {
                return Err(Unmet::Host);
            }
        }
        if !self.vars.is_empty() && !self.vars.eval(request.variables()) {
            return Err(Unmet::Vars);
        }
        if self.filter.as_ref().is_some_and(|filter| !filter.holds(request.variables())) {
            return Err(Unmet::Filter);
        }
        Ok(())
    }

    /// Checks the media types: they come last, and have their own response.
    pub(super) fn check_media<Q: Request + ?Sized>(&self, request: &Q) -> Result<(), Unmet> {
        if !self.consumes.is_empty() && !media::consumes(&self.consumes, request.content_type()) {
            return Err(Unmet::Consumes);
        }
        if !self.produces.is_empty() && !media::produces(&self.produces, request.accept()) {
            return Err(Unmet::Produces);
        }
        Ok(())
    }
}
