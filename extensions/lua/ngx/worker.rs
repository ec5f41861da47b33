//! `ngx.worker` and `ngx.config`: facts about the process.

use std::rc::Rc;

use mlua::{Lua, Table};
use sigma_plugin::Local;

use crate::engine::arguments::one;
use crate::engine::host::Host;

/// The version of nginx whose behaviour scripts meet.
const NGINX_VERSION: u32 = 1_022_001;

/// The version of its Lua module.
const NGX_LUA_VERSION: u32 = 10_023;

/// The members of `ngx.worker`.
pub(super) fn group(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let worker = lua.create_table()?;
    host.function(lua, &worker, "id", |host, arguments| {
        one(arguments.lua(), local(host).map_or(0, |local| local.worker()))
    })?;
    host.function(lua, &worker, "count", |host, arguments| {
        one(arguments.lua(), local(host).map_or(1, |local| local.workers()))
    })?;
    host.function(lua, &worker, "pid", |_, arguments| one(arguments.lua(), std::process::id()))?;
    host.function(lua, &worker, "exiting", |host, arguments| {
        one(arguments.lua(), local(host).is_some_and(|local| local.is_ending()))
    })?;
    Ok(worker)
}

/// The state of the worker.
fn local(host: &Host) -> Option<Rc<Local>> {
    host.worker().and_then(|worker| worker.local.upgrade())
}

/// The members of `ngx.config`.
pub(super) fn config(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let config = lua.create_table()?;
    config.raw_set("debug", false)?;
    config.raw_set("subsystem", "http")?;
    config.raw_set("nginx_version", NGINX_VERSION)?;
    config.raw_set("ngx_lua_version", NGX_LUA_VERSION)?;
    // Scripts of a configuration reach no files, so there is no folder to name.
    host.function(lua, &config, "prefix", |_, arguments| one(arguments.lua(), "/"))?;
    host.function(lua, &config, "nginx_configure", |_, arguments| one(arguments.lua(), ""))?;
    Ok(config)
}
