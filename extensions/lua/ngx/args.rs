//! Arguments of the query and of forms.

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use sigma_plugin::variables::pairs;

use super::fields::{add, count_of, escaped, text_of, truncated};
use super::request::{TARGET_BYTES, has_body, set_query};
use crate::engine::arguments::{Arguments, nothing, type_name};
use crate::engine::host::Host;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, req: &Table) -> mlua::Result<()> {
    host.function(lua, req, "get_uri_args", |host, arguments| {
        let most = count_of(arguments.optional_integer(1)?);
        host.with(|seat| {
            // Another plugin may have hidden a credential of the client's query.
            let query = seat.ctx.outgoing_query().unwrap_or_default();
            truncated(arguments.lua(), table(arguments.lua(), query, most))
        })
    })?;
    host.function(lua, req, "get_post_args", |host, arguments| {
        let most = count_of(arguments.optional_integer(1)?);
        let stage = host.stage();
        host.with(|seat| {
            if !has_body(seat, stage) {
                return Err(
                    "no request body found; maybe you should turn on lua_need_request_body?".to_owned()
                );
            }
            let body = seat.ctx.body.as_deref().unwrap_or_default();
            truncated(arguments.lua(), table(arguments.lua(), body, most))
        })
    })?;
    host.function(lua, req, "set_uri_args", |host, arguments| {
        if arguments.count() != 1 {
            return Err(format!("expecting 1 argument but seen {}", arguments.count()));
        }
        let query = query_of(&arguments)?;
        host.with(|seat| set_query(&mut seat.ctx, &query))?;
        nothing()
    })
}

/// Arguments by their names: `true` without a value, a table where a name is repeated.
fn table(lua: &Lua, query: &[u8], most: usize) -> mlua::Result<(Table, bool)> {
    let table = lua.create_table()?;
    let named = pairs(query).filter(|(name, _)| !name.is_empty());
    for (number, (name, value)) in named.enumerate() {
        if number >= most {
            return Ok((table, true));
        }
        let name = lua.create_string(name)?;
        let value = match value {
            Some(value) => Value::String(lua.create_string(value)?),
            None => Value::Boolean(true),
        };
        let value = add(lua, table.raw_get(&name)?, value)?;
        table.raw_set(name, value)?;
    }
    Ok((table, false))
}

/// The query of a text, or of a table of arguments.
fn query_of(arguments: &Arguments<'_>) -> Result<Vec<u8>, String> {
    match arguments.value(1) {
        Value::Table(table) => encoded(arguments.lua(), &table),
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            let text = arguments.text(1)?;
            Ok(escaped(&*text.as_bytes(), |byte| byte <= b' ' || byte == 0x7f))
        }
        other => {
            let reason = format!("string, number, or table expected, but got {}", type_name(&other));
            Err(arguments.bad(1, &reason))
        }
    }
}

/// The arguments of a table, encoded.
pub(super) fn encoded(lua: &Lua, table: &Table) -> Result<Vec<u8>, String> {
    let mut query = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair.map_err(|error| error.to_string())?;
        let Value::String(name) = name else {
            return Err("attempt to use a non-string key in the \"args\" option table".to_owned());
        };
        let name = component(&name.as_bytes());
        match value {
            Value::Table(values) => {
                for place in 1..=values.raw_len() {
                    let value = values.raw_get::<Value>(place).map_err(|error| error.to_string())?;
                    put(lua, &name, &value, &mut query)?;
                }
            }
            value => put(lua, &name, &value, &mut query)?,
        }
    }
    Ok(query)
}

fn put(lua: &Lua, name: &[u8], value: &Value, query: &mut Vec<u8>) -> Result<(), String> {
    let value = match value {
        Value::Boolean(false) => return Ok(()),
        Value::Boolean(true) => None,
        Value::String(_) | Value::Integer(_) | Value::Number(_) => Some(component(&text_of(lua, value)?)),
        other => return Err(format!("attempt to use {} as query arg value", type_name(other))),
    };
    if query.len() > TARGET_BYTES {
        return Err(format!("a target may have {TARGET_BYTES} bytes at most"));
    }
    if !query.is_empty() {
        query.push(b'&');
    }
    query.extend_from_slice(name);
    if let Some(value) = value {
        query.push(b'=');
        query.extend_from_slice(&value);
    }
    Ok(())
}

fn component(text: &[u8]) -> Vec<u8> {
    escaped(text, |byte| !(byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)))
}
