//! `ngx.arg` in body filters.

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use super::output::flatten;
use crate::engine::arguments::{Results, nothing, one, type_name};
use crate::engine::host::{Host, Stage};

/// Registers `ngx.arg`.
pub(super) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    ngx: &Table,
    gateway: &Table,
    most: usize,
) -> mlua::Result<()> {
    let get = host.raw(lua, "arg", |host, arguments| get(host, arguments.lua(), &arguments.value(1)))?;
    let set = host.raw(lua, "arg", move |host, arguments| {
        set(host, arguments.lua(), &arguments.value(1), &arguments.value(2), most)
    })?;
    let proxy: Function = gateway.get("proxy")?;
    ngx.raw_set("arg", proxy.call::<Value>((get, set))?)
}

fn index(host: &Host, key: &Value) -> Result<i64, String> {
    if host.stage() != Stage::BodyFilter {
        return Err("API disabled in the current context".to_owned());
    }
    match key {
        Value::Integer(index) => Ok(*index),
        Value::Number(index) => Ok(*index as i64),
        other => Err(format!("bad argument #2 to '?' (number expected, got {})", type_name(other))),
    }
}

fn get(host: &Host, lua: &Lua, key: &Value) -> Results {
    let index = index(host, key)?;
    host.with(|seat| {
        let piece = seat.exchange.piece.borrow();
        match index {
            1 => one(lua, lua.create_string(&piece.bytes).map_err(|error| error.to_string())?),
            2 => one(lua, piece.is_last),
            _ => one(lua, Value::Nil),
        }
    })
}

fn set(host: &Host, lua: &Lua, key: &Value, value: &Value, most: usize) -> Results {
    let index = index(host, key)?;
    let bytes = match (index, value) {
        (1, Value::Nil) => Vec::new(),
        (1, Value::String(_) | Value::Integer(_) | Value::Number(_)) => super::fields::text_of(lua, value)?,
        (1, Value::Table(table)) => {
            let mut bytes = Vec::new();
            flatten(lua, table, &mut bytes, most)?;
            bytes
        }
        (1, other) => return Err(format!("bad chunk data type: {}", type_name(other))),
        (2, _) => Vec::new(),
        _ => return Err(format!("bad index: {index}")),
    };
    if bytes.len() > most {
        return Err(format!("a script may write {most} bytes at most"));
    }
    host.with(|seat| {
        let mut piece = seat.exchange.piece.borrow_mut();
        match index {
            1 => piece.bytes = bytes,
            _ => piece.is_last = !matches!(value, Value::Nil | Value::Boolean(false)),
        }
        Ok(())
    })?;
    nothing()
}
