//! `core.response`, and the responses to values that functions return.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use sigma_plugin::{Context, Env, Reply, Step};

use crate::engine::Engine;
use crate::engine::arguments::{failed, one, type_name};
use crate::engine::exchange::Exchange;
use crate::engine::host::{Host, Stage};
use crate::engine::place::ScriptPosition;
use crate::engine::run::{Finish, Outcome, Run};
use crate::ngx::is_null;
use crate::reply;

/// The name of `core.response.exit` in the registry.
const EXIT: &str = "sigma.exit";

/// The deepest nesting of tables that become JSON.
const DEPTH: usize = 128;

/// The most values of one JSON text: a table may be in others many times.
const MOST_VALUES: usize = 1 << 16;

/// Registers `core.response`.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table) -> mlua::Result<()> {
    let parts = lua.create_table()?;
    host.function(lua, &parts, "encode", |_, arguments| match encoded(&arguments.value(1)) {
        Ok(text) => {
            one(arguments.lua(), arguments.lua().create_string(text).map_err(|error| error.to_string())?)
        }
        Err(message) => failed(arguments.lua(), message),
    })?;
    let encode: Function = parts.raw_get("encode")?;
    let source = lua.load(include_str!("response.lua")).set_name("=gateway");
    let response: Table = source.call((crate::ngx::table(lua)?, encode))?;
    lua.set_named_registry_value(EXIT, response.raw_get::<Function>("exit")?)?;
    core.raw_set("response", response)
}

/// The step after a function at a place returned a code, if the exchange has functions that change its responses.
fn through_callbacks(
    values: &MultiValue,
    exchange: &Exchange,
    ctx: &mut Context,
    env: &Env<'_>,
    engine: &Rc<Engine>,
    place: &ScriptPosition,
) -> Option<Step> {
    if !matches!(values.front(), Some(Value::Integer(_) | Value::Number(_))) {
        return None;
    }
    let callbacks: Value = exchange.known_ngx_ctx()?.raw_get("apisix_exit_callback_funcs").ok()?;
    if !callbacks.is_table() {
        return None;
    }
    let exchange = Exchange::known(ctx)?;
    let exit: Function = engine.lua().named_registry_value(EXIT).ok()?;
    // Another script may have registered the functions: they are a script of their own.
    let place = engine.place::<&str>(&format!("core.response.exit after {place}"), &[]);
    let run = Run::new(engine, &exchange, Stage::Access, &place, exit, values.clone());
    Some(match run {
        Ok(run) => {
            run.step(ctx, env, Box::new(|outcome, _, exchange, _, _| reply::after(&outcome, exchange)))
        }
        Err(_) => Reply::new(500).because("a Lua function failed").into(),
    })
}

/// The end of a function at a place in a request phase: a status and a body end the request.
pub(crate) fn finish(place: &Rc<ScriptPosition>) -> Finish {
    let place = Rc::clone(place);
    Box::new(move |outcome, engine, exchange, ctx, env| {
        let Outcome::Returned(values) = &outcome else { return reply::after(&outcome, exchange) };
        if let Some(step) = through_callbacks(values, exchange, ctx, env, engine, &place) {
            return step;
        }
        match returned(engine, values, exchange) {
            Some(reply) => reply.into(),
            None => reply::after(&outcome, exchange),
        }
    })
}

/// The response to a code and a body that a function returned; None if it returned neither.
fn returned(_engine: &Engine, values: &MultiValue, exchange: &Exchange) -> Option<Reply> {
    let code = values.front().cloned().unwrap_or(Value::Nil);
    let body = values.get(1).cloned().unwrap_or(Value::Nil);
    if code.is_nil() && body.is_nil() {
        return None;
    }
    let status = match code {
        Value::Integer(code) => Ok(code),
        Value::Number(code) => Ok(code as i64),
        // APISIX compares it with 400, which fails.
        other => Err(format!("a function returned {} instead of a status", type_name(&other))),
    };
    let body = match &body {
        Value::Nil => Ok(None),
        Value::Table(_) => encoded(&body).map(|mut text| {
            text.push(b'\n');
            Some(text)
        }),
        Value::String(text) => Ok(Some(text.as_bytes().to_vec())),
        Value::Integer(_) | Value::Number(_) | Value::Boolean(_) => {
            Ok(body.to_string().ok().map(String::into_bytes))
        }
        other => Err(format!("a function returned {} as a body", type_name(other))),
    };
    let (status, body) = match (status, body) {
        (Ok(status), Ok(body)) => (status, body),
        (Err(message), _) | (_, Err(message)) => {
            tracing::error!("a Lua function failed: runtime error: {message}");
            return Some(Reply::new(500).because("a Lua function failed"));
        }
    };
    if let Some(reply) = reply::silent(status) {
        return Some(reply);
    }
    if body.is_none() && status < 200 {
        // As with `ngx.exit`, the request continues.
        return None;
    }
    if let Some(body) = body {
        if !exchange.is_head_sent() {
            exchange.status.set(Some(reply::status_of(status)));
        }
        exchange.output.borrow_mut().get_or_insert_default().extend_from_slice(&body);
    }
    match reply::written(exchange) {
        Some(reply) => Some(reply),
        None => Some(reply::page(status, exchange)),
    }
}

/// A value as JSON.
///
/// # Errors
/// Returns a message for values that JSON does not have.
pub(crate) fn encoded(value: &Value) -> Result<Vec<u8>, String> {
    let mut writer = Writer { out: Vec::new(), left: MOST_VALUES };
    writer.value(value, DEPTH)?;
    Ok(writer.out)
}

/// The longest JSON text, in bytes: a text may be in it many times.
const MOST_BYTES: usize = 8 << 20;

/// JSON that is being written.
struct Writer {
    out: Vec<u8>,
    /// The values that may follow.
    left: usize,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| format!("Cannot serialise, more than {MOST_VALUES} values"))?;
        let out = &mut self.out;
        match value {
            Value::Nil => out.extend_from_slice(b"null"),
            value if is_null(value) => out.extend_from_slice(b"null"),
            Value::Boolean(truth) => out.extend_from_slice(if *truth { b"true" } else { b"false" }),
            Value::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Value::Number(number) if number.is_finite() => out.extend_from_slice(short(*number).as_bytes()),
            Value::Number(_) => return Err("Cannot serialise number: must not be NaN or Inf".to_owned()),
            Value::String(text) if out.len() + text.as_bytes().len() > MOST_BYTES => {
                return Err(format!("Cannot serialise, more than {MOST_BYTES} bytes"));
            }
            Value::String(text) => quote(&text.as_bytes(), out),
            Value::Table(table) => return self.table(table, depth),
            other => return Err(format!("Cannot serialise {}: type not supported", type_name(other))),
        }
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        if depth == 0 {
            return Err("Cannot serialise, excessive depth".to_owned());
        }
        let (mut items, mut members) = (Vec::new(), Vec::new());
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|error| error.to_string())?;
            match key {
                Value::Integer(place) if place > 0 => items.push((place, value)),
                key @ (Value::String(_) | Value::Integer(_) | Value::Number(_)) => members.push((key, value)),
                _ => return Err("Cannot serialise table: table key must be a number or string".to_owned()),
            }
        }
        if members.is_empty() && !items.is_empty() {
            return self.items(items, depth);
        }
        // An array in an object has its places as names.
        members.extend(items.into_iter().map(|(place, value)| (Value::Integer(place), value)));
        self.out.push(b'{');
        for (number, (key, value)) in members.iter().enumerate() {
            if number > 0 {
                self.out.push(b',');
            }
            match key {
                Value::String(_) if self.out.len() > MOST_BYTES => {
                    return Err(format!("Cannot serialise, more than {MOST_BYTES} bytes"));
                }
                Value::String(name) => quote(&name.as_bytes(), &mut self.out),
                Value::Number(name) => quote(short(*name).as_bytes(), &mut self.out),
                other => quote(other.to_string().unwrap_or_default().as_bytes(), &mut self.out),
            }
            self.out.push(b':');
            self.value(value, depth - 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn items(&mut self, mut items: Vec<(i64, Value)>, depth: usize) -> Result<(), String> {
        items.sort_by_key(|(place, _)| *place);
        let length = items.last().map_or(0, |(place, _)| usize::try_from(*place).unwrap_or(usize::MAX));
        // As in cjson: more than half of a long array may not be missing.
        if length > 10 && length / 2 > items.len() {
            return Err("Cannot serialise table: excessively sparse array".to_owned());
        }
        self.out.push(b'[');
        let mut next = 1;
        for (place, value) in &items {
            while next <= *place {
                if next > 1 {
                    self.out.push(b',');
                }
                if next == *place {
                    self.value(value, depth - 1)?;
                } else {
                    self.out.extend_from_slice(b"null");
                }
                next += 1;
            }
        }
        self.out.push(b']');
        Ok(())
    }
}

/// A number with 14 digits, as Lua writes it.
fn short(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e14 {
        return format!("{number:.0}");
    }
    let written = format!("{number:.13e}");
    let (digits, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-5..14).contains(&exponent) {
        let places = usize::try_from(13 - exponent).unwrap_or_default();
        let text = format!("{number:.places$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        return text.to_owned();
    }
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..0x20 | 0x7f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            byte => out.push(byte),
        }
    }
    out.push(b'"');
}
