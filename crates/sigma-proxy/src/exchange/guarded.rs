//! Requests to an upstream with overload protection.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use sigma_http::{Fault, FaultKind};
use sigma_net::deadline;
use sigma_plugin::Reply;
use sigma_plugin::record::{Attempt, Interest};
use sigma_schema::expr::{VarValue, Variables};

use super::plan::Plan;
use super::transfer::client_gone;
use super::{Exchange, client, grpc};
use crate::attempt::attempts::Attempts;
use crate::attempt::guards::{Fallback, Guards, Limit};
use crate::attempt::passage::{GuardOutcome, Passage, wait_for_node, wait_in_queue};
use crate::attempt::picked::Picked;
use crate::snapshot::Route;
use crate::worker::View;

impl Exchange<'_, '_> {
    /// As [`Exchange::forward`], for an upstream with guards, or with members. A fallback of its breaker is served if
    /// it `may_fall_back`.
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
        if let Some(bridge) = view.snapshot.bridge_of(upstream) {
            return self.cross(view, upstream, bridge).await;
        }
        if !upstream.is_for_requests() {
            let reason = "the upstream is for stream routes, not for requests";
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
        // The time of the exchange continues in the queue.
        let began_ms = deadline::now_ms();
        let asking = passage.ask_others(priority);
        match self.time_left(route, upstream, grpc::is_call(&self.scratch.ctx.request))? {
            None => self.while_there(asking).await?,
            Some(time) => time.bound(self.while_there(asking)).await?,
        }
        self.scratch.spent_ms += deadline::now_ms().saturating_sub(began_ms);
        if guards.asks_for_time() {
            self.scratch.ctx.record.watch(Interest::ALWAYS);
        }
        let result = self.forward(view, route, number).await;
        let record = &self.scratch.ctx.record;
        let seen = match (result, self.scratch.attempt.verdict) {
            (Err(_), _) if self.scratch.attempt.blames_node => GuardOutcome::Failure,
            (Ok(()), Some(status)) => {
                let latency_ms = record.attempts.last().and_then(Attempt::waited_ms);
                GuardOutcome::Answer { status, latency_ms }
            }
            _ => GuardOutcome::Nothing,
        };
        passage.end(seen);
        result
    }

    /// Returns the result of `work`, unless the client leaves meanwhile.
    async fn while_there(&mut self, work: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
        let mut work = pin!(work);
        // While a client still sends a body, its leaving is seen there.
        let is_complete = self.down.body_length().is_empty();
        poll_fn(|task| {
            if let ready @ Poll::Ready(_) = work.as_mut().poll(task) {
                return ready;
            }
            match is_complete && self.down.poll_departure(task).is_ready() {
                true => Poll::Ready(Err(client_gone())),
                false => Poll::Pending,
            }
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

    /// Returns the node of the next attempt with a permit, if each node has a limit; waits at most for the remaining
    /// time of the exchange.
    pub(super) async fn pick_free(&mut self, plan: &mut Plan<'_>, limit: &Limit) -> Result<Picked, Fault> {
        let Plan { attempts, rare, .. } = plan;
        match rare.as_ref().and_then(|rare| rare.time.as_ref()) {
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
            let full = "each node of the upstream has reached its limit of requests";
            let wait = async || wait_for_node(attempts, &node, limit, priority).await;
            found = wait_in_queue(worker, limit, full, wait).await?;
            Ok(())
        };
        self.while_there(wait).await?;
        // In a dry run it is used anyway.
        Ok(found.unwrap_or(node))
    }

    /// Returns the priority of the request in a queue: the value of the limit's variable.
    fn priority(&mut self, limit: &Limit) -> i32 {
        let Some(name) = &limit.priority else { return 0 };
        if !self.stage.is_guided() {
            self.scratch.ctx.client = client(&self.down, &self.view, self.scratch.told);
        }
        match Variables::get(&self.scratch.ctx, name) {
            Some(VarValue::Text(text)) => {
                std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
            }
            _ => 0,
        }
    }
}
