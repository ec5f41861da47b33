//! Attempts on the nodes of an upstream: the next node, reports to health checks, and the end (APISIX: `retries`,
//! `retry_timeout`). Both requests and bytes of sessions use this code.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{Fault, FaultKind, Headers, Method, Side};
use sigma_net::deadline;
use sigma_observe::counters::Counter;
use sigma_upstream::balance::{Balancer, InFlight, PickContext, Token, Tried};
use sigma_upstream::endpoint::{Address, Endpoint};
use sigma_upstream::identity::EndpointId;
use sigma_upstream::overload::gate::Permit;

use crate::attempt::guards::Limit;
use crate::attempt::judge::{FailedAttempt, Judge, out_of_service};
use crate::attempt::picked::Picked;
use crate::attempt::retry::{Missing, RetryPolicy};
use crate::snapshot::{Destinations, Session, Upstream};
use crate::worker::{UpstreamState, Worker};

/// The reason of a fault if an upstream has no node.
pub(crate) const NO_NODE: &str = "the upstream has no node";

/// The attempts of one request or session on an upstream.
pub(crate) struct Attempts<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) upstream: &'a Arc<Upstream>,
    /// Replaces the default rule.
    pub(crate) policy: Option<&'a RetryPolicy>,
    pub(crate) upstream_state: Rc<UpstreamState>,
    /// Boxed, as few upstreams need it.
    choice: Option<Box<Choice>>,
    tried: Tried,
    retries: Cell<u32>,
    /// From a clock that wraps after 49 days.
    began_ms: u32,
}

/// A node with a running attempt.
pub(crate) type Busy<'b> = InFlight<&'b RefCell<Balancer>>;

/// The properties of a request or session that decide on its node.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// The value for consistent hashing.
    pub(crate) key: Option<Box<[u8]>>,
    /// The session that the request names.
    pub(crate) session: Session,
    /// The metadata that the node must have.
    pub(crate) subset: Option<Box<[u8]>>,
    /// The node that the client has chosen, for an upstream of original destinations.
    pub(crate) destination: Option<Result<SocketAddr, Fault>>,
    /// The node of the last attempt, with session affinity.
    pub(crate) given: Option<Token>,
    /// Another address of the last attempt's node, which is tried next.
    next: Option<EndpointId>,
    /// The number of attempts on another address of the same node.
    readdressed: u8,
}

impl Choice {
    /// Returns the choice for a request or session.
    pub(crate) fn new(key: Option<Box<[u8]>>, session: Session, subset: Option<Box<[u8]>>) -> Choice {
        Choice { key, session, subset, ..Choice::default() }
    }

    /// Returns the choice of the node that the client has chosen, or why it cannot be used.
    pub(crate) fn destined(destination: Result<SocketAddr, Fault>) -> Choice {
        Choice { destination: Some(destination), ..Choice::default() }
    }

    /// Returns true if the request got the node of its session.
    fn is_in_session(&self) -> bool {
        self.session.node.is_some() && self.session.node == self.given
    }
}

/// Returns the parts of a [`Choice`] for a pick: key, session and subset.
fn wishes(choice: Option<&Choice>) -> (Option<&[u8]>, Option<Token>, Option<&[u8]>) {
    choice.map_or((None, None, None), |c| (c.key.as_deref(), c.session.node, c.subset.as_deref()))
}

/// The number of nodes that are tried in the search for one with room.
const LOOKS_MAX: usize = 32;

/// The number of further node addresses that an exchange tries, in addition to its retries: each is refused at once,
/// or costs [`LINK_MS`].
const READDRESSED_MAX: u8 = 3;

/// The time that an address has for a connection before another address of the same node is tried. RFC 8305 §5 starts
/// the second after 250 ms in parallel; here the first is given up, so it has slightly more time.
const LINK_MS: Option<NonZeroU32> = NonZeroU32::new(400);

/// The failure of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    /// The next step, as far as the attempt itself decides it.
    pub(crate) decision: Decision,
    /// The node had everything it needed: neither a slow client nor the end of the client's time made the attempt
    /// fail.
    pub(crate) request_sent: bool,
    /// The status of the response if no attempt follows; None if the client has a response already.
    pub(crate) status: Option<u16>,
}

impl Failure {
    /// Returns true if the node's address took no connection: then another address of the node is as good.
    fn is_unconnected(&self) -> bool {
        matches!(self.fault.kind, FaultKind::ConnectRefused | FaultKind::ConnectTimeout)
    }
}

impl<'a> Attempts<'a> {
    /// Returns attempts on the upstream with this number, for the node of `choice`, with the rules of `policy`.
    pub(crate) fn new(
        worker: &'a Worker,
        number: u32,
        upstream: &'a Arc<Upstream>,
        policy: Option<&'a RetryPolicy>,
        choice: Option<Box<Choice>>,
    ) -> Attempts<'a> {
        let (upstream_state, began_ms) = (worker.upstream_state(number, upstream), deadline::now_ms() as u32);
        upstream_state.load.begin();
        let tried = Tried::default();
        Attempts { worker, upstream, policy, upstream_state, choice, tried, retries: Cell::new(0), began_ms }
    }

    /// Returns the node of the next attempt.
    ///
    /// # Errors
    /// Returns an error if every node was tried or is unusable.
    pub(crate) fn pick(&mut self) -> Result<Picked, Fault> {
        if let Some(destinations) = &self.upstream.destinations {
            return self.pick_destination(destinations);
        }
        let mut balancer = self.upstream_state.balancer.borrow_mut();
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
            // A policy waits between attempts: a failed node is worth another attempt.
            self.tried = Tried::default();
            picked = pick(&self.tried);
        }
        match picked {
            Some(index) => {
                let picked = Picked::new(&balancer, index);
                if self.upstream.selection.affinity.is_some()
                    && let Some(choice) = &mut self.choice
                {
                    choice.given = balancer.token_of(picked.id());
                }
                Ok(picked)
            }
            None if balancer.endpoints().endpoints.is_empty() => {
                let nobody = Fault::new(FaultKind::NoNode, NO_NODE);
                Err(balancer.endpoints().unresolved.unwrap_or(nobody))
            }
            None if balancer.keeps_to(session) => {
                Err(Fault::new(FaultKind::NoNode, "the node of the session no longer exists"))
            }
            None if self.tried.is_empty() && balancer.is_refusing() => Err(Fault::new(
                FaultKind::NoNode,
                "too few nodes of the upstream are usable, or no node has the required metadata",
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

    /// Returns the node that the client has chosen.
    fn pick_destination(&self, destinations: &Destinations) -> Result<Picked, Fault> {
        let none = Fault::new(FaultKind::NoNode, "only the request of a client has an original destination");
        let destination = self.choice.as_ref().and_then(|choice| choice.destination);
        let addr = destination.unwrap_or(Err(none))?;
        match self.tried.is_empty() {
            true => Ok(Picked::only(self.upstream_state.chosen.borrow_mut().node(addr, destinations))),
            false => Err(Fault::new(FaultKind::NodesExhausted, "the destination of the client was tried")),
        }
    }

    /// Returns the node at this address, which already has the session; None if the upstream has no such node. It has
    /// a permit of the node if one is free.
    pub(crate) fn pick_at(&mut self, addr: SocketAddr) -> Option<Picked> {
        let mut balancer = self.upstream_state.balancer.borrow_mut();
        balancer.refresh(deadline::now_ms());
        let is_at = |node: &Endpoint| node.addr == Address::Tcp(addr);
        let index = balancer.endpoints().endpoints.iter().position(is_at)?;
        let mut picked = Picked::new(&balancer, index);
        if let Some(limit) = self.upstream.node_limit() {
            picked.enters(limit);
        }
        Some(picked)
    }

    /// As [`Attempts::pick`], if each node has a limit: returns a node with room, and takes a permit. Without one, or
    /// if the session's node is full, returns the node to wait for.
    ///
    /// # Errors
    /// Returns an error if every node was tried or is unusable.
    pub(crate) fn pick_free(&mut self, limit: &Limit) -> Result<Picked, Fault> {
        let mut first = self.pick()?;
        let (key, _, subset) = wishes(self.choice.as_deref());
        if first.enters(limit) || self.choice.as_ref().is_some_and(|choice| choice.is_in_session()) {
            return Ok(first);
        }
        let mut tried = self.tried.clone();
        tried.insert(first.id());
        let mut balancer = self.upstream_state.balancer.borrow_mut();
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

    /// Returns true if the request must wait for the picked node even if others are free: it belongs to a session
    /// there, or needs metadata that few nodes have.
    pub(crate) fn keeps_to_node(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.is_in_session() || choice.subset.is_some())
    }

    /// Returns the node of this permit's gate; None if it is not usable any more.
    pub(crate) fn placed(&mut self, place: Permit) -> Option<Picked> {
        let mut balancer = self.upstream_state.balancer.borrow_mut();
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

    /// Returns a second node besides `first`, if there is one and the rules allow another attempt. It counts as an
    /// attempt.
    pub(crate) fn pick_second(&self, first: &Endpoint) -> Option<Picked> {
        // Only the node of a session can respond for it.
        if self.upstream.selection.affinity.is_some() {
            return None;
        }
        let mut tried = self.tried.clone();
        tried.insert(first.id());
        let mut balancer = self.upstream_state.balancer.borrow_mut();
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
        // An upstream with one node returns that one.
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

    /// Marks a node as tried.
    pub(crate) fn passed_over(&mut self, node: &Endpoint) {
        self.tried.insert(node.id());
    }

    /// Sends the client the node of its session, unless the client names it itself, or learns from the response which
    /// session is on its node.
    pub(crate) fn tell_session(&self, answer: &mut Headers) {
        if let Some(affinity) = &self.upstream.selection.affinity
            && let Some(choice) = &self.choice
            && let Some(token) = choice.given
        {
            let balancer = self.upstream_state.balancer.borrow();
            affinity.answered(choice.session, token, answer, |node| balancer.serves_sessions_of(node));
        }
    }

    /// Records that a node has taken a session: later sessions of the client go there, if the rules say so.
    pub(crate) fn keep_session(&self) {
        if let Some(affinity) = &self.upstream.selection.affinity
            && let Some(choice) = &self.choice
            && let Some(token) = choice.given
        {
            let balancer = self.upstream_state.balancer.borrow();
            affinity.taken(choice.session, token, |node| balancer.serves_sessions_of(node));
        }
    }

    /// Marks the node as busy with the attempt until the result is dropped.
    pub(crate) fn begin(&self, node: &Endpoint) -> Busy<'_> {
        InFlight::begin(&self.upstream_state.balancer, node.id(), deadline::now_ms())
    }

    /// Records a failed attempt, and reports it to health checks. Returns true if another one follows; then the node
    /// counts as tried.
    pub(crate) fn failed(&mut self, node: &Endpoint, failure: &Failure) -> bool {
        self.tried.insert(node.id());
        // A shortage of this machine is not the node's fault, and another node would not help.
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
        self.judge().failed(node, FailedAttempt { fault, request_sent, status });
        if follows && !is_same_node {
            self.count_retry(node);
        }
        follows
    }

    /// Returns another address of the same node, of the other family if possible; None if there is no usable one.
    fn other_address(&self, node: &Endpoint) -> Option<EndpointId> {
        if self.choice.as_ref().is_some_and(|choice| choice.readdressed >= READDRESSED_MAX) {
            return None;
        }
        let balancer = self.upstream_state.balancer.borrow();
        let nodes = &balancer.endpoints().endpoints;
        let others = nodes.iter().filter(|other| {
            other.is_another_address_of(node) && other.health.usable() && !self.tried.contains(other.id())
        });
        others.min_by_key(|other| other.is_of_family_of(node)).map(Endpoint::id)
    }

    /// Returns the time limit of a transport to a node with another untried address; None for the whole connect
    /// timeout.
    pub(crate) fn link_ms(&self, node: &Endpoint) -> Option<NonZeroU32> {
        LINK_MS.filter(|_| node.by_address && self.other_address(node).is_some())
    }

    /// Records a rejected response of a node; another attempt follows. `status` is as in [`Attempts::answered`].
    pub(crate) fn declined(&mut self, node: &Endpoint, status: Option<u16>) {
        self.tried.insert(node.id());
        self.answered(node, status);
        self.count_retry(node);
    }

    /// Reports the status of a node's response to health checks; None if it says nothing about the node.
    pub(crate) fn answered(&self, node: &Endpoint, status: Option<u16>) {
        self.judge().answered(node, status);
    }

    fn judge(&self) -> Judge<'_> {
        Judge::new(self.worker, self.upstream)
    }

    /// Returns true if another attempt may follow the present one.
    pub(crate) fn may_follow(&self) -> bool {
        self.has_retries() && self.is_within_budget()
    }

    /// As [`Attempts::may_follow`], and claims the attempt.
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
        let nodes = || self.upstream_state.balancer.borrow().endpoints().endpoints.len();
        let retries = self.upstream.retry.retries.map_or_else(|| nodes().saturating_sub(1), |n| n as usize);
        let late = self.upstream.retry.timeout_ms > 0
            && u64::from((deadline::now_ms() as u32).wrapping_sub(self.began_ms))
                > self.upstream.retry.timeout_ms;
        (self.retries.get() as usize) < retries && !late
    }

    /// Returns true if the request may be sent to other nodes.
    pub(crate) fn may_repeat_elsewhere(&self, failure: &Failure) -> bool {
        failure.decision == Decision::NextNode
            && failure.fault.side() != Side::Gateway
            && self.is_within_budget()
    }

    fn is_within_budget(&self) -> bool {
        // A request in a further attempt already has its share.
        let budget = self.policy.and_then(|policy| policy.budget).filter(|_| self.retries.get() == 0);
        budget.is_none_or(|budget| self.upstream_state.load.may_retry(budget))
    }

    /// Returns milliseconds to wait before the next attempt; `asked_ms` is the wish of the last node.
    pub(crate) fn pause_ms(&self, asked_ms: Option<u64>) -> u64 {
        self.policy.map_or(0, |policy| policy.pause_ms(self.retries.get(), asked_ms, self.worker.random()))
    }

    fn count_retry(&self, node: &Endpoint) {
        if self.retries.get() == 0 {
            self.upstream_state.load.begin_retry();
        }
        self.retries.set(self.retries.get() + 1);
        self.worker.counters.add(Counter::UpstreamRetries, 1);
        tracing::debug!(upstream = %self.upstream.key, node = %node.addr, "trying the next node");
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        self.upstream_state.load.end(self.retries.get() > 0);
    }
}

/// The progress of a failed attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// No byte of the request was sent.
    pub(crate) unsent: bool,
    /// The connection had served before, and no byte of this response had arrived: most likely the node closed it
    /// while it was idle.
    pub(crate) stale: bool,
    /// The sent part of the body can be sent again.
    pub(crate) replayable: bool,
    /// A byte of the response was sent downstream.
    pub(crate) answered: bool,
}

/// The next step after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A new connection to the same node; does not count as an attempt
    SameNode,
    /// The next node, if attempts are left
    NextNode,
    /// The fault becomes the response
    GiveUp,
}

/// Returns the step after a failed attempt, by `policy` or by the default rule.
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
        // No byte was sent.
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
            Missing::Response { unsent: progress.unsent }
        }
        FaultKind::BadResponse | FaultKind::ResponseHeadTooLarge if repeatable && policy.is_some() => {
            Missing::Response { unsent: false }
        }
        _ => return Decision::GiveUp,
    };
    after(missing, policy)
}

/// Returns true if an upstream has no usable node left: then another upstream may serve the request.
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

/// Returns true if a node was too slow in any phase.
pub(crate) fn is_late(fault: Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::ConnectTimeout | FaultKind::UpstreamSendTimeout | FaultKind::ResponseTimeout
    )
}

/// Returns the step after an attempt of a repeatable call that failed in this part.
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
    fn repeatable_failures() {
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
    fn failures_that_a_policy_repeats() {
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
        // A connection that died in the pool says nothing about the node.
        check(FaultKind::ConnectionTerminated, Method::Post, true, SameNode);
        check(FaultKind::BadResponse, Method::Post, false, NextNode);
        for kind in FaultKind::ALL.iter().filter(|kind| kind.side() != Side::Upstream) {
            check(*kind, Method::Post, true, GiveUp);
        }
    }
}
