//! The request before it is sent: its head, and its body if the module needs that first.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_plugin::step::{BodyRead, Resume};
use sigma_plugin::{BodyFilter, Context, Env, Reply, Slot, Step};

use crate::current::{Hook, Parts};
use crate::events::Event;
use crate::filter::Filter;
use crate::instance::Instance;
use crate::instances::{Instances, NotStarted, obtain};
use crate::stream::{Direction, Effect, Stream};
use crate::usage::Shared;

/// The property by which a module of APISIX requests the body of the request.
const NEEDS_BODY: &[u8] = b"wasm_process_req_body";

/// Returns true if the request has a body.
pub(crate) fn has_body(ctx: &Context) -> bool {
    ctx.body.as_ref().map_or(ctx.has_request_body, |body| !body.is_empty())
}

/// Begins an exchange; waits for the instance of this worker if it starts.
pub(crate) fn begin(plugin: &Arc<Shared>, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
    let ready = env.local.part(Instances::default).ready(&plugin.vm_use.vm);
    if let Some(instance) = ready {
        return head(&instance, plugin, slot, ctx);
    }
    let worker = plugin.worker(env);
    let plugin = Arc::clone(plugin);
    let vm = &plugin.vm_use.vm;
    let limit = Duration::from_millis(vm.settings.start_wait_ms);
    let obtained = tokio::time::timeout(limit, obtain(Arc::clone(vm), worker));
    Step::Wait(Box::pin(async move {
        let instance = obtained.await.unwrap_or(Err(NotStarted));
        let resume = move |ctx: &mut Context, env: &Env<'_>| match instance {
            Ok(instance) => head(&instance, &plugin, slot, ctx),
            Err(NotStarted) => plugin.without(env),
        };
        Box::new(resume) as Resume
    }))
}

/// Runs the callback of the head.
fn head(instance: &Rc<Instance>, plugin: &Arc<Shared>, slot: Slot, ctx: &mut Context) -> Step {
    let Ok(stream) = Stream::open(instance, plugin, Hook::RequestHead, ctx) else {
        return failed_in(instance, plugin);
    };
    ctx.keep(slot, Rc::clone(&stream));
    let Some(on_headers) = &instance.exports.request_headers else { return after_head(&stream, ctx) };
    let is_end = !has_body(ctx);
    let fields = u32::try_from(ctx.request.headers.len() + 3).unwrap_or(u32::MAX);
    let mut parts = Parts::open();
    let effect = stream.callback(Hook::RequestHead, ctx, &mut parts, |store, _| {
        on_headers.call(store, stream.id(), fields, is_end)
    });
    let Ok(effect) = effect else { return failed(&stream) };
    let is_paused = matches!(effect, Effect::Pause);
    if is_paused
        && plugin.allow_on_headers_stop_iteration
        && !is_end
        && instance.exports.request_body.is_some()
    {
        return read_body(&stream);
    }
    follow(&stream, effect, Hook::RequestHead, Parts::open(), ctx)
}

/// Follows a callback.
fn follow(stream: &Rc<Stream>, effect: Effect, hook: Hook, parts: Parts, ctx: &mut Context) -> Step {
    match effect {
        Effect::Reply(reply) => Step::Reply(reply),
        Effect::Close => Reply::silent().into(),
        Effect::Pause => wait(stream, hook, parts),
        Effect::Continue if hook == Hook::RequestBody => {
            set_body(parts.body, ctx);
            Step::Next
        }
        Effect::Continue => after_head(stream, ctx),
    }
}

/// Waits until the module ends its pause.
fn wait(stream: &Rc<Stream>, hook: Hook, mut parts: Parts) -> Step {
    let stream = Rc::clone(stream);
    Step::wait(stream.event(Direction::Request), move |is_ready, ctx, _| {
        if !is_ready {
            return failed(&stream);
        }
        match stream.resume(hook, ctx, &mut parts) {
            Ok(effect) => follow(&stream, effect, hook, parts, ctx),
            Err(_) => failed(&stream),
        }
    })
}

/// Goes on after the head.
fn after_head(stream: &Rc<Stream>, ctx: &mut Context) -> Step {
    let needs_body = stream.plugin.is_apisix && stream.take_property(NEEDS_BODY);
    if needs_body && has_body(ctx) && stream.instance.exports.request_body.is_some() {
        return read_body(stream);
    }
    Step::Next
}

/// Reads the whole body before the head is sent.
fn read_body(stream: &Rc<Stream>) -> Step {
    let limit = stream.instance.vm.settings.body_bytes;
    let stream = Rc::clone(stream);
    let then = move |ctx: &mut Context, _: &Env<'_>, read: BodyRead| {
        if read == BodyRead::TooLarge {
            stream.instance.count(Event::TooLarge);
            return Reply::new(413)
                .because("the body exceeds plugin_attr.wasm.body_bytes")
                .text(Vec::new())
                .into();
        }
        let Some(on_body) = &stream.instance.exports.request_body else { return Step::Next };
        stream.has_read_body.set(true);
        let mut parts = Parts { body: ctx.body.take().unwrap_or_default(), ..Parts::open() };
        let size = u32::try_from(parts.body.len()).unwrap_or(u32::MAX);
        let effect = stream.callback(Hook::RequestBody, ctx, &mut parts, |store, _| {
            on_body.call(store, (stream.id(), size, 1))
        });
        match effect {
            Ok(effect) => follow(&stream, effect, Hook::RequestBody, parts, ctx),
            Err(_) => {
                ctx.body = Some(parts.body);
                failed(&stream)
            }
        }
    };
    Step::ReadBody { limit, then: Box::new(then) }
}

/// Replaces the body. The gateway sets its length.
pub(crate) fn set_body(body: Vec<u8>, ctx: &mut Context) {
    if body.is_empty() {
        ctx.request.headers.remove(sigma_http::HeaderId::ContentLength);
    }
    ctx.body = Some(body);
}

/// Ends the request phases after a failure of the module.
fn failed(stream: &Rc<Stream>) -> Step {
    stream.abort();
    failed_in(&stream.instance, &stream.plugin)
}

fn failed_in(instance: &Instance, plugin: &Shared) -> Step {
    if plugin.fail_open {
        instance.count(Event::FailedOpen);
        return Step::Next;
    }
    Step::Reply(Box::new(plugin.failure()))
}

/// Returns the filter of the body, if the module reads it in transit.
pub(crate) fn filter(stream: &Rc<Stream>, ctx: &Context) -> Option<Box<dyn BodyFilter>> {
    let exports = &stream.instance.exports;
    let reads = exports.request_body.is_some() || exports.request_trailers.is_some();
    let was_read = stream.plugin.is_apisix || stream.has_read_body.get();
    if stream.is_over() || !reads || was_read || !has_body(ctx) {
        return None;
    }
    Some(Box::new(Filter::new(stream, Direction::Request)))
}
