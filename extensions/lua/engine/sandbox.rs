//! The libraries that scripts may use.
//!
//! Scripts of a configuration have no files, processes, `ffi` or bytecode, and of `debug` only `debug.traceback`: a right
//! to write configurations is no right to run programs.

use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{Lua, Table, Value};

use super::arguments::{Results, failed, several};
use super::host::Host;

/// The tables and functions of the prelude.
pub(crate) struct Parts {
    /// The globals of scripts.
    pub(crate) base: Table,
    /// The libraries behind them.
    pub(crate) libraries: Table,
    /// Makes the globals of one script.
    pub(crate) environment: mlua::Function,
    /// Makes the globals of a text of the gateway.
    pub(crate) of_gateway: mlua::Function,
    /// Makes a table that scripts can read and not change.
    pub(crate) readonly: mlua::Function,
}

/// The name of the set of tables that all scripts share, in the registry.
pub(super) const SHARED: &str = "sigma.shared";

/// Fails for a table that all scripts share: functions of the gateway write without regard to metatables.
///
/// # Errors
/// Returns the text of a Lua error.
pub(crate) fn check_own(lua: &Lua, table: &Table) -> Result<(), String> {
    let shared = lua.named_registry_value::<Table>(SHARED);
    let known =
        shared.and_then(|shared| shared.raw_get::<Value>(table)).map_err(|error| error.to_string())?;
    match known {
        Value::Nil => Ok(()),
        _ => Err("attempt to change a table that all scripts share".to_owned()),
    }
}

/// Functions of the basic library that are forwarded as they are.
const BASIC: &[&str] = &[
    "_VERSION",
    "assert",
    "error",
    "getmetatable",
    "ipairs",
    "next",
    "pairs",
    "pcall",
    "rawequal",
    "rawget",
    "rawset",
    "select",
    "setmetatable",
    "tonumber",
    "tostring",
    "type",
    "unpack",
    "xpcall",
];

/// Libraries that are forwarded, with the members that they keep; an empty list keeps all.
const LIBRARIES: &[(&str, &[&str])] = &[
    ("bit", &[]),
    ("math", &[]),
    ("string", &[]),
    ("table", &[]),
    ("os", &["clock", "date", "difftime", "time"]),
];

/// Members of whole libraries that are taken out.
const TAKEN: &[(&str, &str)] = &[("string", "dump")];

/// Functions that raise an error which names the reason.
const REFUSED: &[&str] = &[
    "os.execute",
    "os.exit",
    "os.getenv",
    "os.remove",
    "os.rename",
    "os.setlocale",
    "os.tmpname",
    "dofile",
    "loadfile",
];

/// Makes the table of libraries for the prelude.
pub(super) fn libraries(lua: &Lua) -> mlua::Result<Table> {
    let globals = lua.globals();
    let libraries = lua.create_table()?;
    for name in BASIC {
        libraries.raw_set(*name, globals.raw_get::<Value>(*name)?)?;
    }
    for (name, members) in LIBRARIES {
        let whole: Table = globals.raw_get(*name)?;
        let library = lua.create_table()?;
        for pair in whole.pairs::<String, Value>() {
            let (member, value) = pair?;
            if members.is_empty() || members.contains(&member.as_str()) {
                library.raw_set(member, value)?;
            }
        }
        libraries.raw_set(*name, library)?;
    }
    for (library, member) in TAKEN {
        libraries.raw_get::<Table>(*library)?.raw_set(*member, Value::Nil)?;
    }
    // Methods of texts come from the library of scripts.
    let of_text: Table = libraries.raw_get("string")?;
    let metatable = lua.create_table()?;
    metatable.raw_set("__index", of_text)?;
    metatable.raw_set("__metatable", false)?;
    lua.set_type_metatable::<mlua::LuaString>(Some(metatable));
    let debug = lua.create_table()?;
    let traceback = |lua: &Lua, (message, level)| traceback(lua, message, level);
    debug.raw_set("traceback", lua.create_function(traceback)?)?;
    libraries.raw_set("debug", debug)?;
    libraries.raw_set("collectgarbage", lua.create_function(collect_garbage)?)?;
    libraries.raw_set("gcinfo", lua.create_function(|lua, ()| Ok(lua.used_memory() / 1024))?)?;
    Ok(libraries)
}

/// The stack, after a message. Anything else than a text is returned as it is.
fn traceback(lua: &Lua, message: Value, level: Option<usize>) -> mlua::Result<Value> {
    let text = match &message {
        Value::Nil => None,
        Value::String(text) => Some(text.to_string_lossy()),
        _ => return Ok(message),
    };
    lua.traceback(text.as_deref(), level.unwrap_or(1)).map(Value::String)
}

/// Counts memory; the collector itself is the gateway's.
fn collect_garbage(lua: &Lua, option: Option<String>) -> mlua::Result<f64> {
    match option.as_deref() {
        Some("count") => Ok(lua.used_memory() as f64 / 1024.0),
        _ => Ok(0.0),
    }
}

/// Registers what needs the wrappers of the prelude: `load`, `loadstring`, and the functions that are refused.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, parts: &Parts) -> mlua::Result<()> {
    let Parts { base, libraries, environment, readonly, .. } = parts;
    if let Some(of_texts) = lua.type_metatable::<mlua::LuaString>() {
        let shown = lua.create_table()?;
        shown.raw_set("__index", base.raw_get::<Value>("string")?)?;
        of_texts.raw_set("__metatable", readonly.call::<Value>((shown, "getmetatable('')"))?)?;
    }
    let make = environment.clone();
    host.function(lua, base, "loadstring", move |_, arguments| {
        let text = arguments.text(1)?;
        let name = arguments.optional_text(2)?;
        let name = name.map_or_else(|| text.to_string_lossy(), |name| name.to_string_lossy());
        loaded(arguments.lua(), &text.as_bytes(), &name, &make)
    })?;
    let make = environment.clone();
    host.function(lua, base, "load", move |_, arguments| {
        let text = match arguments.value(1) {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Function(pieces) => whole(&pieces)?,
            _ => return Err(arguments.wrong(1, "function")),
        };
        let name = arguments.optional_text(2)?;
        let name = name.map_or_else(|| "=(load)".to_owned(), |name| name.to_string_lossy());
        let results = loaded(arguments.lua(), &text, &name, &make)?;
        if let (Some(Value::Function(function)), Value::Table(environment)) =
            (results.front(), arguments.value(4))
        {
            function.set_environment(environment).map_err(|error| error.to_string())?;
        }
        Ok(results)
    })?;
    for path in REFUSED {
        let (table, name) = match path.split_once('.') {
            Some((library, member)) => (libraries.raw_get::<Table>(library)?, member),
            None => (base.clone(), *path),
        };
        const REASON: &str = "scripts of a configuration may not reach the machine";
        host.note_refusal(path, REASON);
        host.function(lua, &table, name, |_, _| Err(REASON.to_owned()))?;
    }
    Ok(())
}

/// The pieces that a function returns, joined.
fn whole(pieces: &mlua::Function) -> Result<Vec<u8>, String> {
    /// The largest text.
    const MOST: usize = 1 << 20;
    let mut text = Vec::new();
    loop {
        let piece: Value = pieces.call(()).map_err(|error| error.to_string())?;
        match piece {
            Value::String(piece) if !piece.as_bytes().is_empty() && text.len() < MOST => {
                text.extend_from_slice(&piece.as_bytes());
            }
            _ => return Ok(text),
        }
    }
}

/// Compiles a text; nil and a message if it is wrong.
fn loaded(lua: &Lua, text: &[u8], name: &str, environment: &mlua::Function) -> Results {
    let environment: Table = environment.call(()).map_err(|error| error.to_string())?;
    let chunk = lua
        .load(text)
        .set_name(super::chunk_name(name))
        .set_mode(ChunkMode::Text)
        .set_environment(environment);
    match chunk.into_function() {
        Ok(function) => several(lua, function),
        Err(error) => failed(lua, super::message_of(&error)),
    }
}
