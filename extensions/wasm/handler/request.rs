//! The call for a request.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_plugin::step::{BodyRead, Resume};
use sigma_plugin::{Context, Env, Reply, Slot, Step};
use sigma_plugin_kit::fields::{frames, is_name};

use super::exchange::Exchange;
use super::pool::{Aborted, Lease, Pools, obtain};
use super::state::{BUFFER_REQUEST, Handled, RequestBody};
use crate::current::{self, Hook, Parts};
use crate::events::Event;
use crate::instances::NotStarted;
use crate::request::{has_body, set_body};
use crate::usage::Shared;

/// An exchange before its call.
struct Pending {
    plugin: Arc<Shared>,
    slot: Slot,
    body: RequestBody,
}

/// Begins an exchange: reads the body if the module may read it, and waits for an instance.
pub(crate) fn begin(plugin: &Arc<Shared>, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
    let vm = &plugin.vm_use.vm;
    let mut pending = Pending { plugin: Arc::clone(plugin), slot, body: RequestBody::Present };
    if !vm.code.reads_body || !has_body(ctx) {
        return pending.enter(ctx, env);
    }
    let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| {
        if read == BodyRead::TooLarge {
            pending.body = RequestBody::TooLarge;
        }
        pending.enter(ctx, env)
    };
    Step::ReadBody { limit: vm.settings.body_bytes, then: Box::new(then) }
}

impl Pending {
    /// Waits for an instance.
    fn enter(self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let vm = &self.plugin.vm_use.vm;
        let pool = env.local.part(|| Rc::new(Pools::default())).of(vm);
        let tally = self.plugin.counted.tally(env.local);
        if let Some(lease) = pool.take(&tally) {
            return self.run(lease, ctx, env);
        }
        let limit = Duration::from_millis(vm.settings.start_wait_ms);
        let obtained = tokio::time::timeout(limit, obtain(pool, tally));
        Step::Wait(Box::pin(async move {
            let lease = obtained.await.unwrap_or(Err(NotStarted));
            let resume = move |ctx: &mut Context, env: &Env<'_>| match lease {
                Ok(lease) => self.run(lease, ctx, env),
                Err(NotStarted) => self.plugin.without(env),
            };
            Box::new(resume) as Resume
        }))
    }

    /// Runs the module.
    fn run(self, mut lease: Lease, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Pending { plugin, slot, body } = self;
        let is_whole = body == RequestBody::Present && (ctx.body.is_some() || !has_body(ctx));
        let began = lease.state(|state| {
            let id = state.add_stream();
            let features = state.handling.features;
            state.handling.exchange = Some(Handled { features, request_body: body, ..Handled::default() });
            state.effective = id;
            id
        });
        let stream = began.unwrap_or_default();
        let called = current::during(stream, Hook::RequestHead, ctx, &mut Parts::open(), || {
            lease.call("handle_request", |store, exports| exports.request.call(store, ()))
        });
        let result = match called {
            Ok(result) => result,
            Err(Aborted::BodyTooLarge) => return too_large(),
            Err(Aborted::Failed) => return plugin.without(env),
        };
        let [next, token] = [result as u32, (result >> 32) as u32];
        if next == 0 {
            lease.count(Event::Responded);
            return lease.state(reply).flatten().unwrap_or_else(|| plugin.failure()).into();
        }
        let written = lease.state(|state| {
            let handled = state.handling.exchange.as_mut()?;
            let written = handled.request_written.take();
            handled.request_body = match handled.has(BUFFER_REQUEST) {
                true => RequestBody::Copied(ctx.body.clone().unwrap_or_default()),
                false => RequestBody::Gone,
            };
            handled.request_read = 0;
            written
        });
        ctx.keep(slot, Exchange::new(&plugin, lease, stream, token));
        match written.flatten() {
            None => Step::Next,
            Some(written) if is_whole => {
                set_body(written, ctx);
                Step::Next
            }
            Some(written) => replace_body(&plugin, written),
        }
    }
}

/// Replaces a body that was not read.
fn replace_body(plugin: &Shared, written: Vec<u8>) -> Step {
    let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| match read {
        BodyRead::TooLarge => too_large(),
        BodyRead::Whole => {
            set_body(written, ctx);
            Step::Next
        }
    };
    Step::ReadBody { limit: plugin.vm_use.vm.settings.body_bytes, then: Box::new(then) }
}

fn too_large() -> Step {
    let reply = Reply::new(413).because("the body exceeds plugin_attr.wasm.body_bytes");
    reply.text(Vec::new()).into()
}

/// Returns the response of the module.
fn reply(state: &mut crate::state::State) -> Option<Reply> {
    let handled = state.handling.exchange.as_mut()?;
    let status = if handled.status == 0 { 200 } else { handled.status };
    let body = handled.response_written.take().unwrap_or_default();
    let mut made = Reply::new(status).because("the WebAssembly module responded").text(body);
    made.is_passed_on = true;
    for (name, value) in handled.fields.iter() {
        if let Ok(name) = std::str::from_utf8(name)
            && is_name(name)
            && !frames(name)
        {
            made = made.header(name.to_owned(), value);
        }
    }
    Some(made)
}
