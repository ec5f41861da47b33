//! The instances of a worker. Each exchange has one of its own: a module may keep state of an exchange in its memory.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use sigma_plugin_kit::tallies::Tally;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::{Store, TypedFunc};

use crate::events::Event;
use crate::instances::{NotStarted, RETRY};
use crate::state::State;
use crate::vm::{Vm, find, prepare, reason};

/// The functions of an instance.
pub(crate) struct Exports {
    pub(crate) request: TypedFunc<(), u64>,
    pub(crate) response: TypedFunc<(u32, u32), ()>,
}

/// An instance.
pub(crate) struct Handler {
    pub(crate) store: Store<State>,
    pub(crate) exports: Exports,
}

/// Starts an instance. It may take as long as the settings allow: not for a worker's thread.
///
/// # Errors
/// Returns the reason if the module does not start.
fn start(vm: &Arc<Vm>, pre: &wasmtime::InstancePre<State>) -> Result<Handler, String> {
    let (mut store, instance) = prepare(vm, pre)?;
    let missing = |name: &str| format!("it does not export the function `{name}`");
    let request = find(&instance, &mut store, "handle_request")?;
    let response = find(&instance, &mut store, "handle_response")?;
    let exports = Exports {
        request: request.ok_or_else(|| missing("handle_request"))?,
        response: response.ok_or_else(|| missing("handle_response"))?,
    };
    Ok(Handler { store, exports })
}

/// The instances of one module in one worker.
pub(crate) struct Pool {
    vm: Arc<Vm>,
    idle: RefCell<Vec<Handler>>,
    /// A permit for each instance in use.
    room: Arc<Semaphore>,
    /// The time until which none is started after a failure.
    rests: Cell<Option<Instant>>,
}

/// All pools of one worker, by the ids of their modules; a part of the worker.
#[derive(Default)]
pub(crate) struct Pools(RefCell<HashMap<u64, Rc<Pool>>>);

impl Pools {
    /// Returns the pool of a module. It goes with the last use of the module.
    pub(crate) fn of(self: &Rc<Self>, vm: &Arc<Vm>) -> Rc<Pool> {
        let mut all = self.0.borrow_mut();
        if let Some(pool) = all.get(&vm.id) {
            return Rc::clone(pool);
        }
        let pool = Rc::new(Pool {
            vm: Arc::clone(vm),
            idle: RefCell::default(),
            room: Arc::new(Semaphore::new(vm.settings.exchanges)),
            rests: Cell::new(None),
        });
        all.insert(vm.id, Rc::clone(&pool));
        let (pools, id, mut gone) = (Rc::downgrade(self), vm.id, vm.gone.clone());
        tokio::task::spawn_local(async move {
            // The channel closes.
            let _ = gone.changed().await;
            if let Some(pools) = pools.upgrade() {
                pools.0.borrow_mut().remove(&id);
            }
        });
        pool
    }
}

impl Pool {
    /// Returns an idle instance, if there is one.
    pub(crate) fn take(self: &Rc<Self>, tally: &Tally<Event>) -> Option<Lease> {
        let permit = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let handler = self.idle.borrow_mut().pop()?;
        Some(self.lease(handler, permit, tally.clone()))
    }

    fn lease(self: &Rc<Self>, handler: Handler, permit: OwnedSemaphorePermit, tally: Tally<Event>) -> Lease {
        Lease { handler: Some(handler), pool: Rc::clone(self), tally, _permit: permit }
    }

    /// Starts an instance on its own thread.
    async fn begin(&self) -> Result<Handler, String> {
        let compiled = self.vm.code.compiled().await.map_err(|reason| reason.to_string())?;
        let vm = Arc::clone(&self.vm);
        let started = tokio::task::spawn_blocking(move || start(&vm, &compiled)).await;
        started.unwrap_or_else(|_| Err("the start failed".to_owned()))
    }
}

/// Returns an instance, once there is one.
///
/// # Errors
/// Returns an error if it does not start.
pub(crate) async fn obtain(pool: Rc<Pool>, tally: Tally<Event>) -> Result<Lease, NotStarted> {
    let permit = Arc::clone(&pool.room).acquire_owned().await.map_err(|_| NotStarted)?;
    let idle = pool.idle.borrow_mut().pop();
    if let Some(handler) = idle {
        return Ok(pool.lease(handler, permit, tally));
    }
    if pool.rests.get().is_some_and(|until| Instant::now() < until) {
        return Err(NotStarted);
    }
    match pool.begin().await {
        Ok(handler) => Ok(pool.lease(handler, permit, tally)),
        Err(reason) => {
            tracing::error!("wasm {}: the module failed to start: {reason}", pool.vm.name);
            tally.count(Event::NotStarted);
            pool.rests.set(Some(Instant::now() + RETRY));
            Err(NotStarted)
        }
    }
}

/// An instance in use.
pub(crate) struct Lease {
    /// None after a call was aborted.
    handler: Option<Handler>,
    pool: Rc<Pool>,
    pub(crate) tally: Tally<Event>,
    _permit: OwnedSemaphorePermit,
}

/// A call that was aborted. The reason is in the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aborted {
    Failed,
    /// The module tried to read a body that is too large
    BodyTooLarge,
}

impl Lease {
    pub(crate) fn count(&self, event: Event) {
        self.tally.count(event);
    }

    /// Uses the data of the instance.
    pub(crate) fn state<R>(&mut self, run: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.handler.as_mut().map(|handler| run(handler.store.data_mut()))
    }

    /// Runs a function of the module.
    ///
    /// # Errors
    /// Returns an error if it is aborted. The instance is dropped then.
    pub(crate) fn call<R>(
        &mut self,
        name: &str,
        run: impl FnOnce(&mut Store<State>, &Exports) -> wasmtime::Result<R>,
    ) -> Result<R, Aborted> {
        let Some(Handler { store, exports }) = &mut self.handler else { return Err(Aborted::Failed) };
        let state = store.data_mut();
        state.lines = 0;
        state.budget.begin(self.pool.vm.call_time());
        store.set_epoch_deadline(1);
        let result = run(store, exports);
        let state = store.data_mut();
        let rejected: u64 =
            state.streams.values_mut().map(|stream| std::mem::take(&mut stream.rejected)).sum();
        let is_too_large = state.handling.exchange.as_ref().is_some_and(|exchange| exchange.is_body_refused);
        (0..rejected).for_each(|_| self.tally.count(Event::MutationRejected));
        result.map_err(|error| {
            self.tally.count(if is_too_large { Event::TooLarge } else { Event::Aborted });
            tracing::error!("wasm {}: {name} was aborted: {}", self.pool.vm.name, reason(&error));
            self.handler = None;
            if is_too_large { Aborted::BodyTooLarge } else { Aborted::Failed }
        })
    }

    /// Drops the instance: the state of its exchange may be in its memory.
    pub(crate) fn discard(&mut self) {
        self.handler = None;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut handler) = self.handler.take() else { return };
        let state = handler.store.data_mut();
        state.handling.exchange = None;
        state.streams.clear();
        self.pool.idle.borrow_mut().push(handler);
    }
}
