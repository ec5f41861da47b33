//! Explanations of the route of a request, for operators (`sigma routes METHOD HOST PATH`).

use std::fmt::Write as _;

use sigma_schema::expr::{VarName, VarValue};

use super::candidate::{Conditions, Unmet};
use super::compile::RouteInput;
use super::host::HostPattern;
use super::{Outcome, Params, Request, Router, RouterKind};

/// The verdict on one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The number of the route.
    pub route: u32,
    /// The verdict on it.
    pub verdict: Verdict,
}

/// A verdict on a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The request matches.
    Matched,
    /// The request does not match, because of this.
    Rejected(String),
}

/// The reason why a route does not match a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unserved {
    /// Its paths are different, or it is disabled.
    Path(String),
    /// A condition does not hold.
    Other(String),
}

impl From<Unserved> for String {
    fn from(unserved: Unserved) -> String {
        match unserved {
            Unserved::Path(reason) | Unserved::Other(reason) => reason,
        }
    }
}

/// Returns the reason why a route that matches does not get the request.
fn shadowed(kind: RouterKind, first: u32) -> String {
    match kind {
        RouterKind::Ordered => {
            format!("shadowed by earlier match: route {first} has a higher priority or comes first")
        }
        _ => format!("shadowed by earlier match: route {first} comes first"),
    }
}

impl Router {
    /// Explains for every route whether it matches a request, in the order of `routes`, which must be those that this
    /// router holds: see [`Router::compile`]. Time is linear in their number.
    pub fn explain<'a, Q: Request + ?Sized>(
        &self,
        routes: impl IntoIterator<Item = (u32, u64, RouteInput<'a>)>,
        request: &Q,
    ) -> Vec<Explanation> {
        let outcome = self.find(request, &mut Params::new());
        let explain = |(number, _, route): (u32, u64, RouteInput<'a>)| {
            let verdict =
                match outcome {
                    Outcome::Route(found) if found == number => Verdict::Matched,
                    _ => Verdict::Rejected(self.unserved(&route, request).map(String::from).unwrap_or_else(
                        || match outcome {
                            Outcome::Route(found) => shadowed(self.kind, found),
                            _ => "never a candidate".to_owned(),
                        },
                    )),
                };
            Explanation { route: number, verdict }
        };
        routes.into_iter().map(explain).collect()
    }

    /// Returns the first condition of `route` that the request does not fulfil; its path is checked on a router with
    /// this route only.
    pub fn unserved<Q: Request + ?Sized>(&self, route: &RouteInput<'_>, request: &Q) -> Option<Unserved> {
        if !route.enabled {
            return Some(Unserved::Path("disabled".to_owned()));
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let path_only = RouteInput {
            hosts: Vec::new(),
            methods: super::MethodSet::ANY,
            remote_addrs: Default::default(),
            vars: &Default::default(),
            filter: None,
            consumes: &[],
            produces: &[],
            listeners: Vec::new(),
            internal: false,
            ..route.clone()
        };
        if Router::compile(self.kind, [(0, 0, path_only)]).find(request, &mut Params::new())
            != Outcome::Route(0)
        {
            let reason = format!("path {} not in [{}]", text(request.path()), route.uris.join(", "));
            return Some(Unserved::Path(reason));
        }
        self.unmet(route, request).map(Unserved::Other)
    }

    /// Returns the first condition other than the path that the request does not fulfil.
    fn unmet<Q: Request + ?Sized>(&self, route: &RouteInput<'_>, request: &Q) -> Option<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !route.methods.contains(request.method()) {
            let method = request.method().as_str();
            let method = if method.is_empty() { "(unknown)" } else { method };
            return Some(format!("method {method} not in [{}]", route.methods));
        }
        let by_tree = self.kind.has_host_tree();
        if by_tree
            && !route.hosts.is_empty()
            && !route.hosts.iter().any(|host| HostPattern::parse(host).is_met_by(request.host()))
        {
            return Some(format!("host {} not in [{}]", text(request.host()), route.hosts.join(", ")));
        }
        let conditions = Conditions::of(self.kind, route, &self.scripts)?;
        let unmet = conditions.check(request).and_then(|()| conditions.check_media(request)).err()?;
        Some(match unmet {
            Unmet::Internal => "internal: only requests of the gateway itself reach it".to_owned(),
            Unmet::Listener => format!("listener {} not in {:?}", request.listener(), route.listeners),
            Unmet::RemoteAddr => match request.remote_addr() {
                Some(addr) => format!("client address {addr} not in remote_addrs"),
                None => "client address unknown, but remote_addrs is set".to_owned(),
            },
            Unmet::Host => {
                let mut reason = format!("host {} not in [{}]", text(request.host()), route.hosts.join(", "));
                if route.hosts.iter().any(|host| host.contains(':')) {
                    // Writing to a String cannot fail.
                    let _ = write!(reason, " (Host header: {})", text(request.raw_host()));
                }
                reason
            }
            Unmet::Filter => "filter_func returned false".to_owned(),
            Unmet::Vars => match route.vars.needs_body() {
                Some(name) => format!("vars false: `{name}` needs the request body"),
                None if route.vars.asks_time() => {
                    let now = request.variables().get(&VarName::parse("time_iso8601"));
                    match now {
                        Some(VarValue::Text(now)) => format!("vars false at {}", text(&now[..])),
                        _ => "vars false now".to_owned(),
                    }
                }
                None => "vars false".to_owned(),
            },
            Unmet::Consumes => match request.content_type() {
                Some(value) => format!("content type {} not in [{}]", text(value), route.consumes.join(", ")),
                None => format!("no content type, consumes [{}]", route.consumes.join(", ")),
            },
            Unmet::Produces => {
                format!(
                    "Accept {} matches no type of [{}]",
                    text(request.accept().unwrap_or_default()),
                    route.produces.join(", ")
                )
            }
        })
    }
}
