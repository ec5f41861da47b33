//! Attempts on the nodes of an upstream: which node is next, what is held against one, and when to
//! stop (APISIX: `retries`, `retry_timeout`). Whatever is sent to a node, a request or the bytes of a
//! session, goes through here.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{Fault, FaultKind, Headers, Method, Side};
use sigma_net::deadline;
use sigma_observe::counters::Counter;
use sigma_upstream::balance::{Balancer, InFlight, PickContext, Token, Tried};
use sigma_upstream::endpoint::{Address, Endpoint, LocalSet};
use sigma_upstream::identity::EndpointId;
use sigma_upstream::overload::gate::Permit;

use crate::guards::Limit;
use crate::judge::{Judge, Seen, out_of_service};
use crate::retry::{Missing, RetryPolicy};
use crate::snapshot::{Session, Upstream};
use crate::worker::{Towards, Worker};

/// The attempts that one request or session makes on an upstream.
pub(crate) struct Attempts<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) upstream: &'a Arc<Upstream>,
    /// In place of the rule that holds without one.
    pub(crate) policy: Option<&'a RetryPolicy>,
    pub(crate) towards: Rc<Towards>,
    /// Boxed, as few upstreams choose so.
    choice: Option<Box<Choice>>,
    tried: Tried,
    retries: Cell<u32>,
    /// Of a clock that comes around after 49 days.
    began_ms: u32,
}

/// A node that is busy with an attempt.
pub(crate) type Busy<'b> = InFlight<&'b RefCell<Balancer>>;

/// What of a request or session decides on its node.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// The value that consistent hashing uses.
    pub(crate) key: Option<Box<[u8]>>,
    /// The session that the request says that it is of.
    pub(crate) session: Session,
    /// The metadata that the node is to have.
    pub(crate) subset: Option<Box<[u8]>>,
    /// The node of the last attempt, where sessions keep to nodes.
    pub(crate) given: Option<Token>,
    /// Another address of the node of the last attempt, which is asked next.
    next: Option<EndpointId>,
    /// How many attempts went to another address of the same node.
    readdressed: u8,
}

impl Choice {
    /// The wishes of a request or session.
    pub(crate) fn new(key: Option<Box<[u8]>>, session: Session, subset: Option<Box<[u8]>>) -> Choice {
        Choice { key, session, subset, ..Choice::default() }
    }

    /// Whether the request got the node of its session.
    fn is_in_session(&self) -> bool {
        self.session.node.is_some() && self.session.node == self.given
    }
}

/// What a pick looks at of a [`Choice`]: key, session and subset.
fn wishes(choice: Option<&Choice>) -> (Option<&[u8]>, Option<Token>, Option<&[u8]>) {
    choice.map_or((None, None, None), |c| (c.key.as_deref(), c.session.node, c.subset.as_deref()))
}

/// How many nodes are looked at for one that has room.
const LOOKS_MAX: usize = 32;

/// How many further addresses of its nodes an exchange tries, whatever its retries: each is refused at once, or costs
/// [`LINK_MS`].
const READDRESSED_MAX: u8 = 3;

/// How long an address has to take a connection before another address of the same node is tried. RFC 8305 §5 has 250 ms
/// for the second to start beside the first; here the first is given up, so it has a little more.
const LINK_MS: Option<NonZeroU32> = NonZeroU32::new(400);

/// A node chosen from a set, which stays alive with it.
#[derive(Debug)]
pub(crate) struct Picked {
    set: LocalSet,
    index: u32,
    /// It has a place behind the node's gate, which it leaves in the end. That is not a [`Permit`], as each
    /// exchange has room for two of these.
    has_place: bool,
}

impl Picked {
    fn new(balancer: &Balancer, index: usize) -> Picked {
        Picked { set: Rc::clone(balancer.endpoints()), index: index as u32, has_place: false }
    }

    /// Whether it has a place on its node now.
    fn enters(&mut self, limit: &Limit) -> bool {
        let place = limit.to_node(self).and_then(|way| way.gate.try_enter(way.bounds));
        place.is_some_and(|place| {
            self.take_place(place);
            true
        })
    }

    /// Whether it has a place on its node.
    pub(crate) fn has_place(&self) -> bool {
        self.has_place
    }

    /// Takes a place on its node.
    pub(crate) fn take_place(&mut self, place: Permit) {
        place.detach();
        self.has_place = true;
    }
}

impl Drop for Picked {
    fn drop(&mut self) {
        if self.has_place {
            self.health.gate().leave();
        }
    }
}

impl std::ops::Deref for Picked {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.set.endpoints[self.index as usize]
    }
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    /// The next step, as far as the attempt itself decides it.
    pub(crate) decision: Decision,
    /// The node had all that it could wait for: neither the client's slowness nor the end of the
    /// client's own time made the attempt fail.
    pub(crate) request_sent: bool,
    /// The status that the client is answered if no attempt follows; None if it has an answer already.
    pub(crate) status: Option<u16>,
}

impl Failure {
    /// Whether the node's address took no connection: another address of the node is as good as the first.
    fn is_unconnected(&self) -> bool {
        matches!(self.fault.kind, FaultKind::ConnectRefused | FaultKind::ConnectTimeout)
    }
}

impl<'a> Attempts<'a> {
    /// On the upstream with this number, to the node that `choice` leads to, by the rules of `policy`.
    pub(crate) fn new(
        worker: &'a Worker,
        number: u32,
        upstream: &'a Arc<Upstream>,
        policy: Option<&'a RetryPolicy>,
        choice: Option<Box<Choice>>,
    ) -> Attempts<'a> {
        let (towards, began_ms) = (worker.towards(number, upstream), deadline::now_ms() as u32);
        towards.load.begin();
        let tried = Tried::default();
        Attempts { worker, upstream, policy, towards, choice, tried, retries: Cell::new(0), began_ms }
    }

    /// The node of the next attempt.
    ///
    /// # Errors
    /// Returns an error if every node was tried or may not be used.
    pub(crate) fn pick(&mut self) -> Result<Picked, Fault> {
        let mut balancer = self.towards.balancer.borrow_mut();
        let next = self.choice.as_mut().and_then(|choice| choice.next.take());
        let nodes = &balancer.endpoints().endpoints;
        if let Some(index) = next.and_then(|next| nodes.iter().position(|node| node.id() == next)) {
            let picked = Picked::new(&balancer, index);
            if let Some(choice) = &mut self.choice {
                choice.given = balancer.token_of(picked.id());
            }
            return Ok(picked);
        }
        let (key, session, subset) = wishes(self.choice.as_deref());
        let (now_ms, random) = (deadline::now_ms(), self.worker.random());
        let mut pick =
            |tried: &Tried| balancer.pick(&PickContext { key, session, subset, tried, now_ms, random });
        let mut picked = pick(&self.tried);
        if picked.is_none() && self.policy.is_some() && !self.tried.is_empty() {
            // Whoever writes a policy waits between attempts: a node that failed is worth another one.
            self.tried = Tried::default();
            picked = pick(&self.tried);
        }
        match picked {
            Some(index) => {
                let picked = Picked::new(&balancer, index);
                if self.upstream.affinity.is_some()
                    && let Some(choice) = &mut self.choice
                {
                    choice.given = balancer.token_of(picked.id());
                }
                Ok(picked)
            }
            None if balancer.endpoints().endpoints.is_empty() => {
                let nobody = Fault::new(FaultKind::NoNode, "the upstream has no node");
                Err(balancer.endpoints().unresolved.unwrap_or(nobody))
            }
            None if balancer.keeps_to(session) => {
                Err(Fault::new(FaultKind::NoNode, "the node of the session is gone"))
            }
            None if self.tried.is_empty() && balancer.is_refusing() => Err(Fault::new(
                FaultKind::NoNode,
                "too few nodes of the upstream are usable, or none has the metadata that is asked for",
            )),
            None => {
                let reason = match self.tried.is_empty() {
                    true => out_of_service(&balancer.endpoints().endpoints),
                    false => "all nodes of the upstream were tried",
                };
                Err(Fault::new(FaultKind::NodesExhausted, reason))
            }
        }
    }

    /// The node at this address, which a session is with already; None if the upstream has no such node. It has a place
    /// on it, if there is one.
    pub(crate) fn pick_at(&mut self, addr: SocketAddr) -> Option<Picked> {
        let mut balancer = self.towards.balancer.borrow_mut();
        balancer.refresh(deadline::now_ms());
        let is_at = |node: &Endpoint| node.addr == Address::Tcp(addr);
        let index = balancer.endpoints().endpoints.iter().position(is_at)?;
        let mut picked = Picked::new(&balancer, index);
        if let Some(limit) = self.upstream.node_limit() {
            picked.enters(limit);
        }
        Some(picked)
    }

    /// As [`Attempts::pick`], where each node has a bound: a node that has room, with a place on it. If none
    /// has, or the node of a session has not, it is the node that is to be waited for.
    ///
    /// # Errors
    /// Returns an error if every node was tried or may not be used.
    pub(crate) fn pick_free(&mut self, limit: &Limit) -> Result<Picked, Fault> {
        let mut first = self.pick()?;
        let (key, _, subset) = wishes(self.choice.as_deref());
        if first.enters(limit) || self.choice.as_ref().is_some_and(|choice| choice.is_in_session()) {
            return Ok(first);
        }
        let mut tried = self.tried.clone();
        tried.insert(first.id());
        let mut balancer = self.towards.balancer.borrow_mut();
        for _ in 1..LOOKS_MAX {
            let (now_ms, random) = (deadline::now_ms(), self.worker.random());
            let context = PickContext { key, session: None, subset, tried: &tried, now_ms, random };
            let Some(index) = balancer.pick(&context) else { break };
            let mut other = Picked::new(&balancer, index);
            if other.enters(limit) {
                if let Some(choice) = &mut self.choice {
                    choice.given = balancer.token_of(other.id());
                }
                return Ok(other);
            }
            if tried.contains(other.id()) {
                break;
            }
            tried.insert(other.id());
        }
        Ok(first)
    }

    /// Whether the request has to wait for the node that was picked, though others may be free: it is in a session
    /// with it, or asks for metadata that few nodes have.
    pub(crate) fn keeps_to_node(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.is_in_session() || choice.subset.is_some())
    }

    /// The node behind whose gate this place is; None if it may not be asked any more.
    pub(crate) fn placed(&mut self, place: Permit) -> Option<Picked> {
        let mut balancer = self.towards.balancer.borrow_mut();
        balancer.refresh(deadline::now_ms());
        let endpoints = &balancer.endpoints().endpoints;
        let index = endpoints.iter().position(|node| place.is_for(node.health.gate()))?;
        let node = &endpoints[index];
        let any_usable = || endpoints.iter().any(|node| node.health.usable());
        let may = match self.keeps_to_node() {
            true => node.keeps_sessions(),
            false => node.health.usable() || node.health.is_in_service() && !any_usable(),
        };
        if !may || self.tried.contains(node.id()) {
            return None;
        }
        let id = node.id();
        let mut picked = Picked::new(&balancer, index);
        picked.take_place(place);
        if let Some(choice) = &mut self.choice {
            choice.given = balancer.token_of(id);
        }
        Some(picked)
    }

    /// A second node beside `first`, if there is one and the rules allow another attempt. It counts as one.
    pub(crate) fn pick_second(&self, first: &Endpoint) -> Option<Picked> {
        // The node of a session is the only one that can answer for it.
        if self.upstream.affinity.is_some() {
            return None;
        }
        let mut tried = self.tried.clone();
        tried.insert(first.id());
        let mut balancer = self.towards.balancer.borrow_mut();
        let (key, _, subset) = wishes(self.choice.as_deref());
        let index = balancer.pick(&PickContext {
            key,
            session: None,
            subset,
            tried: &tried,
            now_ms: deadline::now_ms(),
            random: self.worker.random(),
        })?;
        let mut picked = Picked::new(&balancer, index);
        drop(balancer);
        // An upstream with one node gives that.
        if picked.id() == first.id() {
            return None;
        }
        if let Some(limit) = self.upstream.node_limit()
            && !picked.enters(limit)
            && !limit.dry_run
        {
            return None;
        }
        if !self.claims_another() {
            return None;
        }
        self.count_retry(first);
        Some(picked)
    }

    /// A node was asked in vain.
    pub(crate) fn passed_over(&mut self, node: &Endpoint) {
        self.tried.insert(node.id());
    }

    /// Tells the client the node of its session, if it does not name it itself, or learns from the answer
    /// which session is on its node.
    pub(crate) fn tell_session(&self, answer: &mut Headers) {
        if let Some(affinity) = &self.upstream.affinity
            && let Some(choice) = &self.choice
            && let Some(token) = choice.given
        {
            let balancer = self.towards.balancer.borrow();
            affinity.answered(choice.session, token, answer, |node| balancer.serves_sessions_of(node));
        }
    }

    /// A node has taken a session: those of the same client that follow go there, where the rules say so.
    pub(crate) fn keep_session(&self) {
        if let Some(affinity) = &self.upstream.affinity
            && let Some(choice) = &self.choice
            && let Some(token) = choice.given
        {
            let balancer = self.towards.balancer.borrow();
            affinity.taken(choice.session, token, |node| balancer.serves_sessions_of(node));
        }
    }

    /// The node counts as busy with the attempt until what is returned is dropped.
    pub(crate) fn begin(&self, node: &Endpoint) -> Busy<'_> {
        InFlight::begin(&self.towards.balancer, node.id(), deadline::now_ms())
    }

    /// Takes note of an attempt that failed, and tells health checks. Whether another one follows,
    /// for which the node counts as tried.
    pub(crate) fn failed(&mut self, node: &Endpoint, failure: &Failure) -> bool {
        self.tried.insert(node.id());
        // What this machine lacks is no node's fault, and the next one would not have it either.
        if failure.fault.side() == Side::Gateway {
            return false;
        }
        let next = if failure.is_unconnected() { self.other_address(node) } else { None };
        let is_same_node = next.is_some();
        if is_same_node {
            let choice = self.choice.get_or_insert_default();
            (choice.next, choice.readdressed) = (next, choice.readdressed + 1);
        }
        let follows = is_same_node || failure.decision == Decision::NextNode && self.claims_another();
        let Failure { fault, request_sent, status, .. } = *failure;
        // The status is the node's only if the client gets it.
        let status = status.filter(|_| !follows);
        self.judge().failed(node, Seen { fault, request_sent, status });
        if follows && !is_same_node {
            self.count_retry(node);
        }
        follows
    }

    /// Another address of the same node, of the other family if there is one; None if there is none that may be asked.
    fn other_address(&self, node: &Endpoint) -> Option<EndpointId> {
        if self.choice.as_ref().is_some_and(|choice| choice.readdressed >= READDRESSED_MAX) {
            return None;
        }
        let balancer = self.towards.balancer.borrow();
        let nodes = &balancer.endpoints().endpoints;
        let others = nodes.iter().filter(|other| {
            other.is_another_address_of(node) && other.health.usable() && !self.tried.contains(other.id())
        });
        others.min_by_key(|other| other.is_of_family_of(node)).map(Endpoint::id)
    }

    /// How long the transport to a node may take where another address of the node is left; None for all the time that a
    /// connection has.
    pub(crate) fn link_ms(&self, node: &Endpoint) -> Option<NonZeroU32> {
        LINK_MS.filter(|_| node.by_address && self.other_address(node).is_some())
    }

    /// A node has answered, the answer is not wanted, and another attempt follows. `status` is as in
    /// [`Attempts::answered`].
    pub(crate) fn declined(&mut self, node: &Endpoint, status: Option<u16>) {
        self.tried.insert(node.id());
        self.answered(node, status);
        self.count_retry(node);
    }

    /// Tells health checks the status that the answer of a node counts as; None if it says nothing about the
    /// node.
    pub(crate) fn answered(&self, node: &Endpoint, status: Option<u16>) {
        self.judge().answered(node, status);
    }

    fn judge(&self) -> Judge<'_> {
        Judge::new(self.worker, self.upstream)
    }

    /// Whether another attempt may follow the present one.
    pub(crate) fn may_follow(&self) -> bool {
        self.has_retries() && self.is_within_budget()
    }

    /// The same, where another one is wanted.
    pub(crate) fn claims_another(&self) -> bool {
        if !self.has_retries() {
            return false;
        }
        let within = self.is_within_budget();
        if !within {
            self.worker.counters.add(Counter::UpstreamRetriesOverBudget, 1);
        }
        within
    }

    fn has_retries(&self) -> bool {
        let nodes = || self.towards.balancer.borrow().endpoints().endpoints.len();
        let retries = self.upstream.retries.map_or_else(|| nodes().saturating_sub(1), |n| n as usize);
        let late = self.upstream.retry_timeout_ms > 0
            && u64::from((deadline::now_ms() as u32).wrapping_sub(self.began_ms))
                > self.upstream.retry_timeout_ms;
        (self.retries.get() as usize) < retries && !late
    }

    /// Whether the request may be sent to other nodes than these.
    pub(crate) fn may_repeat_elsewhere(&self, failure: &Failure) -> bool {
        failure.decision == Decision::NextNode
            && failure.fault.side() != Side::Gateway
            && self.is_within_budget()
    }

    fn is_within_budget(&self) -> bool {
        // One that is in a further attempt already has its share.
        let budget = self.policy.and_then(|policy| policy.budget).filter(|_| self.retries.get() == 0);
        budget.is_none_or(|budget| self.towards.load.may_retry(budget))
    }

    /// Milliseconds to wait before the attempt that follows; `asked_ms` is what the last node asked for.
    pub(crate) fn pause_ms(&self, asked_ms: Option<u64>) -> u64 {
        self.policy.map_or(0, |policy| policy.pause_ms(self.retries.get(), asked_ms, self.worker.random()))
    }

    fn count_retry(&self, node: &Endpoint) {
        if self.retries.get() == 0 {
            self.towards.load.begin_retry();
        }
        self.retries.set(self.retries.get() + 1);
        self.worker.counters.add(Counter::UpstreamRetries, 1);
        tracing::debug!(upstream = %self.upstream.key, node = %node.addr, "trying the next node");
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        self.towards.load.end(self.retries.get() > 0);
    }
}

/// How far an attempt had got when it failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Not a byte of the request had left.
    pub(crate) unsent: bool,
    /// The connection had served before, and no byte of this answer had come: most likely the
    /// node closed it while it idled.
    pub(crate) stale: bool,
    /// All of the body that was sent can be sent again.
    pub(crate) replayable: bool,
    /// A byte of the answer went downstream.
    pub(crate) answered: bool,
}

/// The next step after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A fresh connection to the same node; does not count as an attempt.
    SameNode,
    /// The next node, if the attempts allow.
    NextNode,
    /// The fault is the answer.
    GiveUp,
}

/// The step after an attempt that failed, by `policy` or by the rule that holds without one.
pub(crate) fn decide(
    fault: Fault,
    method: Method,
    progress: Progress,
    policy: Option<&RetryPolicy>,
) -> Decision {
    if progress.answered || !progress.replayable {
        return Decision::GiveUp;
    }
    let may_repeat = policy.map_or(method.is_idempotent(), |policy| policy.may_repeat(method));
    let repeatable = progress.unsent || may_repeat;
    let missing = match fault.kind {
        // Nothing was sent.
        FaultKind::ConnectRefused
        | FaultKind::ConnectTimeout
        | FaultKind::TlsProtocol
        | FaultKind::TlsCertificate
        | FaultKind::TlsAlert
        | FaultKind::ProtocolMismatch => Missing::Connection,
        FaultKind::ConnectionTerminated if progress.stale && repeatable => return Decision::SameNode,
        FaultKind::ConnectionTerminated
        | FaultKind::NodeWithdrawn
        | FaultKind::ResponseTimeout
        | FaultKind::UpstreamSendTimeout
            if repeatable =>
        {
            Missing::Answer { unsent: progress.unsent }
        }
        FaultKind::BadResponse | FaultKind::ResponseHeadTooLarge if repeatable && policy.is_some() => {
            Missing::Answer { unsent: false }
        }
        _ => return Decision::GiveUp,
    };
    after(missing, policy)
}

/// Whether an upstream has, or lets in, no node that could be asked next: what it was to be asked can be asked
/// of another upstream.
pub(crate) fn has_no_node_left(fault: Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::NoNode
            | FaultKind::DnsError
            | FaultKind::DnsTimeout
            | FaultKind::NodesExhausted
            | FaultKind::BreakerOpen
            | FaultKind::Overloaded
    )
}

/// Whether a node was not there in time, or took or gave something too late.
pub(crate) fn is_late(fault: Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::ConnectTimeout | FaultKind::UpstreamSendTimeout | FaultKind::ResponseTimeout
    )
}

/// The step after an attempt that could not get what is missing and may be repeated.
pub(crate) fn after(missing: Missing, policy: Option<&RetryPolicy>) -> Decision {
    match policy.is_none_or(|policy| policy.wants(missing)) {
        true => Decision::NextNode,
        false => Decision::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: FaultKind, method: Method, flags: &str, expected: Decision) {
        let has = |flag| flags.contains(flag);
        let progress =
            Progress { unsent: has('u'), stale: has('s'), replayable: !has('b'), answered: has('a') };
        let decision = decide(Fault::new(kind, ""), method, progress, None);
        assert_eq!(decision, expected, "{kind:?} {method:?} {flags}");
    }

    #[test]
    fn what_is_repeated() {
        use Decision::{GiveUp, NextNode, SameNode};
        check(FaultKind::ConnectRefused, Method::Post, "u", NextNode);
        check(FaultKind::ProtocolMismatch, Method::Post, "u", NextNode);
        check(FaultKind::ConnectTimeout, Method::Get, "u", NextNode);
        check(FaultKind::TlsCertificate, Method::Post, "u", NextNode);
        check(FaultKind::TlsProtocol, Method::Post, "ub", GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Get, "s", SameNode);
        check(FaultKind::ConnectionTerminated, Method::Get, "", NextNode);
        check(FaultKind::ConnectionTerminated, Method::Post, "s", GiveUp);
        check(FaultKind::NodeWithdrawn, Method::Get, "s", NextNode);
        check(FaultKind::NodeWithdrawn, Method::Post, "", GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Post, "su", SameNode);
        check(FaultKind::ConnectionTerminated, Method::Put, "b", GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Get, "a", GiveUp);
        check(FaultKind::ResponseTimeout, Method::Get, "", NextNode);
        check(FaultKind::ResponseTimeout, Method::Post, "", GiveUp);
        check(FaultKind::BadResponse, Method::Get, "s", GiveUp);
        check(FaultKind::ClientGone, Method::Get, "", GiveUp);
    }
    #[test]
    fn what_a_policy_repeats() {
        use Decision::{GiveUp, NextNode, SameNode};
        let config: sigma_config::resources::RetryPolicy =
            serde_json::from_str(r#"{ "retry_on": ["reset"], "methods": ["POST"] }"#).expect("a policy");
        let policy = RetryPolicy::from(&config);
        let check = |kind, method, stale, expected| {
            let progress = Progress { unsent: false, stale, replayable: true, answered: false };
            let decision = decide(Fault::new(kind, ""), method, progress, Some(&policy));
            assert_eq!(decision, expected, "{kind:?} {method:?}");
        };
        check(FaultKind::ConnectRefused, Method::Post, false, GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Post, false, NextNode);
        check(FaultKind::ConnectionTerminated, Method::Get, false, GiveUp);
        // What the pool found dead says nothing of the node.
        check(FaultKind::ConnectionTerminated, Method::Post, true, SameNode);
        check(FaultKind::BadResponse, Method::Post, false, NextNode);
        for kind in FaultKind::ALL.iter().filter(|kind| kind.side() != Side::Upstream) {
            check(*kind, Method::Post, true, GiveUp);
        }
    }
}
