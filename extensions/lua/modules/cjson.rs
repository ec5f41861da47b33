//! The modules `cjson` and `cjson.safe`.

mod decode;
mod encode;

use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

use mlua::{LightUserData, Lua, Table, Value};

use crate::engine::arguments::{Arguments, Results, failed, one};
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::ngx::codec::bytes;
use crate::ngx::null;

/// `cjson.empty_array` points here.
static EMPTY_ARRAY: u8 = 0;

/// The settings of one module.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    sparse_convert: bool,
    sparse_ratio: i64,
    sparse_safe: i64,
    encode_depth: i64,
    decode_depth: i64,
    precision: i64,
    encode_invalid: Invalid,
    decode_invalid: bool,
    empty_table_as_object: bool,
    decode_with_array_mt: bool,
    allow_comment: bool,
    escape_slash: bool,
    skip_unsupported: bool,
    /// Accepted, and of no effect.
    keep_buffer: bool,
}

/// How numbers are written that JSON does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Invalid {
    Off,
    On,
    Null,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: DEPTH,
            decode_depth: DEPTH,
            precision: 14,
            encode_invalid: Invalid::Off,
            decode_invalid: true,
            empty_table_as_object: true,
            decode_with_array_mt: false,
            allow_comment: false,
            escape_slash: true,
            skip_unsupported: false,
            keep_buffer: true,
        }
    }
}

/// The deepest nesting; scripts can lower it.
const DEPTH: i64 = 1000;

/// The tables that mark arrays, and the functions that use them.
pub(crate) struct Json {
    array_mt: Table,
    empty_array_mt: Table,
}

impl Json {
    fn new(lua: &Lua, modules: &Modules) -> mlua::Result<Json> {
        let mark = |name: &str| -> mlua::Result<Table> {
            let marked: Value = modules.readonly.call((lua.create_table()?, name))?;
            marked.as_table().cloned().ok_or_else(|| mlua::Error::runtime("no table"))
        };
        Ok(Json { array_mt: mark("cjson.array_mt")?, empty_array_mt: mark("cjson.empty_array_mt")? })
    }

    /// The text of a value.
    ///
    /// # Errors
    /// Returns the message of cjson for a value that has no text.
    pub(crate) fn encode(&self, host: &Host, config: &Config, value: &Value) -> Result<Vec<u8>, String> {
        encode::encode(self, host, config, value)
    }

    /// The value of a text.
    ///
    /// # Errors
    /// Returns the message of cjson for a text that is no JSON.
    pub(crate) fn decode(
        &self,
        host: &Host,
        lua: &Lua,
        config: &Config,
        text: &[u8],
    ) -> Result<Value, String> {
        decode::decode(self, host, lua, config, text)
    }
}

/// Registers the modules. Returns what `apisix.core` needs to use them.
pub(crate) fn register(lua: &Lua, host: &Rc<Host>, modules: &Modules) -> mlua::Result<Rc<Json>> {
    let json = Rc::new(Json::new(lua, modules)?);
    modules.add("cjson", module(lua, host, &json, false)?)?;
    modules.add("cjson.safe", module(lua, host, &json, true)?)?;
    Ok(json)
}

/// Makes a module with its own configuration.
fn module(lua: &Lua, host: &Rc<Host>, json: &Rc<Json>, is_safe: bool) -> mlua::Result<Table> {
    let module = lua.create_table()?;
    let config: Rc<RefCell<Config>> = Rc::default();
    register_conversions(lua, host, json, &module, &config, is_safe)?;
    register_settings(lua, host, &module, &config)?;
    let parts = (Rc::clone(host), Rc::clone(json));
    host.function(lua, &module, "new", move |_, arguments| {
        let made = self::module(arguments.lua(), &parts.0, &parts.1, is_safe);
        one(arguments.lua(), made.map_err(|error| error.to_string())?)
    })?;
    module.raw_set("null", null())?;
    module.raw_set("empty_array", empty_array())?;
    module.raw_set("array_mt", &json.array_mt)?;
    module.raw_set("empty_array_mt", &json.empty_array_mt)?;
    module.raw_set("_NAME", "cjson")?;
    module.raw_set("_VERSION", "2.1.0.10")?;
    Ok(module)
}

/// `cjson.empty_array`.
fn empty_array() -> Value {
    Value::LightUserData(LightUserData(std::ptr::from_ref(&EMPTY_ARRAY).cast_mut().cast::<c_void>()))
}

fn register_conversions(
    lua: &Lua,
    host: &Rc<Host>,
    json: &Rc<Json>,
    module: &Table,
    config: &Rc<RefCell<Config>>,
    is_safe: bool,
) -> mlua::Result<()> {
    let finish = move |lua: &Lua, results: Results| match results {
        Err(message) if is_safe => failed(lua, message),
        other => other,
    };
    let parts = (Rc::clone(json), Rc::clone(config));
    host.function(lua, module, "encode", move |host, arguments| {
        single(&arguments)?;
        let config = parts.1.borrow().clone();
        let encoded = parts.0.encode(host, &config, &arguments.value(1));
        finish(arguments.lua(), encoded.and_then(|text| bytes(arguments.lua(), &text)))
    })?;
    let parts = (Rc::clone(json), Rc::clone(config));
    host.function(lua, module, "decode", move |host, arguments| {
        single(&arguments)?;
        let config = parts.1.borrow().clone();
        let decoded = arguments
            .text(1)
            .and_then(|text| parts.0.decode(host, arguments.lua(), &config, &text.as_bytes()));
        finish(arguments.lua(), decoded.and_then(|value| one(arguments.lua(), value)))
    })
}

fn single(arguments: &Arguments<'_>) -> Result<(), String> {
    if arguments.count() == 1 { Ok(()) } else { Err(arguments.bad(1, "expected 1 argument")) }
}

/// A setting that is a switch.
type Switch = fn(&mut Config) -> &mut bool;

/// Settings that are switches, by name.
const SWITCHES: &[(&str, Switch)] = &[
    ("encode_empty_table_as_object", |config| &mut config.empty_table_as_object),
    ("decode_array_with_array_mt", |config| &mut config.decode_with_array_mt),
    ("decode_allow_comment", |config| &mut config.allow_comment),
    ("encode_escape_forward_slash", |config| &mut config.escape_slash),
    ("encode_skip_unsupported_value_types", |config| &mut config.skip_unsupported),
    ("encode_keep_buffer", |config| &mut config.keep_buffer),
    ("decode_invalid_numbers", |config| &mut config.decode_invalid),
];

/// A setting that is a number.
struct Counted {
    name: &'static str,
    setting: fn(&mut Config) -> &mut i64,
    least: i64,
    most: i64,
}

const INT_MAX: i64 = i32::MAX as i64;

const NUMBERS: &[Counted] = &[
    Counted { name: "encode_max_depth", setting: |config| &mut config.encode_depth, least: 1, most: INT_MAX },
    Counted { name: "decode_max_depth", setting: |config| &mut config.decode_depth, least: 1, most: INT_MAX },
    Counted { name: "encode_number_precision", setting: |config| &mut config.precision, least: 1, most: 16 },
];

/// Registers the functions that read and change settings.
fn register_settings(
    lua: &Lua,
    host: &Rc<Host>,
    module: &Table,
    config: &Rc<RefCell<Config>>,
) -> mlua::Result<()> {
    for (name, setting) in SWITCHES {
        let config = Rc::clone(config);
        host.function(lua, module, name, move |_, arguments| {
            let mut config = config.borrow_mut();
            let setting = setting(&mut config);
            *setting = switched(&arguments, *setting)?;
            one(arguments.lua(), *setting)
        })?;
    }
    for Counted { name, setting, least, most } in NUMBERS {
        let config = Rc::clone(config);
        host.function(lua, module, name, move |_, arguments| {
            let mut config = config.borrow_mut();
            let setting = setting(&mut config);
            *setting = counted(&arguments, 1, *setting, *least, *most)?;
            one(arguments.lua(), *setting)
        })?;
    }
    let of_arrays = Rc::clone(config);
    host.function(lua, module, "encode_sparse_array", move |_, arguments| {
        let mut config = of_arrays.borrow_mut();
        config.sparse_convert = switched(&arguments, config.sparse_convert)?;
        config.sparse_ratio = counted(&arguments, 2, config.sparse_ratio, 0, INT_MAX)?;
        config.sparse_safe = counted(&arguments, 3, config.sparse_safe, 0, INT_MAX)?;
        let now = (config.sparse_convert, config.sparse_ratio, config.sparse_safe);
        crate::engine::arguments::several(arguments.lua(), now)
    })?;
    let config = Rc::clone(config);
    host.function(lua, module, "encode_invalid_numbers", move |_, arguments| {
        let mut config = config.borrow_mut();
        let is_null = matches!(arguments.value(1), Value::String(text) if text.as_bytes() == b"null");
        config.encode_invalid = match switched_or(&arguments, is_null)? {
            None => config.encode_invalid,
            Some(_) if is_null => Invalid::Null,
            Some(true) => Invalid::On,
            Some(false) => Invalid::Off,
        };
        match config.encode_invalid {
            Invalid::Null => one(arguments.lua(), "null"),
            state => one(arguments.lua(), state == Invalid::On),
        }
    })
}

/// A switch after the first argument.
fn switched(arguments: &Arguments<'_>, now: bool) -> Result<bool, String> {
    Ok(switched_or(arguments, false)?.unwrap_or(now))
}

/// The first argument as a switch; `is_other` says that it is another word that is allowed.
fn switched_or(arguments: &Arguments<'_>, is_other: bool) -> Result<Option<bool>, String> {
    match arguments.value(1) {
        Value::Nil => Ok(None),
        Value::Boolean(value) => Ok(Some(value)),
        Value::String(text) => match &*text.as_bytes() {
            b"on" => Ok(Some(true)),
            b"off" => Ok(Some(false)),
            _ if is_other => Ok(Some(true)),
            other => Err(arguments.bad(1, &format!("invalid option '{}'", String::from_utf8_lossy(other)))),
        },
        _ => Err(arguments.wrong(1, "string")),
    }
}

fn counted(arguments: &Arguments<'_>, place: usize, now: i64, least: i64, most: i64) -> Result<i64, String> {
    match arguments.optional_integer(place)? {
        None => Ok(now),
        Some(value) if (least..=most).contains(&value) => Ok(value),
        Some(_) => Err(arguments.bad(1, &format!("expected integer between {least} and {most}"))),
    }
}

#[cfg(test)]
mod tests;
