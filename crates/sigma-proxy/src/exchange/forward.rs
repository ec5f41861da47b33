//! Balance and forward: attempts on nodes until one answers or none is left.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;

use sigma_config::expr::{VarValue, Variables};
use sigma_config::resources::Balance;
use sigma_config::settings::Settings;
use sigma_http::{Fault, FaultKind, Frame, Method, ResponseHead};
use sigma_net::deadline;
use sigma_observe::counters::Counter;
use sigma_upstream::balance::{Balancer, Outcome, PickContext, Tried};
use sigma_upstream::connection::{Connection, HeadLimits, dial};
use sigma_upstream::endpoint::{Endpoint, LocalSet};
use sigma_upstream::health::state::Event;

use super::request::{RequestView, host_name};
use super::retry::{Decision, decide};
use super::transfer::{DownTimeouts, Replay, Transfer, Upload};
use super::{Attempt, Exchange, answer, headers, normal_path};
use crate::snapshot::{HashKey, Route, Snapshot, Timeouts, Upstream};

/// What stays the same over all attempts of one exchange.
struct Plan<'p> {
    snapshot: &'p Snapshot,
    upstream: &'p Upstream,
    timeouts: Timeouts,
    upgrade: bool,
}

/// How an attempt ended that did not fail.
enum Ended {
    /// The connection, if it may serve again.
    Whole(Connection),
    /// The connection was used up.
    Spent,
}

impl Exchange<'_, '_> {
    pub(super) async fn forward(
        &mut self,
        snapshot: &Snapshot,
        route: &Route,
        number: u32,
    ) -> Result<(), Fault> {
        let upstream = std::sync::Arc::clone(&snapshot.upstreams[number as usize]);
        let key = self.hash_key(snapshot, &upstream)?;
        let upgrade = self.prepare_request(snapshot, route.websocket);
        let timeouts = route.timeouts.unwrap_or(upstream.timeouts);
        let plan = Plan { snapshot, upstream: &upstream, timeouts, upgrade };
        let view = Rc::clone(&self.view);
        let balancer = view.balancer(number, self.worker.random());
        self.scratch.replay.clear();
        let mut state = Attempts::new();
        loop {
            let endpoint = self.pick(balancer, key.as_deref(), &state.tried)?;
            let fault = match self.attempt(&plan, balancer, &endpoint, &mut state).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            state.tried.insert(endpoint.id);
            self.next_attempt(&plan, balancer, &endpoint, &mut state, fault)?;
        }
    }

    fn hash_key(&self, snapshot: &Snapshot, upstream: &Upstream) -> Result<Option<Vec<u8>>, Fault> {
        let Some(source) = &upstream.hash_key else { return Ok(None) };
        let path = normal_path(&self.scratch.request, snapshot)?;
        let request = RequestView::new(&self.scratch.request, &path, self.down.origin());
        let key = match source {
            HashKey::Variable(name) => match Variables::get(&request, name) {
                Some(VarValue::Text(text)) => Some(text.into_owned()),
                _ => None,
            },
            HashKey::Template(template) => {
                let mut text = Vec::new();
                (template.render(&request, &mut text) > 0).then_some(text)
            }
        };
        let peer = super::PeerText::new(self.down.origin().peer);
        Ok(Some(key.unwrap_or_else(|| peer.as_bytes().to_vec())))
    }

    fn pick(
        &mut self,
        balancer: &RefCell<Balancer>,
        key: Option<&[u8]>,
        tried: &Tried,
    ) -> Result<Picked, Fault> {
        let mut balancer = balancer.borrow_mut();
        let context = PickContext { key, tried, now_ms: deadline::now_ms(), random: self.worker.random() };
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

    /// One attempt on a node; on a stale idle connection a second one on a fresh connection.
    async fn attempt(
        &mut self,
        plan: &Plan<'_>,
        balancer: &RefCell<Balancer>,
        endpoint: &Endpoint,
        state: &mut Attempts,
    ) -> Result<(), Fault> {
        balancer.borrow_mut().start(endpoint.id);
        // A clock is read only for those who ask: the access log, and balancing by latency.
        let timed = self.record.started.is_some() || plan.upstream.balance == Balance::Ewma;
        let began = timed.then(Instant::now);
        self.note_attempt(endpoint);
        let result = self.attempt_on(plan, endpoint, state).await;
        let elapsed_ms = began.map(|at| at.elapsed().as_secs_f64() * 1000.0);
        if let Some(attempt) = self.record.attempts.last_mut() {
            attempt.response_ms = elapsed_ms;
        }
        let latency_ms = if result.is_ok() { elapsed_ms } else { None };
        balancer.borrow_mut().end(endpoint.id, Outcome { latency_ms, now_ms: deadline::now_ms() });
        result
    }

    fn note_attempt(&mut self, endpoint: &Endpoint) {
        if self.record.started.is_some() {
            self.record.attempts.push(Attempt {
                addr: endpoint.addr.to_string(),
                status: 0,
                connect_ms: None,
                header_ms: None,
                response_ms: None,
            });
        }
    }

    async fn attempt_on(
        &mut self,
        plan: &Plan<'_>,
        endpoint: &Endpoint,
        state: &mut Attempts,
    ) -> Result<(), Fault> {
        headers::set_host(&mut self.scratch.request, plan.upstream, &endpoint.host_header);
        let mut idle_allowed = true;
        loop {
            let pooled = if idle_allowed { self.checkout(endpoint) } else { None };
            let mut connection = match pooled {
                Some(connection) => connection,
                None => {
                    self.worker.counters.add(Counter::UpstreamConnects, 1);
                    state.decision = Decision::NextNode;
                    dial(&endpoint.addr, plan.timeouts.connect_ms).await?
                }
            };
            self.send_head(&mut connection);
            match self.converse(plan, connection, state).await {
                Ok(Ended::Whole(connection)) => {
                    let now_ms = deadline::now_ms();
                    self.worker.pools.borrow_mut().checkin(endpoint, connection, plan.upstream.pool, now_ms);
                    self.report_status(plan, endpoint);
                    return Ok(());
                }
                Ok(Ended::Spent) => {
                    self.report_status(plan, endpoint);
                    return Ok(());
                }
                Err(_) if state.decision == Decision::SameNode => idle_allowed = false,
                Err(fault) => return Err(fault),
            }
        }
    }

    fn checkout(&self, endpoint: &Endpoint) -> Option<Connection> {
        let connection = self.worker.pools.borrow_mut().checkout(endpoint, deadline::now_ms())?;
        self.worker.counters.add(Counter::UpstreamReuses, 1);
        Some(connection)
    }

    fn send_head(&mut self, connection: &mut Connection) {
        let head = &self.scratch.request;
        let target = match &self.scratch.target[..] {
            b"" => head.path_and_query(),
            rewritten => rewritten,
        };
        connection.send_head(head, target, self.down.body_length());
    }

    /// Request up, response down, on one connection.
    async fn converse(
        &mut self,
        plan: &Plan<'_>,
        mut connection: Connection,
        state: &mut Attempts,
    ) -> Result<Ended, Fault> {
        let settings = &plan.snapshot.settings;
        let limits = head_limits(settings);
        let method = self.scratch.request.method;
        let mut replay = Replay {
            bytes: &mut self.scratch.replay,
            limit: settings.limits.retry_body_bytes as usize,
            complete: state.replayable,
            ended: state.body_ended,
        };
        let mut transfer = Transfer::begin(
            &mut self.down,
            &mut connection,
            plan.timeouts,
            DownTimeouts::new(settings),
            &replay,
        );
        let head = &mut self.scratch.response;
        let result = await_head(&mut transfer, method, &limits, head, &mut replay).await;
        state.replayable = replay.complete;
        state.body_ended = replay.ended;
        if let Err(fault) = result {
            state.decision = decide(fault, method, transfer.progress(replay.complete));
            return Err(fault);
        }
        state.decision = Decision::GiveUp;
        transfer.answered();
        if let (Some(attempt), Some(started)) = (self.record.attempts.last_mut(), self.record.started) {
            attempt.status = head.status;
            attempt.header_ms = Some(started.elapsed().as_secs_f64() * 1000.0);
        }
        if head.status == 101 {
            if !plan.upgrade {
                let reason = "the node changed the protocol although nobody asked";
                return Err(Fault::new(FaultKind::UpgradeFailed, reason));
            }
            self.record.status = 101;
            transfer.down.send_interim(head);
            transfer.open_tunnel();
            poll_fn(|cx| transfer.poll_tunnel(cx)).await?;
            return Ok(Ended::Spent);
        }
        self.record.status = head.status;
        if self.worker.is_draining() {
            transfer.down.close_after();
        }
        let length = transfer.up.body_length();
        {
            let clock = self.worker.clock.borrow();
            answer::send_head(transfer.down, head, length, plan.snapshot, clock.http_date());
        }
        let mut ended = length.is_empty();
        if ended {
            transfer.down.send(Frame::End);
        }
        poll_fn(|cx| transfer.poll_body(cx, &mut replay, &mut ended)).await?;
        let upload = transfer.upload();
        if upload != Upload::Done {
            self.down.close_after();
            return Ok(Ended::Spent);
        }
        Ok(Ended::Whole(connection))
    }

    /// Prepares another attempt, or gives the fault back as the answer.
    fn next_attempt(
        &mut self,
        plan: &Plan<'_>,
        balancer: &RefCell<Balancer>,
        endpoint: &Endpoint,
        state: &mut Attempts,
        fault: Fault,
    ) -> Result<(), Fault> {
        let nodes = balancer.borrow().endpoints().endpoints.len();
        let retries = plan.upstream.retries.map_or(nodes.saturating_sub(1), |n| n as usize);
        let late = plan.upstream.retry_timeout_ms > 0
            && deadline::now_ms().saturating_sub(state.began_ms) > plan.upstream.retry_timeout_ms;
        if state.decision != Decision::NextNode || state.retries >= retries || late {
            return Err(fault);
        }
        if let Some(checks) = &plan.upstream.checks {
            let event = match fault.kind {
                FaultKind::ConnectTimeout | FaultKind::ResponseTimeout | FaultKind::UpstreamSendTimeout => {
                    Event::Timeout
                }
                _ => Event::TcpFailure,
            };
            self.worker.health.report(&endpoint.health, event, checks.passive.limits);
        }
        state.retries += 1;
        self.worker.counters.add(Counter::UpstreamRetries, 1);
        tracing::debug!(host = %String::from_utf8_lossy(&host_name(self.scratch.request.authority())), node = %endpoint.addr, %fault, "trying the next node");
        Ok(())
    }

    fn report_status(&self, plan: &Plan<'_>, endpoint: &Endpoint) {
        if let Some(checks) = &plan.upstream.checks
            && let Some(event) = checks.passive.judge(self.record.status)
        {
            self.worker.health.report(&endpoint.health, event, checks.passive.limits);
        }
    }
}

fn head_limits(settings: &Settings) -> HeadLimits {
    let head_bytes = settings.limits.response_head_bytes as usize;
    HeadLimits { line_bytes: head_bytes, head_bytes, fields: usize::from(settings.limits.response_headers) }
}

/// Waits for the final head, or a 101; passes interim ones on.
async fn await_head(
    transfer: &mut Transfer<'_, '_>,
    method: Method,
    limits: &HeadLimits,
    head: &mut ResponseHead,
    replay: &mut Replay<'_>,
) -> Result<(), Fault> {
    loop {
        poll_fn(|cx| transfer.poll_head(cx, method, limits, head, replay)).await?;
        if !head.is_interim() || head.status == 101 {
            return Ok(());
        }
        transfer.down.send_interim(head);
        transfer.answered();
    }
}

/// What one attempt leaves to the next.
#[derive(Debug)]
struct Attempts {
    tried: Tried,
    retries: usize,
    began_ms: u64,
    decision: Decision,
    replayable: bool,
    body_ended: bool,
}

/// A node chosen from a set, which stays alive with it.
struct Picked {
    set: LocalSet,
    index: usize,
}

impl std::ops::Deref for Picked {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.set.endpoints[self.index]
    }
}

impl Attempts {
    fn new() -> Attempts {
        Attempts {
            tried: Tried::default(),
            retries: 0,
            began_ms: deadline::now_ms(),
            decision: Decision::NextNode,
            replayable: true,
            body_ended: false,
        }
    }
}

impl DownTimeouts {
    fn new(settings: &Settings) -> DownTimeouts {
        let timeouts = &settings.timeouts;
        DownTimeouts {
            body_ms: timeouts.request_body_ms.into(),
            send_ms: timeouts.response_send_ms.into(),
            half_close_ms: timeouts.half_close_ms.into(),
            tunnel_ms: timeouts.tunnel_idle_ms.into(),
        }
    }
}
