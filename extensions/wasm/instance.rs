//! An instance of a worker: its callbacks, its ticks, its calls.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sigma_http::{Headers, Method};
use sigma_plugin::Local;
use sigma_plugin::outbound::{Answer, Call, MessageStream, Outbound, StreamCall, StreamError};
use sigma_plugin_kit::tallies::Tally;
use tokio::sync::Notify;
use wasmtime::Store;

use crate::events::Event;
use crate::state::{Arrived, CallAnswer, Outgoing, Pairs, ROOT, State};
use crate::vm::{Exports, Started, Vm, reason};

/// The share of its worker's time that the background work of an instance gets: one part of this number.
const BACKGROUND_SHARE: u32 = 10;

/// The shortest time between two callbacks in the background.
const BACKGROUND_REST: Duration = Duration::from_millis(1);

/// The status of a call by gRPC that failed. The outbound contract does not name the one of the service.
const UNAVAILABLE: u32 = 14;

/// A callback that was aborted. The reason is in the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aborted;

/// An instance of one worker.
pub(crate) struct Instance {
    pub(crate) vm: Arc<Vm>,
    pub(crate) exports: Exports,
    store: RefCell<Store<State>>,
    /// A callback was aborted: new exchanges get another instance.
    is_broken: Cell<bool>,
    tick: Cell<Duration>,
    /// Notifies the task of the instance of another period.
    changed: Notify,
    outbound: Rc<dyn Outbound>,
    local: Weak<Local>,
    tally: Tally<Event>,
}

impl Instance {
    /// Returns an instance that has started. [`attend`] does its work in the background.
    pub(crate) fn new(
        vm: &Arc<Vm>,
        started: Started,
        outbound: Rc<dyn Outbound>,
        local: &Rc<Local>,
        tally: Tally<Event>,
    ) -> Rc<Instance> {
        let instance = Rc::new(Instance {
            vm: Arc::clone(vm),
            exports: started.exports,
            store: RefCell::new(started.store),
            is_broken: Cell::new(false),
            tick: Cell::new(Duration::ZERO),
            changed: Notify::new(),
            outbound,
            local: Rc::downgrade(local),
            tally,
        });
        instance.settle();
        instance
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    pub(crate) fn count(&self, event: Event) {
        self.tally.count(event);
    }

    /// Uses the data of the instance.
    pub(crate) fn state<R>(&self, run: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.store.try_borrow_mut().ok().map(|mut store| run(store.data_mut()))
    }

    /// Runs a callback for a context.
    ///
    /// # Errors
    /// Returns an error if the module is aborted. Its memory may be in disorder then.
    pub(crate) fn call<R>(
        self: &Rc<Self>,
        name: &str,
        context: u32,
        run: impl FnOnce(&mut Store<State>, &Exports) -> wasmtime::Result<R>,
    ) -> Result<R, Aborted> {
        let result = {
            // Callbacks do not call each other.
            let mut store = self.store.try_borrow_mut().map_err(|_| Aborted)?;
            let limit = self.vm.call_time();
            let state = store.data_mut();
            (state.effective, state.lines, state.is_allocating) = (context, 0, false);
            state.budget.begin(limit);
            store.set_epoch_deadline(1);
            run(&mut store, &self.exports)
        };
        if let Err(error) = &result {
            self.is_broken.set(true);
            self.changed.notify_one();
            self.tally.count(Event::Aborted);
            tracing::error!("wasm {}: {name} is aborted: {}", self.vm.name, reason(error));
        }
        self.settle();
        result.map_err(|_| Aborted)
    }

    /// Begins the calls of a callback, deletes ended contexts, and follows another period of ticks.
    fn settle(self: &Rc<Self>) {
        let left = self.state(|state| {
            (std::mem::take(&mut state.calls.begun), std::mem::take(&mut state.done), state.tick)
        });
        let Some((begun, done, tick)) = left else { return };
        for call in begun {
            self.begin_call(call);
        }
        for context in done {
            // The callbacks of a context that has ended later.
            let _ = self.delete(context);
        }
        if self.tick.replace(tick) != tick {
            self.changed.notify_one();
        }
    }

    /// Deletes a context.
    ///
    /// # Errors
    /// Returns an error if the module is aborted.
    pub(crate) fn delete(self: &Rc<Self>, context: u32) -> Result<(), Aborted> {
        let deleted = self.call("proxy_on_delete", context, |store, exports| match &exports.delete {
            Some(delete) => delete.call(store, context),
            None => Ok(()),
        });
        self.state(|state| state.streams.remove(&context));
        deleted
    }

    fn begin_call(self: &Rc<Self>, call: Outgoing) {
        let (id, context) = (call.id, call.context);
        let calling = self.calling(call);
        let instance = Rc::downgrade(self);
        let work = self.local.upgrade().map(|local| local.begin_work());
        let task = tokio::task::spawn_local(async move {
            let arrived = calling.await;
            if let Some(instance) = instance.upgrade() {
                instance.answered(context, id, arrived);
            }
            drop(work);
        });
        // A call ends with its exchange.
        self.state(|state| {
            if let Some(stream) = state.streams.get_mut(&context) {
                stream.aborts.retain(|call| !call.is_finished());
                stream.aborts.push(task.abort_handle());
            }
        });
    }

    /// Returns the future of a call.
    fn calling(&self, call: Outgoing) -> Pin<Box<dyn Future<Output = Arrived>>> {
        let limit = self.vm.settings.answer_bytes;
        let (name, tally) = (self.vm.name.clone(), self.tally.clone());
        let failed = move |reason: &str| {
            tally.count(Event::CallFailed);
            tracing::warn!("wasm {name}: a call has no response: {reason}");
        };
        if call.method.is_none() {
            let timeout = Duration::from_millis(call.timeout_ms);
            let (message, call) = stream_call(call, limit);
            let stream = self.outbound.open_stream(call);
            return Box::pin(async move {
                let called = tokio::time::timeout(timeout, unary(stream, message)).await;
                let called = called.unwrap_or_else(|_| Err("the timeout expired".to_owned()));
                Arrived::Grpc(called.map_err(|reason| {
                    failed(&reason);
                    UNAVAILABLE
                }))
            });
        }
        let calling = self.outbound.call(outbound_call(call, limit));
        Box::pin(async move {
            let answer = calling.await.inspect_err(|error| failed(&error.0));
            Arrived::Http(answer.map(call_answer).unwrap_or_default())
        })
    }

    /// Passes the response to a call on.
    fn answered(self: &Rc<Self>, context: u32, id: u32, arrived: Arrived) {
        let for_callback = self.state(|state| {
            if let Some(waiting) = state.waiting_calls(context) {
                *waiting = waiting.saturating_sub(1);
            }
            match state.streams.get_mut(&context) {
                // Its task has the exchange.
                Some(stream) if stream.is_waiting => {
                    stream.arrived.push_back((id, arrived));
                    stream.wake();
                    None
                }
                None if context != ROOT => None,
                _ => Some(arrived),
            }
        });
        if let Some(arrived) = for_callback.flatten().filter(|_| !self.is_broken()) {
            let _ = self.deliver(context, id, arrived);
        }
    }

    /// Runs the callbacks for a response.
    ///
    /// # Errors
    /// Returns an error if the module is aborted.
    pub(crate) fn deliver(self: &Rc<Self>, context: u32, id: u32, arrived: Arrived) -> Result<(), Aborted> {
        match arrived {
            Arrived::Http(answer) => self.deliver_answer(context, id, answer),
            Arrived::Grpc(result) => self.deliver_message(context, id, result),
        }
    }

    fn deliver_answer(self: &Rc<Self>, context: u32, id: u32, answer: CallAnswer) -> Result<(), Aborted> {
        let [headers, body, trailers] =
            [answer.headers.len(), answer.body.len(), answer.trailers.len()].map(number);
        self.state(|state| state.answer = Some(answer));
        let delivered = self.call("proxy_on_http_call_response", context, |store, exports| {
            let Some(callback) = &exports.call_response else { return Ok(()) };
            callback.call(store, (context, id, headers, body, trailers))
        });
        self.state(|state| state.answer = None);
        delivered
    }

    fn deliver_message(
        self: &Rc<Self>,
        context: u32,
        id: u32,
        result: Result<Vec<u8>, u32>,
    ) -> Result<(), Aborted> {
        let status = result.as_ref().err().copied().unwrap_or_default();
        let message = result.ok();
        let size = message.as_ref().map(|message| number(message.len()));
        self.state(|state| {
            state.message = message;
            state.grpc_status = status;
        });
        let received = self.call("proxy_on_grpc_receive", context, |store, exports| {
            match (&exports.grpc_receive, size) {
                (Some(receive), Some(size)) => receive.call(store, (context, id, size)),
                _ => Ok(()),
            }
        });
        self.state(|state| state.message = None);
        received?;
        self.call("proxy_on_grpc_close", context, |store, exports| match &exports.grpc_close {
            Some(close) => close.call(store, (context, id, status)),
            None => Ok(()),
        })
    }

    fn tick_once(self: &Rc<Self>) -> Result<(), Aborted> {
        self.call("proxy_on_tick", ROOT, |store, exports| match &exports.tick {
            Some(tick) => tick.call(store, ROOT),
            None => Ok(()),
        })
    }

    fn queue_ready(self: &Rc<Self>, queue: u32) -> Result<(), Aborted> {
        self.call("proxy_on_queue_ready", ROOT, |store, exports| match &exports.queue_ready {
            Some(ready) => ready.call(store, (ROOT, queue)),
            None => Ok(()),
        })
    }

    /// Runs the callbacks at the end of the plugin's context.
    fn end(self: &Rc<Self>) {
        if self.is_broken() {
            return;
        }
        let done = self.call("proxy_on_done", ROOT, |store, exports| match &exports.done {
            Some(done) => done.call(store, ROOT),
            None => Ok(1),
        });
        if done.is_ok() {
            let _ = self.delete(ROOT);
        }
    }
}

fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn fields(pairs: &Pairs) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in pairs {
        if let Ok(name) = std::str::from_utf8(name) {
            headers.append(name, value);
        }
    }
    headers
}

fn outbound_call(call: Outgoing, limit: usize) -> Call {
    Call {
        upstream: call.upstream,
        method: Method::parse(call.method.as_deref().unwrap_or(b"GET")),
        target: call.target,
        host: call.host.into(),
        headers: fields(&call.headers),
        passes: call.passes,
        body: Some(call.body).filter(|body| !body.is_empty()),
        timeout_ms: call.timeout_ms,
        limit,
    }
}

/// Returns the message of a call by gRPC, and the call.
fn stream_call(call: Outgoing, limit: usize) -> (Vec<u8>, StreamCall) {
    let stream = StreamCall {
        upstream: call.upstream,
        target: String::from_utf8_lossy(&call.target).into(),
        host: call.host.into(),
        headers: fields(&call.headers),
        passes: call.passes,
        limit,
    };
    (call.body, stream)
}

/// Sends a message, and returns the one of the response.
async fn unary(mut stream: Box<dyn MessageStream>, message: Vec<u8>) -> Result<Vec<u8>, String> {
    let reason = |error: StreamError| error.reason;
    poll_fn(|task| stream.poll_sent(task)).await.map_err(reason)?;
    stream.send(&message);
    stream.finish();
    let answer = poll_fn(|task| stream.poll_message(task)).await.map_err(reason)?;
    let answer = answer.ok_or_else(|| "the response has no message".to_owned())?;
    // The status follows the message.
    match poll_fn(|task| stream.poll_message(task)).await.map_err(reason)? {
        None => Ok(answer),
        Some(_) => Err("the response has several messages".to_owned()),
    }
}

fn call_answer(answer: Answer) -> CallAnswer {
    let lowered = |headers: &Headers| -> Pairs {
        headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect()
    };
    let mut headers = vec![(b":status".to_vec(), answer.status.to_string().into_bytes())];
    headers.extend(lowered(&answer.headers));
    CallAnswer { headers, trailers: lowered(&answer.trailers), body: answer.body }
}

/// The task of an instance: ticks and notices of queues. It ends when the instance is broken, or has no user.
pub(crate) async fn attend(instance: Rc<Instance>) {
    let mut gone = instance.vm.gone.clone();
    let Some(listener) = instance.state(|state| Arc::clone(&state.listener)) else { return };
    let mut ticked = Instant::now();
    while !instance.is_broken() {
        let period = instance.tick.get();
        let is_ticking = !period.is_zero() && instance.exports.tick.is_some();
        let began = tokio::select! {
            _ = gone.changed() => return instance.end(),
            () = instance.changed.notified() => continue,
            () = tokio::time::sleep_until((ticked + period).into()), if is_ticking => {
                ticked = Instant::now();
                let _ = instance.tick_once();
                ticked
            }
            () = listener.notify.notified() => {
                let began = Instant::now();
                for queue in listener.take() {
                    let _ = instance.queue_ready(queue);
                }
                began
            }
        };
        // A module that works in the background without a rest must not take the worker from requests.
        let rest = began.elapsed() * (BACKGROUND_SHARE - 1);
        tokio::time::sleep(rest.max(BACKGROUND_REST)).await;
    }
}
