//! Balancing and forwarding: attempts on nodes until one responds or none is left.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use sigma_config::resources::{PassHost, Scheme};
use sigma_http::{BodyLength, Fault, FaultKind, HeaderId, Method};
use sigma_net::deadline;
use sigma_observe::moment;
use sigma_plugin::record::Attempt;
use sigma_plugin::{Context, Phase, Reply};
use sigma_upstream::balance::Outcome;
use sigma_upstream::dial::{Dial, Notice, Protocol};
use sigma_upstream::endpoint::Endpoint;
use sigma_upstream::pool::{InUse, Target};
use sigma_wire::{Connection, Rest, Terms};

use super::delivery::{Delivery, Hold};
use super::hedge::Raced;
use super::local_reply::{self, Draft};
use super::phases::{PhaseEnd, Running};
use super::plan::{Ended, Plan, Rare, State};
use super::remainder::Remainder;
use super::response::Verdict;
use super::transfer::{Transfer, Upload};
use super::{
    Exchange, Scratch, cache, client, grpc, headers, proxy_status, read_ahead, reply, response_head, tunnel,
    upgrade,
};
use crate::attempt::attempts::{Attempts, Decision, Failure, after, decide};
use crate::attempt::judge::is_to_blame;
use crate::attempt::retry::Missing;
use crate::attempt::target::{self, Demands};
use crate::attempt::time_limit::TimeLeft;
use crate::snapshot::{Route, Upstream};
use crate::worker::View;

impl Exchange<'_, '_> {
    pub(super) async fn forward(&mut self, view: &View, route: &Route, number: u32) -> Result<(), Fault> {
        let snapshot = &*view.snapshot;
        let Some(upstream) = snapshot.upstream(number) else {
            return Err(Fault::new(FaultKind::NoUpstream, "the route's upstream does not exist"));
        };
        (self.scratch.attempt.blames_node, self.scratch.attempt.verdict, self.scratch.attempt.may_repeat) =
            (false, None, false);
        let choice = self.choice(upstream);
        self.choose_upgrade(route, upstream)?;
        self.prepare_request(snapshot);
        let timeouts = route.timeouts().unwrap_or(&upstream.transport.timeouts);
        self.check_host(upstream)?;
        let retry = route.retry_policy().or(upstream.retry.policy.as_deref());
        let is_call = grpc::is_call(&self.scratch.ctx.request);
        let time = self.time_left(route, upstream, is_call)?;
        let rare = time.map(|time| Box::new(Rare { time: Some(time), timeouts: None }));
        self.scratch.ctx.record.upstream_scheme = Some(upstream.scheme_name());
        let attempts = Attempts::new(self.worker, number, upstream, retry, choice);
        let mut plan = Plan { view, timeouts, rare, attempts };
        let mut state = State::new(upstream, retry, is_call);
        let (own, is_seen) = loop {
            let mut node = match upstream.node_limit() {
                None => plan.attempts.pick()?,
                // Boxed, as few upstreams have one.
                Some(limit) => Box::pin(self.pick_free(&mut plan, limit)).await?,
            };
            if let Some(draft) = self.before_proxy(&plan, &node, &mut state).await? {
                return self.reply(draft).await;
            }
            self.prepare_call(&mut plan)?;
            if self.scratch.framing.is_none() {
                self.scratch.framing = Some(self.open_body(&plan));
            }
            let result = self.attempt(&plan, &node, &mut state).await;
            if let Some(other) = state.take_answerer() {
                plan.attempts.passed_over(&node);
                node = other;
            }
            match result {
                Ok(Ended::Declined) => plan.attempts.declined(&node, self.scratch.attempt.verdict),
                Ok(Ended::Replaced(own)) => {
                    plan.attempts.answered(&node, self.scratch.attempt.verdict);
                    break (own, true);
                }
                Ok(Ended::Instead(own)) => {
                    plan.attempts.answered(&node, self.scratch.attempt.verdict);
                    break (own, false);
                }
                Ok(ended) => {
                    // The status after plugins' changes counts; a call has no other status than its code.
                    let status = self.scratch.ctx.record.status;
                    let counted = if state.is_call { self.scratch.attempt.verdict } else { Some(status) };
                    plan.attempts.answered(&node, counted);
                    if let Ended::Left(remainder) = ended {
                        self.scratch.response.remainder = Some(remainder);
                    }
                    return Ok(());
                }
                Err(fault) => {
                    self.scratch.attempt.failed_node = Some(target::node_addr(&node.addr));
                    self.scratch.attempt.blames_node = is_to_blame(fault, state.request_sent);
                    let failure = self.failure(fault, &state);
                    if !plan.attempts.failed(&node, &failure) {
                        self.scratch.attempt.may_repeat = plan.attempts.may_repeat_elsewhere(&failure);
                        return Err(fault);
                    }
                }
            }
            drop(node);
            if let Some(own) = state.own_rules.as_deref_mut() {
                // Boxed, as few exchanges wait.
                Box::pin(back_off(&plan, plan.attempts.pause_ms(own.asked_ms.take()))).await?;
            }
        };
        if is_seen { Box::pin(self.deliver_local(*own)).await } else { Box::pin(self.send_own(*own)).await }
    }

    /// Runs the hooks before a request is sent. They see the node's request with its Host: some sign it.
    pub(super) fn before_proxy(
        &mut self,
        plan: &Plan<'_>,
        node: &Endpoint,
        state: &mut State<'_>,
    ) -> Running<impl Future<Output = PhaseEnd>> {
        if self.has_hooks(Phase::BeforeProxy) {
            self.address(plan, node, state);
        }
        self.run_chains(Phase::BeforeProxy)
    }

    /// Returns the remaining time of the exchange.
    ///
    /// # Errors
    /// Returns an error if it has ended.
    pub(super) fn time_left<'l>(
        &self,
        route: &'l Route,
        upstream: &'l Upstream,
        is_call: bool,
    ) -> Result<Option<TimeLeft<'l>>, Fault> {
        let limit = route.deadline().or(upstream.deadline.as_deref());
        TimeLeft::of(&self.scratch.ctx.request, is_call, limit, self.scratch.spent_ms)
    }

    fn failure(&self, fault: Fault, state: &State<'_>) -> Failure {
        let status =
            reply::status_of(fault.kind, &self.scratch.ctx).filter(|_| self.scratch.ctx.record.status == 0);
        Failure { fault, decision: state.decision, request_sent: state.request_sent, status }
    }

    /// Rejects a host that cannot be a TLS server name, which is the fault of its sender: no node is tried for it.
    fn check_host(&self, upstream: &Upstream) -> Result<(), Fault> {
        let host = headers::host_for_all(&self.scratch.ctx, upstream);
        if upstream.over_tls().is_none() || host.is_none_or(target::can_be_named) {
            return Ok(());
        }
        Err(match upstream.host.pass {
            PassHost::Pass => Fault::new(FaultKind::BadRequest, "the host is not a valid TLS server name"),
            _ => Fault::new(FaultKind::NoUpstream, "the upstream's host is not a valid TLS server name"),
        })
    }

    /// Sets the protocol to which the connection to a node must be upgraded. A client of HTTP/1 is served without the
    /// upgrade if the route does not allow it (RFC 9110 §7.8).
    fn choose_upgrade(&mut self, route: &Route, upstream: &Upstream) -> Result<(), Fault> {
        let can = !matches!(upstream.config.scheme, Scheme::Grpc | Scheme::Grpcs | Scheme::Fcgi);
        self.scratch.upgrade.clear();
        let asked = self.asks_upgrade && can;
        let protocol = if asked { upgrade::admitted(&self.scratch.ctx.request, route) } else { None };
        if protocol.is_none() && self.down.asks_tunnel() {
            let reason = "the route does not allow this :protocol";
            return Err(Fault::new(FaultKind::NotImplemented, reason));
        }
        self.scratch.upgrade.extend_from_slice(protocol.unwrap_or_default());
        Ok(())
    }

    /// Prepares the request body, and returns its framing.
    fn open_body(&mut self, plan: &Plan<'_>) -> BodyLength {
        let length = self.request_length();
        let filters = self.request_filters(plan.view);
        let Scratch { ctx, body, .. } = &mut *self.scratch;
        let limit = plan.view.snapshot.settings.limits.retry_body_bytes as usize;
        let length = body.open(ctx.body.is_some(), filters, limit, length);
        // For readers of the variable; the codec writes its own value.
        if let (BodyLength::Known(bytes), Some(_)) = (length, &ctx.body) {
            ctx.request.headers.set(HeaderId::ContentLength, itoa::Buffer::new().format(bytes).as_bytes());
        }
        length
    }

    /// Returns the framing of the body from the client, or from a plugin.
    pub(super) fn request_length(&self) -> BodyLength {
        match &self.scratch.ctx.body {
            Some(body) if body.is_empty() => BodyLength::None,
            Some(body) => BodyLength::Known(body.len() as u64),
            None => self.down.body_length(),
        }
    }

    /// Makes one attempt on a node; with a stale idle connection a second one on a new connection.
    async fn attempt(
        &mut self,
        plan: &Plan<'_>,
        node: &Endpoint,
        state: &mut State<'_>,
    ) -> Result<Ended, Fault> {
        let in_flight = plan.attempts.begin(node);
        // A clock is read only if it is needed: for the access log, and for balancing by latency.
        let timed =
            self.scratch.ctx.record.started.is_some() || plan.upstream().selection.balancing.needs_latency();
        let began = timed.then(|| self.scratch.ctx.record.now());
        self.note_attempt(node, began);
        (state.request_sent, self.scratch.attempt.verdict) = (true, None);
        // Only plugins read it.
        state.may_follow = self.stage.is_guided() && plan.attempts.may_follow();
        let result = match plan.time() {
            None => self.attempt_on(plan, node, state).await,
            // Boxed: a moved future is copied, and this is the largest of all.
            Some(time) => time.bound(Box::pin(self.attempt_on(plan, node, state))).await,
        };
        if result.is_err() && plan.time().is_some_and(TimeLeft::is_over) {
            state.decision = Decision::GiveUp;
            // A short time limit of the client says nothing about the node.
            state.request_sent &= !plan.time().is_some_and(TimeLeft::is_clients);
        }
        let record = &mut self.scratch.ctx.record;
        let elapsed_ms = began.map(|at| record.now().saturating_duration_since(at).as_secs_f64() * 1000.0);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.response_ms = elapsed_ms;
        }
        let latency_ms = if result.is_ok() { elapsed_ms } else { None };
        in_flight.end(Outcome { latency_ms, now_ms: deadline::now_ms() });
        result
    }

    pub(super) fn note_attempt(&mut self, endpoint: &Endpoint, began: Option<Instant>) {
        self.scratch.ctx.record.upstream_statuses.push(0);
        if self.scratch.ctx.record.started.is_some() {
            self.scratch.ctx.record.attempts.push(Attempt {
                addr: target::node_addr(&endpoint.addr),
                host: endpoint.host.clone(),
                began,
                status: 0,
                reused: false,
                version: None,
                linked_ms: None,
                connect_ms: None,
                sent_ms: None,
                header_ms: None,
                carried: None,
                response_ms: None,
            });
        }
    }

    async fn attempt_on(
        &mut self,
        plan: &Plan<'_>,
        node: &Endpoint,
        state: &mut State<'_>,
    ) -> Result<Ended, Fault> {
        self.address(plan, node, state);
        let connect_ms = state.begin_try(node, plan.timeouts().connect_ms);
        let demands = self.demands(plan, node, connect_ms);
        // Made on demand: it is large, and would live for the whole exchange.
        let target = || target::target(&plan.view.snapshot, plan.upstream(), node, &demands);
        let mut idle_allowed = true;
        loop {
            let terms = self.terms(plan.upstream()).inspect_err(|_| state.decision = Decision::GiveUp)?;
            let mut connection = match idle_allowed.then(|| self.worker.checkout(&target())).flatten() {
                Some(connection) => {
                    self.scratch.ctx.record.connected(true);
                    connection
                }
                None => {
                    state.decision = after(Missing::Connection, plan.attempts.policy);
                    // Boxed, as handshakes need much memory and most exchanges lack one.
                    Box::pin(async { self.dial(target()).await }).await?
                }
            };
            self.scratch.ctx.record.speaks(connection.version());
            self.send_head(&mut connection, terms);
            if let Some(hedging) = self.hedging(plan) {
                // Boxed, as few exchanges have any.
                match Box::pin(self.hedge(plan, node, connection, hedging, state)).await? {
                    Raced::First(first) => connection = first,
                    Raced::Ended(Ended::Anew) => continue,
                    Raced::Ended(ended) => return Ok(ended),
                }
            }
            // An await within a match would keep the matched value alive.
            let conversed = self.converse(plan, &mut connection, state).await;
            if let Some(value) = self.scratch.response.alternative.take() {
                connection.announce(&target(), &value, deadline::now_ms());
            }
            let fault = match conversed {
                Ok(Ended::Whole) => {
                    self.scratch.ctx.record.carried(connection.carried());
                    connection.give_back(&target(), deadline::now_ms());
                    return Ok(Ended::Spent);
                }
                Ok(ended @ (Ended::Instead(_) | Ended::Left(_))) => {
                    self.scratch.ctx.record.carried(connection.carried());
                    if state.request_sent {
                        connection.give_back(&target(), deadline::now_ms());
                    }
                    return Ok(ended);
                }
                Ok(Ended::Apart(both)) => {
                    let (fill, own) = *both;
                    return Ok(self.fetch(plan, node, connection, fill, own));
                }
                Ok(Ended::Anew) => continue,
                Ok(ended) => {
                    self.scratch.ctx.record.carried(connection.carried());
                    return Ok(ended);
                }
                Err(fault) if state.decision == Decision::SameNode => fault,
                Err(fault) => {
                    self.scratch.ctx.record.carried(connection.carried());
                    return Err(fault);
                }
            };
            drop(connection);
            idle_allowed = false;
            if std::mem::take(&mut state.is_for_another) {
                Box::pin(self.write_again(plan, node, state, fault)).await?;
            }
        }
    }

    /// Opens a new connection. Its steps are recorded if needed.
    async fn dial(&mut self, target: Target<'_>) -> Result<InUse, Fault> {
        let linked = Cell::new(None);
        let note = || linked.set(Some(moment::exact()));
        let is_asked = self.scratch.ctx.record.started.is_some();
        let dial = Dial { linked: is_asked.then_some(Notice(&note)), ..target.dial };
        let made = self.worker.connect(&Target { dial, ..target }).await;
        let record = &mut self.scratch.ctx.record;
        record.linked(linked.get());
        if made.is_ok() {
            record.connected(false);
        }
        made
    }

    /// Makes a request one for its first node again, after it was rewritten for the second one.
    ///
    /// # Errors
    /// Returns `fault` if a plugin prevents it.
    async fn write_again(
        &mut self,
        plan: &Plan<'_>,
        node: &Endpoint,
        state: &mut State<'_>,
        fault: Fault,
    ) -> Result<(), Fault> {
        if self.before_proxy(plan, node, state).await?.is_some() {
            return Err(fault);
        }
        self.address(plan, node, state);
        Ok(())
    }

    /// Makes the request one for this node.
    pub(super) fn address(&mut self, plan: &Plan<'_>, node: &Endpoint, state: &mut State<'_>) {
        let ctx = &mut self.scratch.ctx;
        match &ctx.host {
            // APISIX: the upstream's Host setting precedes the plugins'.
            Some(host) if plan.upstream().host.pass == PassHost::Pass => {
                ctx.request.headers.set(HeaderId::Host, host);
            }
            _ => headers::set_host(&mut ctx.request, plan.upstream(), node),
        }
        self.mark_pass(&plan.view.snapshot, &node.addr, &mut state.marked);
        if let Some(time) = plan.time() {
            time.tell(&mut self.scratch.ctx.request);
        }
    }

    /// Returns the demands of the current request on a connection.
    pub(super) fn demands(&self, plan: &Plan<'_>, node: &Endpoint, connect_ms: u64) -> Demands {
        let ctx = &self.scratch.ctx;
        let number = self.down.owner(&ctx.request.headers);
        let demands = Demands {
            connect_ms,
            link_ms: plan.attempts.link_ms(node),
            upgrade: !self.scratch.upgrade.is_empty(),
            ..Demands::of(&ctx.request, plan.upstream(), *self.down.origin(), number)
        };
        if ctx.dubbo.is_some() { Demands { protocol: Protocol::Dubbo, ..demands } } else { demands }
    }

    /// Returns the request data for nodes of this upstream besides the head; None for nodes without such data.
    ///
    /// # Errors
    /// Returns an error if it has no valid target for a node.
    pub(super) fn terms(&mut self, upstream: &Upstream) -> Result<Option<Box<Terms>>, Fault> {
        if let Some(dubbo) = &self.scratch.ctx.dubbo {
            return Ok(Some(Box::new(Terms::Dubbo(dubbo.call.clone()))));
        }
        let Some(fastcgi) = &upstream.transport.fastcgi else { return Ok(None) };
        if !self.stage.is_guided() {
            self.scratch.ctx.client = client(&self.down, &self.view, self.scratch.told);
        }
        fastcgi.terms(&self.scratch.ctx).map(|terms| Some(Box::new(Terms::Fcgi(terms))))
    }

    pub(super) fn send_head(&mut self, connection: &mut Connection, terms: Option<Box<Terms>>) {
        if let Some(terms) = terms {
            connection.describe(*terms);
        }
        let length = self.scratch.framing.unwrap_or_default();
        let Scratch { ctx, upgrade, .. } = &mut *self.scratch;
        ctx.request.headers.remove_twins_of_added();
        let upgrade = (!upgrade.is_empty()).then_some(&upgrade[..]);
        let rewritten = (!ctx.target.is_empty()).then_some(&ctx.target[..]);
        connection.send_head(&mut ctx.request, rewritten, length, upgrade);
    }

    /// Sends the request and receives the response on one connection.
    pub(super) async fn converse(
        &mut self,
        plan: &Plan<'_>,
        connection: &mut Connection,
        state: &mut State<'_>,
    ) -> Result<Ended, Fault> {
        let settings = &plan.view.snapshot.settings;
        self.scratch.ctx.record.hides_reason = self.hides_reason();
        let has_body = self.scratch.has_body();
        let Scratch { ref mut ctx, ref mut body, upgrade: ref asked, ref mut turn, ref mut response, .. } =
            *self.scratch;
        let method = ctx.request.method;
        body.rewind(ctx);
        let timeouts = plan.timeouts();
        let mut transfer =
            Transfer::begin(&mut self.down, connection, timeouts, &settings.timeouts, has_body);
        if has_body && ctx.request.headers.has(HeaderId::Expect) {
            transfer.await_invitation(body);
        }
        state.note_upload(transfer.upload(), ctx, true);
        let result = poll_fn(|task| {
            let polled = transfer.poll_final_head(task, method, plan.answer_limits(), ctx, body);
            state.note_upload(transfer.upload(), ctx, false);
            if polled.is_pending() { state.poll_try_over(plan.drain(), task) } else { polled }
        })
        .await;
        if let Err(fault) = result {
            let progress = transfer.progress(body.is_repeatable());
            state.decision = decide(fault, method, progress, plan.attempts.policy);
            let Some(reply) = ctx.instead.take() else { return Err(fault) };
            // A filter of the request's body has responded; the node has a part of the request only.
            (state.decision, state.request_sent) = (Decision::GiveUp, false);
            return Ok(self.instead(*reply, plan));
        }
        state.decision = Decision::GiveUp;
        transfer.answered();
        let head = &mut ctx.response;
        upgrade::check_agreement(head, asked)?;
        transfer.down.check_answer(head)?;
        ctx.record.answered(head.status);
        response.alternative = plan.upstream().announced_alternative(&head.headers);
        self.scratch.attempt.verdict = plan.verdict(state.is_call, head);
        plan.attempts.tell_session(&mut head.headers);
        if head.status == 101 {
            let in_force = self.stage.in_force(self.worker, plan.view);
            // Boxed, as few exchanges have one.
            return Box::pin(tunnel::begin(
                &mut transfer,
                ctx,
                in_force,
                asked,
                self.worker,
                state.withdrawal(),
            ))
            .await;
        }
        if self.worker.is_draining() || self.worker.is_past_age(transfer.down.origin()) {
            transfer.down.close_after();
        }
        let repeatable = body.is_repeatable() && transfer.has_told_nothing();
        let may_retry = state.may_follow && repeatable;
        if repeatable && state.wants_another(head, method, &plan.attempts) {
            return Ok(Ended::Declined);
        }
        transfer.read_ahead(read_ahead::allowed(ctx.read_ahead_bytes, head));
        response_head::prepare(head, &plan.view.snapshot);
        let length = answer_length(transfer.up.body_length(), ctx);
        ctx.has_response_body = !length.is_empty();
        if let Some(ended) = cache::answered(turn, ctx, length, state.request_sent, self.worker) {
            return Ok(ended);
        }
        // After the cache: it is about this exchange alone.
        let when = settings.upstream_status_header;
        response_head::report_upstream_status(&mut ctx.response, &ctx.record, when);
        let (filters, length) = match self.stage.in_force(self.worker, plan.view) {
            None => (Vec::new(), length),
            Some(in_force) if !in_force.has_hooks(Phase::HeaderFilter) => in_force.body_filters(ctx, length),
            // Boxed, so that exchanges without plugins need no room for it.
            Some(in_force) => match Box::pin(in_force.respond(ctx, transfer.down, may_retry)).await? {
                Verdict::Pass => in_force.body_filters(ctx, length),
                Verdict::Retry => return Ok(Ended::Declined),
                Verdict::Replaced(own) => return Ok(Ended::Replaced(own)),
            },
        };
        proxy_status::tell_timing(&mut ctx.response.headers, &ctx.record, settings);
        let filters = cache::kept_first(ctx, filters);
        let mut delivery = Delivery::new(filters, transfer.up.body_length());
        delivery.begin(transfer.down, ctx, length, self.worker.clock.borrow().http_date(), Hold::WhereAsked);
        let result = poll_fn(|task| {
            let polled = transfer.poll_body(task, &mut delivery, ctx, body);
            if polled.is_pending()
                && !delivery.holds_head()
                && let Poll::Ready(rest) = transfer.poll_rest(task, ctx, body)
            {
                return Poll::Ready(Ok(Some(rest)));
            }
            state.or_cut(polled, plan.drain(), task).map_ok(|()| None)
        })
        .await;
        state.request_sent = transfer.upload() == Upload::Done;
        match result {
            Ok(None) => Ok(self.end_answer(plan, delivery.code(), state)),
            Ok(Some(rest)) => Ok(self.leave_node(plan, delivery, *rest, state)),
            Err(fault) => self.end_broken(plan, &delivery, fault, state),
        }
    }

    /// Handles a cut response body, or one that a filter has rejected before the client got a byte.
    fn end_broken(
        &mut self,
        plan: &Plan<'_>,
        delivery: &Delivery,
        fault: Fault,
        state: &mut State<'_>,
    ) -> Result<Ended, Fault> {
        let ctx = &mut self.scratch.ctx;
        let reply = delivery.refusal(ctx).ok_or(fault)?;
        self.scratch.response.is_refused = true;
        // The rest of the body would be read as the next response.
        state.request_sent &= delivery.has_all();
        Ok(self.instead(reply, plan))
    }

    /// Makes `reply` the response.
    fn instead(&mut self, reply: Reply, plan: &Plan<'_>) -> Ended {
        let draft = Draft { reply, stream: None, peer: None };
        Ended::Instead(Box::new(local_reply::begin(draft, &mut self.scratch.ctx, plan.view)))
    }

    /// The node has sent its whole response: the attempt ends before the client has it.
    fn leave_node(&mut self, plan: &Plan<'_>, delivery: Delivery, rest: Rest, state: &State<'_>) -> Ended {
        let code = rest.trailers().and_then(grpc::ended_with).or_else(|| delivery.code());
        self.end_answer(plan, code, state);
        Ended::Left(Remainder::new(delivery, rest, plan.time().map(TimeLeft::end)))
    }

    /// Handles the end of a node's response at the client, with the status code of a call.
    fn end_answer(&mut self, plan: &Plan<'_>, code: Option<grpc::Code>, state: &State<'_>) -> Ended {
        if state.is_call && self.scratch.attempt.verdict == Some(200) {
            self.scratch.attempt.verdict = plan.verdict_at_end(code);
        }
        if state.request_sent {
            return Ended::Whole;
        }
        // The rest of the request is read at the end of the exchange, or the head has announced that it is not read.
        Ended::Spent
    }
}

/// Returns the length of the client's body for a node's body of `length`.
fn answer_length(length: BodyLength, ctx: &mut Context) -> BodyLength {
    if ctx.request.method != Method::Head || ctx.request.client_method() == Method::Head {
        return length;
    }
    // A plugin made a HEAD of it: the length belongs to a body that is never sent.
    ctx.response.headers.set(HeaderId::ContentLength, b"0");
    BodyLength::Known(0)
}

/// Waits before the next attempt, at most for the remaining time of the exchange.
async fn back_off(plan: &Plan<'_>, pause_ms: u64) -> Result<(), Fault> {
    if pause_ms == 0 {
        return Ok(());
    }
    let sleep = async {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        Ok(())
    };
    match plan.time() {
        None => sleep.await,
        Some(time) => time.bound(sleep).await,
    }
}
