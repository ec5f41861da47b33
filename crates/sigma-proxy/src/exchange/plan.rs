//! The state that an exchange with an upstream keeps over its attempts, and that one attempt leaves to the next.

use std::task::{self, Poll};

use sigma_cache::Fill;
use sigma_config::resources::OnUnhealthy;
use sigma_http::{Fault, FaultKind, Method, ResponseHead};
use sigma_net::Deadline;
use sigma_plugin::Context;
use sigma_upstream::endpoint::Endpoint;
use sigma_wire::HeadLimits;

use super::grpc;
use super::local_reply::LocalReply;
use super::remainder::Remainder;
use super::transfer::Upload;
use crate::attempt::attempts::{Attempts, Decision};
use crate::attempt::picked::Picked;
use crate::attempt::retry::{RetryDecision, RetryPolicy};
use crate::attempt::time_limit::TimeLeft;
use crate::edge::withdrawal::Withdrawal;
use crate::snapshot::{Timeouts, Upstream};
use crate::worker::View;
use crate::worker::drain::Drain;

/// One exchange with an upstream, over all its attempts.
pub(super) struct Plan<'p> {
    pub(super) view: &'p View,
    pub(super) timeouts: &'p Timeouts,
    /// Boxed, as few exchanges have any of it.
    pub(super) rare: Option<Box<Rare<'p>>>,
    pub(super) attempts: Attempts<'p>,
}

/// The state that only few exchanges need.
#[derive(Default)]
pub(super) struct Rare<'p> {
    /// The timeouts that override the route and the upstream.
    pub(super) timeouts: Option<Timeouts>,
    /// The time of the exchange as a whole, if it has an end.
    pub(super) time: Option<TimeLeft<'p>>,
}

impl<'p> Plan<'p> {
    /// Returns the time of the exchange as a whole, if it has an end.
    pub(super) fn time(&self) -> Option<&TimeLeft<'p>> {
        self.rare.as_ref()?.time.as_ref()
    }

    pub(super) fn upstream(&self) -> &Upstream {
        self.attempts.upstream
    }

    /// Returns the timeouts of a node.
    pub(super) fn timeouts(&self) -> &Timeouts {
        self.rare.as_ref().and_then(|rare| rare.timeouts.as_ref()).unwrap_or(self.timeouts)
    }

    /// Returns the limits for heads that nodes send.
    pub(super) fn answer_limits(&self) -> &HeadLimits {
        &self.view.answer_limits
    }

    /// Returns the drain of the worker.
    pub(super) fn drain(&self) -> &Drain {
        &self.attempts.worker.drain
    }

    /// Returns the verdict of the head of a response on its node: its status, or the status that the code of a call
    /// maps to.
    pub(super) fn verdict(&self, is_call: bool, head: &ResponseHead) -> Option<u16> {
        match head.status {
            200 if is_call => self.verdict_at_end(grpc::ended_with(&head.headers)),
            status => Some(status),
        }
    }

    /// Returns the verdict of the end of a call. One that ends without a code is judged by its status, which is 200.
    pub(super) fn verdict_at_end(&self, code: Option<grpc::Code>) -> Option<u16> {
        let is_short = || self.time().is_some_and(TimeLeft::is_clients);
        code.map_or(Some(200), |code| code.verdict(is_short))
    }
}

/// The end of an attempt that did not fail.
pub(super) enum Ended {
    /// The connection can be used again.
    Whole,
    /// The connection was used up.
    Spent,
    /// A plugin or the retry policy rejects the node's response, and another node is queried.
    Declined,
    /// A plugin has replaced the node's response with this one.
    Replaced(Box<LocalReply>),
    /// The cache has replaced it, or the filter that rejects its body; no plugin has seen it.
    Instead(Box<LocalReply>),
    /// The same, while the rest of the node's response is fetched for all waiting clients.
    Apart(Box<(Fill, LocalReply)>),
    /// The node has sent all of it, and the client has yet to receive this part.
    Left(Box<Remainder>),
    /// The cache cannot use the response, and has restored the client's request: the same node is queried again.
    Anew,
}

/// The state that one attempt leaves to the next.
#[derive(Debug)]
pub(super) struct State<'p> {
    pub(super) decision: Decision,
    /// The request is a call of gRPC.
    pub(super) is_call: bool,
    /// The node of the attempt has everything that it can wait for: neither the client's slowness nor the end of the
    /// client's own time made it fail.
    pub(super) request_sent: bool,
    /// The upstream allows another attempt.
    pub(super) may_follow: bool,
    /// The request is marked with this pass.
    pub(super) marked: bool,
    /// The request was last written for a hedged attempt on a second node.
    pub(super) is_for_another: bool,
    /// The state that only few exchanges need; boxed, as the others need no room for it.
    pub(super) own_rules: Option<Box<OwnRules<'p>>>,
}

/// The rules that an upstream or a route may have for its sessions, and the state of an attempt under them.
#[derive(Debug)]
pub(super) struct OwnRules<'p> {
    policy: Option<&'p RetryPolicy>,
    /// Sessions end with their nodes.
    closes: bool,
    /// The node of the attempt, if its session ends with it.
    withdrawal: Option<Withdrawal>,
    /// The end of the current attempt's time.
    try_deadline: Deadline,
    /// The pause that the last node requested.
    pub(super) asked_ms: Option<u64>,
    /// The node of the hedged attempt, if it responded first.
    answerer: Option<Picked>,
}

impl<'p> State<'p> {
    /// Returns the state of an exchange with this upstream under `policy`.
    pub(super) fn new(upstream: &Upstream, policy: Option<&'p RetryPolicy>, is_call: bool) -> State<'p> {
        let closes = upstream.config.on_unhealthy == Some(OnUnhealthy::Close);
        let own_rules = (closes || policy.is_some()).then(|| {
            Box::new(OwnRules {
                policy,
                closes,
                withdrawal: None,
                try_deadline: Deadline::new(),
                asked_ms: None,
                answerer: None,
            })
        });
        State {
            decision: Decision::NextNode,
            is_call,
            request_sent: true,
            may_follow: false,
            marked: false,
            is_for_another: false,
            own_rules,
        }
    }

    /// Begins an attempt on this node. Returns the time that it has to connect, at most `connect_ms`.
    pub(super) fn begin_try(&mut self, node: &Endpoint, connect_ms: u64) -> u64 {
        self.begin_session(node);
        let Some(own) = &self.own_rules else { return connect_ms };
        let Some(try_ms) = own.policy.and_then(|policy| policy.per_try_ms) else { return connect_ms };
        own.try_deadline.set(try_ms);
        connect_ms.min(try_ms)
    }

    /// Begins the session with this node.
    pub(super) fn begin_session(&mut self, node: &Endpoint) {
        if let Some(own) = &mut self.own_rules {
            own.withdrawal = own.closes.then(|| Withdrawal::watch(&node.health));
        }
    }

    /// Notes how much of the request the node has. `begins` with the request.
    pub(super) fn note_upload(&mut self, upload: Upload, ctx: &mut Context, begins: bool) {
        let is_sent = upload == Upload::Done;
        if is_sent && (begins || !self.request_sent) {
            ctx.record.sent();
        }
        self.request_sent = is_sent;
    }

    /// Returns true if the policy wants another attempt instead of this response, and one is possible.
    pub(super) fn wants_another(
        &mut self,
        head: &ResponseHead,
        method: Method,
        attempts: &Attempts<'_>,
    ) -> bool {
        let Some(own) = self.own_rules.as_deref_mut() else { return false };
        let Some(RetryDecision::Again(asked_ms)) = own.policy.map(|policy| policy.judge(head, method)) else {
            return false;
        };
        let claimed = attempts.claims_another();
        if claimed {
            own.asked_ms = asked_ms;
        }
        claimed
    }

    /// Excludes the node of a failed second attempt from further ones.
    pub(super) fn leave_node(&mut self) {
        if self.decision == Decision::SameNode {
            self.decision = Decision::NextNode;
        }
    }

    /// Notes that another node has responded than the one that the attempt began with.
    pub(super) fn answered_by(&mut self, node: Picked) {
        if let Some(own) = &mut self.own_rules {
            own.answerer = Some(node);
        }
    }

    pub(super) fn take_answerer(&mut self) -> Option<Picked> {
        self.own_rules.as_mut()?.answerer.take()
    }

    /// Ready when the time of the attempt has ended, its node was taken out, or the worker's `drain` has ended.
    pub(super) fn poll_try_over(
        &self,
        drain: &Drain,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        let drained = drain.poll_over();
        if drained.is_ready() {
            return drained;
        }
        let Some(own) = &self.own_rules else { return Poll::Pending };
        let over = Fault::new(FaultKind::ResponseTimeout, "the time of one attempt has ended");
        let over = own.try_deadline.poll_expired(task).map(|()| Err(over));
        if over.is_pending() { self.poll_withdrawal(task) } else { over }
    }

    fn poll_withdrawal(&self, task: &mut task::Context<'_>) -> Poll<Result<(), Fault>> {
        self.withdrawal().map_or(Poll::Pending, |withdrawal| withdrawal.poll(task))
    }

    /// Returns the node of the attempt, if its session ends with it.
    pub(super) fn withdrawal(&self) -> Option<&Withdrawal> {
        self.own_rules.as_ref()?.withdrawal.as_ref()
    }

    /// Returns the poll's outcome; if that is pending, ready when the node of the attempt was taken out, or the
    /// worker's `drain` has ended.
    pub(super) fn or_cut(
        &self,
        polled: Poll<Result<(), Fault>>,
        drain: &Drain,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        if polled.is_ready() {
            return polled;
        }
        let drained = drain.poll_over();
        if drained.is_ready() { drained } else { self.poll_withdrawal(task) }
    }
}
