//! Arguments of a function that a script calls, and its results.

use mlua::{Lua, LuaString, MultiValue, Table, Value};

/// The results of a function of the gateway, or the text of a Lua error.
pub(crate) type Results = Result<MultiValue, String>;

/// The arguments of one call.
pub(crate) struct Arguments<'a> {
    lua: &'a Lua,
    /// The function's name, for errors.
    name: &'a str,
    values: MultiValue,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(lua: &'a Lua, name: &'a str, values: MultiValue) -> Arguments<'a> {
        Arguments { lua, name, values }
    }

    /// The state of the caller.
    pub(crate) fn lua(&self) -> &'a Lua {
        self.lua
    }

    /// The number of arguments, with trailing nils.
    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }

    /// The argument at this place, from 1; nil if missing.
    pub(crate) fn get(&self, place: usize) -> &Value {
        self.values.get(place - 1).unwrap_or(&Value::Nil)
    }

    /// As [`Arguments::get`], as a handle of its own.
    pub(crate) fn value(&self, place: usize) -> Value {
        self.get(place).clone()
    }

    /// All arguments from this place on.
    pub(crate) fn rest(&self, place: usize) -> MultiValue {
        self.values.iter().skip(place - 1).cloned().collect()
    }

    /// Whether the argument is missing or nil.
    pub(crate) fn is_nil(&self, place: usize) -> bool {
        self.values.get(place - 1).is_none_or(Value::is_nil)
    }

    /// A text, or a number as text.
    pub(crate) fn text(&self, place: usize) -> Result<LuaString, String> {
        match self.value(place) {
            Value::String(text) => Ok(text),
            value @ (Value::Integer(_) | Value::Number(_)) => {
                let text = self.lua.coerce_string(value).map_err(|error| error.to_string())?;
                text.ok_or_else(|| self.wrong(place, "string"))
            }
            _ => Err(self.wrong(place, "string")),
        }
    }

    /// As [`Arguments::text`]; None for a missing argument and for nil.
    pub(crate) fn optional_text(&self, place: usize) -> Result<Option<LuaString>, String> {
        if self.is_nil(place) { Ok(None) } else { self.text(place).map(Some) }
    }

    /// A number, or a text that is one.
    pub(crate) fn number(&self, place: usize) -> Result<f64, String> {
        let number = self.lua.coerce_number(self.value(place)).map_err(|error| error.to_string())?;
        number.ok_or_else(|| self.wrong(place, "number"))
    }

    /// As [`Arguments::number`]; None for a missing argument and for nil.
    pub(crate) fn optional_number(&self, place: usize) -> Result<Option<f64>, String> {
        if self.is_nil(place) { Ok(None) } else { self.number(place).map(Some) }
    }

    /// A number without its fraction.
    pub(crate) fn integer(&self, place: usize) -> Result<i64, String> {
        // Numbers out of range become the nearest integer.
        self.number(place).map(|number| number as i64)
    }

    /// As [`Arguments::integer`]; None for a missing argument and for nil.
    pub(crate) fn optional_integer(&self, place: usize) -> Result<Option<i64>, String> {
        if self.is_nil(place) { Ok(None) } else { self.integer(place).map(Some) }
    }

    /// A table.
    pub(crate) fn table(&self, place: usize) -> Result<Table, String> {
        match self.value(place) {
            Value::Table(table) => Ok(table),
            _ => Err(self.wrong(place, "table")),
        }
    }

    /// Whether the argument is neither nil nor false.
    pub(crate) fn is_true(&self, place: usize) -> bool {
        !matches!(self.get(place), Value::Nil | Value::Boolean(false))
    }

    /// The error of an argument that is not `expected`.
    pub(crate) fn wrong(&self, place: usize, expected: &str) -> String {
        let got = match self.values.get(place - 1) {
            None => "no value",
            Some(value) => type_name(value),
        };
        self.bad(place, &format!("{expected} expected, got {got}"))
    }

    /// The error of an argument, in Lua's words.
    pub(crate) fn bad(&self, place: usize, reason: &str) -> String {
        format!("bad argument #{place} to '{}' ({reason})", self.name)
    }
}

/// The name that Lua's `type` gives to a value.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Error(_) | Value::LightUserData(_) => "userdata",
        Value::Integer(_) => "number",
        other => other.type_name(),
    }
}

/// No results.
pub(crate) fn nothing() -> Results {
    Ok(MultiValue::new())
}

/// One result.
pub(crate) fn one(lua: &Lua, value: impl mlua::IntoLua) -> Results {
    let value = value.into_lua(lua).map_err(|error| error.to_string())?;
    Ok(MultiValue::from_iter([value]))
}

/// Several results, as a tuple.
pub(crate) fn several(lua: &Lua, values: impl mlua::IntoLuaMulti) -> Results {
    values.into_lua_multi(lua).map_err(|error| error.to_string())
}

/// nil and the text of an error, as functions return it that do not raise it.
pub(crate) fn failed(lua: &Lua, message: impl AsRef<[u8]>) -> Results {
    let message = lua.create_string(message).map_err(|error| error.to_string())?;
    Ok(MultiValue::from_iter([Value::Nil, Value::String(message)]))
}
