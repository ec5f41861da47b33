//! Routing: from a request to the number of a route (routing.md §1 to §3 and §7).
//!
//! [`Router::compile`] turns routes into radix trees once per configuration; [`Router::find`]
//! walks them. `pattern` and `host` say how patterns are read, `forest` finds the keys that a
//! path or host meets, `candidate` holds the conditions that decide among the candidates of a
//! key, `normalize` makes the path that all of it is about, `explain` tells people why.
//! Everything here is pure: no I/O, no clock, and no allocation in `find`.

mod candidate;
mod compile;
mod explain;
mod forest;
mod host;
mod media;
pub mod normalize;
mod params;
mod pattern;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use candidate::{MethodSet, Request};
pub use compile::RouteInput;
pub use explain::{Explanation, Verdict};
pub use params::Params;
pub use sigma_config::settings::RouterKind;

use candidate::{Candidate, Conditions, ConditionsAt, PathCheck, Unmet};
use forest::{Forest, Group};
use host::HostTree;
use pattern::Template;

/// All routes of a configuration, ready for look-up. Immutable and shared by the workers.
#[derive(Debug)]
pub struct Router {
    kind: RouterKind,
    /// Uri trees: number 0 is that of routes without hosts, or of all routes if the kind of
    /// router treats hosts as a condition.
    uris: Forest,
    /// What the keys of `uris` stand for.
    candidates: Box<[Candidate]>,
    /// Which uri trees a host leads to; unset if no route is found by host.
    hosts: Option<HostTree>,
    conditions: Box<[Conditions]>,
    templates: Box<[Template]>,
    /// Names of parameters.
    names: Box<[Box<str>]>,
    /// Whether any route answers 405, so that wrong methods have to be remembered.
    answers_405: bool,
}

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The route with this position among those given to [`Router::compile`].
    Route(u32),
    /// No route: 404.
    NotFound,
    /// Only the method does not fit a route that answers so: 405 with these methods in Allow.
    MethodNotAllowed(MethodSet),
    /// Only the Content-Type does not fit: 415.
    UnsupportedMediaType,
    /// Only the Accept field does not fit: 406.
    NotAcceptable,
}

/// What was learnt from the candidates that did not fit.
struct Misses {
    /// Methods of candidates that fit but for the method.
    allow: MethodSet,
    /// Whether one of them answers 405.
    method_not_allowed: bool,
    /// The media condition that the latest candidate failed.
    media: Option<Outcome>,
}

impl Router {
    /// The route for a request. `params` are replaced by its captures.
    ///
    /// Of several answers for a request without a route, 415 and 406 come before 405, that before 404.
    pub fn find<Q: Request + ?Sized>(&self, request: &Q, params: &mut Params) -> Outcome {
        params.clear();
        let path = request.path();
        let mut misses = Misses { allow: MethodSet::NONE, method_not_allowed: false, media: None };
        if let Some(hosts) = &self.hosts {
            for tree in hosts.uri_trees(request.host()) {
                if let Some(route) = self.find_in(tree, path, request, params, &mut misses) {
                    return Outcome::Route(route);
                }
            }
        }
        match self.find_in(0, path, request, params, &mut misses) {
            Some(route) => Outcome::Route(route),
            None => misses.outcome(),
        }
    }

    /// What a parameter of the matched route captured, as a range of the path; `name` is what
    /// follows `uri_param_`. `params` are those that [`Router::find`] of this router filled.
    pub fn param(&self, params: &Params, name: &[u8]) -> Option<Range<usize>> {
        // Of equal names in one pattern the last one counts.
        params
            .iter()
            .rev()
            .find(|(number, _)| self.param_name(*number).as_bytes() == name)
            .map(|(_, range)| range)
    }

    /// All captures of the matched route in path order.
    pub fn params<'a>(&'a self, params: &'a Params) -> impl Iterator<Item = (&'a str, Range<usize>)> {
        params.iter().map(|(number, range)| (self.param_name(number), range))
    }

    /// Memory of the trees and candidates in bytes, without that of conditions and templates.
    pub fn memory_bytes(&self) -> usize {
        let hosts = self.hosts.as_ref().map_or(0, HostTree::memory_bytes);
        self.uris.memory_bytes() + size_of_val(&*self.candidates) + hosts
    }

    fn param_name(&self, number: u32) -> &str {
        // Params of another router would be a caller's mistake; it must not become a panic.
        self.names.get(number as usize).map_or("", |name| name)
    }

    #[inline]
    fn find_in<Q: Request + ?Sized>(
        &self,
        tree: u32,
        path: &[u8],
        request: &Q,
        params: &mut Params,
        misses: &mut Misses,
    ) -> Option<u32> {
        for Group { items, key_len } in self.uris.walk(tree, path) {
            for candidate in &self.candidates[items] {
                if self.fits(candidate, path, key_len, request, params, misses) {
                    return Some(candidate.route);
                }
            }
        }
        None
    }

    /// Whether the candidate is taken. If so its captures are in `params`; if not they are as before.
    #[inline]
    fn fits<Q: Request + ?Sized>(
        &self,
        candidate: &Candidate,
        path: &[u8],
        key_len: usize,
        request: &Q,
        params: &mut Params,
        misses: &mut Misses,
    ) -> bool {
        let method_fits = candidate.methods.contains(request.method());
        if !method_fits && !self.answers_405 {
            return false;
        }
        let conditions = candidate.conditions.map(|at| self.conditions_at(at));
        if conditions.is_some_and(|conditions| conditions.check(request).is_err()) {
            return false;
        }
        let fits = match candidate.path {
            PathCheck::Free => true,
            PathCheck::Captured(name) => {
                params.push(name, key_len..path.len());
                true
            }
            PathCheck::Template(number) => self.templates[number as usize].matches(path, params),
        };
        if !fits {
            return false;
        }
        let missed = match conditions.map_or(Ok(()), |conditions| conditions.check_media(request)) {
            _ if !method_fits => Miss::Method(candidate),
            Err(unmet) => Miss::Media(unmet),
            Ok(()) => return true,
        };
        params.clear();
        misses.note(missed);
        false
    }

    fn conditions_at(&self, at: ConditionsAt) -> &Conditions {
        &self.conditions[at.get() as usize - 1]
    }
}

/// Why a candidate that was found by host and path was not taken.
enum Miss<'a> {
    Method(&'a Candidate),
    Media(Unmet),
}

impl Misses {
    fn note(&mut self, miss: Miss<'_>) {
        match miss {
            Miss::Method(candidate) => {
                self.allow = self.allow.union(candidate.methods);
                self.method_not_allowed |= candidate.method_not_allowed;
            }
            Miss::Media(Unmet::Consumes) => self.media = Some(Outcome::UnsupportedMediaType),
            Miss::Media(_) => self.media = Some(Outcome::NotAcceptable),
        }
    }

    fn outcome(&self) -> Outcome {
        match self.media {
            Some(outcome) => outcome,
            None if self.method_not_allowed => Outcome::MethodNotAllowed(self.allow),
            None => Outcome::NotFound,
        }
    }
}
