//! `serverless-pre-function` and `serverless-post-function`: functions of a configuration, in a phase of its choice.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, MultiValue, Table, Value as LuaValue};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_http::{Chunk, Fault, FaultKind, Headers};
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Pieces, Plugin, Reply,
    ResponseStep, Step, Transform,
};

use crate::engine::host::Stage;
use crate::engine::run::{Outcome, Run};
use crate::engine::{Engine, message_of, settings};
use crate::exchange::{Exchange, Piece};
use crate::loaded::Token;
use crate::{core, reply};

/// A body whose script failed is cut off.
const FAILED: Fault = Fault::new(FaultKind::Internal, "a Lua function failed");

/// Functions before almost all other plugins of the phase.
pub(crate) static SERVERLESS_PRE_FUNCTION: Descriptor = Descriptor {
    name: "serverless-pre-function",
    priority: 10000,
    example: include_str!("example.md"),
    attributes: Some(sigma_schema::described::schema_of::<settings::Attributes>),
    ..DESCRIPTOR
};

/// Functions after almost all other plugins of the phase.
pub(crate) static SERVERLESS_POST_FUNCTION: Descriptor = Descriptor {
    name: "serverless-post-function",
    priority: -2000,
    example: include_str!("example_post.md"),
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
    // It may refuse requests: it runs before other plugins read a body.
    guards: true,
    build: |build| Ok(Arc::new(Serverless::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Runs Lua functions of the configuration in a phase of each exchange.
///
/// Each text is a chunk that returns a function `function(conf, ctx)`. It is compiled once for each worker and version of
/// the configuration, so its upvalues live on. In the phases `rewrite`, `access` and `before_proxy` a function that
/// returns a status or a body ends the request, and the functions after it do not run; a table becomes JSON. An error
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
        crate::loaded::with_checker(|engine| {
            for text in &self.functions {
                function_of(engine, text)?;
            }
            Ok(())
        })
    }
}

/// The function that a text returns.
fn function_of(engine: &Engine, text: &str) -> Result<Function, String> {
    let chunk = engine.compile(text).map_err(|error| format!("failed to loadstring: {error}"))?;
    match engine.define(&chunk).map_err(|error| format!("pcall error: {error}"))? {
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
    place: Rc<str>,
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
            let functions = lua.create_table().map_err(|error| message_of(&error))?;
            for text in &self.functions {
                functions.raw_push(function_of(engine, text)?).map_err(|error| message_of(&error))?;
            }
            let conf = core::to_lua(lua, &self.conf).map_err(|error| message_of(&error))?;
            Ok(Functions { functions, conf, place: self.place.as_str().into() })
        })
    }

    /// Prepares a run in a stage.
    fn run(&self, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Result<Run, String> {
        let engine = Engine::of(env)?;
        let functions = self.functions(&engine)?;
        let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
        let arguments = MultiValue::from_iter([
            LuaValue::Table(functions.functions.clone()),
            functions.conf.clone(),
            LuaValue::Table(exchange.api_ctx.clone()),
        ]);
        Run::new(&engine, &exchange, stage, &functions.place, engine.run_all().clone(), arguments)
    }

    /// Runs in a request phase.
    fn request(&self, phase: ConfiguredPhase, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.phase != phase {
            return Step::Next;
        }
        match self.run(stage, ctx, env) {
            Ok(run) => run.step(
                ctx,
                env,
                Box::new(|outcome, engine, exchange, ctx, _| match &outcome {
                    Outcome::Returned(values) => {
                        match core::response::returned(engine, values, exchange, ctx) {
                            Some(reply) => reply.into(),
                            None => reply::after(&outcome, exchange, ctx),
                        }
                    }
                    _ => reply::after(&outcome, exchange, ctx),
                }),
            ),
            Err(message) => {
                tracing::error!("{}: a Lua function failed: runtime error: {message}", self.place);
                Reply::new(500).because("a Lua function failed").into()
            }
        }
    }

    /// Runs in a stage without waits and without a response of its own.
    fn filter(&self, stage: Stage, ctx: &mut Context, env: &Env<'_>) -> Outcome {
        match self.run(stage, ctx, env) {
            Ok(run) => run.at_once(ctx, env),
            Err(message) => {
                tracing::error!("{}: a Lua function failed: runtime error: {message}", self.place);
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
        if let Some(exchange) = Exchange::known(ctx) {
            exchange.move_fields(&mut ctx.response.headers);
        }
        if self.phase != ConfiguredPhase::HeaderFilter {
            return ResponseStep::Next;
        }
        let outcome = self.filter(Stage::HeaderFilter, ctx, env);
        let exchange = Exchange::known(ctx);
        match (
            outcome,
            exchange.and_then(|exchange| exchange.exit_in_filter.take().map(|status| (exchange, status))),
        ) {
            (Outcome::Failed, _) => {
                ResponseStep::Replace(Box::new(Reply::silent().because("a Lua function failed")))
            }
            (_, Some((exchange, status))) if status >= 200 => {
                ResponseStep::Replace(Box::new(reply::page(status, &exchange, ctx)))
            }
            _ => ResponseStep::Next,
        }
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        if self.phase != ConfiguredPhase::BodyFilter {
            return None;
        }
        // The runs need the surroundings of the hook.
        let made = Engine::of(env).and_then(|engine| {
            let functions = self.functions(&engine)?;
            let exchange = Exchange::of(ctx, &engine).map_err(|error| message_of(&error))?;
            Ok(Filter {
                surroundings: crate::exchange::Surroundings::of(env),
                engine,
                functions,
                exchange,
                is_complete: false,
            })
        });
        match made {
            Ok(filter) => Some(filter.filter()),
            Err(message) => {
                tracing::error!("{}: a Lua function failed: runtime error: {message}", self.place);
                Some(Broken.filter())
            }
        }
    }

    fn log(&self, ctx: &mut Context, env: &Env<'_>) {
        if self.phase == ConfiguredPhase::Log {
            self.filter(Stage::Log, ctx, env);
        }
    }
}

/// Runs the functions for each piece of a response body.
struct Filter {
    engine: Rc<Engine>,
    functions: Rc<Functions>,
    exchange: Rc<Exchange>,
    surroundings: crate::exchange::Surroundings,
    /// A script ended the body: later pieces are dropped.
    is_complete: bool,
}

impl Filter {
    fn run(&mut self, ctx: &mut Context, bytes: Vec<u8>, is_last: bool, out: &mut Pieces) {
        if self.is_complete {
            return;
        }
        *self.exchange.piece.borrow_mut() = Piece { bytes, is_last };
        let arguments = MultiValue::from_iter([
            LuaValue::Table(self.functions.functions.clone()),
            self.functions.conf.clone(),
            LuaValue::Table(self.exchange.api_ctx.clone()),
        ]);
        let function = self.engine.run_all().clone();
        let place = &self.functions.place;
        let run = Run::new(&self.engine, &self.exchange, Stage::BodyFilter, place, function, arguments);
        let outcome = run.map(|run| self.surroundings.with(|env| run.at_once(ctx, env)));
        if !matches!(outcome, Ok(Outcome::Returned(_))) {
            ctx.instead = Some(Box::new(Reply::silent().because("a Lua function failed")));
            out.fail(FAILED);
            return;
        }
        let piece = std::mem::take(&mut *self.exchange.piece.borrow_mut());
        out.bytes(&piece.bytes);
        self.is_complete = piece.is_last;
    }
}

impl Transform for Filter {
    fn holds_head(&self) -> bool {
        true
    }

    fn data(&mut self, ctx: &mut Context, data: Chunk, out: &mut Pieces) {
        self.run(ctx, data.to_vec(), false, out);
    }

    fn end(&mut self, ctx: &mut Context, _: Option<&mut Headers>, out: &mut Pieces) {
        self.run(ctx, Vec::new(), true, out);
    }
}

/// A filter whose script cannot run: the body is cut off.
struct Broken;

impl Transform for Broken {
    fn holds_head(&self) -> bool {
        true
    }

    fn data(&mut self, ctx: &mut Context, _: Chunk, out: &mut Pieces) {
        ctx.instead = Some(Box::new(Reply::new(500).because("a Lua function failed")));
        out.fail(FAILED);
    }

    fn end(&mut self, ctx: &mut Context, _: Option<&mut Headers>, out: &mut Pieces) {
        ctx.instead = Some(Box::new(Reply::new(500).because("a Lua function failed")));
        out.fail(FAILED);
    }
}
