//! Hedged requests: a second node gets the request while the first is late, and the first response is used.

use std::future::poll_fn;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use sigma_http::{Fault, FaultKind};
use sigma_net::{Deadline, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::system::{Host, System};
use sigma_upstream::balance::Outcome;
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::pool::InUse;
use sigma_wire::HeadLimits;

use super::Exchange;
use super::plan::{Ended, Plan, State};
use super::transfer::client_gone;
use crate::attempt::attempts::Busy;
use crate::attempt::picked::Picked;
use crate::attempt::retry::Hedging;
use crate::attempt::target;

/// The result of a request that two nodes may have got.
pub(super) enum Raced {
    /// The first connection has a response, or has failed
    First(InUse),
    /// The second node was first, with this end of the exchange
    Ended(Ended),
}

/// A second attempt that was faster.
struct Second<'p> {
    node: Picked,
    in_flight: Busy<'p>,
    connection: InUse,
}

/// The end of a wait.
enum First {
    /// A response begins on the first connection, or it has failed without another one left
    Theirs,
    /// A response begins on the second connection
    Seconds,
    /// It is time for the second node
    TimeOver,
}

impl Exchange<'_, '_> {
    /// Returns the hedging settings of an attempt, if the request may be hedged.
    pub(super) fn hedging(&self, plan: &Plan<'_>) -> Option<Hedging> {
        let policy = plan.attempts.policy?;
        let hedging = policy.hedging?;
        let method = self.scratch.ctx.request.method;
        let bare = !self.scratch.has_body() && self.scratch.upgrade.is_empty();
        (bare && policy.may_repeat(method)).then_some(hedging)
    }

    /// Waits until a response begins on `connection`, on which the request was sent. If it takes too long, another
    /// node gets the request; if that is faster, the exchange continues with it.
    pub(super) async fn hedge(
        &mut self,
        plan: &Plan<'_>,
        node: &Endpoint,
        mut connection: InUse,
        hedging: Hedging,
        state: &mut State<'_>,
    ) -> Result<Raced, Fault> {
        match self.race(plan, node, &mut connection, hedging, state).await? {
            None => Ok(Raced::First(connection)),
            Some(second) => {
                drop(connection);
                self.go_on_with(plan, second, state).await.map(Raced::Ended)
            }
        }
    }

    async fn race<'p>(
        &mut self,
        plan: &'p Plan<'_>,
        node: &Endpoint,
        connection: &mut InUse,
        hedging: Hedging,
        state: &mut State<'_>,
    ) -> Result<Option<Second<'p>>, Fault> {
        let upstream_state = &plan.attempts.upstream_state;
        let began = hedging.percentile().map(|percentile| (percentile, Host.uptime()));
        let delay = Duration::from_millis(hedging.delay_ms(&upstream_state.recent.borrow()));
        let limits = &plan.view.answer_limits;
        let patience = Deadline::new();
        patience.set(plan.timeouts().read_ms);
        let mut timer = Box::pin(tokio::time::sleep(delay));
        let first = poll_fn(|task| {
            if let Poll::Ready(ended) = self.poll_first(task, connection, None, limits, &patience) {
                return Poll::Ready(ended);
            }
            // Its caller sees the end.
            if state.poll_try_over(&self.worker.drain, task).is_ready() {
                return Poll::Ready(Ok(First::Theirs));
            }
            timer.as_mut().poll(task).map(|()| Ok(First::TimeOver))
        });
        let mut second = None;
        if let First::TimeOver = first.await? {
            second = self.ask_second(plan, node, connection, &patience, state).await?;
        }
        if let Some((percentile, began)) = began {
            // If the second was first, the first would have taken longer: the time is a lower bound.
            upstream_state.recent.borrow_mut().note((Host.uptime() - began).as_millis() as u64, percentile);
        }
        Ok(second)
    }

    /// Sends the request to another node; returns it if its response begins first.
    async fn ask_second<'p>(
        &mut self,
        plan: &'p Plan<'_>,
        node: &Endpoint,
        connection: &mut InUse,
        patience: &Deadline,
        state: &mut State<'_>,
    ) -> Result<Option<Second<'p>>, Fault> {
        let Some(other) = plan.attempts.pick_second(node) else { return Ok(None) };
        state.is_for_another = true;
        // Some hooks sign the request for this node. A hook with a reply, or a failing one, leaves the first attempt
        // unchanged.
        if !matches!(self.before_proxy(plan, &other, state).await, Ok(None)) {
            return Ok(None);
        }
        self.worker.counters.add(Counter::UpstreamHedges, 1);
        let in_flight = plan.attempts.begin(&other);
        let asked = self.scratch.ctx.record.started.map(|_| Instant::now());
        self.address(plan, &other, state);
        let terms = self.terms(plan.upstream())?;
        let limits = &plan.view.answer_limits;
        let demands = self.demands(plan, &other, plan.timeouts().connect_ms);
        let target = target::target(&plan.view.snapshot, plan.upstream(), &other, &demands);
        let mut dialled = match self.worker.checkout(&target) {
            Some(kept) => kept,
            None => {
                let worker = self.worker;
                let mut dial = Box::pin(worker.connect(&target));
                let dialled = poll_fn(|task| {
                    match self.poll_first(task, connection, None, limits, patience) {
                        Poll::Ready(ended) => Poll::Ready(ended.map(|_| None)),
                        // If it cannot be sent, the first attempt continues.
                        Poll::Pending => dial.as_mut().poll(task).map(|dialled| Ok(dialled.ok())),
                    }
                });
                match dialled.await? {
                    Some(dialled) => dialled,
                    None => return Ok(None),
                }
            }
        };
        self.send_head(&mut dialled, terms);
        let drain = &self.worker.drain;
        let first =
            poll_fn(|task| match self.poll_first(task, connection, Some(&mut dialled), limits, patience) {
                Poll::Pending => state.poll_try_over(drain, task).map(|_| Ok(First::Theirs)),
                ready => ready,
            });
        match first.await? {
            First::Seconds => {
                self.worker.counters.add(Counter::UpstreamHedgesWon, 1);
                self.note_attempt(&other, asked);
                self.scratch.ctx.record.speaks(dialled.version());
                Ok(Some(Second { node: other, in_flight, connection: dialled }))
            }
            _ => Ok(None),
        }
    }

    /// Ready when one of the connections has a part of a response, or the last one has failed: then it is the first,
    /// whose fault is seen on reading.
    fn poll_first(
        &mut self,
        task: &mut task::Context<'_>,
        first: &mut InUse,
        second: Option<&mut InUse>,
        limits: &HeadLimits,
        patience: &Deadline,
    ) -> Poll<Result<First, Fault>> {
        if self.down.poll_departure(task).is_ready() {
            return Poll::Ready(Err(client_gone()));
        }
        let theirs = poll_answer(first, task, limits);
        let seconds = second.map_or(Poll::Ready(Err(())), |second| poll_answer(second, task, limits));
        match (theirs, seconds) {
            (Poll::Ready(Ok(())), _) | (Poll::Ready(Err(())), Poll::Ready(Err(()))) => {
                Poll::Ready(Ok(First::Theirs))
            }
            (_, Poll::Ready(Ok(()))) => Poll::Ready(Ok(First::Seconds)),
            // The caller sees the end of the time.
            _ => patience
                .poll_expired(task)
                .map(|()| Err(Fault::new(FaultKind::ResponseTimeout, "the response did not arrive in time"))),
        }
    }

    /// Continues an exchange whose second attempt was faster.
    async fn go_on_with(
        &mut self,
        plan: &Plan<'_>,
        second: Second<'_>,
        state: &mut State<'_>,
    ) -> Result<Ended, Fault> {
        let Second { node, in_flight, mut connection } = second;
        state.begin_session(&node);
        let ended = self.converse(plan, &mut connection, state).await;
        // Another exchange of the node announces it again.
        self.scratch.response.alternative = None;
        in_flight.end(Outcome { latency_ms: None, now_ms: deadline::now_ms() });
        let ended = match ended {
            Ok(ended @ (Ended::Whole | Ended::Left(_))) => {
                if state.request_sent {
                    let demands = self.demands(plan, &node, 0);
                    let target = target::target(&plan.view.snapshot, plan.upstream(), &node, &demands);
                    connection.give_back(&target, deadline::now_ms());
                }
                Ok(if matches!(ended, Ended::Whole) { Ended::Spent } else { ended })
            }
            Ok(Ended::Apart(both)) => {
                let (fill, own) = *both;
                Ok(self.fetch(plan, &node, connection, fill, own))
            }
            ended => ended,
        };
        state.answered_by(node);
        state.leave_node();
        ended
    }
}

/// Returns true when a response begins, false if there will be none.
fn poll_answer(
    connection: &mut InUse,
    task: &mut task::Context<'_>,
    limits: &HeadLimits,
) -> Poll<Result<(), ()>> {
    match connection.poll_flush(task) {
        Poll::Pending => Poll::Pending,
        // Its response may be there nevertheless.
        Poll::Ready(_) => connection.poll_answer(task, limits).map_err(drop),
    }
}
