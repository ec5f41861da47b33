//! Modules of APISIX besides `apisix.core` that scripts require: `apisix.plugin`, `apisix.consumer`, `apisix.upstream`.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, Value};

use super::consumer;
use crate::core::config::attribute;
use crate::core::ctx::choose_upstream;
use crate::engine::arguments::{nothing, one};
use crate::engine::host::Host;
use crate::engine::message_of;
use crate::engine::modules::Modules;
use crate::engine::sandbox::check_own;

/// The error of an upstream that is not declared.
const NO_UPSTREAM: &str = "apisix.upstream.set: scripts cannot create upstreams; configure one, and use its id: `set(ctx, key, version, { id = \"ID\" })`";

/// Functions that are refused, with the reason.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("apisix.plugin", &["get", "get_all", "load"], "scripts may not call other plugins"),
    (
        "apisix.consumer",
        &["consumers", "consumers_conf"],
        "scripts cannot read all consumers; use `plugin` or `find_consumer`",
    ),
    ("apisix.upstream", &["set_by_route"], "the gateway does this after the plugins"),
    ("apisix.balancer", &["pick_server"], "the gateway chooses nodes itself"),
];

pub(crate) fn register(lua: &Lua, host: &Rc<Host>, modules: &Modules) -> mlua::Result<()> {
    let plugin = lua.create_table()?;
    host.function(lua, &plugin, "plugin_attr", |_, arguments| {
        let name = arguments.text(1)?.to_string_lossy();
        one(arguments.lua(), attribute(arguments.lua(), &name).map_err(|error| message_of(&error))?)
    })?;
    host.function(lua, &plugin, "plugin_metadata", |host, arguments| {
        let name = arguments.text(1)?.to_string_lossy();
        let own = host.place().and_then(|place| place.plugin.clone());
        let Some(own) = own.filter(|own| *own.name == *name) else {
            return Err(format!(
                "apisix.plugin.plugin_metadata: only a plugin in a file reads its own metadata, not {name}'s; write the values into the configuration"
            ));
        };
        if own.metadata.is_nil() {
            return one(arguments.lua(), Value::Nil);
        }
        let shown = arguments.lua().create_table().map_err(|error| error.to_string())?;
        shown.raw_set("value", &own.metadata).map_err(|error| error.to_string())?;
        one(arguments.lua(), shown)
    })?;
    let version = Cell::new(0_i64);
    host.function(lua, &plugin, "conf_version", move |_, arguments| {
        let conf = arguments.table(1)?;
        let known: Value = conf.raw_get("_version").map_err(|error| error.to_string())?;
        if !known.is_nil() {
            return one(arguments.lua(), known);
        }
        check_own(arguments.lua(), &conf)?;
        version.set(version.get() + 1);
        conf.raw_set("_version", version.get()).map_err(|error| error.to_string())?;
        one(arguments.lua(), version.get())
    })?;
    let upstream = lua.create_table()?;
    host.function(lua, &upstream, "set", |host, arguments| {
        let id = match arguments.value(4) {
            Value::Table(conf) => conf.raw_get::<Value>("id").map_err(|error| message_of(&error))?,
            _ => return Err(arguments.wrong(4, "table")),
        };
        let Some(id) = id.as_string() else { return Err(NO_UPSTREAM.to_owned()) };
        choose_upstream(host, Some(&id.to_string_lossy()))?;
        nothing()
    })?;
    for module in ["apisix.plugin", "apisix.consumer", "apisix.upstream", "apisix.balancer"] {
        let table = match module {
            "apisix.plugin" => plugin.clone(),
            "apisix.consumer" => consumer::module(lua, host)?,
            "apisix.upstream" => upstream.clone(),
            _ => lua.create_table()?,
        };
        for (_, members, reason) in REFUSED.iter().filter(|(name, ..)| *name == module) {
            for member in *members {
                host.refuse(lua, &table, format!("{module}.{member}"), reason)?;
            }
        }
        modules.add(module, table)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    #[test]
    fn modules_serve_or_name_the_reason() {
        for (value, expected) in [
            ("require('apisix.plugin').plugin_attr('x')", "nil"),
            (
                "(function() local p, c = require('apisix.plugin'), {} return p.conf_version(c) == p.conf_version(c), p.conf_version({}) ~= p.conf_version(c) end)()",
                "truetrue",
            ),
            (
                "select(2, pcall(require('apisix.plugin').plugin_metadata, 'x'))",
                "apisix.plugin.plugin_metadata: only a plugin in a file reads its own metadata, not x's; write the values into the configuration",
            ),
            (
                "select(2, pcall(require('apisix.upstream').set, ctx, 'k', 1, {nodes = {}}))",
                "apisix.upstream.set: scripts cannot create upstreams; configure one, and use its id: `set(ctx, key, version, { id = \"ID\" })`",
            ),
            (
                "select(2, pcall(require('apisix.consumer').attach_consumer, {}, {}))",
                "apisix.consumer: scripts cannot authenticate consumers; use a plugin for authentication, or a plugin in a file with a `consumer_schema`, and read `ctx.consumer_name`",
            ),
        ] {
            assert_eq!(output_of(&format!("ngx.print({value})")), expected, "{value}");
        }
    }
}
