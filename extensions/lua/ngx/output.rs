//! Output of scripts to the client: `ngx.say`, `ngx.print`, `ngx.exit`, `ngx.status`.

use std::rc::Rc;

use mlua::{Lua, Table, Value};

use super::constants::is_null;
use crate::engine::arguments::{Arguments, Results, failed, nothing, one, type_name};
use crate::engine::host::{Host, ScriptNeed, Stage, Wait};
use crate::engine::settings::Settings;

/// The stages where a script can respond.
const REQUEST: &[Stage] = &[Stage::Rewrite, Stage::Access];

/// The deepest nesting of tables that are written.
const DEPTH: usize = 32;

/// So many bytes of output wait before a script that writes more waits for the client.
const WAITING_BYTES: usize = 256 << 10;

/// The most values of the tables of one argument: a table may be in others many times.
const MOST_VALUES: usize = 1 << 16;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table, settings: &Settings) -> mlua::Result<()> {
    let most = settings.output_bytes;
    host.writing_function(lua, ngx, "print", move |host, arguments| write(host, &arguments, "", most))?;
    host.writing_function(lua, ngx, "say", move |host, arguments| write(host, &arguments, "\n", most))?;
    host.function(lua, ngx, "send_headers", |host, arguments| {
        host.within(REQUEST, |seat| {
            seat.exchange.output.borrow_mut().get_or_insert_default();
            Ok(())
        })?;
        one(arguments.lua(), 1)
    })?;
    host.writing_function(lua, ngx, "flush", |host, arguments| {
        let problem = host.within(REQUEST, |seat| {
            let exchange = &seat.exchange;
            if !exchange.may_stream(&seat.ctx) {
                return Ok(Some("header only"));
            }
            if exchange.is_output_complete.get() {
                return Ok(Some("seen eof"));
            }
            exchange.is_flush_due.set(exchange.is_head_sent());
            Ok((!exchange.is_head_sent()).then_some("nothing to flush"))
        })?;
        match problem {
            Some(problem) => failed(arguments.lua(), problem).map(Wait::Ready),
            None if arguments.is_true(1) => Ok(Wait::For(ScriptNeed::Drain)),
            None => one(arguments.lua(), 1).map(Wait::Ready),
        }
    })?;
    host.function(lua, ngx, "eof", |host, arguments| {
        let was_complete = host.within(REQUEST, |seat| {
            seat.exchange.output.borrow_mut().get_or_insert_default();
            Ok(seat.exchange.is_output_complete.replace(true))
        })?;
        if was_complete { failed(arguments.lua(), "seen eof") } else { one(arguments.lua(), 1) }
    })?;
    host.waiting_function(lua, ngx, "exit", |host, arguments| {
        let (Value::Integer(_) | Value::Number(_)) = arguments.value(1) else {
            // The words of OpenResty.
            let got = type_name(&arguments.value(1));
            return Err(format!("bad argument #2 to 'ngx_lua_ffi_exit' (cannot convert '{got}' to 'int')"));
        };
        exit(host, arguments.integer(1)?)
    })
}

/// Ends the script, or in a header filter replaces the response.
pub(crate) fn exit(host: &Host, status: i64) -> Result<Wait, String> {
    match host.stage() {
        Stage::Rewrite | Stage::Access | Stage::Timer => Ok(Wait::For(ScriptNeed::Exit(status))),
        Stage::HeaderFilter => {
            host.with(|seat| {
                seat.exchange.exit_in_filter.set(Some(status));
                Ok(())
            })?;
            nothing().map(Wait::Ready)
        }
        stage => Err(stage.disabled()),
    }
}

/// Appends texts to the response body.
fn write(host: &Host, arguments: &Arguments<'_>, end: &str, most: usize) -> Result<Wait, String> {
    let mut bytes = Vec::new();
    for place in 1..=arguments.count() {
        check_size(bytes.len(), most)?;
        let value = arguments.value(place);
        match &value {
            Value::Nil => bytes.extend_from_slice(b"nil"),
            Value::Boolean(value) => bytes.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::String(text) => bytes.extend_from_slice(&text.as_bytes()),
            // nginx writes whole numbers as integers, which have no sign of zero.
            Value::Number(0.0) => bytes.push(b'0'),
            Value::Integer(_) | Value::Number(_) => {
                bytes.extend_from_slice(&arguments.text(place)?.as_bytes());
            }
            Value::Table(table) => {
                flatten(arguments.lua(), table, &mut bytes, most)
                    .map_err(|reason| format!("bad argument #{place} to '?' ({reason})"))?;
            }
            value if is_null(value) => bytes.extend_from_slice(b"null"),
            value => {
                let expected = "string, number, boolean, nil, ngx.null, or array table expected, but got";
                return Err(format!("bad argument #{place} to '?' ({expected} {})", type_name(value)));
            }
        }
    }
    bytes.extend_from_slice(end.as_bytes());
    let waiting = host.within(REQUEST, |seat| {
        if seat.exchange.is_output_complete.get() {
            return Ok(None);
        }
        let mut output = seat.exchange.output.borrow_mut();
        let output = output.get_or_insert_default();
        if output.len() + bytes.len() > most {
            return Err(format!("a script may write {most} bytes at most"));
        }
        output.extend_from_slice(&bytes);
        Ok(Some(output.len()))
    })?;
    match waiting {
        None => failed(arguments.lua(), "seen eof").map(Wait::Ready),
        // The client takes them before the script makes more.
        Some(bytes) if bytes >= WAITING_BYTES.min(most / 2) => Ok(Wait::For(ScriptNeed::Drain)),
        Some(_) => one(arguments.lua(), 1).map(Wait::Ready),
    }
}

/// Appends the texts of an array and of the arrays within it.
pub(crate) fn flatten(lua: &Lua, table: &Table, bytes: &mut Vec<u8>, most: usize) -> Result<(), String> {
    let mut limit = OutputLimit { values: MOST_VALUES, bytes: most };
    flatten_within(lua, table, bytes, &mut limit, DEPTH)
}

/// The size that output may have: a value may be in it many times.
struct OutputLimit {
    values: usize,
    bytes: usize,
}

fn check_size(bytes: usize, most: usize) -> Result<(), String> {
    if bytes > most { Err(format!("a script may write {most} bytes at most")) } else { Ok(()) }
}

fn flatten_within(
    lua: &Lua,
    table: &Table,
    bytes: &mut Vec<u8>,
    limit: &mut OutputLimit,
    depth: usize,
) -> Result<(), String> {
    if depth == 0 {
        return Err("the tables are nested too deeply".to_owned());
    }
    let mut length = 0;
    for pair in table.pairs::<Value, Value>() {
        let (key, _) = pair.map_err(|error| error.to_string())?;
        match key {
            Value::Integer(place) if place > 0 => length = length.max(place),
            Value::Number(place) if place >= 1.0 && place.fract() == 0.0 => length = length.max(place as i64),
            _ => return Err("non-array table found".to_owned()),
        }
    }
    for place in 1..=length {
        check_size(bytes.len(), limit.bytes)?;
        limit.values = limit
            .values
            .checked_sub(1)
            .ok_or_else(|| format!("tables may have {MOST_VALUES} values at most"))?;
        match table.raw_get::<Value>(place).map_err(|error| error.to_string())? {
            Value::Nil => bytes.extend_from_slice(b"nil"),
            Value::Boolean(value) => bytes.extend_from_slice(if value { b"true" } else { b"false" }),
            Value::Table(inner) => flatten_within(lua, &inner, bytes, limit, depth - 1)?,
            value if is_null(&value) => bytes.extend_from_slice(b"null"),
            value @ (Value::String(_) | Value::Integer(_) | Value::Number(_)) => {
                let text = lua.coerce_string(value).map_err(|error| error.to_string())?;
                bytes.extend_from_slice(&text.map(|text| text.as_bytes().to_vec()).unwrap_or_default());
            }
            value => return Err(format!("bad data type {} found", type_name(&value))),
        }
    }
    Ok(())
}

/// `ngx.status`.
pub(super) fn status(host: &Host, lua: &Lua) -> Results {
    let stage = host.stage();
    let status = host.with(|seat| {
        let set = seat.exchange.status.get();
        let set = set.or_else(|| seat.exchange.is_head_sent().then_some(200));
        Ok(match stage {
            Stage::HeaderFilter | Stage::BodyFilter => seat.ctx.response.status,
            Stage::Log => seat.ctx.record.status,
            _ => set.unwrap_or_default(),
        })
    })?;
    one(lua, status)
}

/// Sets `ngx.status`.
pub(super) fn set_status(host: &Host, value: &Value) -> Result<(), String> {
    let number = match value {
        Value::Integer(number) => Some(*number),
        Value::Number(number) => Some(*number as i64),
        Value::String(text) => text.to_string_lossy().trim().parse::<f64>().ok().map(|number| number as i64),
        _ => None,
    };
    let Some(number) = number else {
        // The words of OpenResty.
        return Err("bad argument #2 to 'ngx_http_lua_ffi_set_resp_status' (cannot convert 'nil' to 'int')"
            .to_owned());
    };
    let status = crate::reply::status_of(number);
    let stage = host.stage();
    host.with(|seat| {
        let is_sent = matches!(stage, Stage::BodyFilter | Stage::Log) || seat.exchange.is_head_sent();
        match stage {
            Stage::HeaderFilter => seat.ctx.response.status = status,
            _ if is_sent => {
                super::log::write(4, b"attempt to set ngx.status after sending out response headers")
            }
            _ => seat.exchange.status.set(Some(status)),
        }
        Ok(())
    })
}

/// `ngx.headers_sent`.
pub(super) fn headers_sent(host: &Host, lua: &Lua) -> Results {
    let stage = host.stage();
    let is_sent = host.with(|seat| {
        let is_after = matches!(stage, Stage::BodyFilter | Stage::Log);
        Ok(is_after || seat.exchange.output.borrow().is_some())
    })?;
    one(lua, is_sent)
}
