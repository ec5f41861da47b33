//! Scripts that change the bodies of responses.

use std::rc::Rc;

use mlua::{Function, MultiValue, Value as LuaValue};
use sigma_http::{Chunk, Fault, FaultKind, Headers};
use sigma_plugin::{BodyFilter, Context, Env, Pieces, Reply, Transform};

use crate::engine::Engine;
use crate::engine::exchange::{Exchange, Piece, Surroundings};
use crate::engine::host::Stage;
use crate::engine::place::ScriptPosition;
use crate::engine::run::{Outcome, Run};
use crate::hooks;

/// A body whose script failed is cut off.
const CUT: Fault = Fault::new(FaultKind::Internal, hooks::FAILED);

/// Runs a function for each piece of a response body.
pub(crate) struct Filter {
    engine: Rc<Engine>,
    exchange: Rc<Exchange>,
    surroundings: Surroundings,
    place: Rc<ScriptPosition>,
    /// Each gets the piece that the one before it has changed.
    functions: Vec<Function>,
    arguments: Vec<LuaValue>,
    /// A script ended the body: later pieces are dropped.
    is_complete: bool,
}

impl Filter {
    /// A filter that calls a function with these arguments.
    pub(crate) fn new(
        engine: &Rc<Engine>,
        exchange: &Rc<Exchange>,
        env: &Env<'_>,
        place: &Rc<ScriptPosition>,
        function: Function,
        arguments: Vec<LuaValue>,
    ) -> Filter {
        Filter::of_all(engine, exchange, env, place, vec![function], arguments)
    }

    /// A filter that calls several functions, one after the other.
    pub(crate) fn of_all(
        engine: &Rc<Engine>,
        exchange: &Rc<Exchange>,
        env: &Env<'_>,
        place: &Rc<ScriptPosition>,
        functions: Vec<Function>,
        arguments: Vec<LuaValue>,
    ) -> Filter {
        Filter {
            engine: Rc::clone(engine),
            exchange: Rc::clone(exchange),
            surroundings: Surroundings::of(env),
            place: Rc::clone(place),
            functions,
            arguments,
            is_complete: false,
        }
    }

    /// The filter, or one that cuts the body off where the script cannot run.
    pub(crate) fn or_broken(
        made: Result<Option<Filter>, String>,
        place: &str,
    ) -> Option<Box<dyn BodyFilter>> {
        match made {
            Ok(filter) => filter.map(Transform::filter),
            Err(message) => Some(Broken(hooks::broken(place, &message)).filter()),
        }
    }

    fn run(&mut self, ctx: &mut Context, bytes: Vec<u8>, is_last: bool, out: &mut Pieces) {
        if self.is_complete {
            return;
        }
        *self.exchange.piece.borrow_mut() = Piece { bytes, is_last };
        // Pieces that scripts hold back are kept by plugin.
        let _ = self.exchange.api_ctx.raw_set("_plugin_name", self.place.split(' ').next());
        for function in &self.functions {
            let arguments: MultiValue = self.arguments.iter().cloned().collect();
            let (engine, exchange, function) = (&self.engine, &self.exchange, function.clone());
            let run = Run::new(engine, exchange, Stage::BodyFilter, &self.place, function, arguments);
            let outcome = run.map(|run| self.surroundings.with(|env| run.at_once(ctx, env)));
            if !matches!(outcome, Ok(Outcome::Returned(_))) {
                ctx.instead = Some(Box::new(Reply::silent().because(hooks::FAILED)));
                out.fail(CUT);
                return;
            }
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

/// A filter that passes the body on, and hides its length.
pub(crate) struct Unmeasured;

impl Transform for Unmeasured {
    fn data(&mut self, _: &mut Context, data: Chunk, out: &mut Pieces) {
        out.piece(data);
    }
}

/// A filter whose script cannot run.
struct Broken(Reply);

impl Broken {
    fn cut(&mut self, ctx: &mut Context, out: &mut Pieces) {
        ctx.instead = Some(Box::new(self.0.clone()));
        out.fail(CUT);
    }
}

impl Transform for Broken {
    fn holds_head(&self) -> bool {
        true
    }

    fn data(&mut self, ctx: &mut Context, _: Chunk, out: &mut Pieces) {
        self.cut(ctx, out);
    }

    fn end(&mut self, ctx: &mut Context, _: Option<&mut Headers>, out: &mut Pieces) {
        self.cut(ctx, out);
    }
}
