//! The table `ngx`.

mod args;
mod body;
pub(crate) mod codec;
mod constants;
mod fields;
mod filter;
mod location;
pub(crate) mod log;
mod output;
mod re;
mod request;
mod response;
mod semaphore;
pub(crate) mod shared;
mod sleep;
mod socket;
mod thread;
pub(crate) mod time;
mod timer;
pub(crate) mod variables;
mod worker;

pub(crate) use constants::{is_null, null};

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use crate::engine::arguments::{Results, nothing, one};
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::engine::settings::Settings;

/// The name of the table in the registry.
const NGX: &str = "sigma.ngx";

/// Registers `ngx` as a global, with all its members.
pub(crate) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    gateway: &Table,
    base: &Table,
    modules: &Modules,
    settings: &Settings,
) -> mlua::Result<()> {
    let ngx = lua.create_table()?;
    constants::register(lua, &ngx)?;
    log::register(lua, host, &ngx, base)?;
    location::register(lua, host, &ngx, modules)?;
    output::register(lua, host, &ngx, settings)?;
    fields::register(lua)?;
    response::register(lua, host, &ngx, gateway, modules)?;
    let req = lua.create_table()?;
    request::register(lua, host, &req)?;
    args::register(lua, host, &req)?;
    body::register(lua, host, &req, settings)?;
    modules.add("ngx.req", req.clone())?;
    let readonly: Function = gateway.get("readonly")?;
    ngx.raw_set("req", readonly.call::<Table>((req, "ngx.req"))?)?;
    variables::register(lua, host, &ngx, gateway)?;
    filter::register(lua, host, &ngx, gateway, settings.output_bytes)?;
    codec::register(lua, host, &ngx, modules)?;
    time::register(lua, host, &ngx)?;
    re::register(lua, host, &ngx, modules)?;
    shared::register(lua, host, &ngx, gateway, modules, &settings.dictionaries)?;
    sleep::register(lua, host, &ngx)?;
    modules.add("ngx.semaphore", semaphore::module(lua, host)?)?;
    let readonly: Function = gateway.get("readonly")?;
    for (name, group) in [
        ("config", worker::config(lua, host)?),
        ("socket", socket::group(lua, host, settings)?),
        ("thread", thread::group(lua, host)?),
        ("timer", timer::group(lua, host, settings)?),
        ("worker", worker::group(lua, host)?),
    ] {
        ngx.raw_set(name, readonly.call::<Value>((group, format!("ngx.{name}")))?)?;
    }
    let get = host.raw(lua, "ngx", |host, arguments| member(host, arguments.lua(), &arguments.value(1)))?;
    let set =
        host.raw(lua, "ngx", |host, arguments| set_member(host, &arguments.value(1), &arguments.value(2)))?;
    let object: Function = gateway.get("object")?;
    let object: Table = object.call((ngx, get, set))?;
    lua.set_named_registry_value(NGX, &object)?;
    base.raw_set("ngx", object)
}

/// The table `ngx`, for functions of the gateway in Lua.
pub(crate) fn table(lua: &Lua) -> mlua::Result<Table> {
    lua.named_registry_value(NGX)
}

/// Reads a member that is computed.
fn member(host: &Host, lua: &Lua, name: &Value) -> Results {
    match name.as_string().map(|name| name.as_bytes().to_vec()).as_deref() {
        Some(b"status") => output::status(host, lua),
        Some(b"headers_sent") => output::headers_sent(host, lua),
        Some(b"ctx") => host.ngx_ctx(lua).and_then(|ctx| one(lua, ctx)),
        _ => one(lua, Value::Nil),
    }
}

/// Writes a member that the gateway reads.
fn set_member(host: &Host, name: &Value, value: &Value) -> Results {
    let text = name.as_string().map(|name| name.to_string_lossy()).unwrap_or_default();
    match (text.as_str(), value) {
        ("status", value) => output::set_status(host, value)?,
        ("ctx", Value::Table(table)) => host.set_ngx_ctx(table.clone())?,
        ("ctx", _) => return Err("ngx.ctx is a table".to_owned()),
        _ => return Err(format!("attempt to change `ngx.{text}`, which all scripts share")),
    }
    nothing()
}

#[cfg(test)]
mod tests;
