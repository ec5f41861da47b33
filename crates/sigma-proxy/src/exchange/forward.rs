//! Balance and forward: attempts on nodes until one answers or none is left.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;

use sigma_config::expr::{VarValue, Variables};
use sigma_config::resources::{Balance, PassHost, Scheme};
use sigma_config::settings::Settings;
use sigma_http::{BodyLength, Fault, FaultKind, HeaderId, Method, ResponseHead, Side};
use sigma_net::{Deadline, deadline};
use sigma_observe::counters::Counter;
use sigma_plugin::Context;
use sigma_plugin::record::Attempt;
use sigma_plugin::variables::host_name;
use sigma_upstream::balance::{Balancer, InFlight, Outcome, PickContext, Tried};
use sigma_upstream::connection::{Connection, HeadLimits};
use sigma_upstream::endpoint::{Endpoint, LocalSet};
use sigma_upstream::health::state::Event;
use sigma_upstream::pool;

use super::phases::{chains, env};
use super::response::BodyRow;
use super::retry::{Decision, decide, verdict};
use super::transfer::{DownTimeouts, Outlet, Replay, Transfer, Upload};
use super::{Exchange, Scratch, answer, client, grpc, headers, reply, upgrade};
use crate::downstream::tolerance;
use crate::reach::{self, Demands};
use crate::snapshot::{HashKey, Route, Snapshot, Timeouts, Upstream};
use crate::worker::View;

/// What stays the same over all attempts of one exchange.
struct Plan<'p> {
    view: &'p View,
    snapshot: &'p Snapshot,
    upstream: &'p Upstream,
    timeouts: Timeouts,
    /// The end of the time that the client gives the exchange, if it gives one.
    client_deadline: Option<Deadline>,
}

/// How an attempt ended that did not fail.
enum Ended {
    /// The connection, if it may serve again.
    Whole(Connection),
    /// The connection was used up.
    Spent,
}

impl Exchange<'_, '_> {
    pub(super) async fn forward(&mut self, view: &View, route: &Route, number: u32) -> Result<(), Fault> {
        let snapshot = &*view.snapshot;
        let Some(upstream) = snapshot.upstream(number) else {
            return Err(Fault::new(FaultKind::NoUpstream, "the route's upstream does not exist"));
        };
        let key = self.hash_key(upstream);
        self.choose_upgrade(route, upstream)?;
        self.prepare_request(snapshot);
        let timeouts = route.timeouts.unwrap_or(upstream.timeouts);
        self.check_host(upstream)?;
        let client_deadline = grpc::deadline(&self.scratch.cx.request);
        let plan = Plan { view, snapshot, upstream, timeouts, client_deadline };
        self.scratch.cx.record.upstream_scheme = Some(upstream.scheme_name());
        let balancer = self.worker.balancer(number, upstream);
        let balancer = &*balancer;
        let mut state = Attempts::new();
        state.body_ended = self.take_read_body();
        loop {
            let endpoint = self.pick(balancer, key.as_deref(), &state.tried)?;
            if self.opened
                && let Some(reply) = self.before_proxy().await?
            {
                return self.reply(reply).await;
            }
            let fault = match self.attempt(&plan, balancer, &endpoint, &mut state).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            state.tried.insert(endpoint.id());
            self.next_attempt(&plan, balancer, &endpoint, &mut state, fault)?;
        }
    }

    /// A host that no node can be asked for over TLS is the fault of whoever named it: no node is
    /// tried for it.
    fn check_host(&self, upstream: &Upstream) -> Result<(), Fault> {
        let host = headers::host_for_all(&self.scratch.cx, upstream);
        if upstream.over_tls().is_none() || host.is_none_or(reach::can_be_named) {
            return Ok(());
        }
        Err(match upstream.pass_host {
            PassHost::Pass => Fault::new(FaultKind::BadRequest, "the host cannot be asked for over TLS"),
            _ => Fault::new(FaultKind::NoUpstream, "the upstream's host cannot be asked for over TLS"),
        })
    }

    /// Finds the protocol that the connection to a node is to change to. A client of HTTP/1 is served
    /// without it where the route does not let it through (RFC 9110 §7.8).
    fn choose_upgrade(&mut self, route: &Route, upstream: &Upstream) -> Result<(), Fault> {
        let can = !matches!(upstream.config.scheme, Scheme::Grpc | Scheme::Grpcs);
        let asked = self.asks_upgrade && can;
        let protocol = if asked { upgrade::admitted(&self.scratch.cx.request, route) } else { None };
        if protocol.is_none() && self.down.asks_tunnel() {
            let reason = "the route does not let this :protocol through";
            return Err(Fault::new(FaultKind::NotImplemented, reason));
        }
        self.scratch.upgrade.extend_from_slice(protocol.unwrap_or_default());
        Ok(())
    }

    /// A body that a plugin has read whole, and may have changed, goes to the node from memory.
    /// Returns whether there is one.
    fn take_read_body(&mut self) -> bool {
        let cx = &mut self.scratch.cx;
        let Some(body) = &cx.body else { return false };
        if !body.is_empty() || cx.request.headers.has(HeaderId::ContentLength) {
            cx.request
                .headers
                .set(HeaderId::ContentLength, itoa::Buffer::new().format(body.len()).as_bytes());
        }
        self.scratch.replay.clear();
        self.scratch.replay.extend_from_slice(body);
        true
    }

    /// How the body is framed that the node gets.
    fn request_length(&self) -> BodyLength {
        match &self.scratch.cx.body {
            Some(body) if body.is_empty() => BodyLength::None,
            Some(body) => BodyLength::Known(body.len() as u64),
            None => self.down.body_length(),
        }
    }

    fn hash_key(&mut self, upstream: &Upstream) -> Option<Vec<u8>> {
        let source = upstream.hash_key.as_ref()?;
        if !self.opened {
            self.scratch.cx.client = client(&self.down);
        }
        let request = &self.scratch.cx;
        let key = match source {
            HashKey::Variable(name) => match Variables::get(request, name) {
                Some(VarValue::Text(text)) => Some(text.into_owned()),
                _ => None,
            },
            HashKey::Template(template) => {
                let mut text = Vec::new();
                (template.render(request, &mut text) > 0).then_some(text)
            }
        };
        Some(key.unwrap_or_else(|| request.remote_addr().into_bytes()))
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
        let in_flight = InFlight::begin(balancer, endpoint.id(), deadline::now_ms());
        // A clock is read only for those who ask: the access log, and balancing by latency.
        let timed = self.scratch.cx.record.started.is_some() || plan.upstream.balance == Balance::Ewma;
        let began = timed.then(Instant::now);
        self.note_attempt(endpoint, began);
        state.request_sent = true;
        let client_deadline = plan.client_deadline.as_ref();
        let result = match client_deadline {
            None => self.attempt_on(plan, endpoint, state).await,
            // Boxed: a future that is handed on is copied, and this is the largest of all.
            Some(deadline) => grpc::within(deadline, Box::pin(self.attempt_on(plan, endpoint, state))).await,
        };
        if result.is_err() && grpc::is_over(client_deadline) {
            state.decision = Decision::GiveUp;
            // How little time a client gives says nothing about the node.
            state.request_sent = false;
        }
        let elapsed_ms = began.map(|at| at.elapsed().as_secs_f64() * 1000.0);
        if let Some(attempt) = self.scratch.cx.record.attempts.last_mut() {
            attempt.response_ms = elapsed_ms;
        }
        let latency_ms = if result.is_ok() { elapsed_ms } else { None };
        in_flight.end(Outcome { latency_ms, now_ms: deadline::now_ms() });
        result
    }

    fn note_attempt(&mut self, endpoint: &Endpoint, began: Option<Instant>) {
        self.scratch.cx.record.upstream_statuses.push(0);
        if self.scratch.cx.record.started.is_some() {
            self.scratch.cx.record.attempts.push(Attempt {
                addr: endpoint.addr.to_string(),
                host: endpoint.host.clone(),
                began,
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
        let cx = &mut self.scratch.cx;
        match &cx.host {
            // APISIX: what the upstream says of Host goes before what plugins say.
            Some(host) if plan.upstream.pass_host == PassHost::Pass => {
                cx.request.headers.set(HeaderId::Host, host);
            }
            _ => headers::set_host(&mut cx.request, plan.upstream, endpoint),
        }
        self.mark_pass(plan.snapshot, &endpoint.addr, &mut state.marked);
        let demands = Demands {
            connect_ms: plan.timeouts.connect_ms,
            upgrade: !self.scratch.upgrade.is_empty(),
            ..Demands::of(&self.scratch.cx.request, plan.upstream, self.down.origin())
        };
        let target = reach::target(plan.snapshot, plan.upstream, endpoint, &demands);
        let mut idle_allowed = true;
        loop {
            let pooled = if idle_allowed { self.checkout(&target) } else { None };
            let mut connection = match pooled {
                Some(connection) => connection,
                None => {
                    self.worker.counters.add(Counter::UpstreamConnects, 1);
                    state.decision = Decision::NextNode;
                    // Boxed, as handshakes need much room and most exchanges make none.
                    Box::pin(pool::connect(&self.worker.pools, &target, deadline::now_ms())).await?
                }
            };
            self.scratch.cx.record.connected();
            self.send_head(&mut connection);
            match self.converse(plan, connection, state).await {
                Ok(Ended::Whole(connection)) => {
                    self.worker.pools.borrow_mut().checkin(&target, connection, deadline::now_ms());
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

    fn checkout(&self, target: &pool::Target<'_>) -> Option<Connection> {
        let connection = self.worker.pools.borrow_mut().checkout(target, deadline::now_ms())?;
        self.worker.counters.add(Counter::UpstreamReuses, 1);
        Some(connection)
    }

    fn send_head(&mut self, connection: &mut Connection) {
        let length = self.request_length();
        let Scratch { cx, upgrade, .. } = &mut *self.scratch;
        let upgrade = (!upgrade.is_empty()).then_some(&upgrade[..]);
        let rewritten = (!cx.target.is_empty()).then_some(&cx.target[..]);
        connection.send_head(&mut cx.request, rewritten, length, upgrade);
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
        let Scratch { cx, replay, upgrade: asked, .. } = &mut *self.scratch;
        let method = cx.request.method;
        let mut replay = Replay {
            bytes: replay,
            limit: settings.limits.retry_body_bytes as usize,
            complete: state.replayable,
            ended: state.body_ended,
            copy: cx.request_copy.clone(),
        };
        let mut transfer = Transfer::begin(
            &mut self.down,
            &mut connection,
            plan.timeouts,
            DownTimeouts::new(settings),
            &replay,
        );
        let head = &mut cx.response;
        let result = await_head(&mut transfer, method, &limits, head, &mut replay).await;
        state.replayable = replay.complete;
        state.body_ended = replay.ended;
        if let Err(fault) = result {
            state.request_sent = transfer.upload() == Upload::Done;
            state.decision = decide(fault, method, transfer.progress(replay.complete));
            return Err(fault);
        }
        state.decision = Decision::GiveUp;
        transfer.answered();
        if head.status == 101 {
            upgrade::check_agreement(head, asked)?;
        }
        transfer.down.check_answer(head)?;
        cx.record.answered(head.status);
        if head.status == 101 {
            return tunnel(&mut transfer, cx).await;
        }
        if self.worker.is_draining() {
            transfer.down.close_after();
        }
        answer::prepare(head, plan.snapshot);
        answer::tell_upstream_status(head, &cx.record.upstream_statuses, settings.upstream_status_header);
        let mut length = answer_length(transfer.up.body_length(), cx);
        let mut row = BodyRow::default();
        if self.opened {
            let in_force = chains(plan.view, self.route, self.merged.as_deref());
            (row, length) = BodyRow::begin(in_force, cx, &env(self.worker, plan.view), length);
        }
        cx.record.status = cx.response.status;
        transfer.down.send_head(&mut cx.response, length, self.worker.clock.borrow().http_date());
        let mut outlet = Outlet { ended: false, row, cx };
        if transfer.up.body_length().is_empty() {
            outlet.end(transfer.down);
        }
        let result = poll_fn(|task| transfer.poll_body(task, &mut replay, &mut outlet)).await;
        let upload = transfer.upload();
        state.request_sent = upload == Upload::Done;
        result?;
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
        // What this machine lacks is no node's fault, and the next one would not have it either.
        if fault.side() == Side::Gateway {
            return Err(fault);
        }
        let nodes = balancer.borrow().endpoints().endpoints.len();
        let retries = plan.upstream.retries.map_or(nodes.saturating_sub(1), |n| n as usize);
        let late = plan.upstream.retry_timeout_ms > 0
            && deadline::now_ms().saturating_sub(state.began_ms) > plan.upstream.retry_timeout_ms;
        let last = state.decision != Decision::NextNode || state.retries >= retries || late;
        self.report_failure(plan, endpoint, state, fault, last);
        if last {
            return Err(fault);
        }
        state.retries += 1;
        self.worker.counters.add(Counter::UpstreamRetries, 1);
        tracing::debug!(host = %String::from_utf8_lossy(&host_name(self.scratch.cx.request.authority())), node = %endpoint.addr, %fault, "trying the next node");
        Ok(())
    }

    /// Tells health checks of an attempt that failed: of what happened on the connection, and, as for
    /// any other answer, of the status that the `last` one comes to.
    fn report_failure(
        &self,
        plan: &Plan<'_>,
        endpoint: &Endpoint,
        state: &Attempts,
        fault: Fault,
        last: bool,
    ) {
        let Some(checks) = &plan.upstream.checks else { return };
        let limits = checks.passive.limits;
        let seen = verdict(fault, state.request_sent);
        if let Some(event) = seen {
            self.worker.health.report(&endpoint.health, event, limits);
        }
        let excused = fault.side() != Side::Upstream || !state.request_sent && seen.is_none();
        let status =
            reply::status(fault.kind).filter(|_| last && !excused && self.scratch.cx.record.status == 0);
        if let Some(event @ Event::HttpFailure) = status.and_then(|status| checks.passive.judge(status)) {
            self.worker.health.report(&endpoint.health, event, limits);
        }
    }

    fn report_status(&self, plan: &Plan<'_>, endpoint: &Endpoint) {
        if let Some(checks) = &plan.upstream.checks
            && let Some(event) = checks.passive.judge(self.scratch.cx.record.status)
        {
            self.worker.health.report(&endpoint.health, event, checks.passive.limits);
        }
    }
}

fn head_limits(settings: &Settings) -> HeadLimits {
    let head_bytes = settings.limits.response_head_bytes as usize;
    HeadLimits {
        line_bytes: head_bytes,
        head_bytes,
        fields: usize::from(settings.limits.response_headers),
        tolerance: tolerance(settings),
    }
}

/// The node has changed the protocol: plain bytes from here on.
async fn tunnel(transfer: &mut Transfer<'_, '_>, cx: &mut Context) -> Result<Ended, Fault> {
    cx.record.status = 101;
    transfer.down.send_interim(&mut cx.response);
    transfer.open_tunnel();
    poll_fn(|task| transfer.poll_tunnel(task)).await?;
    Ok(Ended::Spent)
}

/// The length of the body that the client gets when the node's is of `length`.
fn answer_length(length: BodyLength, cx: &mut Context) -> BodyLength {
    if cx.request.method != Method::Head || cx.request.client_method() == Method::Head {
        return length;
    }
    // A plugin made a HEAD of it: the length is that of a body which nobody will send.
    cx.response.headers.set(HeaderId::ContentLength, b"0");
    BodyLength::Known(0)
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
    /// The node of the attempt has all that it can wait for: not the client's slowness, nor the
    /// end of the client's own time, made it fail.
    request_sent: bool,
    /// The request tells of this pass.
    marked: bool,
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
            request_sent: true,
            marked: false,
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
