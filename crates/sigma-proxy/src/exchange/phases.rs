//! The hooks of plugins in each phase, global rules before the route's.
//!
//! A hook that decides at once costs a call; only one that waits, or needs the request body, leaves the straight
//! path.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Instant;

use sigma_buffer::held;
use sigma_http::{BodyLength, Fault, FaultKind, Frame, HeaderId, Headers};
use sigma_net::deadline;
use sigma_plugin::body_fields::BodyFields;
use sigma_plugin::graphql::Chosen;
use sigma_plugin::step::{BodyRead, BodyStart, Reply};
use sigma_plugin::{Context, Entry, Env, Phase, Step};

use super::Exchange;
use super::local_reply::Draft;
use super::stage::{Stage, chains};
use super::transfer::client_gone;
use crate::worker::View;

/// Calls the hook of a request phase.
fn hook(entry: &Entry, phase: Phase, ctx: &mut Context, env: &Env<'_>) -> Step {
    match phase {
        Phase::Rewrite => entry.plugin.rewrite(ctx, env),
        Phase::Access => entry.plugin.access(ctx, env),
        _ => entry.plugin.before_proxy(ctx, env),
    }
}

/// Returns the type of a body that can be read as its type says. None if it has a coding, or more than one type.
fn readable_type(headers: &Headers) -> Option<Vec<u8>> {
    let is_coding = |name: &[u8]| name.eq_ignore_ascii_case(b"content-encoding");
    if headers.iter().any(|(name, coding)| is_coding(name) && !coding.eq_ignore_ascii_case(b"identity")) {
        return None;
    }
    let mut types = headers.get_all(HeaderId::ContentType);
    let first = types.next().unwrap_or_default().to_vec();
    types.next().is_none().then_some(first)
}

/// Applies `_meta.error_response` to a reply.
fn worded(entry: &Entry, mut draft: Box<Draft>) -> Box<Draft> {
    if draft.reply.status >= 400
        && let Some(text) = &entry.meta.error_response
    {
        draft.reply.body = Some(match text {
            serde_json::Value::String(text) => text.clone().into_bytes(),
            other => format!("{other}\n").into_bytes(),
        });
    }
    draft
}

/// The outcome of a phase: the response that replaces the node's, if a hook has one.
pub(super) type PhaseEnd = Result<Option<Box<Draft>>, Fault>;

/// The rest of a phase; None if no hook has stopped. Boxed, so that exchanges whose plugins never wait have no room
/// for it.
pub(super) struct Running<F>(Option<Pin<Box<F>>>);

impl<F: Future<Output = PhaseEnd>> Future for Running<F> {
    type Output = PhaseEnd;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<PhaseEnd> {
        match &mut self.0 {
            Some(rest) => rest.as_mut().poll(task),
            None => Poll::Ready(Ok(None)),
        }
    }
}

/// A hook that does not just continue with the next one.
struct Stop {
    entry: Arc<Entry>,
    step: Step,
    /// The number of the next hook.
    next: usize,
}

/// The hooks of a phase that run, with regard to guard plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guards {
    /// All hooks, in order.
    InOrder,
    /// Only guard plugins, before a request body is read.
    Alone,
    /// All others: the guard plugins have run.
    Done,
}

impl Guards {
    fn admit(self, entry: &Entry) -> bool {
        match self {
            Guards::InOrder => true,
            Guards::Alone => entry.kind.guards(),
            Guards::Done => !entry.kind.guards(),
        }
    }
}

/// Runs hooks of a request phase, beginning with number `from`, until one stops. Most decide at once: these cost a
/// call, and no future.
fn run_until_stop<'e>(
    entries: impl Iterator<Item = &'e Arc<Entry>>,
    from: usize,
    phase: Phase,
    guards: Guards,
    ctx: &mut Context,
    env: &Env<'_>,
) -> Option<Stop> {
    // Not a loop: an iterator over several chains is fastest with internal iteration.
    entries.enumerate().skip(from).find_map(|(number, entry)| {
        if !guards.admit(entry) {
            return None;
        }
        if !ctx.admits(entry) {
            entry.owned.clear_judged(&mut ctx.request.headers);
            return None;
        }
        match hook(entry, phase, ctx, env) {
            Step::Next => None,
            step => Some(Stop { entry: Arc::clone(entry), step, next: number + 1 }),
        }
    })
}

impl Exchange<'_, '_> {
    /// Runs rewrite and access. A reply ends the exchange.
    pub(super) async fn request_phases(&mut self) -> PhaseEnd {
        if let Some(reply) = self.run_chains(Phase::Rewrite).await? {
            return Ok(Some(reply));
        }
        if let Some(reply) = self.merge_consumer().await? {
            return Ok(Some(reply));
        }
        let end = self.run_chains(Phase::Access).await?;
        self.limit_body()?;
        self.count_bodies();
        self.clear_judged();
        Ok(end)
    }

    /// Runs the hooks of a request phase, if plugins take part: at once, until one stops. A reply ends the exchange.
    pub(super) fn run_chains(&mut self, phase: Phase) -> Running<impl Future<Output = PhaseEnd>> {
        Running(self.run_hooks(phase, 0, Guards::InOrder).map(|stop| Box::pin(self.run_on(stop, phase))))
    }

    /// Runs the hooks of the active chains, beginning with number `next`, until one does not just continue.
    fn run_hooks(&mut self, phase: Phase, next: usize, guards: Guards) -> Option<Stop> {
        let Stage::Guided { merged, hooks, .. } = &self.stage else { return None };
        if !hooks.contains(phase) {
            return None;
        }
        let (ctx, env) = (&mut self.scratch.ctx, self.worker.env(&self.view));
        let entries = chains(&self.view, self.stage.route_number(), merged.as_deref())
            .flat_map(|chain| chain.phase(phase));
        run_until_stop(entries, next, phase, guards, ctx, &env)
    }

    /// Executes the step of a hook, and continues with the hooks after it.
    async fn run_on(&mut self, stop: Stop, phase: Phase) -> PhaseEnd {
        let view = Rc::clone(&self.view);
        let mut stopped = Some(stop);
        let mut guards = Guards::InOrder;
        while let Some(stop) = stopped {
            let next = stop.next;
            if guards == Guards::InOrder && self.is_body_read_for(&stop) {
                guards = Guards::Done;
                if let Some(draft) = self.run_guards(phase, next, &view).await? {
                    return Ok(Some(draft));
                }
            }
            if let Some(draft) = self.follow(stop, phase, &view).await? {
                return Ok(Some(draft));
            }
            stopped = self.run_hooks(phase, next, guards);
        }
        Ok(None)
    }

    /// Returns true if a request body is about to be read into memory for a plugin that is no guard.
    fn is_body_read_for(&self, stop: &Stop) -> bool {
        matches!(stop.step, Step::ReadBody { .. } | Step::ReadStart { .. } | Step::ReadAlong { .. })
            && !stop.entry.kind.guards()
            && self.scratch.ctx.body.is_none()
            && !self.down.body_length().is_empty()
    }

    /// Runs the guard plugins after number `next`: memory is for requests that they let pass.
    async fn run_guards(&mut self, phase: Phase, mut next: usize, view: &View) -> PhaseEnd {
        while let Some(stop) = self.run_hooks(phase, next, Guards::Alone) {
            next = stop.next;
            if let Some(draft) = self.follow(stop, phase, view).await? {
                return Ok(Some(draft));
            }
        }
        Ok(None)
    }

    /// Returns true if some plugin has a hook of this phase.
    pub(super) fn has_hooks(&self, phase: Phase) -> bool {
        self.stage.hooks().contains(phase)
    }

    /// Merges the plugins of an identified consumer into the route's, and runs the rewrite phase of those that the
    /// route did not have.
    async fn merge_consumer(&mut self) -> Result<Option<Box<Draft>>, Fault> {
        let Some(consumer) = self.scratch.ctx.consumer().cloned() else { return Ok(None) };
        if consumer.group_missing || consumer.closed {
            return Ok(Some(Reply::new(503).into()));
        }
        if consumer.entries.is_empty() {
            return Ok(None);
        }
        let view = Rc::clone(&self.view);
        let Some(route) = self.stage.route(&view.snapshot) else { return Ok(None) };
        let route = &route.chain;
        let merged = view.merged_chain(route, &consumer);
        self.scratch.ctx.record.watch(merged.interest());
        self.stage.merge(Rc::clone(&merged), &view);
        self.clear_owned();
        let added: Vec<Arc<Entry>> = merged
            .phase(Phase::Rewrite)
            .iter()
            .filter(|entry| !entry.kind.authenticates() && route.get(entry.name()).is_none())
            .cloned()
            .collect();
        if added.is_empty() {
            Ok(None)
        } else {
            Box::pin(self.run_added(&added, Phase::Rewrite, &view)).await
        }
    }

    /// Runs the hooks of these plugins only.
    async fn run_added(
        &mut self,
        entries: &[Arc<Entry>],
        phase: Phase,
        view: &View,
    ) -> Result<Option<Box<Draft>>, Fault> {
        let mut next = 0;
        loop {
            let (ctx, env) = (&mut self.scratch.ctx, self.worker.env(view));
            let Some(stop) = run_until_stop(entries.iter(), next, phase, Guards::InOrder, ctx, &env) else {
                return Ok(None);
            };
            next = stop.next;
            if let Some(draft) = self.follow(stop, phase, view).await? {
                return Ok(Some(draft));
            }
        }
    }

    /// Executes the step of a hook.
    async fn follow(&mut self, stop: Stop, phase: Phase, view: &View) -> Result<Option<Box<Draft>>, Fault> {
        let Stop { entry, step, .. } = stop;
        let draft = self.settle_noted(&entry, phase, step, view).await?;
        let Some(draft) = draft else { return Ok(None) };
        let draft = worded(&entry, draft);
        self.scratch.ctx.login.set_responder(entry, draft.reply.status);
        Ok(Some(draft))
    }

    /// Follows a step to its end. A wait is noted for variables that show it.
    async fn settle_noted(
        &mut self,
        entry: &Entry,
        phase: Phase,
        step: Step,
        view: &View,
    ) -> Result<Option<Box<Draft>>, Fault> {
        if matches!(step, Step::Reply(..) | Step::Stream(..) | Step::Takeover(..)) {
            return self.settle(step, view).await;
        }
        // Later hooks may read it.
        self.scratch.ctx.record.begin();
        let began = self.scratch.ctx.record.started.map(|_| Instant::now());
        let settled = self.settle(step, view).await;
        self.scratch.ctx.record.waited(entry.name(), phase, began);
        settled
    }

    /// Follows a step to its end.
    pub(super) async fn settle(&mut self, mut step: Step, view: &View) -> Result<Option<Box<Draft>>, Fault> {
        loop {
            step = match step {
                Step::Next => return Ok(None),
                Step::Reply(reply) => return Ok(Some((*reply).into())),
                Step::Stream(reply, body) => {
                    return Ok(Some(Box::new(Draft { stream: Some(body), ..*<Box<Draft>>::from(*reply) })));
                }
                Step::Takeover(reply, peer) => {
                    return Ok(Some(Box::new(Draft { peer: Some(peer), ..*<Box<Draft>>::from(*reply) })));
                }
                Step::Wait(mut future) => {
                    let resume = poll_fn(|task| {
                        if let Poll::Ready(resume) = future.as_mut().poll(task) {
                            return Poll::Ready(Ok(resume));
                        }
                        self.down.poll_departure(task).map(|()| Err(client_gone()))
                    })
                    .await?;
                    resume(&mut self.scratch.ctx, &self.worker.env(view))
                }
                Step::ReadBody { limit, then } => {
                    // Boxed, here and below: few plugins want bodies.
                    let read = Box::pin(self.read_body(limit)).await?;
                    let step = then(&mut self.scratch.ctx, &self.worker.env(view), read);
                    self.count_bodies();
                    step
                }
                Step::ReadStart { limit, then } => {
                    let start = BodyStart::of(Box::pin(self.read_beyond(limit)).await?, limit);
                    then(&mut self.scratch.ctx, &self.worker.env(view), start)
                }
                Step::ReadAlong { limit, reader } => {
                    let resume = Box::pin(self.read_along(limit, reader)).await?;
                    resume(&mut self.scratch.ctx, &self.worker.env(view))
                }
                Step::Ask { calls, then } => {
                    let asked = Box::pin(self.ask(calls)).await?;
                    then(&mut self.scratch.ctx, &self.worker.env(view), asked)
                }
            };
        }
    }

    /// Reads the request body into memory, unless it was read before.
    async fn read_body(&mut self, limit: usize) -> Result<BodyRead, Fault> {
        self.limit_body()?;
        if self.scratch.ctx.body.is_none()
            && matches!(self.down.body_length(), BodyLength::Known(n) if n > limit as u64)
        {
            return Ok(BodyRead::TooLarge);
        }
        if let BodyLength::Known(n) = self.down.body_length()
            && self.scratch.ctx.body.is_none()
            && n > held::body_room() as u64
        {
            held::refused();
            return Err(NO_ROOM);
        }
        let known = self.read_beyond(limit).await?;
        Ok(if known.len() > limit { BodyRead::TooLarge } else { BodyRead::Whole })
    }

    /// Finds the route if it depends on the body. An unreadable body is rejected: its sender could choose between
    /// routes with it.
    pub(super) async fn find_route_by_body(&mut self) -> Result<u32, Fault> {
        if self.down.body_length().is_empty() {
            // It was found without one, unless its operation of GraphQL is unclear.
            return Err(unclear_document());
        }
        let Some(content_type) = readable_type(&self.scratch.ctx.request.headers) else {
            let reason = "a route matches on the request body, which has a content coding or several types";
            return Err(Fault::new(FaultKind::UnsupportedMediaType, reason));
        };
        let mut fields = BodyFields::default();
        if BodyFields::are_in(&content_type) {
            let body = self.routing_body().await?;
            fields = BodyFields::of(&content_type, body).ok_or_else(|| {
                let reason = "a route matches on the request body, which has too many fields";
                Fault::new(FaultKind::RequestBodyTooLarge, reason)
            })?;
        }
        let found = self.find_route(Some(&fields));
        if !self.scratch.asks_body {
            return found;
        }
        // For an operation of GraphQL, which may be in a body of any type.
        self.routing_body().await?;
        let ctx = &self.scratch.ctx;
        let (query, body) =
            (ctx.request.query().unwrap_or_default(), ctx.body.as_deref().unwrap_or_default());
        let chosen = Chosen::of(query, &ctx.request.headers, body).map_err(|_| unclear_document())?;
        let found = self.find_route(Some(&fields.with_graphql(chosen)));
        if self.scratch.asks_body { Err(unclear_document()) } else { found }
    }

    /// Returns the request body, for conditions of routes.
    async fn routing_body(&mut self) -> Result<&[u8], Fault> {
        let limit = self.view.snapshot.settings.limits.routing_body_bytes as usize;
        if self.read_body(limit).await? == BodyRead::TooLarge {
            let reason = "a route matches on the request body, which exceeds limits.routing_body_bytes";
            return Err(Fault::new(FaultKind::RequestBodyTooLarge, reason));
        }
        Ok(self.scratch.ctx.body.as_deref().unwrap_or_default())
    }

    /// Reads the request body to its end or beyond `limit`. If it was read to its end, it is in [`Context::body`].
    async fn read_beyond(&mut self, limit: usize) -> Result<&[u8], Fault> {
        self.limit_body()?;
        let is_whole = self.scratch.ctx.body.is_some();
        if !is_whole && self.down.body_length().is_empty() {
            self.scratch.ctx.body = Some(self.scratch.body.take_read());
        } else if !is_whole {
            self.invite_body();
            let view = Rc::clone(&self.view);
            let timeouts = &view.snapshot.settings.timeouts;
            let seen = self.scratch.body.read().len();
            while self.scratch.body.read().len() <= limit {
                let received = self.down.bytes_received();
                let wait_ms = self.scratch.body.intake.wait(deadline::now_ms(), received, timeouts)?;
                self.down.deadline().set(wait_ms);
                let Frame::Data(data) = self.next_body_frame().await? else {
                    self.scratch.ctx.body = Some(self.scratch.body.take_read());
                    break;
                };
                make_room(self.scratch.body.reading(), data.len())?;
                self.scratch.body.reading().extend_from_slice(&data);
                self.count_bodies();
            }
            self.scratch.body.intake.pause(deadline::now_ms());
            self.down.deadline().clear();
            if let Some(copy) = &self.scratch.ctx.request_copy
                && let Some(new) = self.scratch.body.read().get(seen..)
            {
                copy.see(new);
            }
        }
        Ok(self.scratch.ctx.body.as_deref().unwrap_or(self.scratch.body.read()))
    }

    /// Counts the bodies that the exchange has in memory.
    pub(super) fn count_bodies(&mut self) {
        let held = self.bodies_held();
        self.down.hold(held);
    }

    /// Returns the memory of the bodies that the exchange has.
    pub(super) fn bodies_held(&self) -> usize {
        self.scratch.body.held(&self.scratch.ctx)
    }

    /// Applies the limit of a plugin to the request body, if one has set it.
    ///
    /// # Errors
    /// Returns an error if the body is known to be larger.
    pub(super) fn limit_body(&mut self) -> Result<(), Fault> {
        let limit = self.scratch.ctx.request_body_limit;
        if limit == 0 {
            return Ok(());
        }
        self.down.limit_body(limit);
        if self.scratch.ctx.body.is_some() {
            return Ok(());
        }
        let known = match self.down.body_length() {
            BodyLength::Known(n) => n,
            _ => self.scratch.body.read().len() as u64,
        };
        match known > limit {
            true => {
                Err(Fault::new(FaultKind::RequestBodyTooLarge, "the request body exceeds the route's limit"))
            }
            false => Ok(()),
        }
    }

    /// Sends the client a 100 if it waits for permission to send its body (RFC 9110 §10.1.1).
    pub(super) fn invite_body(&mut self) {
        let head = &mut self.scratch.ctx.request;
        if head.headers.has(HeaderId::Expect) {
            head.headers.remove(HeaderId::Expect);
            let interim = &mut self.scratch.ctx.response;
            interim.start(100);
            self.down.send_interim(interim);
        }
    }

    async fn next_body_frame(&mut self) -> Result<Frame, Fault> {
        let down = &mut self.down;
        poll_fn(|task| {
            // The 100 may not have left yet.
            if let Poll::Ready(Err(fault)) = down.poll_flush(task) {
                return Poll::Ready(Err(fault));
            }
            if let Poll::Ready(frame) = down.poll_frame(task) {
                return Poll::Ready(frame);
            }
            let late = Fault::new(FaultKind::RequestBodyTimeout, "the request body stalled");
            down.deadline().poll_expired(task).map(|()| Err(late))
        })
        .await
    }

    /// Runs the log phase, if plugins take part.
    pub(super) fn log_phase(&mut self) {
        let view = Rc::clone(&self.view);
        let Some(in_force) = self.stage.in_force(self.worker, &view) else { return };
        let ctx = &mut self.scratch.ctx;
        if in_force.has_hooks(Phase::Log) {
            for entry in in_force.chains().flat_map(|chain| chain.phase(Phase::Log)) {
                if ctx.admits(entry) {
                    entry.plugin.log(ctx, &self.worker.env(&view));
                }
            }
        }
    }
}

/// The fault of a body that does not fit in the worker's budget.
const NO_ROOM: Fault = Fault::new(
    FaultKind::MemoryLimit,
    "the memory for clients is used up, so the request body does not fit (limits.held_bytes_per_worker)",
);

/// Makes room for `bytes` more in a body that is read into memory.
///
/// # Errors
/// Returns an error if the worker's budget is used up.
pub(super) fn make_room(body: &mut Vec<u8>, bytes: usize) -> Result<(), Fault> {
    let wanted = body.len() + bytes;
    if wanted <= body.capacity() {
        return Ok(());
    }
    let room = held::body_room();
    let grown = wanted.max(2 * body.capacity()).min(body.capacity().saturating_add(room));
    if grown < wanted {
        held::refused();
        return Err(NO_ROOM);
    }
    body.reserve_exact(grown - body.len());
    Ok(())
}

/// Servers could execute different operations, or one that is not read here.
fn unclear_document() -> Fault {
    let reason = "a route matches on the GraphQL operation, but the request has several, an ambiguous one, or a document that is malformed, too large or too deep";
    Fault::new(FaultKind::RequestBodyTooLarge, reason)
}
