//! Entering an upstream that has guards, and what its guards learn from the exchange.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use sigma_config::expr::{VarValue, Variables};
use sigma_http::{Fault, FaultKind};
use sigma_net::{Deadline, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::Reply;
use sigma_plugin::machine::{Host, Machine};
use sigma_plugin::record::Attempt;
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::overload::breaker::{Outcome, Pass, Turn};
use sigma_upstream::overload::gate::{Full, Permit};
use sigma_upstream::overload::gradient::Begun;

use sigma_wire::Departure;

use super::plan::Plan;
use super::transfer::client_gone;
use super::{Exchange, client, grpc};
use crate::attempts::{Attempts, Picked};
use crate::guards::{BreakerRules, Fallback, Guards, Limit, OwnGuards};
use crate::snapshot::{Route, Upstream};
use crate::worker::{View, Worker};

/// A request on its way past the guards of an upstream. Dropped before it is ended, it says nothing of the
/// upstream.
struct Passage<'p> {
    worker: &'p Worker,
    upstream: &'p Upstream,
    guards: &'p Guards,
    own: Rc<OwnGuards>,
    pass: Option<Pass>,
    begun: Option<Begun>,
    /// Kept until the exchange is over.
    permit: Option<Permit>,
}

/// The answer of an upstream, as far as guards look at it.
#[derive(Debug, Clone, Copy)]
enum Seen {
    /// It answered with this status, after so many milliseconds if anybody asked.
    Answer { status: u16, latency_ms: Option<f64> },
    /// It did not answer.
    Failure,
    /// Something else ended the exchange.
    Nothing,
}

impl Exchange<'_, '_> {
    /// As [`Exchange::forward`], for an upstream with guards, or with members. A fallback of its breaker is served if it
    /// `may_fall_back`.
    pub(super) async fn forward_guarded(
        &mut self,
        view: &View,
        route: &Route,
        number: u32,
        may_fall_back: bool,
    ) -> Result<(), Fault> {
        let Some(upstream) = view.snapshot.upstream(number) else {
            return self.forward(view, route, number).await;
        };
        if !upstream.is_for_requests() {
            let reason = "the upstream is for stream routes, and not for requests";
            return Err(Fault::new(FaultKind::NoUpstream, reason));
        }
        if !upstream.members.is_empty() {
            return Box::pin(self.forward_among(view, route, &upstream.members, may_fall_back)).await;
        }
        let Some(guards) = upstream.guards.as_deref() else {
            return self.forward(view, route, number).await;
        };
        let mut passage = Passage::begin(self.worker, number, upstream, guards);
        if let Err(fault) = passage.ask_breaker() {
            drop(passage);
            return match may_fall_back {
                true => self.fall_back(view, route, guards, fault).await,
                false => Err(fault),
            };
        }
        let priority = guards.limit.as_ref().map_or(0, |limit| self.priority(limit));
        // The time of the exchange goes on in the queue.
        let began_ms = deadline::now_ms();
        let asking = passage.ask_others(priority);
        match self.time_left(route, upstream, grpc::is_call(&self.scratch.ctx.request))? {
            None => self.while_there(asking).await?,
            Some(time) => time.bound(self.while_there(asking)).await?,
        }
        self.scratch.spent_ms += deadline::now_ms().saturating_sub(began_ms);
        if guards.asks_for_time() {
            self.scratch.ctx.record.started.get_or_insert_with(Instant::now);
        }
        let result = self.forward(view, route, number).await;
        let record = &self.scratch.ctx.record;
        let seen = match (result, self.scratch.verdict) {
            (Err(_), _) if self.scratch.blames_node => Seen::Failure,
            (Ok(()), Some(status)) => {
                let latency_ms = record.attempts.last().and_then(Attempt::waited_ms);
                Seen::Answer { status, latency_ms }
            }
            _ => Seen::Nothing,
        };
        passage.end(seen);
        result
    }

    /// The outcome of `work`, unless the client leaves meanwhile. One that has only ended its sending has the
    /// time that it has elsewhere.
    async fn while_there(&mut self, work: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
        let mut work = pin!(work);
        let (mut half_closed, patience) = (false, Deadline::new());
        // Of a client that is still to send a body this is found in the body.
        let is_complete = self.down.body_length().is_empty();
        poll_fn(|task| {
            if let ready @ Poll::Ready(_) = work.as_mut().poll(task) {
                return ready;
            }
            match is_complete.then(|| self.down.poll_departure(task)) {
                Some(Poll::Ready(Departure::Gone)) => return Poll::Ready(Err(client_gone())),
                Some(Poll::Ready(Departure::HalfClosed)) if !half_closed => {
                    half_closed = true;
                    patience.set(self.view.snapshot.settings.timeouts.half_close_ms.into());
                }
                _ => {}
            }
            patience.poll_expired(task).map(|()| Err(client_gone()))
        })
        .await
    }

    async fn fall_back(
        &mut self,
        view: &View,
        route: &Route,
        guards: &Guards,
        fault: Fault,
    ) -> Result<(), Fault> {
        match guards.breaker.as_ref().and_then(|breaker| breaker.fallback.as_ref()) {
            None => Err(fault),
            Some(Fallback::Upstream(key)) => match view.snapshot.upstream_number(key) {
                None => Err(Fault::new(FaultKind::NoUpstream, "the upstream to fall back to does not exist")),
                Some(other) => Box::pin(self.forward_guarded(view, route, other, false)).await,
            },
            Some(Fallback::Answer { status, content_type, body }) => {
                let reply = Reply::new(*status)
                    .header("Content-Type", content_type.as_bytes().to_vec())
                    .text(body.to_vec());
                self.reply(reply.into()).await
            }
        }
    }

    /// The node of the next attempt, with a place on it, where each node has so many; no later than the
    /// exchange has time.
    pub(super) async fn pick_free(&mut self, plan: &mut Plan<'_>, limit: &Limit) -> Result<Picked, Fault> {
        let Plan { attempts, time, .. } = plan;
        match time {
            None => self.wait_for_free(attempts, limit).await,
            Some(time) => time.bound(self.wait_for_free(attempts, limit)).await,
        }
    }

    async fn wait_for_free(&mut self, attempts: &mut Attempts<'_>, limit: &Limit) -> Result<Picked, Fault> {
        let node = attempts.pick_free(limit)?;
        if node.has_place() {
            return Ok(node);
        }
        let (worker, priority) = (self.worker, self.priority(limit));
        let mut found = None;
        let wait = async {
            let full = "the nodes of the upstream have as many requests as each may have";
            let wait = async || wait_for_node(attempts, &node, limit, priority).await;
            found = wait_in_queue(worker, limit, full, wait).await?;
            Ok(())
        };
        self.while_there(wait).await?;
        // In a dry run it is asked all the same.
        Ok(found.unwrap_or(node))
    }

    /// How urgent the request is for a queue: the value of the limit's variable.
    fn priority(&mut self, limit: &Limit) -> i32 {
        let Some(name) = &limit.priority else { return 0 };
        if !self.stage.is_guided() {
            self.scratch.ctx.client = client(&self.down, &self.view);
        }
        match Variables::get(&self.scratch.ctx, name) {
            Some(VarValue::Text(text)) => {
                std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
            }
            _ => 0,
        }
    }
}

/// Refuses, or counts what a dry run would have refused.
fn refuse(
    worker: &Worker,
    dry_run: bool,
    counter: Counter,
    kind: FaultKind,
    reason: &'static str,
) -> Result<(), Fault> {
    worker.counters.add(if dry_run { Counter::UpstreamRefusedDryRun } else { counter }, 1);
    if dry_run { Ok(()) } else { Err(Fault::new(kind, reason)) }
}

/// How often a node may turn out to be gone or down when its place was waited for.
const TURNS_MAX: usize = 8;

/// Waits for a place on the node that was picked `first` if the request keeps to it, else on any of the upstream.
async fn wait_for_node(
    attempts: &mut Attempts<'_>,
    first: &Endpoint,
    limit: &Limit,
    priority: i32,
) -> Result<Result<Picked, Fault>, Full> {
    let mut later: Option<Picked> = None;
    for _ in 0..TURNS_MAX {
        let node = later.as_deref().unwrap_or(first);
        let place = match limit.to_node(node).filter(|_| attempts.keeps_to_node()) {
            Some(way) => way.gate.enter(way.bounds, priority).await?,
            None => {
                let waiting = node.health.line().join(limit.queue_length, priority)?;
                // A node may have become free before the request was in the line.
                match attempts.pick_free(limit) {
                    Ok(node) if !node.has_place() => waiting.await,
                    found => return Ok(found),
                }
            }
        };
        if let Some(node) = attempts.placed(place) {
            return Ok(Ok(node));
        }
        match attempts.pick() {
            Ok(node) => later = Some(node),
            fault => return Ok(fault),
        }
    }
    Ok(Err(Fault::new(FaultKind::NoNode, "the nodes of the upstream come and go")))
}

/// A place that is waited for as long as the limit allows; None if a dry run goes on without. Without a queue
/// nobody waits, as the upstream is `full`.
async fn wait_in_queue<P>(
    worker: &Worker,
    limit: &Limit,
    full: &'static str,
    wait: impl AsyncFnOnce() -> Result<Result<P, Fault>, Full>,
) -> Result<Option<P>, Fault> {
    let reason = match limit.queue_ms.filter(|_| !limit.dry_run) {
        None => full,
        Some(queue_ms) => {
            let patience = Deadline::new();
            patience.set(queue_ms);
            match patience.bound(pin!(wait())).await {
                Some(Ok(place)) => return place.map(Some),
                Some(Err(Full)) => "the queue in front of the upstream is full",
                None => "the request has waited too long for the upstream",
            }
        }
    };
    refuse(worker, limit.dry_run, Counter::UpstreamRefusedLimit, FaultKind::Overloaded, reason)?;
    Ok(None)
}

impl<'p> Passage<'p> {
    /// A request that asks for its way.
    fn begin(
        worker: &'p Worker,
        number: u32,
        upstream: &'p Arc<Upstream>,
        guards: &'p Guards,
    ) -> Passage<'p> {
        let own = worker.towards(number, upstream).own_guards(guards);
        Passage { worker, upstream, guards, own, pass: None, begun: None, permit: None }
    }

    /// Asks the guards beside the breaker, the queue last.
    async fn ask_others(&mut self, priority: i32) -> Result<(), Fault> {
        self.ask_admission()?;
        self.ask_concurrency()?;
        if let Some(limit) = &self.guards.limit
            && let Some(way) = limit.to_upstream()
        {
            let full = "the upstream has as many requests as it may have";
            let wait = async || way.gate.enter(way.bounds, priority).await.map(Ok);
            self.permit = match way.gate.try_enter(way.bounds) {
                None => wait_in_queue(self.worker, limit, full, wait).await?,
                permit => permit,
            };
        }
        Ok(())
    }

    fn ask_breaker(&mut self) -> Result<(), Fault> {
        let Some(rules) = &self.guards.breaker else { return Ok(()) };
        self.pass = rules.breaker.admit(self.now_ms());
        if self.pass.is_some() {
            return Ok(());
        }
        let reason = "the circuit breaker of the upstream is open";
        refuse(self.worker, rules.dry_run, Counter::UpstreamRefusedBreaker, FaultKind::BreakerOpen, reason)
    }

    fn ask_admission(&self) -> Result<(), Fault> {
        let (Some(admission), Some(rules)) = (&self.own.admission, &self.guards.admission) else {
            return Ok(());
        };
        if admission.borrow_mut().admits(deadline::now_ms(), self.worker.random()) {
            return Ok(());
        }
        let reason = "too few requests to the upstream succeed";
        refuse(self.worker, rules.dry_run, Counter::UpstreamRefusedAdmission, FaultKind::Overloaded, reason)
    }

    fn ask_concurrency(&mut self) -> Result<(), Fault> {
        let (Some(gradient), Some(rules)) = (&self.own.concurrency, &self.guards.concurrency) else {
            return Ok(());
        };
        if !gradient.borrow().admits() {
            let reason = "the upstream has as many requests as it serves without delay";
            let counter = Counter::UpstreamRefusedConcurrency;
            refuse(self.worker, rules.dry_run, counter, FaultKind::Overloaded, reason)?;
        }
        self.begun = Some(gradient.borrow_mut().begin());
        Ok(())
    }

    /// On the clock that all workers have in common.
    fn now_ms(&self) -> u64 {
        Host.uptime().as_millis() as u64
    }

    /// The exchange is over.
    fn end(mut self, seen: Seen) {
        self.tell(seen);
    }

    fn tell(&mut self, seen: Seen) {
        let latency = match seen {
            Seen::Answer { latency_ms, .. } => latency_ms,
            _ => None,
        };
        if let (Some(gradient), Some(begun)) = (&self.own.concurrency, self.begun.take()) {
            gradient.borrow_mut().end(begun, deadline::now_ms(), latency, self.worker.random());
        }
        if let (Some(rules), Some(pass)) = (&self.guards.breaker, self.pass.take()) {
            let outcome = outcome(rules, seen);
            match rules.breaker.record(&self.own.tally, pass, outcome, self.now_ms()) {
                None => {}
                Some(Turn::Opened) => {
                    tracing::warn!(upstream = %self.upstream.key, "the circuit breaker opens");
                }
                Some(Turn::Closed) => {
                    tracing::warn!(upstream = %self.upstream.key, "the circuit breaker closes");
                }
            }
        }
        if let Some(admission) = &self.own.admission {
            match seen {
                Seen::Answer { status, .. } => {
                    admission.borrow_mut().record(deadline::now_ms(), status < 500)
                }
                Seen::Failure => admission.borrow_mut().record(deadline::now_ms(), false),
                Seen::Nothing => {}
            }
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if self.pass.is_some() || self.begun.is_some() {
            self.tell(Seen::Nothing);
        }
    }
}

/// What a breaker makes of an answer.
fn outcome(rules: &BreakerRules, seen: Seen) -> Outcome {
    match seen {
        Seen::Nothing => Outcome::Nothing,
        Seen::Failure => Outcome::Failure,
        Seen::Answer { status, .. } if rules.failures.contains(&status) => Outcome::Failure,
        Seen::Answer { latency_ms, .. } => {
            let slow = rules.slow_ms.zip(latency_ms).is_some_and(|(slow, latency)| latency >= slow);
            if slow { Outcome::Slow } else { Outcome::Success }
        }
    }
}
