//! The module `apisix.core` and its relatives.

mod addresses;
pub(crate) mod config;
pub(crate) mod ctx;
mod facts;
mod ip;
pub(crate) mod json;
mod json_reader;
mod log;
mod lrucache;
mod request;
pub(crate) mod response;
pub(crate) mod schema;
mod string;
mod table;
mod timer;

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use crate::engine::host::Host;
use crate::engine::modules::Modules;

/// Registers the modules.
pub(crate) fn register(lua: &Lua, host: &Rc<Host>, modules: &Modules, libraries: &Table) -> mlua::Result<()> {
    let core = lua.create_table()?;
    ctx::register(lua, host, &core)?;
    request::register(lua, host, &core)?;
    response::register(lua, host, &core)?;
    json::register(lua, host, &core, modules)?;
    log::register(lua, host, &core, modules)?;
    string::register(lua, host, &core, modules, libraries)?;
    let split_path = table::register(lua, host, &core, modules, libraries.raw_get("table")?)?;
    addresses::register(lua, host, &core, modules, split_path)?;
    ip::register(lua, host, &core, modules)?;
    lrucache::register(lua, host, &core, modules)?;
    schema::register(lua, host, &core, modules)?;
    timer::register(lua, &core, modules)?;
    config::register(lua, host, &core, modules)?;
    facts::register(lua, host, &core, modules)?;
    for name in ["ctx", "request", "response"] {
        let shown = modules.shared(&format!("apisix.core.{name}"), core.raw_get(name)?)?;
        core.raw_set(name, shown)?;
    }
    modules.add("apisix.core", core)
}

/// The function that makes `ctx` for one exchange.
pub(crate) fn new_ctx(lua: &Lua) -> mlua::Result<Function> {
    ctx::maker(lua)
}

/// A JSON value as APISIX's scripts see it: null is `ngx.null`.
pub(crate) fn to_lua(lua: &Lua, value: &serde_json::Value) -> mlua::Result<Value> {
    Ok(match value {
        serde_json::Value::Null => crate::ngx::null(),
        serde_json::Value::Bool(value) => Value::Boolean(*value),
        serde_json::Value::Number(number) => Value::Number(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Value::String(lua.create_string(text)?),
        serde_json::Value::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
        serde_json::Value::Object(members) => {
            let table = lua.create_table_with_capacity(0, members.len())?;
            for (name, member) in members {
                table.raw_set(name.as_str(), to_lua(lua, member)?)?;
            }
            Value::Table(table)
        }
    })
}

#[cfg(test)]
mod tests;
