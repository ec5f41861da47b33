//! An exchange in its instance.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use sigma_plugin::{Context, Reply};
use sigma_plugin_kit::fields::{frames, is_name};
use wasmtime::Store;

use crate::current::{self, Hook, Parts};
use crate::events::Event;
use crate::host::is_sound;
use crate::instance::{Aborted, Instance};
use crate::state::{LocalReply, ROOT, State};
use crate::usage::Shared;
use crate::vm::Exports;

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Response,
}

/// The effect of a callback on its message.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The message continues
    Continue,
    /// The message waits
    Pause,
    /// The module responds
    Reply(Box<Reply>),
    /// The module closes the exchange
    Close,
}

/// The number of the action that continues.
const CONTINUE: u32 = 0;

/// An exchange in its instance.
pub(crate) struct Stream {
    pub(crate) instance: Rc<Instance>,
    pub(crate) plugin: Arc<Shared>,
    id: u32,
    is_tcp: bool,
    /// A callback was aborted. With `fail_open`, the exchange continues without the module.
    is_aborted: Cell<bool>,
    has_ended: Cell<bool>,
    /// The module has got the whole body of the request before the head was sent.
    pub(crate) has_read_body: Cell<bool>,
    /// The module holds the head of the response back until its body callback continues.
    pub(crate) holds_response_head: Cell<bool>,
}

impl Stream {
    /// Makes the context of an exchange.
    ///
    /// # Errors
    /// Returns an error if the module is aborted.
    pub(crate) fn open(
        instance: &Rc<Instance>,
        plugin: &Arc<Shared>,
        hook: Hook,
        ctx: &mut Context,
    ) -> Result<Rc<Stream>, Aborted> {
        let id = instance.state(State::add_stream).ok_or(Aborted)?;
        let stream = Rc::new(Stream {
            instance: Rc::clone(instance),
            plugin: Arc::clone(plugin),
            id,
            is_tcp: hook.is_tcp(),
            is_aborted: Cell::new(false),
            has_ended: Cell::new(false),
            has_read_body: Cell::new(false),
            holds_response_head: Cell::new(false),
        });
        let mut parts = if hook.is_tcp() { Parts::default() } else { Parts::open() };
        stream.run("proxy_on_context_create", hook, ctx, &mut parts, |store, exports| {
            match &exports.create {
                Some(create) => create.call(store, (id, ROOT)),
                None => Ok(()),
            }
        })?;
        Ok(stream)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns true if the module runs no more for this exchange.
    pub(crate) fn is_over(&self) -> bool {
        self.is_aborted.get() || self.has_ended.get()
    }

    /// Runs a callback with the exchange.
    fn run<R>(
        &self,
        name: &str,
        hook: Hook,
        ctx: &mut Context,
        parts: &mut Parts,
        run: impl FnOnce(&mut Store<State>, &Exports) -> wasmtime::Result<R>,
    ) -> Result<R, Aborted> {
        let instance = &self.instance;
        let result = current::during(self.id, hook, ctx, parts, || instance.call(name, self.id, run));
        if result.is_err() {
            self.is_aborted.set(true);
        }
        result
    }

    /// Runs the callback of a part of a message; returns its effect.
    ///
    /// # Errors
    /// Returns an error if the module is aborted.
    pub(crate) fn callback(
        &self,
        hook: Hook,
        ctx: &mut Context,
        parts: &mut Parts,
        run: impl FnOnce(&mut Store<State>, &Exports) -> wasmtime::Result<u32>,
    ) -> Result<Effect, Aborted> {
        self.instance.state(|state| {
            if let Some(stream) = state.streams.get_mut(&self.id) {
                // The other direction may be paused, and continued already.
                match hook.has_response() {
                    true => stream.is_response_resumed = false,
                    false => stream.is_request_resumed = false,
                }
                stream.is_waiting = false;
            }
        });
        let action = self.run(hook.name(), hook, ctx, parts, run)?;
        Ok(self.effect(hook, action))
    }

    /// Passes responses to calls to a paused module; returns the effect on its message.
    ///
    /// # Errors
    /// Returns an error if the module is aborted.
    pub(crate) fn resume(&self, hook: Hook, ctx: &mut Context, parts: &mut Parts) -> Result<Effect, Aborted> {
        let arrived = || {
            self.instance.state(|state| {
                let stream = state.streams.get_mut(&self.id)?;
                stream.is_waiting = false;
                stream.arrived.pop_front()
            })
        };
        while let Some((id, answer)) = arrived().flatten() {
            let instance = &self.instance;
            let delivered =
                current::during(self.id, hook, ctx, parts, || instance.deliver(self.id, id, answer));
            if delivered.is_err() {
                self.is_aborted.set(true);
                return Err(Aborted);
            }
        }
        Ok(self.effect(hook, 1))
    }

    /// Returns the effect of the callbacks so far, the last of which returned `action`.
    fn effect(&self, hook: Hook, action: u32) -> Effect {
        let effect = self.instance.state(|state| {
            let stream = state.streams.get_mut(&self.id)?;
            for _ in 0..std::mem::take(&mut stream.rejected) {
                self.instance.count(Event::MutationRejected);
            }
            if let Some(reply) = stream.reply.take() {
                self.instance.count(Event::Responded);
                return Some(Effect::Reply(Box::new(reply_of(reply))));
            }
            if stream.is_closed {
                return Some(Effect::Close);
            }
            if self.plugin.is_apisix {
                // A call is the only reason to wait.
                let waits = stream.calls > 0 || !stream.arrived.is_empty();
                return Some(if waits { Effect::Pause } else { Effect::Continue });
            }
            let is_resumed = match hook.has_response() {
                true => stream.is_response_resumed,
                false => stream.is_request_resumed,
            };
            Some(if action == CONTINUE || is_resumed { Effect::Continue } else { Effect::Pause })
        });
        effect.flatten().unwrap_or(Effect::Continue)
    }

    /// Ready when the module has ended its pause, or a response to one of its calls has arrived.
    pub(crate) fn poll_event(&self, direction: Direction, task: &mut task::Context<'_>) -> Poll<()> {
        let is_ready = self.instance.state(|state| {
            let stream = state.streams.get_mut(&self.id)?;
            let is_resumed = match direction {
                Direction::Request => stream.is_request_resumed,
                Direction::Response => stream.is_response_resumed,
            };
            let is_ready =
                is_resumed || stream.reply.is_some() || stream.is_closed || !stream.arrived.is_empty();
            stream.is_waiting = !is_ready;
            stream.waker = Some(task.waker().clone());
            Some(is_ready)
        });
        // A context that is gone waits for nothing.
        if is_ready.flatten().unwrap_or(true) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits for the end of a pause; returns false after the longest one.
    pub(crate) fn event(self: &Rc<Self>, direction: Direction) -> impl Future<Output = bool> + use<> {
        let stream = Rc::clone(self);
        let limit = Duration::from_millis(stream.instance.vm.settings.pause_ms);
        async move {
            let event = poll_fn(|task| stream.poll_event(direction, task));
            let is_ready = tokio::time::timeout(limit, event).await.is_ok();
            if !is_ready {
                stream.note_long_pause();
            }
            is_ready
        }
    }

    /// Reports that a pause has reached its limit.
    pub(crate) fn note_long_pause(&self) {
        let vm = &self.instance.vm;
        tracing::error!("wasm {}: a message was paused for {} ms", vm.name, vm.settings.pause_ms);
        self.instance.count(Event::PausedTooLong);
        self.is_aborted.set(true);
    }

    /// Returns a property that the module has set, if it is not empty, and removes it.
    pub(crate) fn take_property(&self, name: &[u8]) -> bool {
        let taken = self.instance.state(|state| state.streams.get_mut(&self.id)?.properties.remove(name));
        taken.flatten().is_some_and(|value| !value.is_empty())
    }

    /// Marks the exchange as one without the module.
    pub(crate) fn abort(&self) {
        self.is_aborted.set(true);
    }

    /// Runs the callbacks at the end of both connections of a session, each with the peer that has ended it.
    pub(crate) fn close(&self, ctx: &mut Context, client: u32, node: u32) {
        let mut parts = Parts::default();
        let hook = Hook::Close;
        let _ = self
            .run("proxy_on_downstream_connection_close", hook, ctx, &mut parts, |store, exports| {
                exports.downstream_close.as_ref().map_or(Ok(()), |close| close.call(store, (self.id, client)))
            })
            .and_then(|()| {
                self.run("proxy_on_upstream_connection_close", hook, ctx, &mut parts, |store, exports| {
                    exports.upstream_close.as_ref().map_or(Ok(()), |close| close.call(store, (self.id, node)))
                })
            });
    }

    /// Runs the callbacks at the end of the exchange.
    pub(crate) fn end(&self, ctx: &mut Context) {
        if self.has_ended.replace(true) || self.is_aborted.get() {
            return;
        }
        let mut parts = Parts::default();
        let hook = if self.is_tcp { Hook::Close } else { Hook::Log };
        let done = self.run("proxy_on_done", hook, ctx, &mut parts, |store, exports| match &exports.done {
            Some(done) => done.call(store, self.id),
            None => Ok(1),
        });
        let logged = done.and_then(|done| {
            self.run("proxy_on_log", hook, ctx, &mut parts, |store, exports| match &exports.log {
                Some(log) => log.call(store, self.id).map(|()| done),
                None => Ok(done),
            })
        });
        if let Ok(done) = logged {
            self.finish(done != 0);
        }
    }

    /// Deletes the context, or leaves that to `proxy_done`.
    fn finish(&self, is_done: bool) {
        let waits = !is_done && self.instance.state(|state| state.begin_ending(self.id)).unwrap_or_default();
        if !waits {
            let _ = self.instance.delete(self.id);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_aborted.get() {
            self.instance.state(|state| state.remove_stream(self.id));
        } else if !self.has_ended.replace(true) {
            // The exchange has no log phase.
            let done = self.instance.call("proxy_on_done", self.id, |store, exports| match &exports.done {
                Some(done) => done.call(store, self.id),
                None => Ok(1),
            });
            self.finish(done != Ok(0));
        }
    }
}

/// Returns the response of a module. Fields that frame a message are the gateway's.
fn reply_of(reply: LocalReply) -> Reply {
    let mut made = Reply::new(reply.status).because("the WebAssembly module responded").text(reply.body);
    for (name, value) in reply.headers {
        let Ok(name) = String::from_utf8(name.to_ascii_lowercase()) else { continue };
        if is_name(&name) && !frames(&name) && is_sound(&name, &value) {
            made = made.header(name, value);
        }
    }
    if let Some(status) = reply.grpc_status {
        made = made.header("grpc-status", status.to_string());
    }
    made
}
