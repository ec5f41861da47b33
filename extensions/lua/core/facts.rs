//! Small members of `core`: identifiers, environment, operating system, mathematics.

use std::rc::Rc;
use std::sync::OnceLock;

use mlua::{Lua, Table, Value};

use crate::engine::arguments::{nothing, one};
use crate::engine::host::Host;
use crate::engine::modules::Modules;

/// The version of APISIX whose functions scripts find.
const VERSION: &str = "3.17.0";

/// Functions that are refused, with the reason.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("env", &["fetch_by_uri", "get"], "scripts of a configuration may not read the environment"),
    ("os", &["setenv", "usleep", "waitpid"], "scripts may not reach the machine; `core.sleep` waits"),
    ("io", &["get_file"], "scripts of a configuration may not read files"),
    (
        "resolver",
        &["parse_domain", "parse_domain_for_nodes"],
        "scripts cannot resolve names; the gateway resolves them when it connects",
    ),
    ("event", &["push", "register"], "scripts get no events of configuration changes"),
    ("pubsub", &["new"], "the gateway has no streams for scripts"),
    ("data_encryption", &["decrypt", "encrypt"], "scripts may not use the keys of the gateway"),
];

pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let version = lua.create_table()?;
    version.raw_set("VERSION", VERSION)?;
    core.raw_set("version", modules.shared("apisix.core.version", version)?)?;

    let id = lua.create_table()?;
    host.function(lua, &id, "get", |_, arguments| one(arguments.lua(), gateway_id()?))?;
    host.function(lua, &id, "gen_uuid_v4", |_, arguments| {
        one(arguments.lua(), super::addresses::uuid_v4()?)
    })?;
    core.raw_set("id", modules.shared("apisix.core.id", id)?)?;

    let math = lua.create_table()?;
    host.function(lua, &math, "gcd", |_, arguments| {
        let (mut a, mut b) = (arguments.number(1)?, arguments.number(2)?);
        while b != 0.0 && b.is_finite() {
            // Lua's remainder has the sign of the divisor.
            (a, b) = (b, a - (a / b).floor() * b);
        }
        one(arguments.lua(), a)
    })?;
    core.raw_set("math", modules.shared("apisix.core.math", math)?)?;

    let pool = lua.create_table()?;
    host.function(lua, &pool, "fetch", |_, arguments| {
        one(arguments.lua(), arguments.lua().create_table().map_err(|error| error.to_string())?)
    })?;
    host.function(lua, &pool, "release", |_, _| nothing())?;
    core.raw_set("tablepool", modules.shared("tablepool", pool)?)?;

    for (name, members, reason) in REFUSED {
        let module = lua.create_table()?;
        for member in *members {
            host.refuse(lua, &module, format!("core.{name}.{member}"), reason)?;
        }
        if *name == "env" {
            module.raw_set("PREFIX", "$ENV://")?;
        }
        // A builder of such a module comes first.
        if core.raw_get::<Value>(*name)?.is_nil() {
            core.raw_set(*name, modules.shared(&format!("apisix.core.{name}"), module)?)?;
        }
    }
    Ok(())
}

/// The identity of this process, as APISIX has one of each instance.
fn gateway_id() -> Result<&'static str, String> {
    static ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(id);
    }
    let made = super::addresses::uuid_v4()?;
    Ok(ID.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    #[test]
    fn small_members() {
        for (value, expected) in [
            ("core.version.VERSION, require('apisix.core.version') == core.version", "3.17.0true"),
            ("#core.id.get(), core.id.get() == core.id.get(), #core.id.gen_uuid_v4()", "36true36"),
            ("core.math.gcd(12, 18), core.math.gcd(7, 0)", "67"),
            ("type(core.tablepool.fetch('x', 0, 4)), core.tablepool.release('x', {})", "table"),
            (
                "select(2, pcall(core.env.get, 'HOME'))",
                "core.env.get: scripts of a configuration may not read the environment",
            ),
            (
                "select(2, pcall(core.os.usleep, 1))",
                "core.os.usleep: scripts may not reach the machine; `core.sleep` waits",
            ),
        ] {
            let body = format!("local core = require('apisix.core') ngx.print({value})");
            assert_eq!(output_of(&body), expected, "{value}");
        }
    }
}
