//! The plugins that change or replace a response before its head is sent, regardless of its source.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use sigma_http::{BodyLength, Fault, HeaderId};
use sigma_plugin::outbound::Call;
use sigma_plugin::step::{ResponseAskResume, ResponseResume};
use sigma_plugin::{BodyFilter, Context, Entry, Phase, Reply, ResponseStep};

use super::ask::{Asker, info_of_asker};
use super::local_reply::{Draft, LocalReply};
use super::stage::InForce;
use super::transfer::client_gone;
use super::websocket::Client;
use super::{Exchange, local_reply};
use crate::worker::View;

/// The fate of a response.
pub(super) enum Verdict {
    /// It is sent.
    Pass,
    /// Another node is queried.
    Retry,
    /// This one replaces it; its head does already.
    Replaced(Box<LocalReply>),
}

/// How far a response has come among the plugins.
struct PluginProgress {
    verdict: Verdict,
    may_retry: bool,
    /// The index of the next plugin.
    next: usize,
}

/// The work that a plugin waits for.
enum Waiting {
    Future(Pin<Box<dyn Future<Output = ResponseResume>>>),
    Calls(Vec<Call>, ResponseAskResume),
}

impl InForce<'_, '_> {
    /// Runs the header filters on the head in `ctx`. `may_retry` says whether another node can be asked. A body in
    /// [`Context::own_body`] stays there, unless the response is replaced.
    pub(super) async fn respond(
        &self,
        ctx: &mut Context,
        down: &mut Client<'_>,
        may_retry: bool,
    ) -> Result<Verdict, Fault> {
        let mut verdict = self.verdict(ctx, down, may_retry).await?;
        if let Verdict::Replaced(own) = &mut verdict {
            own.take_back(ctx);
        }
        Ok(verdict)
    }

    async fn verdict(
        &self,
        ctx: &mut Context,
        down: &mut Client<'_>,
        may_retry: bool,
    ) -> Result<Verdict, Fault> {
        if !self.has_hooks(Phase::HeaderFilter) {
            return Ok(Verdict::Pass);
        }
        let mut course = PluginProgress { verdict: Verdict::Pass, may_retry, next: 0 };
        match self.go_on(ctx, &mut course) {
            None => Ok(course.verdict),
            // Boxed, so that responses whose plugins never wait have no room for it.
            Some(wait) => Box::pin(self.respond_waiting(ctx, down, course, wait)).await,
        }
    }

    async fn respond_waiting(
        &self,
        ctx: &mut Context,
        down: &mut Client<'_>,
        mut course: PluginProgress,
        mut wait: Waiting,
    ) -> Result<Verdict, Fault> {
        loop {
            let began = ctx.record.started.map(|_| Instant::now());
            let waited = match wait {
                Waiting::Future(mut future) => {
                    poll_fn(|task| {
                        if let Poll::Ready(resume) = future.as_mut().poll(task) {
                            return Poll::Ready(Ok(resume));
                        }
                        down.poll_departure(task).map(|()| Err(client_gone()))
                    })
                    .await
                }
                Waiting::Calls(calls, then) => {
                    // Plugins take part, so the exchange is guided.
                    let info = info_of_asker(down.info(), ctx, true);
                    let asked = Asker::new(self.worker, &info, ctx).ask(calls, down).await;
                    asked.map(|asked| -> ResponseResume { Box::new(move |ctx, env| then(ctx, env, asked)) })
                }
            };
            // The plugin before the next one has waited.
            if let Some(entry) = self.entries().nth(course.next.saturating_sub(1)) {
                ctx.record.waited(entry.name(), Phase::HeaderFilter, began);
            }
            let step = waited?(ctx, &self.worker.env(self.view));
            let waits = self.follow(step, ctx, &mut course).or_else(|| self.go_on(ctx, &mut course));
            match waits {
                Some(next) => wait = next,
                None => return Ok(course.verdict),
            }
        }
    }

    /// Runs header filters until one has to wait.
    fn go_on(&self, ctx: &mut Context, course: &mut PluginProgress) -> Option<Waiting> {
        if matches!(course.verdict, Verdict::Retry) {
            return None;
        }
        for entry in self.entries().skip(course.next) {
            course.next += 1;
            if !ctx.admits(entry) {
                continue;
            }
            let step = entry.plugin.header_filter(ctx, &self.worker.env(self.view));
            let waits = self.follow(step, ctx, course);
            if waits.is_some() || matches!(course.verdict, Verdict::Retry) {
                return waits;
            }
        }
        None
    }

    fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.chains().flat_map(|chain| chain.phase(Phase::HeaderFilter))
    }

    /// Notes that the plugin whose turn it is replaces a good response.
    fn note_replacer(&self, ctx: &mut Context, course: &PluginProgress) {
        // A page for an error of the node is no refusal.
        let is_good = ctx.response.status < 400;
        if let Some(entry) = self.entries().nth(course.next.saturating_sub(1)).filter(|_| is_good) {
            ctx.login.set_replacer(Arc::clone(entry));
        }
    }

    fn follow(&self, step: ResponseStep, ctx: &mut Context, course: &mut PluginProgress) -> Option<Waiting> {
        let replaced = |reply: Reply, stream, ctx: &mut Context| {
            let mut own = local_reply::begin(Draft { reply, stream, peer: None }, ctx, self.view);
            own.lend(ctx);
            Verdict::Replaced(Box::new(own))
        };
        match step {
            ResponseStep::Next => {}
            ResponseStep::Replace(reply) => {
                self.note_replacer(ctx, course);
                course.verdict = replaced(*reply, None, ctx);
            }
            ResponseStep::Stream(reply, body) => {
                self.note_replacer(ctx, course);
                course.verdict = replaced(*reply, Some(body), ctx);
            }
            ResponseStep::Retry => {
                if course.may_retry && matches!(course.verdict, Verdict::Pass) {
                    course.verdict = Verdict::Retry;
                }
            }
            ResponseStep::Wait(future) => return Some(Waiting::Future(future)),
            ResponseStep::Ask { calls, then } => return Some(Waiting::Calls(calls, then)),
        }
        None
    }

    /// Returns the filters of the response body in their order, and the length of their output.
    pub(super) fn body_filters(
        &self,
        ctx: &mut Context,
        length: BodyLength,
    ) -> (Vec<Box<dyn BodyFilter>>, BodyLength) {
        let mut filters = Vec::new();
        if !self.has_hooks(Phase::BodyFilter) {
            return (filters, length);
        }
        for entry in self.chains().flat_map(|chain| chain.phase(Phase::BodyFilter)) {
            if ctx.admits(entry) {
                filters.extend(entry.plugin.body_filter(ctx, &self.worker.env(self.view)));
            }
        }
        // A stable sort keeps the order of the plugins otherwise.
        filters.sort_by_key(|filter| filter.encodes());
        let leaving = filters.iter().fold(length, |length, filter| filter.length(length));
        if leaving != length {
            local_reply::declare_length(&mut ctx.response.headers, leaving);
        }
        (filters, leaving)
    }
}

impl Exchange<'_, '_> {
    /// Returns the filters of the request body, in their order.
    pub(super) fn request_filters(&mut self, view: &View) -> Vec<Box<dyn BodyFilter>> {
        let mut filters = Vec::new();
        let in_force = self.stage.in_force(self.worker, view);
        let Some(in_force) = in_force.filter(|all| all.has_hooks(Phase::RequestFilter)) else {
            return filters;
        };
        let ctx = &mut self.scratch.ctx;
        for entry in in_force.chains().flat_map(|chain| chain.phase(Phase::RequestFilter)) {
            if ctx.admits(entry) {
                filters.extend(entry.plugin.request_filter(ctx, &self.worker.env(view)));
            }
        }
        if !filters.is_empty() {
            // The original length does not hold for the output.
            ctx.request.headers.remove(HeaderId::ContentLength);
        }
        filters
    }
}
