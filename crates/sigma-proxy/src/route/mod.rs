//! Routing: from a request to the number of a route (routing.md §1 to §3 and §7).
//!
//! A [`Router`] is a set of radix trees; [`Router::find`] walks them. [`Router::compile`] puts
//! routes into them, and [`Router::changed`] makes the next router from this one and the routes
//! that changed: it shares all nodes but those on the way to the changed patterns, so the price
//! of a change does not depend on how many routes there are. A router itself never changes.
//!
//! `pattern` and `host` parse patterns, `tree` finds the keys of a path or host (`text` holds the labels of its
//! nodes), `candidates` orders the routes of a key, `candidate` holds the conditions that decide among them,
//! `compile` adds and removes routes, `normalize` makes the path to match, `ambiguous` rejects paths that nodes may
//! read in another way, `decode` reads their bytes, `explain` gives reasons to operators. Everything here is pure: no
//! I/O, no clock, and no allocation in `find`.

mod ambiguous;
mod candidate;
mod candidates;
mod compile;
mod decode;
mod explain;
mod host;
mod media;
pub mod normalize;
mod params;
mod pattern;
#[cfg(test)]
mod tests;
mod text;
mod tree;

pub use candidate::{MethodSet, Request};
pub use compile::{Change, RouteInput};
pub use explain::{Explanation, Unserved, Verdict};
pub use params::Params;
pub use sigma_config::settings::RouterKind;

use std::fmt;
use std::sync::Arc;

use sigma_plugin::Scripts;

use candidate::{Candidate, Unmet};
use candidates::Candidates;
use host::HostUris;
use tree::Tree;

/// All routes of a configuration, ready for look-up. Immutable and shared by the workers; a clone
/// is as cheap as two pointers.
#[derive(Debug, Clone)]
pub struct Router {
    kind: RouterKind,
    /// The routes without hosts, or all routes if the kind of router treats hosts as a condition.
    uris: UriTree,
    /// The other routes by host, most specific first for any host.
    hosts: Tree<HostUris>,
    /// How many routes return 405: with none of them, wrong methods need not be remembered.
    answer_405: u32,
    /// The engine for conditions in code.
    scripts: Engine,
}

/// The engine for conditions in code; None if the build has no engine.
#[derive(Clone, Default)]
pub(crate) struct Engine(pub(crate) Option<Arc<dyn Scripts>>);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Engine").field(&self.0.is_some()).finish()
    }
}

/// Candidates by the key of their uri pattern.
type UriTree = Tree<Candidates>;

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The route with this number.
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

/// The first candidate of an ordered router so far.
struct Best<'r> {
    candidate: &'r Candidate,
    key_len: usize,
}

/// The conditions that the candidates so far failed.
struct Misses {
    /// Methods of candidates that fit but for the method.
    allow: MethodSet,
    /// Whether one of them returns 405.
    method_not_allowed: bool,
    /// The media condition that the latest candidate failed.
    media: Option<Outcome>,
}

impl Router {
    /// Finds the route for a request. `params` are replaced by its captures.
    ///
    /// Among several responses for a request without a route, 415 and 406 come before 405, and 405 before 404.
    pub fn find<Q: Request + ?Sized>(&self, request: &Q, params: &mut Params) -> Outcome {
        params.clear();
        let path = request.path();
        let mut misses = Misses { allow: MethodSet::NONE, method_not_allowed: false, media: None };
        if self.kind == RouterKind::Ordered {
            return match self.find_first(request, params, &mut misses) {
                Some(route) => Outcome::Route(route),
                None => misses.outcome(),
            };
        }
        if !self.hosts.is_empty() {
            for host in self.hosts.walk(request.host()) {
                let uris = host.content.of(host.kind);
                if let Some(route) = self.find_in(uris, path, request, params, &mut misses) {
                    return Outcome::Route(route);
                }
            }
        }
        match self.find_in(&self.uris, path, request, params, &mut misses) {
            Some(route) => Outcome::Route(route),
            None => misses.outcome(),
        }
    }

    /// Returns the memory of the trees and candidates in bytes, without conditions and templates. Takes time linear
    /// in the number of routes.
    pub fn memory_bytes(&self) -> usize {
        self.uris.heap_bytes() + self.hosts.heap_bytes()
    }

    #[inline]
    fn find_in<Q: Request + ?Sized>(
        &self,
        uris: &UriTree,
        path: &[u8],
        request: &Q,
        params: &mut Params,
        misses: &mut Misses,
    ) -> Option<u32> {
        for met in uris.walk(path) {
            for candidate in met.content.of(met.kind) {
                if self.fits(candidate, path, met.key_len, request, params, misses) {
                    return Some(candidate.route);
                }
            }
        }
        None
    }

    /// Finds the first candidate in the order of all. Each key on the way has its own candidates in order, so the first
    /// one of a key that matches is enough, and candidates behind the best one so far are not tried.
    fn find_first<'r, Q: Request + ?Sized>(
        &'r self,
        request: &'r Q,
        params: &mut Params,
        misses: &mut Misses,
    ) -> Option<u32> {
        let mut best = None;
        if !self.hosts.is_empty() {
            for host in self.hosts.walk(request.host()) {
                self.find_better(host.content.of(host.kind), request, params, misses, &mut best);
            }
        }
        self.find_better(&self.uris, request, params, misses, &mut best);
        let Best { candidate, key_len } = best?;
        // Once more, for the captures of this one.
        candidate.path.matches(request.path(), key_len, params);
        Some(candidate.route)
    }

    /// Replaces the best candidate by one of `uris` that comes before it. `params` stay empty.
    fn find_better<'r, Q: Request + ?Sized>(
        &'r self,
        uris: &'r UriTree,
        request: &'r Q,
        params: &mut Params,
        misses: &mut Misses,
        best: &mut Option<Best<'r>>,
    ) {
        let path = request.path();
        for met in uris.walk(path) {
            for candidate in met.content.of(met.kind) {
                if best.as_ref().is_some_and(|best| best.candidate.rank() < candidate.rank()) {
                    break;
                }
                if self.fits(candidate, path, met.key_len, request, params, misses) {
                    params.clear();
                    *best = Some(Best { candidate, key_len: met.key_len });
                    break;
                }
            }
        }
    }

    /// Returns true if the candidate matches. If so its captures are in `params`; if not they are as before.
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
        if !method_fits && self.answer_405 == 0 {
            return false;
        }
        let conditions = candidate.conditions.as_deref();
        if conditions.is_some_and(|conditions| conditions.check(request).is_err()) {
            return false;
        }
        if !candidate.path.matches(path, key_len, params) {
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
}

/// The reason why a candidate for host and path did not match.
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
