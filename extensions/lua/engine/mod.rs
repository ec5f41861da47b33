//! The Lua state of a worker: sandbox, budgets, and the runs of scripts.

pub(crate) mod abort_pacing;
pub(crate) mod arguments;
mod budget;
pub(crate) mod dictionaries;
pub(crate) mod exchange;
pub(crate) mod host;
pub(crate) mod lifetime;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod outbound;
pub(crate) mod pace;
pub(crate) mod place;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod settings;
mod spare_threads;
mod streamed;

use std::cell::RefCell;
use std::ffi::c_void;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::{Function, IntoLuaMulti, LightUserData, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use sigma_net::machine_time;
use sigma_plugin::script_counts::EngineSeat;
use sigma_schema::expr::{VarName, VarValue, Variables};

use abort_pacing::{AbortPacing, RunAdmission};
use budget::Budget;
use host::Host;
use memory::Memory;
use place::ScriptPosition;
use sandbox::Parts;
use settings::Settings;
use spare_threads::SpareThreads;

use crate::loaded::{Loaded, Token};

/// The first value that a coroutine yields when its script waits. Scripts cannot make it.
static WISH: u8 = 0;

/// The Lua state of one worker, with the functions of the gateway.
pub(crate) struct Engine {
    lua: Lua,
    host: Rc<Host>,
    budget: Rc<Budget>,
    pub(crate) settings: Settings,
    /// `run` of the prelude.
    runner: Function,
    /// `run_thread` of the prelude.
    thread_runner: Function,
    /// `run_all` of the prelude.
    run_all: Function,
    /// `environment` of the prelude.
    environment: Function,
    /// `proxy` of the prelude.
    proxy: Function,
    /// `reset` of the prelude.
    reset: Function,
    /// Makes `ctx` for one exchange.
    new_ctx: Function,
    /// Coroutines that have run to their end, for further runs.
    spare_threads: SpareThreads,
    /// The compiled texts of plugin instances.
    instances: Loaded,
    /// The counters of its scripts.
    seat: EngineSeat,
    /// The pacing of scripts whose runs were aborted.
    pacing: AbortPacing,
    pub(crate) memory: Memory,
    /// The newest generation of plugins in files.
    generation: RefCell<Option<Rc<dyn Generation>>>,
}

/// Returns the address of the client that a run is for.
type Client<'c> = &'c dyn Fn() -> Option<IpAddr>;

/// Plugins in files that were read at one time.
pub(crate) trait Generation {
    /// Grows with each reading.
    fn number(&self) -> u64;

    /// Ends the plugins that have begun.
    fn end(&self, engine: &Engine);
}

/// A state in the making, for those who register functions.
pub(crate) struct Assembly<'a> {
    pub(crate) lua: &'a Lua,
    pub(crate) host: &'a Rc<Host>,
    /// The functions of the prelude.
    pub(crate) gateway: &'a Table,
    pub(crate) parts: &'a Parts,
    pub(crate) settings: &'a Settings,
}

/// The functions of the gateway that a state gets.
pub(crate) struct Functions {
    /// Registers them.
    pub(crate) register: fn(&Assembly<'_>) -> mlua::Result<()>,
    /// Returns the function that makes `ctx` for one exchange.
    pub(crate) new_ctx: fn(&Lua) -> mlua::Result<Function>,
}

impl Engine {
    /// Makes a state with these functions.
    pub(crate) fn new(settings: Settings, functions: &Functions) -> mlua::Result<Rc<Engine>> {
        let libs = StdLib::BIT | StdLib::JIT | StdLib::MATH | StdLib::OS | StdLib::STRING | StdLib::TABLE;
        // The `pcall` of the default options lets coroutines yield.
        let lua = Lua::new_with(libs, LuaOptions::new())?;
        // The hook that ends scripts does not run in compiled code.
        lua.load("jit.off()").exec()?;
        lua.set_app_data(settings.clone());
        let budget = Rc::new(Budget::new());
        let seat = settings.board.enter();
        let host = Rc::new(Host::new(Rc::clone(&budget), seat.sockets()));
        let libraries = sandbox::libraries(&lua)?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=gateway");
        let is_spent = {
            let budget = Rc::clone(&budget);
            lua.create_function(move |_, ()| Ok(budget.is_spent()))?
        };
        let spare_threads = SpareThreads::default();
        let note_shown = spare_threads.note_shown(&lua)?;
        let gateway: Table = prelude.call((libraries.clone(), wish(), is_spent, note_shown))?;
        host.set_wrappers(&gateway)?;
        lua.set_named_registry_value(sandbox::SHARED, gateway.get::<Table>("shared")?)?;
        let parts = Parts {
            base: gateway.get("base")?,
            libraries,
            environment: gateway.get("environment")?,
            of_gateway: gateway.get("environment_of_gateway")?,
            readonly: gateway.get("readonly")?,
        };
        sandbox::register(&lua, &host, &parts)?;
        (functions.register)(&Assembly {
            lua: &lua,
            host: &host,
            gateway: &gateway,
            parts: &parts,
            settings: &settings,
        })?;
        empty_globals(&lua)?;
        lua.set_memory_limit(settings.memory_bytes)?;
        budget.install(&lua)?;
        let engine = Rc::new(Engine {
            runner: gateway.get("run")?,
            thread_runner: gateway.get("run_thread")?,
            run_all: gateway.get("run_all")?,
            proxy: gateway.get("proxy")?,
            reset: gateway.get("reset")?,
            environment: parts.environment,
            new_ctx: (functions.new_ctx)(&lua)?,
            spare_threads,
            instances: Loaded::default(),
            seat,
            pacing: AbortPacing::new(settings.aborted_ms_per_second),
            memory: Memory::new(settings.memory_bytes),
            generation: RefCell::new(None),
            lua,
            host,
            budget,
            settings,
        });
        engine.host.set_engine(&engine);
        Ok(engine)
    }

    /// The counters of its scripts.
    fn board_seat(&self) -> &EngineSeat {
        &self.seat
    }

    pub(crate) fn lua(&self) -> &Lua {
        &self.lua
    }

    pub(crate) fn host(&self) -> &Rc<Host> {
        &self.host
    }

    /// Compiles a text in its own environment.
    ///
    /// # Errors
    /// Returns Lua's message, with the line.
    pub(crate) fn compile(&self, text: &str) -> Result<Function, String> {
        let compiled = || {
            let environment: Table = self.environment.call(())?;
            let chunk = self.lua.load(text).set_name(chunk_name(text));
            chunk.set_mode(ChunkMode::Text).set_environment(environment).into_function()
        };
        compiled().map_err(|error| message_of(&error))
    }

    /// Makes the globals of a script.
    pub(crate) fn new_environment(&self) -> mlua::Result<Table> {
        self.environment.call(())
    }

    /// Compiles a file. Its environment has these members as well.
    ///
    /// # Errors
    /// Returns Lua's message, which begins with `name` and the line.
    pub(crate) fn compile_file(&self, text: &str, name: &str, additions: &Table) -> Result<Function, String> {
        let compiled = || {
            let environment: Table = self.environment.call(())?;
            for member in additions.pairs::<Value, Value>() {
                let (member, value) = member?;
                environment.raw_set(member, value)?;
            }
            // A first line with `#!` is for other interpreters.
            let text = if text.starts_with('#') { format!("--{text}") } else { text.to_owned() };
            let chunk = self.lua.load(text).set_name(format!("@{name}"));
            chunk.set_mode(ChunkMode::Text).set_environment(environment).into_function()
        };
        compiled().map_err(|error| message_of(&error))
    }

    /// Runs a chunk that only defines things, for the scripts at a place. Returns its first result.
    ///
    /// # Errors
    /// Returns the message of an error that the chunk raises.
    pub(crate) fn define(&self, place: &ScriptPosition, chunk: &Function) -> Result<Value, String> {
        self.define_with(place, chunk, ())
    }

    /// As [`Engine::define`], with arguments.
    ///
    /// # Errors
    /// As [`Engine::define`].
    pub(crate) fn define_with(
        &self,
        place: &ScriptPosition,
        chunk: &Function,
        arguments: impl IntoLuaMulti,
    ) -> Result<Value, String> {
        self.host.enter_stage(host::Stage::Load);
        let given = self.begin_at(place, &|| None)?;
        let result = chunk.call::<Value>(arguments);
        let used = self.budget.used();
        // Otherwise it counts as no run.
        if self.end_budget() {
            place.counts.ran(used, true);
            self.charge(place, used, matches!(given, RunAdmission::Short(_)), &|| None);
        }
        result.map_err(|error| message_of(&error))
    }

    /// Calls a function without an exchange, such as a check of a configuration.
    ///
    /// # Errors
    /// Returns the message of an error that it raises.
    pub(crate) fn call_at(
        &self,
        place: &Rc<ScriptPosition>,
        function: &Function,
        arguments: MultiValue,
    ) -> Result<MultiValue, String> {
        self.host.enter_at(place);
        let called = self.begin_at(place, &|| None).and_then(|given| {
            let called = function.call(arguments);
            self.end_budget_at(place, given, &|| None);
            called.map_err(|error| message_of(&error))
        });
        self.host.leave_place();
        called.inspect_err(|_| place.counts.failed())
    }

    /// Begins a run, unless its script is refused because too many of its runs were aborted. Returns the time that it
    /// gets. `client` returns the address of the client that the run is for.
    ///
    /// # Errors
    /// Returns the error message of a refused run.
    fn begin_at(&self, place: &ScriptPosition, client: Client<'_>) -> Result<RunAdmission, String> {
        let given = match self.is_paced() && !self.pacing.is_idle() {
            true => {
                let client = self.pacing.client(client());
                self.pacing.admit(place.script, client, place.run_time, machine_time())
            }
            false => RunAdmission::Whole,
        };
        let time = match given {
            RunAdmission::Whole => place.run_time,
            RunAdmission::Short(time) => time,
            RunAdmission::Refused { aborted, wait } => {
                place.counts.refused();
                let (share, wait) = (self.settings.aborted_ms_per_second, wait.as_secs() + 1);
                return Err(format!(
                    "the script did not run: {aborted} of its runs took too long, and such runs may take {share} ms of a second (`aborted_ms_per_second`). Its whole run time is back in {wait} s"
                ));
            }
        };
        self.budget.begin(&self.lua, time).map_err(|error| {
            self.budget.end();
            message_of(&error)
        })?;
        Ok(given)
    }

    /// Ends a run, and counts it; returns its processor time.
    fn end_budget_at(&self, place: &ScriptPosition, given: RunAdmission, client: Client<'_>) -> Duration {
        let used = self.budget.used();
        let is_aborted = self.end_budget();
        place.counts.ran(used, is_aborted);
        self.seat.set_memory(self.lua.used_memory());
        if is_aborted {
            self.charge(place, used, matches!(given, RunAdmission::Short(_)), client);
        } else if !self.pacing.is_idle() {
            self.pacing.ended(place.script, used);
        }
        used
    }

    /// Lets a script pay for an aborted run.
    fn charge(&self, place: &ScriptPosition, used: Duration, is_short: bool, client: Client<'_>) {
        if self.is_paced() {
            let client = self.pacing.client(client());
            self.pacing.aborted(place.script, client, place.run_time, used, is_short, machine_time());
        }
    }

    /// Whether requests can wait for scripts of this state. A state that only checks texts belongs to no worker.
    fn is_paced(&self) -> bool {
        self.host.worker().is_some()
    }

    /// Ends a run; whether it had no time left. The prelude resets its count then.
    fn end_budget(&self) -> bool {
        let is_spent = self.budget.end();
        if is_spent {
            // It only sets a number. Without the hook of a spent budget it cannot fail.
            let begun = self.budget.begin(&self.lua, self.settings.run_time);
            let reset = begun.and_then(|()| self.reset.call::<()>(()));
            if let Err(error) = reset {
                tracing::error!("cannot reset the Lua state: {}", message_of(&error));
            }
            self.budget.end();
        }
        is_spent
    }

    /// Begins with a newer generation of plugins in files. The plugins of the older one end.
    pub(crate) fn succeed(&self, newer: Rc<dyn Generation>) {
        let mut current = self.generation.borrow_mut();
        if current.as_ref().is_some_and(|known| known.number() > newer.number()) {
            return;
        }
        let former = current.replace(newer);
        drop(current);
        if let Some(former) = former {
            former.end(self);
        }
    }

    /// Whether a condition of a route holds.
    ///
    /// # Errors
    /// Returns the message of an error that it raises.
    pub(crate) fn condition(
        &self,
        place: &ScriptPosition,
        function: &Function,
        variables: &dyn Variables,
    ) -> Result<bool, String> {
        self.host.enter_stage(host::Stage::Match);
        let value = self.scoped(place, variables, |variables| function.call(variables))?;
        Ok(!matches!(value, Value::Nil | Value::Boolean(false)))
    }

    /// Calls a function of a plugin for sessions with its configuration and `ctx`, whose variables are the session's.
    ///
    /// # Errors
    /// Returns the message of an error that it raises.
    pub(crate) fn with_variables(
        &self,
        place: &Rc<ScriptPosition>,
        function: &Function,
        conf: &Value,
        variables: &dyn Variables,
    ) -> Result<Value, String> {
        self.host.enter_at(place);
        let result = self.scoped(place, variables, |variables| {
            let ctx = self.lua.create_table()?;
            ctx.raw_set("var", variables)?;
            function.call((conf.clone(), ctx))
        });
        self.host.leave_place();
        result
    }

    /// Runs something with a table of variables, within the budget of a place.
    fn scoped(
        &self,
        place: &ScriptPosition,
        variables: &dyn Variables,
        run: impl FnOnce(Table) -> mlua::Result<Value>,
    ) -> Result<Value, String> {
        let client = || match variables.get(&VarName::RemoteAddr)? {
            VarValue::Text(address) => std::str::from_utf8(&address).ok()?.parse().ok(),
            _ => None,
        };
        let result = self.begin_at(place, &client).and_then(|given| {
            let result = self.lua.scope(|scope| {
                let get = scope.create_function(|lua, name: mlua::LuaString| {
                    let name = VarName::parse(&name.to_string_lossy());
                    let value = match variables.get(&name) {
                        None => Value::Nil,
                        Some(VarValue::Bool(value)) => Value::Boolean(value),
                        Some(VarValue::Text(text)) => Value::String(lua.create_string(&*text)?),
                        Some(VarValue::List(items)) => {
                            let items = items.iter().map(|item| lua.create_string(&**item));
                            Value::Table(lua.create_sequence_from(items.collect::<Result<Vec<_>, _>>()?)?)
                        }
                    };
                    Ok((Value::Nil, value))
                })?;
                let set = scope.create_function(|_, ()| Ok("these variables are read only"))?;
                let variables: Table = self.proxy.call((get, set))?;
                run(variables)
            });
            self.end_budget_at(place, given, &client);
            result.map_err(|error| message_of(&error))
        });
        result.inspect_err(|_| place.counts.failed())
    }

    /// `run_all` of the prelude: runs functions in order, until one returns something.
    pub(crate) fn run_all(&self) -> &Function {
        &self.run_all
    }

    /// The value of this state for an instance; the first call makes it.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub(crate) fn loaded<T: 'static>(
        &self,
        token: &Token,
        make: impl FnOnce() -> Result<T, String>,
    ) -> Result<Rc<T>, String> {
        self.instances.get(token, make)
    }

    /// Makes `ctx` for one exchange.
    pub(crate) fn new_api_ctx(&self) -> mlua::Result<Table> {
        self.new_ctx.call(())
    }
}

/// The mark of a wait.
fn wish() -> Value {
    Value::LightUserData(LightUserData(std::ptr::from_ref(&WISH).cast_mut().cast::<c_void>()))
}

/// Leaves no global: `getfenv(0)` and functions of C would lead scripts there.
fn empty_globals(lua: &Lua) -> mlua::Result<()> {
    let globals = lua.globals();
    let names: Vec<Value> =
        globals.pairs::<Value, Value>().map(|pair| pair.map(|pair| pair.0)).collect::<Result<_, _>>()?;
    for name in names {
        globals.raw_set(name, Value::Nil)?;
    }
    Ok(())
}

/// The name of a chunk: its text, as OpenResty names it, so that errors begin with `[string "…"]:1:`.
fn chunk_name(text: &str) -> String {
    text.replace('\0', " ")
}

/// The message of an error, without additions of the binding.
pub(crate) fn message_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::RuntimeError(message) | mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => "not enough memory".to_owned(),
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            message_of(cause)
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
