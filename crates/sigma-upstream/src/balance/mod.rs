//! Which node a request goes to.
//!
//! A worker owns one [`Balancer`] per upstream: it follows the upstream's cell, keeps the
//! priority groups of usable nodes and asks its [`Policy`] for a node of the highest group that
//! has one left. Nothing here is shared between workers and nothing allocates per pick; groups
//! are rebuilt only when the endpoints or their usability change.
//!
//! To add a policy: one file with a type that implements [`Policy`], one line in [`policy`].

mod active;
mod ahead;
mod bounded;
mod ewma;
mod hashed;
mod kept;
mod least_conn;
mod least_request;
mod levels;
mod peak_ewma;
mod random;
mod roundrobin;
mod rules;
mod sessions;
#[cfg(test)]
mod simulation;
mod slow_start;
mod stick_table;
mod subsets;
#[cfg(test)]
mod tests;
mod urn;
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
use subsets::Subsets;

pub use crate::hashing::crc32;
pub use ahead::made_ahead;
pub use rules::Rules;
pub use sessions::Token;
pub use stick_table::{SessionHash, StickTable};
pub use subsets::ask_for;

/// Endpoint identities that a request has tried already.
///
/// Identities rather than positions, so that a set published between two attempts cannot
/// confuse them. The first few live inline: a request rarely has more attempts.
#[derive(Debug, Clone, Default)]
pub struct Tried {
    inline: [Option<EndpointId>; Tried::INLINE],
    /// Grown one by one: it is there for the whole of an exchange, and mostly empty.
    more: Box<[EndpointId]>,
}

impl Tried {
    const INLINE: usize = 2;

    /// Remembers the endpoint with this identity.
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

    /// Whether the endpoint with this identity was tried.
    #[inline]
    pub fn contains(&self, id: EndpointId) -> bool {
        self.inline.contains(&Some(id)) || self.more.contains(&id)
    }

    /// Whether nothing was tried.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inline[0].is_none()
    }
}

/// What a pick may depend on; clock and randomness come from the caller.
#[derive(Debug, Clone, Copy)]
pub struct PickContext<'a> {
    /// The key for consistent hashing; unset counts as empty.
    pub key: Option<&'a [u8]>,
    /// The node that the request says its session is on.
    pub session: Option<Token>,
    /// What metadata the request asks for, see [`ask_for`]; unset: none.
    pub subset: Option<&'a [u8]>,
    /// What this request has tried.
    pub tried: &'a Tried,
    /// A monotonic clock in milliseconds.
    pub now_ms: u64,
    /// 64 random bits.
    pub random: u64,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Connect time plus response time; unset if there was no answer.
    pub latency_ms: Option<f64>,
    /// A monotonic clock in milliseconds.
    pub now_ms: u64,
}

/// A node within its priority group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Position in the [`EndpointSet`].
    pub index: usize,
    /// Identity; see [`crate::endpoint::Endpoint::id`].
    pub id: EndpointId,
    /// Configured weight.
    pub weight: u32,
    /// Configured priority.
    pub priority: i32,
    /// Whether it may be used now.
    pub usable: bool,
    /// Whether it may be used where no other is well: operators have not taken it out.
    pub in_service: bool,
    /// When it became usable, if it starts slowly and has not been usable for long.
    pub since_ms: Option<u64>,
}

/// Nodes of one priority; at least one of them is usable.
pub type Group = Vec<Member>;

/// A way to choose among the nodes of a group.
pub trait Policy {
    /// Takes over new groups of `set`, highest priority first. State of nodes that stay is carried
    /// over by identity.
    fn rebuild(&mut self, set: &EndpointSet, groups: &[Group]);

    /// A usable node of group number `group` that was not tried, as position in the set; none
    /// if there is none left.
    fn pick(&mut self, group: usize, context: &PickContext<'_>) -> Option<usize>;

    /// An attempt on this endpoint begins.
    fn start(&mut self, _id: EndpointId) {}

    /// An attempt on this endpoint ended; it may have left the set meanwhile.
    fn end(&mut self, _id: EndpointId, _outcome: Outcome) {}
}

/// The policy for a configured type. `seed` varies the first pick between workers.
fn policy(rules: &Rules, seed: u64) -> Box<dyn Policy> {
    match rules.balance {
        // Upstreams of a Kafka bridge are checked and kept, and nobody balances among them.
        Balance::Roundrobin | Balance::None => Box::new(roundrobin::RoundRobin::new(seed, rules.slow_start)),
        Balance::Chash => Box::new(Hashed::<Ring>::new(rules.bounded_load)),
        Balance::Maglev => Box::new(Hashed::<Maglev>::new(rules.bounded_load)),
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
    /// The levels of all nodes; with subsets, those of each of these.
    levels: Vec<Levels>,
    subsets: Option<Subsets>,
    /// Since when nodes are usable, if that matters.
    ages: Option<Ages>,
    /// The nodes of sessions, if sessions keep to nodes.
    sessions: Option<Sessions>,
    /// There is one node, which is used whatever is known of it.
    only: bool,
    /// A node is usable, and the rules let it serve.
    can_serve: bool,
    health_seen: u64,
}

/// Of no set of nodes: the next look finds another number.
const NOT_SEEN: u64 = u64::MAX;

impl std::fmt::Debug for Balancer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balancer").field("rules", &self.rules).field("view", &self.view).finish()
    }
}

impl Balancer {
    /// A balancer of the endpoints in `cell`. `seed` should differ between workers.
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
            only: false,
            can_serve: false,
            health_seen: NOT_SEEN,
        };
        balancer.rebuild(0);
        balancer
    }

    /// Follows another cell from the next pick on, and keeps what is known of nodes that stay: for a
    /// reload that changed the upstream but not its rules.
    pub fn follow(&mut self, cell: Arc<UpstreamCell>) {
        self.view = EndpointView::new(cell);
        self.health_seen = NOT_SEEN;
    }

    /// The endpoints that the last pick was made from.
    #[inline]
    pub fn endpoints(&self) -> &LocalSet {
        self.view.held()
    }

    /// Takes over newly published endpoints; [`Balancer::pick`] does so by itself.
    #[inline]
    pub fn refresh(&mut self, now_ms: u64) {
        if self.view.refresh() || self.view.held().health_epoch.get() != self.health_seen {
            self.rebuild(now_ms);
        }
    }

    /// The next node as position in [`Balancer::endpoints`]; none if every node was tried, or
    /// the rules want none.
    ///
    /// An upstream with one node gives that node, unless an operator has taken it out: its weight,
    /// health and whether it was tried do not matter, unless the rules speak of panic.
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

    /// The token of a node of [`Balancer::endpoints`], if sessions keep to nodes.
    pub fn token_of(&mut self, id: EndpointId) -> Option<Token> {
        self.sessions.as_mut()?.token_of(id)
    }

    /// Whether the node with this token is there, and serves requests of sessions that are on it.
    pub fn serves_sessions_of(&self, token: Token) -> bool {
        let at = self.sessions.as_ref().and_then(|sessions| sessions.find(token));
        at.is_some_and(|at| self.view.held().endpoints[at].keeps_sessions())
    }

    /// Whether a request of this session goes to its node only.
    pub fn keeps_to(&self, session: Option<Token>) -> bool {
        session.is_some() && self.sessions.as_ref().is_some_and(Sessions::rejects)
    }

    /// Whether a node is usable, and the rules let it serve.
    pub fn can_serve(&mut self, now_ms: u64) -> bool {
        self.refresh(now_ms);
        self.can_serve
    }

    /// Whether a request of which nothing was tried may find no node, by the rules: too few are usable, or
    /// none has the metadata.
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
        self.policy.rebuild(set, &groups);
    }
}

/// An attempt on an endpoint, which counts as busy with it until this is dropped: also if the
/// exchange is given up or panics. `B` refers to the balancer, or owns it with others.
#[derive(Debug)]
#[must_use = "the attempt ends with it"]
pub struct InFlight<B: Deref<Target = RefCell<Balancer>>> {
    balancer: B,
    id: EndpointId,
    outcome: Outcome,
}

impl<B: Deref<Target = RefCell<Balancer>>> InFlight<B> {
    /// An attempt on the endpoint with this identity begins.
    pub fn begin(balancer: B, id: EndpointId, now_ms: u64) -> InFlight<B> {
        balancer.borrow_mut().start(id);
        InFlight { balancer, id, outcome: Outcome { latency_ms: None, now_ms } }
    }

    /// It ended in order.
    pub fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl<B: Deref<Target = RefCell<Balancer>>> Drop for InFlight<B> {
    fn drop(&mut self) {
        // Nobody holds a borrow over an attempt; a panic within one leaves nothing to count right.
        if let Ok(mut balancer) = self.balancer.try_borrow_mut() {
            balancer.end(self.id, self.outcome);
        }
    }
}

/// The nodes of a set as members, the highest priority first, else in the order of the set.
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

/// The usable members that take part where weight 0 means "only if all are 0".
fn weighted(group: &[Member]) -> Vec<Member> {
    let usable = group.iter().filter(|m| m.usable).copied();
    let mut members: Vec<Member> = usable.clone().filter(|m| m.weight > 0).collect();
    if members.is_empty() {
        members = usable.map(|m| Member { weight: 1, ..m }).collect();
    }
    members
}

/// Maps 64 random bits onto `0..bound` (Lemire's multiply-shift; its bias of bound / 2^64 does
/// not matter here). `bound` 0 gives 0.
#[inline]
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}
