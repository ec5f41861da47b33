//! The head of the response.

use std::rc::Rc;

use sigma_plugin::{BodyFilter, Context, Reply, ResponseStep};

use crate::current::{Hook, Parts};
use crate::events::Event;
use crate::filter::Filter;
use crate::stream::{Direction, Effect, Stream};

/// The property by which a module of APISIX requests the body of the response.
const NEEDS_BODY: &[u8] = b"wasm_process_resp_body";

/// Runs the callback of the head.
pub(crate) fn head(stream: &Rc<Stream>, ctx: &mut Context) -> ResponseStep {
    let Some(on_headers) = &stream.instance.exports.response_headers else { return ResponseStep::Next };
    let is_end = !ctx.has_response_body;
    let fields = u32::try_from(ctx.response.headers.len() + 1).unwrap_or(u32::MAX);
    let mut parts = Parts::open();
    let effect = stream.callback(Hook::ResponseHead, ctx, &mut parts, |store, _| {
        on_headers.call(store, stream.id(), fields, is_end)
    });
    match effect {
        Ok(Effect::Pause)
            if stream.plugin.allow_on_headers_stop_iteration
                && !is_end
                && stream.instance.exports.response_body.is_some() =>
        {
            stream.holds_response_head.set(true);
            ResponseStep::Next
        }
        Ok(effect) => follow(stream, effect),
        Err(_) => failed(stream),
    }
}

/// Follows a callback. APISIX ignores responses of modules in this phase.
fn follow(stream: &Rc<Stream>, effect: Effect) -> ResponseStep {
    match effect {
        Effect::Reply(_) if stream.plugin.is_apisix => ResponseStep::Next,
        Effect::Reply(reply) => ResponseStep::Replace(reply),
        Effect::Close => ResponseStep::Replace(Box::new(Reply::silent())),
        Effect::Continue => ResponseStep::Next,
        Effect::Pause => {
            let stream = Rc::clone(stream);
            ResponseStep::wait(stream.event(Direction::Response), move |is_ready, ctx, _| {
                let mut parts = Parts::open();
                match is_ready.then(|| stream.resume(Hook::ResponseHead, ctx, &mut parts)) {
                    Some(Ok(effect)) => follow(&stream, effect),
                    _ => failed(&stream),
                }
            })
        }
    }
}

fn failed(stream: &Rc<Stream>) -> ResponseStep {
    stream.abort();
    if stream.plugin.fail_open {
        stream.instance.count(Event::FailedOpen);
        return ResponseStep::Next;
    }
    ResponseStep::Replace(Box::new(stream.plugin.failure()))
}

/// Returns the filter of the body, if the module reads it.
pub(crate) fn filter(stream: &Rc<Stream>, ctx: &Context) -> Option<Box<dyn BodyFilter>> {
    let exports = &stream.instance.exports;
    let reads = exports.response_body.is_some() || exports.response_trailers.is_some();
    if stream.is_over() || !reads || !ctx.has_response_body {
        return None;
    }
    if stream.plugin.is_apisix && !stream.take_property(NEEDS_BODY) {
        return None;
    }
    Some(Box::new(Filter::new(stream, Direction::Response)))
}
