//! A plugin in a file with one configuration.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, MultiValue, Table, Value as LuaValue};
use serde_json::Value;
use sigma_plugin::{BodyFilter, Build, Context, Env, Plugin, ResponseStep, Step};

use super::FOLDERS;
use super::bundle::Bundle;
use super::library::Library;
use crate::engine::exchange::Exchange;
use crate::engine::host::Stage;
use crate::engine::place::{OwnPlugin, ScriptPosition};
use crate::engine::run::Run;
use crate::engine::{Engine, message_of};
use crate::filter::Filter;
use crate::loaded::Token;
use crate::{core, hooks, state};

/// An instance; each worker makes its Lua values when it needs them.
pub(super) struct FilePlugin {
    bundle: Arc<Bundle>,
    name: Box<str>,
    conf: Value,
    metadata: Value,
    /// The field that identifies its consumers, if it authenticates.
    identifying: Option<Box<str>>,
    /// Its name in logs.
    place: String,
    token: Token,
}

/// An instance in the state of a worker.
struct Loaded {
    module: Table,
    conf: LuaValue,
    place: Rc<ScriptPosition>,
}

/// A function at its place.
pub(super) struct Called {
    pub(super) function: Function,
    pub(super) place: Rc<ScriptPosition>,
}

/// The facts of a plugin that its scripts may read.
pub(super) fn own(name: &str, metadata: LuaValue, identifying: Option<Box<str>>) -> Rc<OwnPlugin> {
    Rc::new(OwnPlugin { name: name.into(), metadata, identifying })
}

impl FilePlugin {
    pub(super) fn new(bundle: &Arc<Bundle>, build: &Build<'_>, identifying: Option<Box<str>>) -> FilePlugin {
        FilePlugin {
            bundle: Arc::clone(bundle),
            name: build.plugin.into(),
            conf: build.conf.clone(),
            metadata: build.metadata.clone(),
            identifying,
            place: format!("{} of {}", build.plugin, build.resource),
            token: Token::new(),
        }
    }

    /// Its values in this worker's state.
    fn loaded(&self, engine: &Rc<Engine>) -> Result<Rc<Loaded>, String> {
        engine.loaded::<Loaded>(&self.token, || {
            let library = Library::of(engine, &self.bundle)?;
            let text = |error: mlua::Error| message_of(&error);
            let metadata = match &self.metadata {
                Value::Null => LuaValue::Nil,
                metadata => core::to_lua(engine.lua(), metadata).map_err(text)?,
            };
            let own = own(&self.name, metadata, self.identifying.clone());
            let place = engine.place_in_file(&self.place, self.bundle.number, &self.conf, &own);
            let module = library.begun(engine, &place, &format!("{}{}", FOLDERS[0], self.name))?;
            let conf = core::to_lua(engine.lua(), &self.conf).map_err(text)?;
            Ok(Loaded { module, conf, place })
        })
    }

    /// Prepares the run of a phase; None if the plugin has no function for it.
    fn run(
        &self,
        phase: &str,
        stage: Stage,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Result<Option<Run>, String> {
        let engine = state::of_worker(env)?;
        let loaded = self.loaded(&engine)?;
        let Some(function) = function(&loaded.module, phase)? else { return Ok(None) };
        let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
        // Scripts of one exchange share `ctx`.
        let _ = exchange.api_ctx.raw_set("_plugin_name", &*self.name);
        let arguments =
            MultiValue::from_iter([loaded.conf.clone(), LuaValue::Table(exchange.api_ctx.clone())]);
        Run::new(&engine, &exchange, stage, &loaded.place, function, arguments).map(Some)
    }

    fn request(&self, phase: &str, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Step {
        match self.run(phase, stage, ctx, env) {
            Ok(None) => Step::Next,
            Ok(Some(run)) => {
                let finish = core::response::finish(run.place());
                run.step(ctx, env, finish)
            }
            Err(message) => hooks::broken(&self.place, &message).into(),
        }
    }
}

/// The function of a phase.
fn function(module: &Table, phase: &str) -> Result<Option<Function>, String> {
    module.get(phase).map_err(|error| message_of(&error))
}

/// Serves a path of a plugin itself. `find` returns the function.
pub(super) fn serve_path(
    name: &str,
    find: impl FnOnce(&Rc<Engine>) -> Result<Called, String>,
    ctx: &mut Context,
    env: &Env<'_>,
) -> Step {
    let made = || {
        let engine = state::of_worker(env)?;
        let Called { function, place } = find(&engine)?;
        let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
        let arguments = MultiValue::from_iter([LuaValue::Table(exchange.api_ctx.clone())]);
        Run::new(&engine, &exchange, Stage::Access, &place, function, arguments)
    };
    match made() {
        Ok(run) => {
            let finish = core::response::finish(run.place());
            run.step(ctx, env, finish)
        }
        Err(message) => hooks::broken(name, &message).into(),
    }
}

impl Plugin for FilePlugin {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.request("rewrite", Stage::Rewrite, ctx, env)
    }

    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.request("access", Stage::Access, ctx, env)
    }

    fn before_proxy(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.request("before_proxy", Stage::Access, ctx, env)
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        hooks::move_fields(ctx);
        match self.run("header_filter", Stage::HeaderFilter, ctx, env) {
            Ok(None) => ResponseStep::Next,
            Ok(Some(run)) => {
                let outcome = run.at_once(ctx, env);
                hooks::after_filter(&outcome, ctx)
            }
            Err(message) => ResponseStep::Replace(Box::new(hooks::broken(&self.place, &message))),
        }
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let made = state::of_worker(env).and_then(|engine| {
            let loaded = self.loaded(&engine)?;
            let mut functions = Vec::new();
            for name in ["body_filter", "delayed_body_filter"] {
                functions.extend(function(&loaded.module, name)?);
            }
            if functions.is_empty() {
                return Ok(None);
            }
            let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
            let arguments = vec![loaded.conf.clone(), LuaValue::Table(exchange.api_ctx.clone())];
            Ok(Some(Filter::of_all(&engine, &exchange, env, &loaded.place, functions, arguments)))
        });
        Filter::or_broken(made, &self.place)
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        match self.run("log", Stage::Log, ctx, env) {
            Ok(None) => {}
            Ok(Some(run)) => drop(run.at_once(ctx, env)),
            Err(message) => drop(hooks::broken(&self.place, &message)),
        }
    }
}
