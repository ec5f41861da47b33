//! Modules of `resty` that are Lua texts of this gateway: over `ngx.socket`, `ngx.shared`, or alone.

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use crate::engine::arguments::{nothing, one};
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::engine::settings::Settings;

/// The texts, by the names of their modules.
const TEXTS: &[(&str, &str)] = &[
    ("resty.http", include_str!("resty/http.lua")),
    ("resty.lock", include_str!("resty/lock.lua")),
    ("resty.redis", include_str!("resty/redis.lua")),
    ("resty.template", include_str!("resty/template.lua")),
];

/// Registers the modules. `environment` makes the globals of a text, and `ngx` is among them.
pub(crate) fn register(
    lua: &Lua,
    host: &Rc<Host>,
    modules: &Modules,
    environment: &Function,
    settings: &Settings,
) -> mlua::Result<()> {
    // `CDN-Loop` for calls of the exchange that runs: a loop through a script ends like any other.
    let holder = lua.create_table()?;
    host.function(lua, &holder, "passes", |host, arguments| {
        let own = host.worker().map(|worker| worker.own_name.clone()).unwrap_or_default();
        let passes = host.with(|seat| Ok(seat.ctx.passes()));
        match passes {
            Ok(passes) => {
                let items: Vec<&[u8]> =
                    [&passes, own.as_bytes()].into_iter().filter(|item| !item.is_empty()).collect();
                if items.is_empty() {
                    return nothing();
                }
                let text = arguments.lua().create_string(items.join(&b", "[..]));
                one(arguments.lua(), text.map_err(|error| error.to_string())?)
            }
            // A timer continues no request.
            Err(_) => nothing(),
        }
    })?;
    let passes: Value = holder.raw_get("passes")?;
    for (name, text) in TEXTS {
        let chunk = lua.load(*text).set_name(format!("={name}"));
        let chunk = chunk.set_environment(environment.call::<Table>(())?).into_function()?;
        modules.add(name, chunk.call((passes.clone(), settings.socket_bytes))?)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "resty_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "resty/tests.rs"]
mod text_tests;
