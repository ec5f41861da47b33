//! Attempts on the nodes of an upstream: which node is next, what is held against one, and when to
//! stop (APISIX: `retries`, `retry_timeout`). Whatever is sent to a node, a request or the bytes of a
//! session, goes through here.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{Fault, FaultKind, Method, Side};
use sigma_net::deadline;
use sigma_observe::counters::Counter;
use sigma_upstream::balance::{Balancer, InFlight, PickContext, Tried};
use sigma_upstream::endpoint::{Endpoint, LocalSet};

use crate::judge::{Judge, Seen};
use crate::snapshot::Upstream;
use crate::worker::Worker;

/// The attempts that one request or session makes on an upstream.
pub(crate) struct Attempts<'a> {
    worker: &'a Worker,
    upstream: &'a Arc<Upstream>,
    balancer: Rc<RefCell<Balancer>>,
    /// The value that consistent hashing uses.
    key: Option<Box<[u8]>>,
    tried: Tried,
    retries: usize,
    began_ms: u64,
}

/// A node chosen from a set, which stays alive with it.
pub(crate) struct Picked {
    set: LocalSet,
    index: usize,
}

impl std::ops::Deref for Picked {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.set.endpoints[self.index]
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

impl<'a> Attempts<'a> {
    /// On the upstream with this number, which hashes `key` if it hashes.
    pub(crate) fn new(
        worker: &'a Worker,
        number: u32,
        upstream: &'a Arc<Upstream>,
        key: Option<Box<[u8]>>,
    ) -> Attempts<'a> {
        let (balancer, began_ms) = (worker.balancer(number, upstream), deadline::now_ms());
        Attempts { worker, upstream, balancer, key, tried: Tried::default(), retries: 0, began_ms }
    }

    /// The node of the next attempt.
    ///
    /// # Errors
    /// Returns an error if every node was tried or may not be used.
    pub(crate) fn pick(&self) -> Result<Picked, Fault> {
        let mut balancer = self.balancer.borrow_mut();
        let context = PickContext {
            key: self.key.as_deref(),
            tried: &self.tried,
            now_ms: deadline::now_ms(),
            random: self.worker.random(),
        };
        match balancer.pick(&context) {
            Some(index) => Ok(Picked { set: Rc::clone(balancer.endpoints()), index }),
            None if balancer.endpoints().endpoints.is_empty() => {
                Err(Fault::new(FaultKind::NoNode, "the upstream has no node"))
            }
            None => Err(Fault::new(
                FaultKind::NodesExhausted,
                "all nodes of the upstream were tried or none may be used",
            )),
        }
    }

    /// The node counts as busy with the attempt until what is returned is dropped.
    pub(crate) fn begin(&self, node: &Endpoint) -> InFlight<'_> {
        InFlight::begin(&self.balancer, node.id(), deadline::now_ms())
    }

    /// Takes note of an attempt that failed, and tells health checks. Whether another one follows,
    /// for which the node counts as tried.
    pub(crate) fn failed(&mut self, node: &Endpoint, failure: &Failure) -> bool {
        self.tried.insert(node.id());
        // What this machine lacks is no node's fault, and the next one would not have it either.
        if failure.fault.side() == Side::Gateway {
            return false;
        }
        let follows = failure.decision == Decision::NextNode && self.may_follow();
        let Failure { fault, request_sent, status, .. } = *failure;
        // The status is the node's only if the client gets it.
        let status = status.filter(|_| !follows);
        self.judge().failed(node, Seen { fault, request_sent, status });
        if follows {
            self.count_retry(node);
        }
        follows
    }

    /// A node has answered, the answer is not wanted, and another attempt follows.
    pub(crate) fn declined(&mut self, node: &Endpoint, status: u16) {
        self.tried.insert(node.id());
        self.answered(node, status);
        self.count_retry(node);
    }

    /// Tells health checks what the client was answered for a node.
    pub(crate) fn answered(&self, node: &Endpoint, status: u16) {
        self.judge().answered(node, status);
    }

    fn judge(&self) -> Judge<'_> {
        Judge::new(self.worker, self.upstream)
    }

    /// Whether another attempt may follow the present one.
    pub(crate) fn may_follow(&self) -> bool {
        let nodes = self.balancer.borrow().endpoints().endpoints.len();
        let retries = self.upstream.retries.map_or(nodes.saturating_sub(1), |n| n as usize);
        let late = self.upstream.retry_timeout_ms > 0
            && deadline::now_ms().saturating_sub(self.began_ms) > self.upstream.retry_timeout_ms;
        self.retries < retries && !late
    }

    fn count_retry(&mut self, node: &Endpoint) {
        self.retries += 1;
        self.worker.counters.add(Counter::UpstreamRetries, 1);
        tracing::debug!(upstream = %self.upstream.key, node = %node.addr, "trying the next node");
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

pub(crate) fn decide(fault: Fault, method: Method, progress: Progress) -> Decision {
    if progress.answered || !progress.replayable {
        return Decision::GiveUp;
    }
    let repeatable = progress.unsent || method.is_idempotent();
    match fault.kind {
        // Nothing was sent.
        FaultKind::ConnectRefused | FaultKind::ConnectTimeout => Decision::NextNode,
        FaultKind::ConnectionTerminated if progress.stale && repeatable => Decision::SameNode,
        FaultKind::ConnectionTerminated | FaultKind::ResponseTimeout | FaultKind::UpstreamSendTimeout
            if repeatable =>
        {
            Decision::NextNode
        }
        _ => Decision::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: FaultKind, method: Method, flags: &str, expected: Decision) {
        let has = |flag| flags.contains(flag);
        let progress =
            Progress { unsent: has('u'), stale: has('s'), replayable: !has('b'), answered: has('a') };
        assert_eq!(decide(Fault::new(kind, ""), method, progress), expected, "{kind:?} {method:?} {flags}");
    }

    #[test]
    fn what_is_repeated() {
        use Decision::{GiveUp, NextNode, SameNode};
        check(FaultKind::ConnectRefused, Method::Post, "u", NextNode);
        check(FaultKind::ConnectTimeout, Method::Get, "u", NextNode);
        check(FaultKind::ConnectionTerminated, Method::Get, "s", SameNode);
        check(FaultKind::ConnectionTerminated, Method::Get, "", NextNode);
        check(FaultKind::ConnectionTerminated, Method::Post, "s", GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Post, "su", SameNode);
        check(FaultKind::ConnectionTerminated, Method::Put, "b", GiveUp);
        check(FaultKind::ConnectionTerminated, Method::Get, "a", GiveUp);
        check(FaultKind::ResponseTimeout, Method::Get, "", NextNode);
        check(FaultKind::ResponseTimeout, Method::Post, "", GiveUp);
        check(FaultKind::BadResponse, Method::Get, "s", GiveUp);
        check(FaultKind::ClientGone, Method::Get, "", GiveUp);
    }
}
