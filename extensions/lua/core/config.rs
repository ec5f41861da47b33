//! `core.config` and `core.etcd`: the settings of the node, and what of the configuration scripts may not reach.

use std::rc::Rc;

use mlua::{Lua, Table, Value};

use crate::engine::arguments::one;
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::engine::settings::Settings;

/// Functions that reach the configuration's store, with the reason why scripts may not.
const REFUSED: &[(&str, &str, &[&str])] = &[
    (
        "config",
        "scripts cannot follow resources of the configuration",
        &["fetch_created_obj", "init", "init_worker", "new"],
    ),
    (
        "etcd",
        "scripts may not reach the store of the configuration; use the Admin API",
        &["add", "atomic_set", "delete", "get", "get_format", "new", "push", "rmdir", "set", "set_ttl"],
    ),
];

pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let config = lua.create_table()?;
    host.function(lua, &config, "local_conf", |_, arguments| {
        let lua = arguments.lua();
        let made = || {
            let conf = lua.create_table()?;
            conf.raw_set("plugin_attr", attributes(lua)?)?;
            conf.raw_set("apisix", lua.create_table()?)?;
            Ok(conf)
        };
        one(lua, made().map_err(|error: mlua::Error| error.to_string())?)
    })?;
    config.raw_set("type", "yaml")?;
    let etcd = lua.create_table()?;
    for (module, reason, names) in REFUSED {
        let table = if *module == "config" { &config } else { &etcd };
        for name in *names {
            host.refuse(lua, table, format!("core.{module}.{name}"), reason)?;
        }
    }
    modules.add("apisix.core.config_local", config.clone())?;
    core.raw_set("config", modules.shared("apisix.core.config", config)?)?;
    core.raw_set("etcd", modules.shared("apisix.core.etcd", etcd)?)
}

/// The setting `plugin_attr` of the node.
fn attributes(lua: &Lua) -> mlua::Result<Value> {
    let attributes = lua.app_data_ref::<Settings>().map(|settings| Rc::clone(&settings.attributes));
    match attributes {
        Some(attributes) if attributes.is_object() => super::to_lua(lua, &attributes),
        _ => Ok(Value::Table(lua.create_table()?)),
    }
}

/// The member of `plugin_attr` for a plugin; nil if it is missing.
pub(crate) fn attribute(lua: &Lua, plugin: &str) -> mlua::Result<Value> {
    let attributes = lua.app_data_ref::<Settings>().map(|settings| Rc::clone(&settings.attributes));
    match attributes.as_ref().and_then(|attributes| attributes.get(plugin)) {
        Some(attribute) => super::to_lua(lua, attribute),
        None => Ok(Value::Nil),
    }
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    #[test]
    fn the_store_is_out_of_reach() {
        for (value, expected) in [
            (
                "type(core.config.local_conf().plugin_attr), core.config.local_conf().plugin_attr.x",
                "tablenil",
            ),
            (
                "select(2, pcall(core.etcd.set, '/a', {}))",
                "core.etcd.set: scripts may not reach the store of the configuration; use the Admin API",
            ),
            (
                "select(2, pcall(core.config.new, '/a'))",
                "core.config.new: scripts cannot follow resources of the configuration",
            ),
        ] {
            let body = format!("local core = require('apisix.core') ngx.print({value})");
            assert_eq!(output_of(&body), expected, "{value}");
        }
    }
}
