//! `serverless-pre-function` and `serverless-post-function`: functions of a configuration, in a phase of its choice.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, MultiValue, Table, Value as LuaValue};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep, Step,
    Transform,
};

use crate::engine::exchange::Exchange;
use crate::engine::host::Stage;
use crate::engine::place::ScriptPosition;
use crate::engine::run::{Outcome, Run};
use crate::engine::{Engine, message_of, settings};
use crate::filter::{Filter, Unmeasured};
use crate::loaded::Token;
use crate::{core, hooks, state};

/// Functions before almost all other plugins of the phase.
pub(crate) static SERVERLESS_PRE_FUNCTION: Descriptor = Descriptor {
    name: "serverless-pre-function",
    priority: 10000,
    // It may refuse requests: it runs before other plugins read a body. Post-functions keep their place: they may need
    // the body as other plugins have changed it.
    guards: true,
    example: include_str!("serverless-pre-function/example.md"),
    scripts: Some(crate::scripts::scripts),
    attributes: Some(sigma_schema::described::schema_of::<settings::Attributes>),
    ..DESCRIPTOR
};

/// Functions after almost all other plugins of the phase.
pub(crate) static SERVERLESS_POST_FUNCTION: Descriptor = Descriptor {
    name: "serverless-post-function",
    priority: -2000,
    example: include_str!("serverless-post-function/example.md"),
    ..DESCRIPTOR
};

const DESCRIPTOR: Descriptor = Descriptor {
    phases: PhaseSet::of(&[
        Phase::Rewrite,
        Phase::Access,
        Phase::BeforeProxy,
        Phase::HeaderFilter,
        Phase::BodyFilter,
        Phase::Log,
    ]),
    build: |build| Ok(Arc::new(Serverless::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Runs Lua functions of the configuration in a phase of each exchange.
///
/// Each text is a chunk that returns a function `function(conf, ctx)`. It is compiled once for each worker and version
/// of the configuration, so its upvalues live on. In the phases `rewrite`, `access` and `before_proxy`, a function
/// that returns a status or a body ends the request, and later functions do not run. A table becomes JSON. An error
/// gives 500.
///
/// Scripts have limits of run time and memory, and reach no files, processes or bytecode; see
/// [Lua](../lua.md).
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Config {
    /// The phase in which the functions run.
    #[serde(default)]
    phase: ConfiguredPhase,
    /// Lua chunks that return a function, in running order.
    #[schemars(length(min = 1))]
    functions: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ConfiguredPhase {
    Rewrite,
    #[default]
    Access,
    HeaderFilter,
    BodyFilter,
    Log,
    BeforeProxy,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        crate::state::with_checker(|engine| {
            let place = engine.place("serverless-pre-function check", &self.functions);
            for text in &self.functions {
                function_of(engine, &place, text)?;
            }
            Ok(())
        })
    }
}

/// The function that a text returns.
fn function_of(engine: &Engine, place: &ScriptPosition, text: &str) -> Result<Function, String> {
    let chunk = engine.compile(text).map_err(|error| format!("failed to loadstring: {error}"))?;
    match engine.define(place, &chunk).map_err(|error| format!("pcall error: {error}"))? {
        LuaValue::Function(function) => Ok(function),
        other => {
            let kind = crate::engine::arguments::type_name(&other);
            Err(format!("only accept Lua function, the input code type is {kind}"))
        }
    }
}

/// An instance: the texts, which each worker compiles when it needs them.
struct Serverless {
    phase: ConfiguredPhase,
    functions: Vec<String>,
    conf: Value,
    /// Its name in logs.
    place: String,
    token: Token,
}

/// The functions of an instance in the state of a worker.
struct Functions {
    /// Arguments of the prelude's `run_all`.
    functions: Table,
    conf: LuaValue,
    place: Rc<ScriptPosition>,
}

impl Functions {
    /// The arguments of `run_all`: the functions, the configuration, and `ctx`.
    fn arguments(&self, exchange: &Exchange) -> MultiValue {
        // With room for the function that gets them.
        let mut arguments = MultiValue::with_capacity(4);
        let functions = LuaValue::Table(self.functions.clone());
        arguments.extend([functions, self.conf.clone(), LuaValue::Table(exchange.api_ctx.clone())]);
        arguments
    }
}

impl Serverless {
    fn new(build: &Build<'_>) -> Result<Serverless, String> {
        let Config { phase, functions } = build.config()?;
        let place = format!("{} of {}", build.plugin, build.resource);
        Ok(Serverless { phase, functions, conf: build.conf.clone(), place, token: Token::new() })
    }

    /// Its functions in this worker's state.
    fn functions(&self, engine: &Rc<Engine>) -> Result<Rc<Functions>, String> {
        engine.loaded::<Functions>(&self.token, || {
            let lua = engine.lua();
            let place = engine.place(&self.place, &self.functions);
            let functions = lua.create_table().map_err(|error| message_of(&error))?;
            for text in &self.functions {
                functions.raw_push(function_of(engine, &place, text)?).map_err(|error| message_of(&error))?;
            }
            let conf = core::to_lua(lua, &self.conf).map_err(|error| message_of(&error))?;
            Ok(Functions { functions, conf, place })
        })
    }

    /// Prepares a run in a stage.
    fn run(&self, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Result<Run, String> {
        let engine = state::of_worker(env)?;
        let functions = self.functions(&engine)?;
        let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
        let arguments = functions.arguments(&exchange);
        Run::new(&engine, &exchange, stage, &functions.place, engine.run_all().clone(), arguments)
    }

    /// Runs in a request phase.
    fn request(&self, phase: ConfiguredPhase, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.phase != phase {
            return Step::Next;
        }
        match self.run(stage, ctx, env) {
            Ok(run) => {
                let finish = core::response::finish(run.place());
                run.step(ctx, env, finish)
            }
            Err(message) => hooks::broken(&self.place, &message).into(),
        }
    }

    /// Runs in a stage without waits.
    fn at_once(&self, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Outcome {
        match self.run(stage, ctx, env) {
            Ok(run) => run.at_once(ctx, env),
            Err(message) => {
                hooks::broken(&self.place, &message);
                Outcome::Failed
            }
        }
    }
}

impl Plugin for Serverless {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.request(ConfiguredPhase::Rewrite, Stage::Rewrite, ctx, env)
    }

    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.request(ConfiguredPhase::Access, Stage::Access, ctx, env)
    }

    fn before_proxy(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.request(ConfiguredPhase::BeforeProxy, Stage::Access, ctx, env)
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        hooks::move_fields(ctx);
        if self.phase != ConfiguredPhase::HeaderFilter {
            return ResponseStep::Next;
        }
        let outcome = self.at_once(Stage::HeaderFilter, ctx, env);
        hooks::after_filter(&outcome, ctx)
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        if self.phase != ConfiguredPhase::BodyFilter {
            let exchange = Exchange::known(ctx).filter(|_| self.phase == ConfiguredPhase::HeaderFilter)?;
            return exchange.drops_length.get().then(|| Unmeasured.filter());
        }
        let made = state::of_worker(env).and_then(|engine| {
            let functions = self.functions(&engine)?;
            let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
            let arguments = functions.arguments(&exchange).into_vec();
            let function = engine.run_all().clone();
            Ok(Some(Filter::new(&engine, &exchange, env, &functions.place, function, arguments)))
        });
        Filter::or_broken(made, &self.place)
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        if self.phase == ConfiguredPhase::Log {
            self.at_once(Stage::Log, ctx, env);
        }
    }
}
