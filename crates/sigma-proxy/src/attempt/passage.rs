//! The way of a request or a session through the guards of an upstream, and the results that guards learn from.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{Fault, FaultKind};
use sigma_net::{Deadline, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::system::{Host, System};
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::overload::breaker::{Outcome, Pass, Turn};
use sigma_upstream::overload::gate::{Full, Permit};
use sigma_upstream::overload::gradient::Begun;

use crate::attempt::attempts::Attempts;
use crate::attempt::guards::{BreakerRules, Guards, Limit, OwnGuards};
use crate::attempt::picked::Picked;
use crate::snapshot::Upstream;
use crate::worker::Worker;

/// A request on its way through the guards of an upstream. If it is dropped before its end, the guards learn nothing.
pub(crate) struct Passage<'p> {
    worker: &'p Worker,
    upstream: &'p Upstream,
    guards: &'p Guards,
    own: Rc<OwnGuards>,
    pass: Option<Pass>,
    begun: Option<Begun>,
    has_told: bool,
    /// Kept until the exchange, or the session, has ended.
    permit: Option<Permit>,
}

/// The result of an exchange, as guards see it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GuardOutcome {
    /// A response with this status, after so many milliseconds if a guard requests the time.
    Answer { status: u16, latency_ms: Option<f64> },
    /// A node has accepted a session, so many milliseconds after the dial; the content of the session is unknown.
    Taken { connect_ms: Option<f64> },
    /// There was no response.
    Failure,
    /// Something else ended the exchange.
    Nothing,
}

impl<'p> Passage<'p> {
    /// Begins the passage of a request.
    pub(crate) fn begin(
        worker: &'p Worker,
        number: u32,
        upstream: &'p Arc<Upstream>,
        guards: &'p Guards,
    ) -> Passage<'p> {
        let own = worker.upstream_state(number, upstream).own_guards(guards);
        Passage { worker, upstream, guards, own, pass: None, begun: None, has_told: false, permit: None }
    }

    /// Asks the guards of requests other than the breaker, the queue last.
    pub(crate) async fn ask_others(&mut self, priority: i32) -> Result<(), Fault> {
        self.ask_admission()?;
        self.ask_concurrency()?;
        self.ask_limit("the upstream has reached its limit of requests", priority).await
    }

    /// As [`Passage::ask_others`] for a session. The time to connect does not show how many sessions a node serves
    /// well, and a session lasts: adaptive concurrency would never see one end.
    pub(crate) async fn ask_others_of_session(&mut self, priority: i32) -> Result<(), Fault> {
        self.ask_admission()?;
        self.ask_limit("the upstream has reached its limit of sessions", priority).await
    }

    async fn ask_limit(&mut self, full: &'static str, priority: i32) -> Result<(), Fault> {
        if let Some(limit) = &self.guards.limit
            && let Some(way) = limit.to_upstream()
        {
            let wait = async || way.gate.enter(way.bounds, priority).await.map(Ok);
            self.permit = match way.gate.try_enter(way.bounds) {
                None => wait_in_queue(self.worker, limit, full, wait).await?,
                permit => permit,
            };
        }
        Ok(())
    }

    pub(crate) fn ask_breaker(&mut self) -> Result<(), Fault> {
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
            let reason = "the upstream has reached its adaptive concurrency limit";
            let counter = Counter::UpstreamRefusedConcurrency;
            refuse(self.worker, rules.dry_run, counter, FaultKind::Overloaded, reason)?;
        }
        self.begun = Some(gradient.borrow_mut().begin());
        Ok(())
    }

    /// Returns the time on the clock that all workers share.
    fn now_ms(&self) -> u64 {
        Host.uptime().as_millis() as u64
    }

    /// Ends the passage with the exchange.
    pub(crate) fn end(mut self, seen: GuardOutcome) {
        self.tell(seen);
    }

    /// Reports the result of a session. Its permit is kept until the returned value is dropped.
    pub(crate) fn settle(mut self, seen: GuardOutcome) -> Option<Permit> {
        self.tell(seen);
        self.permit.take()
    }

    /// Reports a result to the guards. Only the first result counts.
    pub(crate) fn tell(&mut self, seen: GuardOutcome) {
        if std::mem::replace(&mut self.has_told, true) {
            return;
        }
        let latency = match seen {
            GuardOutcome::Answer { latency_ms, .. } => latency_ms,
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
                GuardOutcome::Answer { status, .. } => {
                    admission.borrow_mut().record(deadline::now_ms(), status < 500)
                }
                GuardOutcome::Taken { .. } => admission.borrow_mut().record(deadline::now_ms(), true),
                GuardOutcome::Failure => admission.borrow_mut().record(deadline::now_ms(), false),
                GuardOutcome::Nothing => {}
            }
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.tell(GuardOutcome::Nothing);
    }
}

/// Returns the outcome of a response for a breaker.
fn outcome(rules: &BreakerRules, seen: GuardOutcome) -> Outcome {
    match seen {
        GuardOutcome::Nothing => Outcome::Nothing,
        GuardOutcome::Failure => Outcome::Failure,
        GuardOutcome::Answer { status, .. } if rules.failures.contains(&status) => Outcome::Failure,
        GuardOutcome::Answer { latency_ms: took_ms, .. } | GuardOutcome::Taken { connect_ms: took_ms } => {
            let slow = rules.slow_ms.zip(took_ms).is_some_and(|(slow, took)| took >= slow);
            if slow { Outcome::Slow } else { Outcome::Success }
        }
    }
}

/// Rejects a request, or counts it as rejected in a dry run.
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

/// How often the node may be gone or down by the time of its permit.
const TURNS_MAX: usize = 8;

/// Waits for a permit on the node that was picked `first` if the request keeps to it, else on any node of the
/// upstream.
pub(crate) async fn wait_for_node(
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
                // A node may have become free before the request was in the queue.
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
    Ok(Err(Fault::new(FaultKind::NoNode, "the nodes of the upstream keep changing")))
}

/// Waits for a permit as long as the limit allows. None if a dry run continues without one. Without a queue the
/// upstream is `full` at once.
pub(crate) async fn wait_in_queue<P>(
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
                None => "the request waited too long in the queue of the upstream",
            }
        }
    };
    refuse(worker, limit.dry_run, Counter::UpstreamRefusedLimit, FaultKind::Overloaded, reason)?;
    Ok(None)
}
