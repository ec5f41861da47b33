//! `core.log`.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::engine::arguments::{nothing, one};
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::ngx::log::{is_written, joined, write};

/// The levels, by their names.
const LEVELS: &[(&str, i64)] = &[
    ("stderr", 0),
    ("emerg", 1),
    ("alert", 2),
    ("crit", 3),
    ("error", 4),
    ("warn", 5),
    ("notice", 6),
    ("info", 7),
    ("debug", 8),
];

pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let log = with_levels(lua, host, &[])?;
    let delayed = delayed(lua, host)?;
    host.function(lua, &log, "delay_exec", move |_, arguments| {
        let make = || {
            let text = arguments.lua().create_table()?;
            text.raw_set("run", arguments.value(1))?;
            text.raw_set("arguments", arguments.lua().create_sequence_from(arguments.rest(2))?)?;
            text.set_metatable(Some(delayed.clone()))?;
            Ok(text)
        };
        one(arguments.lua(), make().map_err(|error: mlua::Error| error.to_string())?)
    })?;
    let of_prefix = Rc::clone(host);
    host.function(lua, &log, "new", move |_, arguments| {
        let prefix = arguments.text(1)?.as_bytes().to_vec();
        let log = with_levels(arguments.lua(), &of_prefix, &prefix).map_err(|error| error.to_string())?;
        one(arguments.lua(), log)
    })?;
    core.raw_set("log", modules.shared("apisix.core.log", log)?)
}

/// A table with a function for each level, which writes a prefix and its arguments.
fn with_levels(lua: &Lua, host: &Rc<Host>, prefix: &[u8]) -> mlua::Result<Table> {
    let log = lua.create_table()?;
    for (name, level) in LEVELS {
        let (level, prefix) = (*level, prefix.to_vec());
        host.function(lua, &log, name, move |_, arguments| {
            // Texts that are made late are not made for a line that is omitted.
            if is_written(level) {
                let mut line = prefix.clone();
                line.extend_from_slice(&joined(&arguments, 1)?);
                write(level, &line);
            }
            nothing()
        })?;
    }
    Ok(log)
}

/// The metatable of texts that a function makes where they are needed.
fn delayed(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let metatable = lua.create_table()?;
    let host = Rc::clone(host);
    let text = lua.create_function(move |lua, text: Table| {
        let _nested = host.nested().map_err(mlua::Error::runtime)?;
        if let made @ Value::String(_) = text.raw_get("made")? {
            return Ok(made);
        }
        let run: mlua::Function = text.raw_get("run")?;
        let arguments: Table = text.raw_get("arguments")?;
        let arguments: MultiValue = arguments.sequence_values::<Value>().collect::<mlua::Result<_>>()?;
        let results: MultiValue = run.call(arguments)?;
        if let Some(error) = results.get(1).filter(|error| !error.is_nil()) {
            write(5, format!("failed to exec: {}", error.to_string()?).as_bytes());
        }
        let made = match results.front() {
            Some(value @ Value::String(_)) => value.clone(),
            value => Value::String(lua.create_string(value.unwrap_or(&Value::Nil).to_string()?)?),
        };
        text.raw_set("made", &made)?;
        Ok(made)
    })?;
    metatable.raw_set("__tostring", text)?;
    metatable.raw_set("__metatable", false)?;
    Ok(metatable)
}

#[cfg(test)]
mod tests {
    use crate::snippets::check;

    #[test]
    fn lines_are_joined_and_made_late() {
        check(&[
            (
                "local log = require('apisix.core').log log.error('a', 1, nil, true) log.warn() log.new('p: ').info('x') ngx.say('on')",
                "on\n",
            ),
            // A line that is omitted costs no call.
            (
                "local log = require('apisix.core').log local n = 0 local f = log.delay_exec(function(a, b) n = n + 1 return a .. b end, 'x', 'y') log.debug(f) ngx.say(n, tostring(f), tostring(f), n)",
                "0xyxy1\n",
            ),
        ]);
    }
}
