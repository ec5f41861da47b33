//! An instance of a worker: its callbacks, its ticks, its calls.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sigma_plugin::Local;
use sigma_plugin::outbound::Outbound;
use sigma_plugin_kit::tallies::Tally;
use tokio::sync::Notify;
use wasmtime::Store;

use crate::calling::{CallLog, Calling, GrpcStream, outbound_call, stream_call};
use crate::events::Event;
use crate::state::{Arrived, CallAnswer, GrpcEnd, Outgoing, Pairs, Part, ROOT, State};
use crate::vm::{Exports, Started, Vm, reason};

/// The share of its worker's time that the background work of an instance gets: one part of this number.
const BACKGROUND_SHARE: u32 = 10;

/// The shortest time between two callbacks in the background.
const BACKGROUND_REST: Duration = Duration::from_millis(1);

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
            tracing::error!("wasm {}: {name} was aborted: {}", self.vm.name, reason(error));
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
        self.state(|state| state.remove_stream(context));
        deleted
    }

    fn begin_call(self: &Rc<Self>, call: Outgoing) {
        let (id, context) = (call.id, call.context);
        let is_stream = call.messages.is_some();
        let instance = Rc::downgrade(self);
        // A stream has no end of its own: the worker does not wait for it.
        let work = self.local.upgrade().filter(|_| !is_stream).map(|local| local.begin_work());
        let calling = self.calling(call);
        let task = tokio::task::spawn_local(async move {
            calling
                .run(|arrived| {
                    let instance = instance.upgrade()?;
                    instance.answered(context, id, arrived);
                    Some(())
                })
                .await;
            drop(work);
        });
        // A call ends with its exchange.
        let handle = task.abort_handle();
        self.state(|state| match state.calls.open.get_mut(&id) {
            Some(open) => open.task = Some(handle),
            None => {
                if let Some(stream) = state.streams.get_mut(&context) {
                    stream.aborts.retain(|call| !call.is_finished());
                    stream.aborts.push(handle);
                }
            }
        });
    }

    /// Returns the work of a call.
    fn calling(&self, call: Outgoing) -> Calling {
        let limit = self.vm.settings.answer_bytes;
        let log = CallLog { name: self.vm.name.clone(), tally: self.tally.clone() };
        if call.method.is_some() {
            return Calling::Http(self.outbound.call(outbound_call(call, limit)), log);
        }
        let timeout = Duration::from_millis(call.timeout_ms);
        let (message, messages, call) = stream_call(call, limit);
        let stream = self.outbound.open_stream(call);
        match messages {
            Some(messages) => Calling::Stream(GrpcStream::new(stream, messages), log),
            None => Calling::Unary { stream, message, timeout, log },
        }
    }

    /// Passes the response to a call on, or a part of it.
    fn answered(self: &Rc<Self>, context: u32, id: u32, arrived: Arrived) {
        let for_callback = self.state(|state| {
            let is_end =
                !matches!(arrived, Arrived::Stream { part: Part::Initial(_) | Part::Message(_), .. });
            if is_end
                && !state.end_call(id)
                && let Some(waiting) = state.waiting_calls(context)
            {
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

    /// Runs the callbacks for a response, or for a part of it. As in Envoy, they get the plugin's context: SDKs find the
    /// exchange by the call, and some end at another context. Functions of the host are about the exchange already.
    ///
    /// # Errors
    /// Returns an error if the module is aborted.
    pub(crate) fn deliver(self: &Rc<Self>, context: u32, id: u32, arrived: Arrived) -> Result<(), Aborted> {
        match arrived {
            Arrived::Http(answer) => self.deliver_answer(context, id, answer),
            Arrived::Grpc(Ok(message)) => {
                self.deliver_message(context, id, message)?;
                self.deliver_end(context, id, GrpcEnd::default())
            }
            Arrived::Grpc(Err(end)) => self.deliver_end(context, id, end),
            Arrived::Stream { part: Part::Initial(fields), .. } => {
                self.deliver_metadata(context, id, fields, false)
            }
            Arrived::Stream { part: Part::Message(message), .. } => {
                self.deliver_message(context, id, message)
            }
            Arrived::Stream { part: Part::End(fields, end), .. } => {
                if let Some(fields) = fields {
                    self.deliver_metadata(context, id, fields, true)?;
                }
                self.deliver_end(context, id, end)
            }
        }
    }

    fn deliver_answer(self: &Rc<Self>, context: u32, id: u32, answer: CallAnswer) -> Result<(), Aborted> {
        let [headers, body, trailers] =
            [answer.headers.len(), answer.body.len(), answer.trailers.len()].map(number);
        self.state(|state| state.answer = Some(answer));
        let delivered = self.call("proxy_on_http_call_response", context, |store, exports| {
            let Some(callback) = &exports.call_response else { return Ok(()) };
            callback.call(store, (ROOT, id, headers, body, trailers))
        });
        self.state(|state| state.answer = None);
        delivered
    }

    fn deliver_message(self: &Rc<Self>, context: u32, id: u32, message: Vec<u8>) -> Result<(), Aborted> {
        let size = number(message.len());
        self.state(|state| state.message = Some(message));
        let received = self.call("proxy_on_grpc_receive", context, |store, exports| {
            let Some(receive) = &exports.grpc_receive else { return Ok(()) };
            receive.call(store, (ROOT, id, size))
        });
        self.state(|state| state.message = None);
        received
    }

    fn deliver_metadata(
        self: &Rc<Self>,
        context: u32,
        id: u32,
        fields: Pairs,
        is_trailing: bool,
    ) -> Result<(), Aborted> {
        let count = number(fields.len());
        let at = usize::from(is_trailing);
        self.state(|state| state.metadata[at] = Some(fields));
        let name = ["proxy_on_grpc_receive_initial_metadata", "proxy_on_grpc_receive_trailing_metadata"][at];
        let received = self.call(name, context, |store, exports| {
            let receive = [&exports.grpc_initial, &exports.grpc_trailing][at];
            receive.as_ref().map_or(Ok(()), |receive| receive.call(store, (ROOT, id, count)))
        });
        self.state(|state| state.metadata[at] = None);
        received
    }

    fn deliver_end(self: &Rc<Self>, context: u32, id: u32, end: GrpcEnd) -> Result<(), Aborted> {
        let code = end.code;
        self.state(|state| state.grpc_end = end);
        self.call("proxy_on_grpc_close", context, |store, exports| {
            let Some(close) = &exports.grpc_close else { return Ok(()) };
            close.call(store, (ROOT, id, code))
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
