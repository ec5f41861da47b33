//! The Lua states of a process: one for each worker, and one for each thread that checks texts.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::Value;
use sigma_plugin::{Env, Node};

use crate::engine::modules::Modules;
use crate::engine::settings::Settings;
use crate::engine::{Assembly, Engine, Functions};
use crate::{core, modules, ngx};

/// The functions of the gateway that scripts may call.
const FUNCTIONS: Functions = Functions { register, new_ctx: core::new_ctx };

/// The state of a worker, or the reason that it could not be made.
struct WorkerEngine(Result<Rc<Engine>, String>);

thread_local! {
    /// The state of the worker of this thread.
    static HERE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
    /// The state that checks texts on this thread.
    static CHECKER: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// The state of this worker; the first script makes it.
///
/// # Errors
/// Returns an error message if the state cannot be made.
pub(crate) fn of_worker(env: &Env<'_>) -> Result<Rc<Engine>, String> {
    let made = env.local.part(|| {
        let made = new(env.node);
        if let Ok(engine) = &made {
            HERE.set(Some(Rc::clone(engine)));
            engine.host().set_worker(env);
        }
        WorkerEngine(made)
    });
    let engine = made.0.clone()?;
    engine.make_room();
    Ok(engine)
}

/// A new state.
///
/// # Errors
/// Returns an error message if the state cannot be made.
pub(crate) fn new(node: &Node) -> Result<Rc<Engine>, String> {
    let settings = Settings::of(node)?;
    Engine::new(settings, &FUNCTIONS).map_err(|error| format!("the Lua engine cannot start: {error}"))
}

/// Uses the state of the worker of this thread; on other threads, the one that checks texts.
///
/// # Errors
/// Returns the error of `run`, or a message if there is no state.
pub(crate) fn here<R>(run: impl FnOnce(&Rc<Engine>) -> Result<R, String>) -> Result<R, String> {
    match HERE.with_borrow(Clone::clone) {
        Some(engine) => {
            engine.make_room();
            run(&engine)
        }
        None => with_checker(run),
    }
}

/// Uses the state of this thread that checks texts.
///
/// # Errors
/// Returns the error of `check`, or a message if there is no state.
pub(crate) fn with_checker<R>(check: impl FnOnce(&Rc<Engine>) -> Result<R, String>) -> Result<R, String> {
    let known = CHECKER.with_borrow(Clone::clone);
    let engine = match known {
        Some(engine) => engine,
        None => {
            let engine = new(&Node::default())?;
            CHECKER.set(Some(Rc::clone(&engine)));
            engine
        }
    };
    engine.make_room();
    check(&engine)
}

/// Registers all functions and modules.
fn register(assembly: &Assembly<'_>) -> mlua::Result<()> {
    let Assembly { lua, host, gateway, parts, settings } = assembly;
    modules::text::register(lua, host, &parts.libraries)?;
    modules::tables::register(lua, host, &parts.libraries, gateway)?;
    let registry = Modules::new(gateway)?;
    modules::cjson::register(lua, host, &registry)?;
    modules::digest::register(lua, host, gateway, &registry)?;
    ngx::register(lua, host, gateway, &parts.base, &registry, settings)?;
    core::register(lua, host, &registry, &parts.libraries)?;
    modules::apisix::register(lua, host, &registry)?;
    modules::resty::register(lua, host, &registry, &parts.of_gateway, settings)?;
    let of_tables: mlua::Table = parts.base.get("table")?;
    for name in modules::tables::MODULES {
        registry.add_value(&format!("table.{name}"), of_tables.get::<Value>(*name)?);
    }
    registry.register(lua, host, &parts.base)
}
