//! Load balancing: the choice of a node for a request.
//!
//! A worker has one [`Balancer`] per upstream: it follows the upstream's cell, keeps the priority groups of usable
//! nodes, and asks its [`Policy`] for a node of the highest group with an untried one. Workers share nothing here,
//! and a pick does not allocate; groups are rebuilt only when the endpoints or their usability change.
//!
//! To add a policy, write one file with a type that implements [`Policy`], and one line in [`policy`].

mod active;
mod ahead;
mod alias_table;
mod bounded;
mod ewma;
mod hashed;
mod kept;
mod least_conn;
mod least_request;
mod levels;
mod peak_ewma;
mod random;
mod rendezvous;
mod roundrobin;
mod rules;
mod sessions;
#[cfg(test)]
mod simulation;
mod slow_start;
mod stick_table;
mod stress;
mod subsets;
#[cfg(test)]
mod tests;
mod zones;

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use sigma_config::resources::Balance;

use crate::endpoint::{EndpointSet, EndpointView, LocalSet, UpstreamCell};
use crate::hashing::{Maglev, Ring, gcd, look, mix};
use crate::identity::EndpointId;

use hashed::Hashed;
use levels::Levels;
use sessions::Sessions;
use slow_start::Ages;
use stress::{Drawn, Stress};
use subsets::Subsets;

pub use crate::hashing::crc32;
pub use ahead::made_ahead;
pub use rules::Rules;
pub use sessions::Token;
pub use stick_table::{SessionHash, StickTable};
pub use subsets::ask_for;

/// The endpoint identities that a request has tried.
///
/// Identities instead of positions, as a new set may be published between two attempts. The first few are inline: a
/// request rarely has more attempts.
#[derive(Debug, Clone, Default)]
pub struct Tried {
    inline: [Option<EndpointId>; Tried::INLINE],
    /// Grown one by one: it lives as long as the exchange, and is mostly empty.
    more: Box<[EndpointId]>,
}

impl Tried {
    const INLINE: usize = 2;

    /// Adds the endpoint with this identity.
    pub fn insert(&mut self, id: EndpointId) {
        if self.contains(id) {
            return;
        }
        match self.inline.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(id),
            None => {
                let mut more = std::mem::take(&mut self.more).into_vec();
                more.push(id);
                self.more = more.into_boxed_slice();
            }
        }
    }

    /// Returns true if the endpoint with this identity was tried.
    #[inline]
    pub fn contains(&self, id: EndpointId) -> bool {
        self.inline.contains(&Some(id)) || self.more.contains(&id)
    }

    /// Returns true if nothing was tried.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inline[0].is_none()
    }
}

/// The input of a pick; clock and randomness come from the caller.
#[derive(Debug, Clone, Copy)]
pub struct PickContext<'a> {
    /// The key for consistent hashing; None counts as empty.
    pub key: Option<&'a [u8]>,
    /// The node of the request's session.
    pub session: Option<Token>,
    /// The requested metadata, see [`ask_for`]; None without a request for metadata.
    pub subset: Option<&'a [u8]>,
    /// The nodes that this request has tried.
    pub tried: &'a Tried,
    /// A monotonic clock in milliseconds.
    pub now_ms: u64,
    /// 64 random bits.
    pub random: u64,
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Connect time plus response time; None without a response.
    pub latency_ms: Option<f64>,
    /// A monotonic clock in milliseconds.
    pub now_ms: u64,
}

/// A node within its priority group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Position in the [`EndpointSet`].
    pub index: usize,
    /// The identity; see [`crate::endpoint::Endpoint::id`].
    pub id: EndpointId,
    /// Configured weight.
    pub weight: u32,
    /// Configured priority.
    pub priority: i32,
    /// It may be used now.
    pub usable: bool,
    /// It may be used if no other node is healthy: operators have not taken it out.
    pub in_service: bool,
    /// The time at which it became usable, if it is in slow start.
    pub since_ms: Option<u64>,
}

/// Nodes of one priority, at least one of which is usable.
pub type Group = Vec<Member>;

/// A way to choose among the nodes of a group.
pub trait Policy {
    /// Takes new groups of `set`, highest priority first. The state of remaining nodes is kept by identity.
    fn rebuild(&mut self, set: &EndpointSet, groups: &[Group]);

    /// Returns an untried, usable node of group number `group`, as position in the set; None if all were tried.
    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize>;

    /// Handles the start of an attempt on this endpoint.
    fn start(&mut self, _id: EndpointId) {}

    /// Handles the end of an attempt on this endpoint; it may have left the set meanwhile.
    fn end(&mut self, _id: EndpointId, _outcome: Outcome) {}
}

/// Returns the policy of a configured type. `seed` varies the first pick between workers.
fn policy(rules: &Rules, seed: u64) -> Box<dyn Policy> {
    match rules.balance {
        // Upstreams of a Kafka bridge are checked and stored, but never balanced.
        Balance::Roundrobin | Balance::None => Box::new(roundrobin::RoundRobin::new(seed, rules.slow_start)),
        Balance::Chash => Box::new(Hashed::<Ring>::new(rules.bounded_load)),
        Balance::Maglev => Box::new(Hashed::<Maglev>::new(rules.bounded_load)),
        Balance::Rendezvous => Box::new(rendezvous::Rendezvous::new(rules.bounded_load)),
        Balance::Ewma => Box::new(ewma::Ewma::default()),
        Balance::PeakEwma => Box::new(peak_ewma::PeakEwma::new(rules.slow_start)),
        Balance::LeastConn => Box::new(least_conn::LeastConn::default()),
        Balance::LeastRequest => Box::new(least_request::LeastRequest::new(rules.slow_start)),
        Balance::Random => Box::new(random::Random::new(rules.slow_start)),
    }
}

/// One worker's balancer of one upstream.
pub struct Balancer {
    view: EndpointView,
    policy: Box<dyn Policy>,
    rules: Rules,
    /// The levels of all nodes; with subsets, the levels of each subset.
    levels: Vec<Levels>,
    subsets: Option<Subsets>,
    /// The times at which nodes became usable, if the policy needs them.
    ages: Option<Ages>,
    /// The nodes of sessions, with session affinity.
    sessions: Option<Sessions>,
    /// The stress test that nodes are in. Boxed, as few upstreams have one.
    stress: Option<Box<Stress>>,
    /// There is one node, which is used in any state.
    only: bool,
    /// A node is usable, and the rules allow it to serve.
    can_serve: bool,
    health_seen: u64,
}

/// The number of no set: the next check finds another number.
const NOT_SEEN: u64 = u64::MAX;

impl std::fmt::Debug for Balancer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balancer").field("rules", &self.rules).field("view", &self.view).finish()
    }
}

impl Balancer {
    /// Returns a balancer for the endpoints in `cell`. `seed` should differ between workers.
    pub fn new(rules: impl Into<Rules>, cell: Arc<UpstreamCell>, seed: u64) -> Balancer {
        let (view, rules) = (EndpointView::new(cell), rules.into());
        let (policy, ages) = (policy(&rules, seed), rules.slow_start.map(Ages::new));
        let (levels, subsets) = (Vec::new(), None);
        let sessions = rules.sessions.as_ref().map(Sessions::new);
        let mut balancer = Balancer {
            view,
            policy,
            rules,
            levels,
            subsets,
            ages,
            sessions,
            stress: None,
            only: false,
            can_serve: false,
            health_seen: NOT_SEEN,
        };
        balancer.rebuild(0);
        balancer
    }

    /// Switches to another cell at the next pick, and keeps the state of remaining nodes: for a reload that changed
    /// the upstream but not its rules.
    pub fn follow(&mut self, cell: Arc<UpstreamCell>) {
        self.view = EndpointView::new(cell);
        self.health_seen = NOT_SEEN;
    }

    /// Returns the endpoints of the last pick.
    #[inline]
    pub fn endpoints(&self) -> &LocalSet {
        self.view.held()
    }

    /// Takes newly published endpoints; [`Balancer::pick`] does so itself.
    #[inline]
    pub fn refresh(&mut self, now_ms: u64) {
        if self.view.refresh() || self.view.held().health_epoch.get() != self.health_seen {
            self.rebuild(now_ms);
        }
    }

    /// Returns the next node as position in [`Balancer::endpoints`]; None if every node was tried, or the rules
    /// reject the request.
    ///
    /// The only node of an upstream is always returned, unless an operator has taken it out: its weight, its health
    /// and earlier attempts do not matter, unless the rules set a panic threshold.
    #[inline]
    pub fn pick(&mut self, context: &PickContext<'_>) -> Option<usize> {
        self.refresh(context.now_ms);
        if let Some(sessions) = &self.sessions
            && let Some(token) = context.session
        {
            let endpoints = &self.view.held().endpoints;
            let may =
                |at: &usize| endpoints[*at].keeps_sessions() && !context.tried.contains(endpoints[*at].id());
            let bound = sessions.find(token).filter(may);
            if bound.is_some() || sessions.rejects() {
                return bound;
            }
        }
        if self.only {
            return Some(0);
        }
        match self.stress.is_some() {
            false => self.pick_by_rules(context),
            true => self.pick_under_stress(context),
        }
    }

    /// Returns the node of a request while a stress test runs.
    #[cold]
    fn pick_under_stress(&mut self, context: &PickContext<'_>) -> Option<usize> {
        let set = self.view.held();
        let stress = self.stress.as_mut()?;
        let tried = match stress.draw(set, context) {
            Drawn::Node(at) => return Some(at),
            Drawn::Others => stress.avoid(context.tried, set),
            Drawn::Normal => return self.pick_by_rules(context),
        };
        self.pick_by_rules(&PickContext { tried: &tried, ..*context }).or_else(|| self.pick_by_rules(context))
    }

    /// Returns the node that the policy chooses within the levels, zones and subsets.
    #[inline]
    fn pick_by_rules(&mut self, context: &PickContext<'_>) -> Option<usize> {
        let bits = || match self.rules.hashes() {
            true => u64::from(crc32(context.key.unwrap_or_default())),
            false => context.random,
        };
        let policy = &mut *self.policy;
        let mut of = |place: usize| self.levels.get(place)?.pick(policy, bits, context);
        match (&self.subsets, &self.rules.subsets) {
            (Some(subsets), Some(rule)) => subsets.pick(rule, context.subset, of),
            _ => of(0),
        }
    }

    /// Returns the token of a node of [`Balancer::endpoints`], with session affinity.
    pub fn token_of(&mut self, id: EndpointId) -> Option<Token> {
        self.sessions.as_mut()?.token_of(id)
    }

    /// Returns true if the node with this token exists and serves requests of its sessions.
    pub fn serves_sessions_of(&self, token: Token) -> bool {
        let at = self.sessions.as_ref().and_then(|sessions| sessions.find(token));
        at.is_some_and(|at| self.view.held().endpoints[at].keeps_sessions())
    }

    /// Returns true if a request of this session goes only to its node.
    pub fn keeps_to(&self, session: Option<Token>) -> bool {
        session.is_some() && self.sessions.as_ref().is_some_and(Sessions::rejects)
    }

    /// Returns true if a node is usable, and the rules allow it to serve.
    pub fn can_serve(&mut self, now_ms: u64) -> bool {
        self.refresh(now_ms);
        self.can_serve
    }

    /// Returns true if a first attempt may find no node by the rules: too few are usable, or none has the metadata.
    pub fn is_refusing(&self) -> bool {
        self.subsets.is_some() || self.levels.iter().any(Levels::refuses)
    }

    fn start(&mut self, id: EndpointId) {
        self.policy.start(id);
    }

    fn end(&mut self, id: EndpointId, outcome: Outcome) {
        self.policy.end(id, outcome);
    }

    fn rebuild(&mut self, now_ms: u64) {
        let set = self.view.held();
        // Read before the targets: a change in between causes another rebuild, never a lost one.
        self.health_seen = set.health_epoch.get();
        if let Some(ages) = &mut self.ages {
            ages.learn(set, now_ms);
        }
        if let Some(sessions) = &mut self.sessions {
            sessions.rebuild(set);
        }
        let members = members(set, &mut self.ages);
        let mut lists = Vec::new();
        self.subsets = match &self.rules.subsets {
            Some(rule) => Some(Subsets::new(rule, set, &members, &mut lists)),
            None => {
                lists.push(members);
                None
            }
        };
        let mut groups = Vec::new();
        let split = |members| match &self.rules.zones {
            Some(rule) => rule.split(set, members),
            None => vec![(zones::ALL, members)],
        };
        let levels = |members: &Vec<Member>| Levels::new(members, &self.rules.levels, split, &mut groups);
        self.levels = lists.iter().map(levels).collect();
        let any_usable = set.endpoints.iter().any(|endpoint| endpoint.health.usable());
        self.can_serve = any_usable && !self.levels.iter().all(Levels::refuses);
        let is_alone = matches!(&set.endpoints[..], [only] if only.health.is_in_service());
        self.only = is_alone && !self.rules.levels.judge_panic() && self.subsets.is_none();
        // Sessions and subsets bind requests to nodes; no test is started for them.
        let may_be_stressed = self.sessions.is_none() && self.subsets.is_none();
        self.stress = if may_be_stressed { Stress::of(set, now_ms).map(Box::new) } else { None };
        self.policy.rebuild(set, &groups);
    }
}

/// An attempt on an endpoint, which counts as busy until this is dropped, also if the exchange is cancelled or
/// panics. `B` refers to the balancer, or shares its ownership.
#[derive(Debug)]
#[must_use = "the attempt ends with it"]
pub struct InFlight<B: Deref<Target = RefCell<Balancer>>> {
    balancer: B,
    id: EndpointId,
    outcome: Outcome,
}

impl<B: Deref<Target = RefCell<Balancer>>> InFlight<B> {
    /// Starts an attempt on the endpoint with this identity.
    pub fn begin(balancer: B, id: EndpointId, now_ms: u64) -> InFlight<B> {
        balancer.borrow_mut().start(id);
        InFlight { balancer, id, outcome: Outcome { latency_ms: None, now_ms } }
    }

    /// Ends the attempt with a result.
    pub fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl<B: Deref<Target = RefCell<Balancer>>> Drop for InFlight<B> {
    fn drop(&mut self) {
        // No borrow is held over an attempt; after a panic within one there is nothing to correct.
        if let Ok(mut balancer) = self.balancer.try_borrow_mut() {
            balancer.end(self.id, self.outcome);
        }
    }
}

/// Returns the nodes of a set as members, the highest priority first, then in the order of the set.
fn members(set: &EndpointSet, ages: &mut Option<Ages>) -> Vec<Member> {
    let endpoints = &set.endpoints;
    if endpoints.len() > 1 && !endpoints.iter().any(|e| e.health.usable()) {
        tracing::warn!("all upstream nodes are unhealthy");
    }
    let mut order: Vec<usize> = (0..endpoints.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(endpoints[index].priority));
    let member = |index: usize| {
        let endpoint = &endpoints[index];
        let (id, standing) = (endpoint.id(), endpoint.health.standing());
        let (usable, in_service) = (standing.usable(), standing.is_in_service());
        let weight = standing.weighed(endpoint.weight);
        let since_ms = ages.as_mut().and_then(|ages| ages.of(id));
        Member { index, id, weight, priority: endpoint.priority, usable, in_service, since_ms }
    };
    order.into_iter().map(member).collect()
}

/// Returns the usable members, in policies where weight 0 means "only if all are 0".
fn weighted(group: &[Member]) -> Vec<Member> {
    let usable = group.iter().filter(|m| m.usable).copied();
    let mut members: Vec<Member> = usable.clone().filter(|m| m.weight > 0).collect();
    if members.is_empty() {
        members = usable.map(|m| Member { weight: 1, ..m }).collect();
    }
    members
}

/// Maps 64 random bits to `0..bound` (Lemire's multiply-shift; its bias of bound / 2^64 does not matter here).
/// `bound` 0 gives 0.
#[inline]
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}
