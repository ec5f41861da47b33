//! Scripts in resources, besides plugins: `filter_func` and `script` of routes, and `_meta.pre_function`.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, MultiValue, Table, Value as LuaValue};
use serde_json::Value;
use sigma_plugin::credentials::Credentials;
use sigma_plugin::meta::Meta;
use sigma_plugin::scripts::{FileKinds, FileSearch, RouteCondition, SCRIPT, ScriptTrial};
use sigma_plugin::{
    BodyFilter, Build, Context, Entry, Env, Kind, OwnedFields, Phase, PhaseSet, Plugin, ResponseStep,
    Scripts, Step,
};
use sigma_schema::expr::Variables;
use sigma_schema::plugins::{PluginScope, ScriptForm};

use crate::engine::arguments::type_name;
use crate::engine::exchange::Exchange;
use crate::engine::host::Stage;
use crate::engine::place::ScriptPosition;
use crate::engine::run::{Finish, Outcome, Run};
use crate::engine::{Engine, message_of};
use crate::filter::Filter;
use crate::loaded::Token;
use crate::state::{here, with_checker};
use crate::{core, hooks, reply, state};

/// The hooks that scripts have.
const PHASES: PhaseSet = PhaseSet::of(&[
    Phase::Rewrite,
    Phase::Access,
    Phase::BeforeProxy,
    Phase::HeaderFilter,
    Phase::BodyFilter,
    Phase::Log,
]);

/// The engine for scripts in resources.
pub(crate) fn scripts() -> Arc<dyn Scripts> {
    Arc::new(LuaScripts)
}

struct LuaScripts;

impl Scripts for LuaScripts {
    fn check(&self, form: ScriptForm, text: &str) -> Result<(), String> {
        with_checker(|engine| match form {
            ScriptForm::Condition => {
                condition_of(engine, &engine.place("filter_func check", &[text]), text).map(drop)
            }
            ScriptForm::Script => {
                let chunk = engine
                    .compile(text)
                    .map_err(|error| format!("failed to load 'script' string: {error}"))?;
                object_of(engine, &engine.place("script check", &[text]), &chunk).map(drop)
            }
            ScriptForm::PreFunction => engine.compile(text).map(drop),
        })
    }

    fn condition(&self, route: &str, text: &str) -> Arc<dyn RouteCondition> {
        Arc::new(Condition {
            place: format!("filter_func of route {route}"),
            text: text.into(),
            token: Token::new(),
        })
    }

    fn script(&self, resource: &str, text: &str) -> Entry {
        let script =
            Script { place: format!("script of {resource}"), text: text.into(), token: Token::new() };
        Entry {
            kind: Arc::new(ScriptKind),
            meta: Meta::default(),
            conf: Arc::new(Value::String(text.to_owned())),
            metadata: None,
            protos: Vec::new(),
            plugin: Arc::new(script),
            children: Vec::new(),
            owned: OwnedFields::default(),
            credentials: Credentials::default(),
        }
    }

    fn before(&self, plugin: Arc<dyn Plugin>, place: &str, text: &str, conf: &Value) -> Arc<dyn Plugin> {
        let place = format!("_meta.pre_function of plugin {place}");
        let before = Before { place, text: text.into(), conf: conf.clone(), token: Token::new() };
        Arc::new(WithBefore { before: Arc::new(before), plugin })
    }

    fn files(&self, search: &FileSearch) -> FileKinds {
        crate::files::load(search)
    }

    fn stamp(&self, search: &FileSearch) -> u64 {
        crate::files::stamp(search)
    }

    fn try_out(&self, trial: &ScriptTrial) -> Result<String, String> {
        crate::trial::run(trial)
    }
}

/// The function of a `filter_func`.
fn condition_of(engine: &Engine, place: &ScriptPosition, text: &str) -> Result<Function, String> {
    let chunk = engine.compile(&format!("return {text}"));
    let chunk = chunk.map_err(|error| format!("failed to load 'filter_func' string: {error}"))?;
    match engine.define(place, &chunk)? {
        LuaValue::Function(function) => Ok(function),
        _ => Err("'filter_func' should be a function".to_owned()),
    }
}

/// The table that the chunk of a `script` returns.
fn object_of(engine: &Engine, place: &ScriptPosition, chunk: &Function) -> Result<Table, String> {
    match engine.define(place, chunk)? {
        LuaValue::Table(object) => Ok(object),
        _ => Err("'script' should be a Lua object".to_owned()),
    }
}

/// A `filter_func` in the state of a worker.
struct LoadedCondition {
    function: Function,
    place: Rc<ScriptPosition>,
}

/// A `filter_func`.
#[derive(Debug)]
struct Condition {
    place: String,
    text: Box<str>,
    token: Token,
}

impl RouteCondition for Condition {
    fn holds(&self, variables: &dyn Variables) -> bool {
        let held = here(|engine| {
            let loaded = engine.loaded::<LoadedCondition>(&self.token, || {
                let place = engine.place(&self.place, &[&self.text]);
                let function = condition_of(engine, &place, &self.text)?;
                Ok(LoadedCondition { function, place })
            })?;
            engine.condition(&loaded.place, &loaded.function, variables)
        });
        held.unwrap_or_else(|message| {
            tracing::error!("{}: a Lua function failed: runtime error: {message}", self.place);
            false
        })
    }
}

/// The kind of the entries of scripts. No configuration can name it.
struct ScriptKind;

impl Kind for ScriptKind {
    fn name(&self) -> &str {
        SCRIPT
    }

    fn priority(&self) -> i32 {
        0
    }

    fn phases(&self) -> PhaseSet {
        PHASES
    }

    // A script may refuse requests.
    fn guards(&self) -> bool {
        true
    }

    fn documentation(&self) -> Cow<'_, str> {
        Cow::Borrowed("Runs the script of a route or service.")
    }

    fn schema(&self, _: PluginScope) -> Option<Value> {
        None
    }

    fn build(&self, _: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
        Err("a script is no plugin".to_owned())
    }
}

/// A `script`: a chunk that is run for each exchange, and returns functions by phase.
struct Script {
    place: String,
    text: Box<str>,
    token: Token,
}

/// The compiled chunk.
struct Chunk {
    function: Function,
    place: Rc<ScriptPosition>,
}

/// The table of functions of one exchange.
struct Object(Table);

impl Script {
    fn chunk(&self, engine: &Rc<Engine>) -> Result<Rc<Chunk>, String> {
        engine.loaded::<Chunk>(&self.token, || {
            Ok(Chunk {
                function: engine.compile(&self.text)?,
                place: engine.place(&self.place, &[&self.text]),
            })
        })
    }

    /// The function of a phase, if the script has one.
    fn function(
        &self,
        phase: &str,
        engine: &Rc<Engine>,
        ctx: &mut Context,
    ) -> Result<Option<Function>, String> {
        let object = match ctx.kept::<_, Object>(self) {
            Some(Object(object)) => object.clone(),
            None => {
                let chunk = self.chunk(engine)?;
                let object = object_of(engine, &chunk.place, &chunk.function)?;
                ctx.keep(self, Object(object.clone()));
                object
            }
        };
        match object.get::<LuaValue>(phase).map_err(|error| message_of(&error))? {
            LuaValue::Nil => Ok(None),
            LuaValue::Function(function) => Ok(Some(function)),
            other => Err(format!("`{phase}` is a {}, not a function", type_name(&other))),
        }
    }

    /// Prepares the run of a phase; None if the script has no function for it.
    fn run(
        &self,
        phase: &str,
        stage: Stage,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Result<Option<Run>, String> {
        let engine = state::of_worker(env)?;
        let Some(function) = self.function(phase, &engine, ctx)? else { return Ok(None) };
        let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
        let arguments = MultiValue::from_iter([LuaValue::Table(exchange.api_ctx.clone())]);
        let place = &self.chunk(&engine)?.place;
        Run::new(&engine, &exchange, stage, place, function, arguments).map(Some)
    }

    fn request(&self, phase: &str, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Step {
        match self.run(phase, stage, ctx, env) {
            Ok(None) => Step::Next,
            Ok(Some(run)) => {
                run.step(ctx, env, Box::new(|outcome, _, exchange, _, _| reply::after(&outcome, exchange)))
            }
            Err(message) => hooks::broken(&self.place, &message).into(),
        }
    }
}

impl Plugin for Script {
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
            let Some(function) = self.function("body_filter", &engine, ctx)? else { return Ok(None) };
            let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
            let arguments = vec![LuaValue::Table(exchange.api_ctx.clone())];
            let place = Rc::clone(&self.chunk(&engine)?.place);
            Ok(Some(Filter::new(&engine, &exchange, env, &place, function, arguments)))
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

/// A `_meta.pre_function`.
struct Before {
    place: String,
    text: Box<str>,
    conf: Value,
    token: Token,
}

/// A plugin with a function before each of its hooks.
struct WithBefore {
    before: Arc<Before>,
    plugin: Arc<dyn Plugin>,
}

/// The function in the state of a worker.
struct BeforeFunction {
    function: Function,
    conf: LuaValue,
    place: Rc<ScriptPosition>,
}

impl Before {
    fn function(&self, engine: &Rc<Engine>) -> Result<Rc<BeforeFunction>, String> {
        engine.loaded::<BeforeFunction>(&self.token, || {
            let place = engine.place(&self.place, &[&self.text]);
            let chunk = engine.compile(&self.text)?;
            let LuaValue::Function(function) = engine.define(&place, &chunk)? else {
                return Err("the script does not return a function".to_owned());
            };
            let conf = core::to_lua(engine.lua(), &self.conf).map_err(|error| message_of(&error))?;
            Ok(BeforeFunction { function, conf, place })
        })
    }

    fn run(&self, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Result<Run, String> {
        let engine = state::of_worker(env)?;
        let before = self.function(&engine)?;
        let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
        let arguments =
            MultiValue::from_iter([before.conf.clone(), LuaValue::Table(exchange.api_ctx.clone())]);
        Run::new(&engine, &exchange, stage, &before.place, before.function.clone(), arguments)
    }

    /// Runs in a stage without waits. The plugin runs in any case.
    fn at_once(&self, stage: Stage, ctx: &mut Context, env: &Env<'_>) {
        match self.run(stage, ctx, env) {
            Ok(run) => drop(run.at_once(ctx, env)),
            Err(message) => drop(hooks::broken(&self.place, &message)),
        }
    }

    /// Runs in a request phase, then continues with the plugin's hook, unless the function ended the request.
    fn step(&self, stage: Stage, ctx: &mut Context, env: &Env<'_>, hook: Hook) -> Step {
        match self.run(stage, ctx, env) {
            Ok(run) => {
                let finish: Finish = Box::new(move |outcome, _, exchange, ctx, env| match outcome {
                    Outcome::Failed => hook(ctx, env),
                    outcome => match reply::after(&outcome, exchange) {
                        Step::Next => hook(ctx, env),
                        step => step,
                    },
                });
                run.step(ctx, env, finish)
            }
            Err(message) => {
                drop(hooks::broken(&self.place, &message));
                hook(ctx, env)
            }
        }
    }
}

/// A hook of the plugin behind a function.
type Hook = Box<dyn FnOnce(&mut Context, &Env<'_>) -> Step>;

impl Plugin for WithBefore {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let plugin = Arc::clone(&self.plugin);
        self.before.step(Stage::Rewrite, ctx, env, Box::new(move |ctx, env| plugin.rewrite(ctx, env)))
    }

    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let plugin = Arc::clone(&self.plugin);
        self.before.step(Stage::Access, ctx, env, Box::new(move |ctx, env| plugin.access(ctx, env)))
    }

    fn before_proxy(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let plugin = Arc::clone(&self.plugin);
        self.before.step(Stage::Access, ctx, env, Box::new(move |ctx, env| plugin.before_proxy(ctx, env)))
    }

    fn request_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        self.plugin.request_filter(ctx, env)
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        hooks::move_fields(ctx);
        self.before.at_once(Stage::HeaderFilter, ctx, env);
        match hooks::exited(ctx) {
            Some(step) => step,
            None => self.plugin.header_filter(ctx, env),
        }
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        self.before.at_once(Stage::BodyFilter, ctx, env);
        self.plugin.body_filter(ctx, env)
    }

    fn samples(&self) -> bool {
        self.plugin.samples()
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        self.before.at_once(Stage::Log, ctx, env);
        self.plugin.log(ctx, env);
    }

    fn foresee(&self, ctx: &mut Context) -> Option<Value> {
        self.plugin.foresee(ctx)
    }
}
