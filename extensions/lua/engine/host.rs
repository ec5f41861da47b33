//! The gateway as the functions of a Lua state see it: the exchange that runs now, and how functions are registered.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use mlua::{Function, Lua, MultiValue, Table, Thread, Value};
use sigma_plugin::script_counts::OpenSockets;
use sigma_plugin::{Consumers, Context, Env, Local, Node};

use super::Engine;
use super::arguments::{Arguments, Results, nothing};
use super::budget::Budget;
use super::exchange::Exchange;
use super::lifetime::{Alone, Lifetime};
use super::place::ScriptPosition;

/// Where a script runs, in nginx's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// While a configuration is checked or compiled: no exchange.
    Load,
    /// Conditions of routes, before a route is known.
    Match,
    Rewrite,
    Access,
    HeaderFilter,
    BodyFilter,
    Log,
    Timer,
}

impl Stage {
    /// The name of OpenResty's directive, for errors; the text of `ngx.get_phase`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Stage::Load => "init_worker",
            Stage::Match | Stage::Access => "access",
            Stage::Rewrite => "rewrite",
            Stage::HeaderFilter => "header_filter",
            Stage::BodyFilter => "body_filter",
            Stage::Log => "log",
            Stage::Timer => "timer",
        }
    }

    /// Whether a script may wait here.
    pub(crate) fn may_wait(self) -> bool {
        matches!(self, Stage::Rewrite | Stage::Access | Stage::Timer)
    }

    /// The error of a call that is not for this stage.
    pub(crate) fn disabled(self) -> String {
        match self {
            Stage::Timer => "API disabled in the context of ngx.timer".to_owned(),
            stage => format!("API disabled in the context of {}_by_lua*", stage.as_str()),
        }
    }
}

/// Work that a script waits for. It makes the results of the function that waits, when the script runs again.
pub(crate) type Work = Pin<Box<dyn Future<Output = Ready>>>;

/// Makes the results of a function that waited.
pub(crate) type Ready = Box<dyn FnOnce(&Lua) -> Results>;

/// A need of a function, before its script can continue.
pub(crate) enum ScriptNeed {
    /// Work outside the state.
    Work(Work),
    /// Room: the client has taken the output so far; the function returns 1.
    Drain,
    /// The whole request body, up to so many bytes; the function returns nothing.
    Body { limit: usize },
    /// The end of the script: the exchange gets this status. 0 ends the phase alone.
    Exit(i64),
    /// A light thread that runs this function.
    Spawn { function: Function, arguments: MultiValue },
    /// The end of one of these light threads.
    Join(Vec<Thread>),
    /// The end of a light thread.
    Kill(Thread),
}

/// The exchange and its surroundings, while a script of it runs.
pub(crate) struct Seat {
    pub(crate) ctx: Box<Context>,
    /// Time since 1970, as of the beginning of the run or the last `ngx.update_time`.
    pub(crate) now: Duration,
    /// The state of the exchange for scripts.
    pub(crate) exchange: Rc<Exchange>,
    /// The consumers, for scripts of a plugin that authenticates them.
    pub(crate) consumers: Option<Consumers>,
}

/// The worker of a Lua state.
pub(crate) struct WorkerFacts {
    pub(crate) node: Arc<Node>,
    pub(crate) local: Weak<Local>,
    /// The name of this gateway in `CDN-Loop`; empty in tools.
    pub(crate) own_name: String,
}

/// The most calls nested in each other from scripts into the gateway, by callbacks and metamethods. Each takes room on
/// the stack of the thread, which has no other limit.
const MOST_NESTED: usize = 50;

/// A call from a script into the gateway.
pub(crate) struct Nested<'h>(&'h Cell<usize>);

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// The gateway's side of one Lua state. Functions of the state share it.
pub(crate) struct Host {
    /// None where no script runs, and in timers.
    seat: RefCell<Option<Seat>>,
    /// The context that an exchange has while one of its scripts uses its own.
    spare: RefCell<Option<Box<Context>>>,
    /// The run without an exchange: a timer's.
    alone: RefCell<Option<Rc<Alone>>>,
    stage: Cell<Stage>,
    /// The position of the script that runs.
    place: RefCell<Option<Rc<ScriptPosition>>>,
    wish: RefCell<Option<ScriptNeed>>,
    /// Unset in states that only check texts.
    worker: OnceCell<WorkerFacts>,
    engine: RefCell<Weak<Engine>>,
    nested: Cell<usize>,
    /// The number of open sockets, for metrics.
    open_sockets: Arc<OpenSockets>,
    /// Functions of the prelude; they wrap functions of the gateway.
    checked: RefCell<Option<Function>>,
    waiting: RefCell<Option<Function>>,
    writing: RefCell<Option<Function>>,
    /// Functions that drop values of scripts that the gateway's own modules keep.
    forgetting: RefCell<Vec<Function>>,
    /// Functions that raise an error which names the reason.
    refusals: RefCell<BTreeMap<String, &'static str>>,
    budget: Rc<Budget>,
}

impl Host {
    pub(crate) fn new(budget: Rc<Budget>, open_sockets: Arc<OpenSockets>) -> Host {
        Host {
            budget,
            open_sockets,
            seat: RefCell::new(None),
            spare: RefCell::default(),
            alone: RefCell::new(None),
            place: RefCell::new(None),
            stage: Cell::new(Stage::Load),
            wish: RefCell::new(None),
            worker: OnceCell::new(),
            engine: RefCell::default(),
            nested: Cell::new(0),
            checked: RefCell::new(None),
            waiting: RefCell::new(None),
            writing: RefCell::new(None),
            forgetting: RefCell::default(),
            refusals: RefCell::default(),
        }
    }

    /// Sets the wrappers that the prelude made.
    pub(super) fn set_wrappers(&self, gateway: &Table) -> mlua::Result<()> {
        *self.checked.borrow_mut() = Some(gateway.get("checked")?);
        *self.waiting.borrow_mut() = Some(gateway.get("waiting")?);
        *self.writing.borrow_mut() = Some(gateway.get("writing")?);
        Ok(())
    }

    /// Checks the time of the run, in functions that work long outside the interpreter.
    ///
    /// # Errors
    /// Returns the text of a Lua error if no time is left.
    pub(crate) fn check_time(&self) -> Result<(), String> {
        self.budget.check()
    }

    /// As [`Host::check_time`], in functions of Lua that work on much data.
    ///
    /// # Errors
    /// As [`Host::check_time`].
    pub(crate) fn check_much(&self, lua: &Lua) -> Result<(), String> {
        self.budget.check_much(lua)
    }

    /// As [`Host::check_time`], without a look at the clock: for functions that are called often.
    ///
    /// # Errors
    /// Returns the text of a Lua error if a check has failed before.
    pub(crate) fn check_late(&self) -> Result<(), String> {
        self.budget.check_late()
    }

    /// Registers a function that drops values of scripts, for a state without memory.
    pub(crate) fn on_forget(&self, forget: Function) {
        self.forgetting.borrow_mut().push(forget);
    }

    /// Registers a function that raises an error: its path and the reason.
    pub(crate) fn refuse(
        self: &Rc<Self>,
        lua: &Lua,
        table: &Table,
        path: String,
        reason: &'static str,
    ) -> mlua::Result<()> {
        self.note_refusal(&path, reason);
        let message = format!("{path}: {reason}");
        let raw = self.raw(lua, "refused", move |_, _| Err(message.clone()))?;
        let checked = self.checked.borrow().clone();
        let checked = checked.ok_or_else(|| mlua::Error::runtime("the prelude has not run"))?;
        let name = path.rsplit('.').next().unwrap_or_default();
        table.raw_set(name, checked.call::<Function>(raw)?)
    }

    /// Lists a function that raises an error.
    pub(crate) fn note_refusal(&self, path: &str, reason: &'static str) {
        self.refusals.borrow_mut().insert(path.to_owned(), reason);
    }

    /// The functions that raise an error, with the reasons.
    pub(crate) fn refusals(&self) -> BTreeMap<String, &'static str> {
        self.refusals.borrow().clone()
    }

    pub(super) fn of_forgetting_functions(&self) -> Vec<Function> {
        self.forgetting.borrow().clone()
    }

    /// Sets the state that the functions belong to.
    pub(super) fn set_engine(&self, engine: &Rc<Engine>) {
        *self.engine.borrow_mut() = Rc::downgrade(engine);
    }

    /// Sets the worker; once.
    pub(crate) fn set_worker(&self, env: &Env<'_>) {
        self.worker.get_or_init(|| WorkerFacts {
            node: Arc::clone(env.node),
            local: Rc::downgrade(env.local),
            own_name: env.outbound.own_name(),
        });
    }

    /// The worker; None in a state that only checks texts.
    pub(crate) fn worker(&self) -> Option<&WorkerFacts> {
        self.worker.get()
    }

    /// The number of open sockets of the scripts.
    pub(crate) fn open_sockets(&self) -> Arc<OpenSockets> {
        Arc::clone(&self.open_sockets)
    }

    /// The Lua state.
    pub(crate) fn engine(&self) -> Weak<Engine> {
        Weak::clone(&self.engine.borrow())
    }

    /// The address of the client of the exchange that runs.
    pub(super) fn client(&self) -> Option<IpAddr> {
        self.seat.borrow().as_ref().and_then(|seat| seat.ctx.client.addr)
    }

    /// Where the script runs.
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Begins a run of an exchange: it is moved here until [`Host::leave`].
    pub(super) fn enter(
        &self,
        stage: Stage,
        ctx: &mut Context,
        env: &Env<'_>,
        exchange: Rc<Exchange>,
        place: &Rc<ScriptPosition>,
    ) {
        self.stage.set(stage);
        self.wish.borrow_mut().take();
        *self.place.borrow_mut() = Some(Rc::clone(place));
        let authenticates = place.plugin.as_ref().is_some_and(|plugin| plugin.identifying.is_some());
        let consumers = authenticates.then(|| env.consumers.clone());
        let mut own = self.spare.take().unwrap_or_default();
        std::mem::swap(&mut *own, ctx);
        let ctx = own;
        *self.seat.borrow_mut() = Some(Seat { ctx, now: env.unix_time(), exchange, consumers });
    }

    /// Ends a run of an exchange.
    pub(super) fn leave(&self, ctx: &mut Context) {
        if let Some(mut seat) = self.seat.borrow_mut().take() {
            std::mem::swap(&mut *seat.ctx, ctx);
            self.spare.replace(Some(seat.ctx));
        }
        self.leave_place();
    }

    /// Begins a call without an exchange, until [`Host::leave_place`].
    pub(super) fn enter_at(&self, place: &Rc<ScriptPosition>) {
        self.enter_stage(Stage::Load);
        *self.place.borrow_mut() = Some(Rc::clone(place));
    }

    /// Ends such a call.
    pub(super) fn leave_place(&self) {
        self.place.borrow_mut().take();
        self.stage.set(Stage::Load);
    }

    /// The position of the script that runs; None while a text is loaded, and in conditions of routes.
    pub(crate) fn place(&self) -> Option<Rc<ScriptPosition>> {
        self.place.borrow().clone()
    }

    /// Begins a run without an exchange.
    pub(super) fn enter_stage(&self, stage: Stage) {
        self.stage.set(stage);
        self.wish.borrow_mut().take();
    }

    /// Begins a run of a timer, until [`Host::leave_alone`].
    pub(super) fn enter_alone(&self, alone: &Rc<Alone>, place: &Rc<ScriptPosition>) {
        self.enter_stage(Stage::Timer);
        *self.place.borrow_mut() = Some(Rc::clone(place));
        *self.alone.borrow_mut() = Some(Rc::clone(alone));
    }

    /// Ends a run of a timer.
    pub(super) fn leave_alone(&self) {
        self.alone.borrow_mut().take();
        self.leave_place();
    }

    /// The lifetime of the exchange or timer that runs; None while a text is loaded.
    pub(crate) fn lifetime(&self) -> Option<Rc<Lifetime>> {
        if let Some(alone) = self.alone.borrow().as_ref() {
            return Some(Rc::clone(&alone.lifetime));
        }
        self.seat.borrow().as_ref().map(|seat| Rc::clone(&seat.exchange.lifetime))
    }

    /// `ngx.ctx` of the exchange or timer that runs.
    ///
    /// # Errors
    /// Returns the text of a Lua error while a text is loaded.
    pub(crate) fn ngx_ctx(&self, lua: &Lua) -> Result<Table, String> {
        match self.alone.borrow().as_ref() {
            Some(alone) => Ok(alone.ngx_ctx.borrow().clone()),
            None => self.with(|seat| seat.exchange.ngx_ctx(lua).map_err(|error| error.to_string())),
        }
    }

    /// Replaces `ngx.ctx`.
    ///
    /// # Errors
    /// As [`Host::ngx_ctx`].
    pub(crate) fn set_ngx_ctx(&self, table: Table) -> Result<(), String> {
        if let Some(alone) = self.alone.borrow().as_ref() {
            *alone.ngx_ctx.borrow_mut() = table;
            return Ok(());
        }
        self.with(|seat| {
            seat.exchange.set_ngx_ctx(table);
            Ok(())
        })
    }

    /// Uses the exchange that runs.
    ///
    /// # Errors
    /// Returns the text of a Lua error where no exchange runs, such as in a timer.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Seat) -> Result<R, String>) -> Result<R, String> {
        match self.seat.borrow_mut().as_mut() {
            Some(seat) => run(seat),
            None => Err("API disabled in the current context".to_owned()),
        }
    }

    /// As [`Host::with`], in one of these stages alone.
    pub(crate) fn within<R>(
        &self,
        stages: &[Stage],
        run: impl FnOnce(&mut Seat) -> Result<R, String>,
    ) -> Result<R, String> {
        let stage = self.stage();
        if !stages.contains(&stage) && stage != Stage::Load {
            return Err(stage.disabled());
        }
        self.with(run)
    }

    /// Takes the wish of the function that yielded.
    pub(super) fn take_wish(&self) -> Option<ScriptNeed> {
        self.wish.borrow_mut().take()
    }

    /// Registers a function as a member of a table.
    pub(crate) fn function(
        self: &Rc<Self>,
        lua: &Lua,
        table: &Table,
        name: &'static str,
        run: impl Fn(&Host, Arguments<'_>) -> Results + 'static,
    ) -> mlua::Result<()> {
        let raw = self.raw(lua, name, run)?;
        let checked = self.checked.borrow().clone();
        let checked = checked.ok_or_else(|| mlua::Error::runtime("the prelude has not run"))?;
        table.raw_set(name, checked.call::<Function>(raw)?)
    }

    /// Registers a function that may wait: it returns its need or its results.
    pub(crate) fn waiting_function(
        self: &Rc<Self>,
        lua: &Lua,
        table: &Table,
        name: &'static str,
        run: impl Fn(&Host, Arguments<'_>) -> Result<Wait, String> + 'static,
    ) -> mlua::Result<()> {
        self.wrapped_waiting(lua, table, name, &self.waiting, run)
    }

    /// Registers a function that writes: where a script cannot wait, it continues at once, and returns 1.
    pub(crate) fn writing_function(
        self: &Rc<Self>,
        lua: &Lua,
        table: &Table,
        name: &'static str,
        run: impl Fn(&Host, Arguments<'_>) -> Result<Wait, String> + 'static,
    ) -> mlua::Result<()> {
        self.wrapped_waiting(lua, table, name, &self.writing, run)
    }

    fn wrapped_waiting(
        self: &Rc<Self>,
        lua: &Lua,
        table: &Table,
        name: &'static str,
        wrapper: &RefCell<Option<Function>>,
        run: impl Fn(&Host, Arguments<'_>) -> Result<Wait, String> + 'static,
    ) -> mlua::Result<()> {
        let raw = self.raw(lua, name, move |host, arguments| match run(host, arguments)? {
            Wait::Ready(mut results) => {
                results.push_front(Value::Boolean(false));
                Ok(results)
            }
            Wait::For(wish) => {
                // Exit is no wait, and is allowed where its function says so.
                if !host.stage().may_wait() && !matches!(wish, ScriptNeed::Exit(_)) {
                    return Err(host.stage().disabled());
                }
                *host.wish.borrow_mut() = Some(wish);
                Ok(MultiValue::from_iter([Value::Boolean(true)]))
            }
        })?;
        let wrapper = wrapper.borrow().clone();
        let wrapper = wrapper.ok_or_else(|| mlua::Error::runtime("the prelude has not run"))?;
        table.raw_set(name, wrapper.call::<Function>(raw)?)
    }

    /// Counts a call from a script, until the result is dropped.
    ///
    /// # Errors
    /// Returns the text of a Lua error if there are too many nested in each other.
    pub(crate) fn nested(&self) -> Result<Nested<'_>, String> {
        if self.nested.get() >= MOST_NESTED {
            return Err("stack overflow: too many calls of the gateway within each other".to_owned());
        }
        self.nested.set(self.nested.get() + 1);
        Ok(Nested(&self.nested))
    }

    /// A function whose first result is nil or the text of an error.
    pub(crate) fn raw(
        self: &Rc<Self>,
        lua: &Lua,
        name: &'static str,
        run: impl Fn(&Host, Arguments<'_>) -> Results + 'static,
    ) -> mlua::Result<Function> {
        let host = Rc::clone(self);
        lua.create_function(move |lua, values: MultiValue| {
            // The hook of the interpreter does not count the time of calls.
            let results = host.budget.check_call().and_then(|()| host.nested());
            let results = results.and_then(|_nested| run(&host, Arguments::new(lua, name, values)));
            match results {
                Ok(results) => Ok((Value::Nil, results)),
                Err(message) => Ok((Value::String(lua.create_string(message)?), MultiValue::new())),
            }
        })
    }
}

/// The result of a function that may wait.
pub(crate) enum Wait {
    /// It need not wait.
    Ready(MultiValue),
    /// The script goes on when this has come.
    For(ScriptNeed),
}

impl Wait {
    /// Waits for a future, whose result becomes the results of the function.
    pub(crate) fn until<T: 'static>(
        future: impl Future<Output = T> + 'static,
        results: impl FnOnce(&Lua, T) -> Results + 'static,
    ) -> Wait {
        Wait::For(ScriptNeed::Work(Box::pin(async move {
            let value = future.await;
            Box::new(move |lua: &Lua| results(lua, value)) as Ready
        })))
    }

    /// Waits for a future without a result.
    pub(crate) fn for_end(future: impl Future<Output = ()> + 'static) -> Wait {
        Wait::until(future, |_, ()| nothing())
    }
}
