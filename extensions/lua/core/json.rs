//! `core.json`: JSON as lua-cjson writes and reads it, with the settings of APISIX.

use std::collections::HashSet;
use std::ffi::c_void;
use std::rc::Rc;

use mlua::{Lua, Table, Value};

use super::json_reader::{self, DEPTH, MOST_VALUES};
use crate::engine::arguments::{Results, failed, one, type_name};
use crate::engine::host::Host;
use crate::engine::modules::Modules;
use crate::ngx::is_null;

/// The longest text that one call writes.
const MOST_BYTES: usize = 8 << 20;

/// Where the state keeps the metatables of arrays, for this module and `cjson`.
const ARRAY_MT: &str = "sigma.json.array_mt";
const EMPTY_ARRAY_MT: &str = "sigma.json.empty_array_mt";

/// The metatable of tables that are arrays even if they are empty.
pub(crate) fn array_mt(lua: &Lua) -> mlua::Result<Table> {
    kept_table(lua, ARRAY_MT)
}

/// The metatable of tables that are arrays if they are empty.
pub(crate) fn empty_array_mt(lua: &Lua) -> mlua::Result<Table> {
    kept_table(lua, EMPTY_ARRAY_MT)
}

fn kept_table(lua: &Lua, name: &str) -> mlua::Result<Table> {
    if let Some(table) = lua.named_registry_value::<Option<Table>>(name)? {
        return Ok(table);
    }
    let table = lua.create_table()?;
    lua.set_named_registry_value(name, &table)?;
    Ok(table)
}

/// How a value is written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Form {
    /// Functions, userdata and repeated tables become texts instead of errors.
    pub(crate) force: bool,
    /// Members have the order of their names.
    pub(crate) sorted: bool,
}

/// The JSON text of a value.
///
/// # Errors
/// Returns the message of lua-cjson.
pub(crate) fn encode(lua: &Lua, value: &Value, form: Form) -> Result<Vec<u8>, String> {
    let mut writer = Writer {
        lua,
        array: array_mt(lua).map_err(|error| error.to_string())?,
        empty: empty_array_mt(lua).map_err(|error| error.to_string())?,
        form,
        seen: HashSet::new(),
        left: MOST_VALUES,
        out: Vec::new(),
    };
    writer.value(value, 1)?;
    Ok(writer.out)
}

/// The value of a JSON text. Arrays have the metatable of arrays, null is `ngx.null`.
///
/// # Errors
/// Returns the message of lua-cjson.
pub(crate) fn decode(lua: &Lua, text: &[u8]) -> Result<Value, String> {
    json_reader::decode(lua, text, array_mt(lua).map_err(|error| error.to_string())?)
}

struct Writer<'l> {
    lua: &'l Lua,
    array: Table,
    empty: Table,
    form: Form,
    /// Tables that were written, in the forced form.
    seen: HashSet<*const c_void>,
    /// Further values. A table that is named twice counts twice.
    left: usize,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if self.out.len() > MOST_BYTES {
            return Err(format!("Cannot serialise more than {MOST_BYTES} bytes"));
        }
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| format!("Cannot serialise more than {MOST_VALUES} values"))?;
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::Boolean(value) => self.out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::Integer(_) | Value::Number(_) => self.number(value)?,
            Value::String(text) => self.text(&text.as_bytes()),
            Value::Table(table) => self.table(table, depth)?,
            null if is_null(null) && self.form.force => self.text(b"userdata: NULL"),
            null if is_null(null) => self.out.extend_from_slice(b"null"),
            other if self.form.force => self.text(text_of(other)?.as_bytes()),
            other => return Err(format!("Cannot serialise {}: type not supported", type_name(other))),
        }
        Ok(())
    }

    /// A number as Lua writes it: 14 digits.
    fn number(&mut self, value: &Value) -> Result<(), String> {
        if value.as_number().is_some_and(|number| !number.is_finite()) {
            return Err("Cannot serialise number: must not be NaN or Infinity".to_owned());
        }
        let text = self.lua.coerce_string(value.clone()).map_err(|error| error.to_string())?;
        self.out.extend_from_slice(&text.map(|text| text.as_bytes().to_vec()).unwrap_or_default());
        Ok(())
    }

    fn text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                8 => self.out.extend_from_slice(b"\\b"),
                9 => self.out.extend_from_slice(b"\\t"),
                10 => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                13 => self.out.extend_from_slice(b"\\r"),
                0..32 | 127 => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                byte => self.out.push(*byte),
            }
        }
        self.out.push(b'"');
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        if depth > DEPTH {
            return Err(format!("Cannot serialise, excessive depth ({depth})"));
        }
        if self.form.force && depth > 1 && !self.seen.insert(table.to_pointer()) {
            self.text(text_of(&Value::Table(table.clone()))?.as_bytes());
            return Ok(());
        }
        match self.array_length(table)? {
            Some(length) => self.elements(table, length, depth),
            None => self.members(table, depth),
        }
    }

    /// The length of a table that is an array.
    fn array_length(&self, table: &Table) -> Result<Option<usize>, String> {
        let mark = table.metatable().filter(|_| !self.form.force);
        if mark.as_ref() == Some(&self.array) {
            return Ok(Some(table.raw_len()));
        }
        let (mut length, mut count) = (0_i64, 0_i64);
        for pair in table.pairs::<Value, Value>() {
            let place = match pair.map_err(|error| error.to_string())?.0 {
                Value::Integer(place) if place >= 1 => place,
                Value::Number(place) if place >= 1.0 && place.fract() == 0.0 => place as i64,
                _ => return Ok(None),
            };
            length = length.max(place);
            count += 1;
        }
        // lua-cjson's own bounds: many holes are a mistake.
        if length > 10 && length > count.saturating_mul(2) {
            return Err("Cannot serialise table: excessively sparse array".to_owned());
        }
        let is_marked_empty = count == 0 && mark.as_ref() == Some(&self.empty);
        Ok((count > 0 || is_marked_empty).then(|| usize::try_from(length).unwrap_or_default()))
    }

    fn elements(&mut self, table: &Table, length: usize, depth: usize) -> Result<(), String> {
        self.out.push(b'[');
        for place in 1..=length {
            if place > 1 {
                self.out.push(b',');
            }
            let element: Value = table.raw_get(place).map_err(|error| error.to_string())?;
            self.value(&element, depth + 1)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn members(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        let mut members = Vec::new();
        for pair in table.pairs::<Value, Value>() {
            let (name, value) = pair.map_err(|error| error.to_string())?;
            members.push((self.name(&name)?, value));
        }
        if self.form.sorted {
            members.sort_by(|one, other| one.0.cmp(&other.0));
        }
        self.out.push(b'{');
        for (at, (name, value)) in members.iter().enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            self.text(name);
            self.out.push(b':');
            self.value(value, depth + 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn name(&self, name: &Value) -> Result<Vec<u8>, String> {
        match name {
            Value::String(name) => Ok(name.as_bytes().to_vec()),
            Value::Integer(_) | Value::Number(_) => {
                let text = self.lua.coerce_string(name.clone()).map_err(|error| error.to_string())?;
                Ok(text.map(|text| text.as_bytes().to_vec()).unwrap_or_default())
            }
            other if self.form.force && !matches!(other, Value::Boolean(_)) => {
                text_of(other).map(String::into_bytes)
            }
            other => {
                Err(format!("Cannot serialise {}: table key must be a number or string", type_name(other)))
            }
        }
    }
}

/// The text of `tostring`.
fn text_of(value: &Value) -> Result<String, String> {
    value.to_string().map_err(|error| crate::engine::message_of(&error))
}

/// A text as a result, or nil and a message.
fn result(lua: &Lua, encoded: Result<Vec<u8>, String>) -> Results {
    match encoded {
        Ok(text) => one(lua, lua.create_string(text).map_err(|error| error.to_string())?),
        Err(message) => failed(lua, message),
    }
}

/// Removes members that are `ngx.null`, in inner tables too.
fn strip_nulls(table: &Table) -> mlua::Result<()> {
    strip_unseen(table, &mut HashSet::new(), 1)
}

/// As [`strip_nulls`], for tables that it has not met: each table is searched once.
fn strip_unseen(table: &Table, seen: &mut HashSet<*const c_void>, depth: usize) -> mlua::Result<()> {
    if depth > DEPTH {
        return Err(mlua::Error::runtime("the tables are nested too deeply"));
    }
    if !seen.insert(table.to_pointer()) {
        return Ok(());
    }
    let mut nulls = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        match pair? {
            (name, value) if is_null(&value) => nulls.push(name),
            (_, Value::Table(inner)) => strip_unseen(&inner, seen, depth + 1)?,
            _ => {}
        }
    }
    nulls.into_iter().try_for_each(|name| table.raw_set(name, Value::Nil))
}

pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let json = lua.create_table()?;
    for (registry, name) in [(ARRAY_MT, "array_mt"), (EMPTY_ARRAY_MT, "empty_array_mt")] {
        // All arrays have it: no script may change it.
        lua.set_named_registry_value(registry, modules.readonly(lua.create_table()?, name)?)?;
    }
    json.raw_set("array_mt", array_mt(lua)?)?;
    json.raw_set("empty_array_mt", empty_array_mt(lua)?)?;
    json.raw_set("null", crate::ngx::null())?;
    host.function(lua, &json, "encode", |_, arguments| {
        let form = Form { force: arguments.is_true(2), sorted: false };
        result(arguments.lua(), encode(arguments.lua(), &arguments.value(1), form))
    })?;
    for name in ["canonical_encode", "stably_encode"] {
        host.function(lua, &json, name, |_, arguments| {
            let form = Form { force: false, sorted: true };
            result(arguments.lua(), encode(arguments.lua(), &arguments.value(1), form))
        })?;
    }
    host.function(lua, &json, "decode", |_, arguments| {
        let lua = arguments.lua();
        let read = arguments.text(1).and_then(|text| decode(lua, &text.as_bytes()));
        let value = match read {
            Ok(value) => value,
            Err(message) => return failed(lua, message),
        };
        let strips = match arguments.value(2) {
            Value::Table(options) => options.raw_get("null_as_nil").unwrap_or_default(),
            _ => false,
        };
        match value {
            null if strips && is_null(&null) => one(lua, Value::Nil),
            Value::Table(table) if strips => {
                strip_nulls(&table).map_err(|error| crate::engine::message_of(&error))?;
                one(lua, table)
            }
            value => one(lua, value),
        }
    })?;
    host.function(lua, &json, "strip_nulls", |_, arguments| {
        let table = arguments.table(1)?;
        strip_nulls(&table).map_err(|error| crate::engine::message_of(&error))?;
        one(arguments.lua(), table)
    })?;
    let delayed = delayed(lua, host)?;
    host.function(lua, &json, "delay_encode", move |_, arguments| {
        let make = || {
            let text = arguments.lua().create_table()?;
            text.raw_set("data", arguments.value(1))?;
            text.raw_set("force", arguments.is_true(2))?;
            text.set_metatable(Some(delayed.clone()))?;
            Ok(text)
        };
        one(arguments.lua(), make().map_err(|error: mlua::Error| error.to_string())?)
    })?;
    core.raw_set("json", modules.shared("apisix.core.json", json)?)
}

/// The metatable of values that are encoded where their text is needed, so not for a log line that is omitted.
fn delayed(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let metatable = lua.create_table()?;
    let host = Rc::clone(host);
    let text = lua.create_function(move |lua, text: Table| {
        let _nested = host.nested().map_err(mlua::Error::runtime)?;
        let form = Form { force: text.raw_get("force")?, sorted: false };
        match encode(lua, &text.raw_get("data")?, form) {
            Ok(text) => lua.create_string(text),
            Err(message) => {
                let force = form.force;
                crate::ngx::log::write(5, format!("failed to encode: {message} force: {force}").as_bytes());
                lua.create_string("")
            }
        }
    })?;
    metatable.raw_set("__tostring", text)?;
    metatable.raw_set("__metatable", false)?;
    Ok(metatable)
}

#[cfg(test)]
mod tests {
    use crate::snippets::output_of;

    fn says(value: &str) -> String {
        output_of(&format!("local json = require('apisix.core').json ngx.print({value})"))
    }

    #[test]
    fn values_are_written_as_in_lua_cjson() {
        for (value, expected) in [
            ("json.encode({1, 2.5, 'a', true, ngx.null, 1e15, {}})", r#"[1,2.5,"a",true,null,1e+15,{}]"#),
            ("json.encode({a = '\"/\\\\\\n\\1\\127é'})", r#"{"a":"\"/\\\n\u0001\u007fé"}"#),
            ("json.encode({[1] = 1, [3] = 3})", "[1,null,3]"),
            ("json.encode({[1] = 1, [30] = 3})", "nilCannot serialise table: excessively sparse array"),
            ("json.encode({[1.5] = 1})", r#"{"1.5":1}"#),
            ("json.encode({print})", "nilCannot serialise function: type not supported"),
            (
                "json.encode({[true] = 1})",
                "nilCannot serialise boolean: table key must be a number or string",
            ),
            ("json.encode(0/0)", "nilCannot serialise number: must not be NaN or Infinity"),
            ("json.encode(nil), json.encode('x')", "null\"x\""),
            (
                "json.encode(setmetatable({}, json.array_mt)), json.encode(setmetatable({}, json.empty_array_mt))",
                "[][]",
            ),
            ("json.encode(setmetatable({x = 1}, json.array_mt))", "[]"),
            ("json.canonical_encode({b = 1, a = {d = 1, c = 2}})", r#"{"a":{"c":2,"d":1},"b":1}"#),
            (
                "(json.encode({f = print}, true):gsub('0x%x+', 'at'):gsub('builtin.*\"', 'at\"'))",
                r#"{"f":"function: at"}"#,
            ),
            ("json.encode({n = ngx.null}, true)", r#"{"n":"userdata: NULL"}"#),
            (
                "(function() local t = {} t.t = t return (json.encode(t, true):gsub('0x%x+', 'at')) end)()",
                r#"{"t":{"t":"table: at"}}"#,
            ),
            ("tostring(json.delay_encode({1})), tostring(json.delay_encode({print}))", "[1]"),
            (
                "(function() local t = {} for i = 1, 1100 do t = {t} end return json.encode(t) end)()",
                "nilCannot serialise, excessive depth (1001)",
            ),
            (
                "(function() local t = {'0123456789'} for i = 1, 40 do t = {t, t} end return json.encode(t) end)()",
                "nilCannot serialise more than 200000 values",
            ),
        ] {
            assert_eq!(says(value), expected, "{value}");
        }
    }

    #[test]
    fn texts_are_read_as_in_lua_cjson() {
        for (value, expected) in [
            (
                r#"json.canonical_encode(json.decode('{"b":[1,{"c":null}],"a":"x"}'))"#,
                r#"{"a":"x","b":[1,{"c":null}]}"#,
            ),
            ("json.encode(json.decode('[]')), json.encode(json.decode('{}'))", "[]{}"),
            (r#"json.encode(json.decode('{"a":null,"b":{"c":null}}', {null_as_nil = true}))"#, r#"{"b":{}}"#),
            ("json.decode('null', {null_as_nil = true}), json.decode('null')", "nilnull"),
            ("json.encode(json.strip_nulls({a = ngx.null, b = {c = ngx.null}}))", r#"{"b":{}}"#),
            (
                "(function() local t = {n = ngx.null} t.t = t for i = 1, 40 do t = {t, t} end json.strip_nulls(t) return 'fine' end)()",
                "fine",
            ),
            ("json.decode(nil)", "nilbad argument #1 to 'decode' (string expected, got nil)"),
            (
                "json.decode(' 7 '), json.decode('-1.5e2'), json.decode('\"a\"'), json.decode('true')",
                "7-150atrue",
            ),
            (r#"json.decode('"\\u00e9\\ud83d\\ude00\\n\\/"')"#, "é😀\n/"),
        ] {
            assert_eq!(says(value), expected, "{value}");
        }
    }
}
