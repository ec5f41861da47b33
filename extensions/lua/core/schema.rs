//! `core.schema`: checks of values by JSON schemas, with the words of APISIX.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{AnyUserData, Lua, Table, Value};
use serde_json::{Map, Number, Value as Json, json};
use sigma_schema::validation::Schema;

use crate::engine::arguments::{Results, failed, one, several, type_name};
use crate::engine::host::Host;
use crate::engine::message_of;
use crate::engine::modules::Modules;
use crate::engine::sandbox::check_own;

/// The most compiled schemas of one state; all are dropped when there are more.
const MOST_SCHEMAS: usize = 1000;

/// Keywords whose value is an array, also if it is empty.
const LISTS: &[&str] = &["allOf", "anyOf", "enum", "examples", "oneOf", "required"];

pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table, modules: &Modules) -> mlua::Result<()> {
    let schema = lua.create_table()?;
    schema.raw_set("TYPE_CONSUMER", 1)?;
    schema.raw_set("TYPE_METADATA", 2)?;
    // Each script gets a copy: these tables are parts of its schemas, and it may change them.
    let definition = lua.create_function(|lua, (_, name): (Value, Value)| {
        let known = definitions().into_iter().find(|(known, _)| {
            Some(*known) == name.as_string().map(|name| name.to_string_lossy()).as_deref()
        });
        known.map_or(Ok(Value::Nil), |(_, definition)| super::to_lua(lua, &definition))
    })?;
    let of_definitions = lua.create_table()?;
    of_definitions.raw_set("__index", definition)?;
    schema.set_metatable(Some(of_definitions))?;
    let compiled = Compiled::new(lua)?;
    host.function(lua, &schema, "check", move |_, arguments| {
        let lua = arguments.lua();
        let schema = match compiled.of(lua, &arguments.table(1)?) {
            Ok(schema) => schema,
            Err(message) => return refused(lua, &message),
        };
        let mut value = match to_json(&arguments.value(2)) {
            Ok(value) => value,
            Err(message) => return refused(lua, &message),
        };
        if let Err(message) = schema.check(&value) {
            return refused(lua, &message);
        }
        schema.fill_defaults(&mut value);
        if let Value::Table(table) = arguments.value(2) {
            fill(lua, &table, &value).map_err(|error| message_of(&error))?;
        }
        one(lua, true)
    })?;
    let compiled = Compiled::new(lua)?;
    host.function(lua, &schema, "valid", move |_, arguments| {
        match compiled.of(arguments.lua(), &arguments.table(1)?) {
            Ok(_) => one(arguments.lua(), true),
            Err(message) => failed(arguments.lua(), message),
        }
    })?;
    core.raw_set("schema", modules.shared("apisix.core.schema", schema)?)
}

fn refused(lua: &Lua, message: &str) -> Results {
    several(lua, (false, message))
}

/// Schemas that plugins of users refer to.
fn definitions() -> [(&'static str, Json); 6] {
    let host = r"^\*?[0-9a-zA-Z-._\[\]:]+$";
    let id = r"^[a-zA-Z0-9-_.]+$";
    [
        ("host_def_pat", json!(host)),
        ("host_def", json!({"type": "string", "pattern": host})),
        (
            "ip_def",
            json!([
                {"type": "string", "title": "IPv4", "format": "ipv4"},
                {"type": "string", "title": "IPv6", "format": "ipv6"}
            ]),
        ),
        (
            "uri_def",
            json!({"type": "string", "pattern": r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?"}),
        ),
        (
            "id_schema",
            json!({"anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 64, "pattern": id},
                {"type": "integer", "minimum": 1}
            ]}),
        ),
        (
            "labels_def",
            json!({"type": "object", "patternProperties": {
                ".*": {"type": "string", "pattern": r"^\S+$", "maxLength": 256, "minLength": 1}
            }}),
        ),
    ]
}

/// Compiled schemas by their tables, for as long as the tables live.
struct Compiled {
    by_table: Table,
    /// Schemas since all were dropped.
    count: Cell<usize>,
}

impl Compiled {
    fn new(lua: &Lua) -> mlua::Result<Compiled> {
        let by_table = lua.create_table()?;
        let weak = lua.create_table()?;
        weak.raw_set("__mode", "k")?;
        by_table.set_metatable(Some(weak))?;
        Ok(Compiled { by_table, count: Cell::new(0) })
    }

    fn of(&self, lua: &Lua, table: &Table) -> Result<Rc<Schema>, String> {
        let text = |error: mlua::Error| error.to_string();
        if let Value::UserData(known) = self.by_table.raw_get(table).map_err(text)? {
            return known.borrow::<Rc<Schema>>().map(|schema| Rc::clone(&schema)).map_err(text);
        }
        let schema = Rc::new(Schema::compile(&schema_of(&Value::Table(table.clone()))?)?);
        if self.count.replace(self.count.get() + 1) >= MOST_SCHEMAS {
            self.by_table.clear().map_err(text)?;
            self.count.set(1);
        }
        let kept: AnyUserData = lua.create_any_userdata(Rc::clone(&schema)).map_err(text)?;
        self.by_table.raw_set(table, kept).map_err(text)?;
        Ok(schema)
    }
}

/// The most levels of a schema or a value: each takes room on the stack of the thread, which has no other limit.
const MOST_LEVELS: usize = 100;

/// A schema as a document.
///
/// # Errors
/// Returns a message for values that JSON does not have, and for too many levels.
pub(crate) fn schema_of(value: &Value) -> Result<Json, String> {
    to_json(value).map(with_lists)
}

/// A schema whose empty lists are arrays: an empty table of Lua does not say which it is.
fn with_lists(schema: Json) -> Json {
    match schema {
        Json::Object(members) => Json::Object(
            members
                .into_iter()
                .map(|(name, member)| match &member {
                    Json::Object(inner) if inner.is_empty() && LISTS.contains(&name.as_str()) => {
                        (name, Json::Array(Vec::new()))
                    }
                    _ => (name, with_lists(member)),
                })
                .collect(),
        ),
        Json::Array(items) => Json::Array(items.into_iter().map(with_lists).collect()),
        other => other,
    }
}

/// The most values of one document.
const MOST_VALUES: usize = 100_000;

/// The JSON value of a Lua value; an empty table becomes an object.
///
/// # Errors
/// Returns a message for values that JSON does not have.
pub(crate) fn to_json(value: &Value) -> Result<Json, String> {
    Reading { left: MOST_VALUES }.value(value, 1)
}

/// The reading of one value.
struct Reading {
    /// Further values. A table that is named twice counts twice.
    left: usize,
}

impl Reading {
    fn value(&mut self, value: &Value, depth: usize) -> Result<Json, String> {
        if depth > MOST_LEVELS {
            return Err("the tables are nested too deeply".to_owned());
        }
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| format!("the table has more than {MOST_VALUES} values"))?;
        match value {
            Value::Nil => Ok(Json::Null),
            Value::Boolean(value) => Ok(Json::Bool(*value)),
            Value::Integer(number) => Ok(Json::from(*number)),
            Value::Number(number) => Ok(json_number(*number)),
            Value::String(text) => Ok(Json::String(text.to_string_lossy())),
            Value::Table(table) => self.table(table, depth),
            null if crate::ngx::is_null(null) => Ok(Json::Null),
            other => Err(format!("wrong type: {}", type_name(other))),
        }
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<Json, String> {
        let length = table.raw_len();
        let mut members = Map::new();
        let mut is_list = length > 0;
        let mut items = vec![Json::Null; length];
        for pair in table.pairs::<Value, Value>() {
            let (name, member) = pair.map_err(|error| error.to_string())?;
            let member = self.value(&member, depth + 1)?;
            let place = name.as_usize().and_then(|place| place.checked_sub(1));
            if let Some(item) = place.and_then(|place| items.get_mut(place)) {
                *item = member.clone();
            } else {
                is_list = false;
            }
            let name = name.to_string().map_err(|error| message_of(&error))?;
            members.insert(name, member);
        }
        Ok(if is_list { Json::Array(items) } else { Json::Object(members) })
    }
}

fn json_number(number: f64) -> Json {
    // Whole numbers are integers, as far as a double has them exactly.
    if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
        return Json::from(number as i64);
    }
    Number::from_f64(number).map_or(Json::Null, Json::Number)
}

/// Adds the members that a table lacks.
fn fill(lua: &Lua, table: &Table, value: &Json) -> mlua::Result<()> {
    check_own(lua, table).map_err(mlua::Error::runtime)?;
    match value {
        Json::Object(members) => {
            for (name, member) in members {
                match table.raw_get::<Value>(name.as_str())? {
                    Value::Table(inner) => fill(lua, &inner, member)?,
                    // Keys that are numbers are no names of members.
                    Value::Nil if name.parse::<f64>().is_err() => {
                        table.raw_set(name.as_str(), super::to_lua(lua, member)?)?;
                    }
                    _ => {}
                }
            }
        }
        Json::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                if let Value::Table(inner) = table.raw_get(place + 1)? {
                    fill(lua, &inner, item)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::snippets::{output_of, said_on_worker};

    #[test]
    fn values_are_checked_and_filled() {
        let schema = "{type = 'object', required = {'a'}, properties = {a = {type = 'string'}, n = {type = 'integer', default = 7, minimum = 1}, \
                      l = {type = 'array', items = {type = 'object', properties = {x = {type = 'boolean', default = true}}}}, o = {type = 'object', default = {}, properties = {y = {type = 'number', default = 1.5}}}}}";
        for (value, expected) in [
            (
                "{a = 'x', l = {{}, {x = false}}}",
                r#"true{"a":"x","l":[{"x":true},{"x":false}],"n":7,"o":{"y":1.5}}"#,
            ),
            ("{a = 'x', n = 2, l = {}}", r#"true{"a":"x","l":{},"n":2,"o":{"y":1.5}}"#),
            ("{n = 2}", r#"falseproperty "a" is required"#),
            ("{a = 1}", r#"falseproperty "a" validation failed: wrong type: expected string, got number"#),
            ("{a = 'x', n = 0}", r#"falseproperty "n" validation failed: expected 0 to be at least 1"#),
            ("{a = print}", "falsewrong type: function"),
            (
                "(function() local t = {} for i = 1, 40 do t = {t, t} end return t end)()",
                "falsethe table has more than 100000 values",
            ),
            ("'x'", "falsewrong type: expected object, got string"),
        ] {
            let body = format!(
                "local core = require('apisix.core') local v = {value} local ok, err = core.schema.check({schema}, v) ngx.print(ok, ok and core.json.canonical_encode(v) or err)"
            );
            let said = said_on_worker(&serde_json::json!({}), &body);
            assert_eq!(said, format!("200 {expected}"), "{value}");
        }
    }

    #[test]
    fn schemas_are_compiled_once_and_may_be_wrong() {
        for (body, expected) in [
            (
                "local s = {type = 'string'} ngx.print(core.schema.check(s, 'x'), core.schema.check(s, 1))",
                "truefalsewrong type: expected string, got number",
            ),
            ("ngx.print(core.schema.check({type = 'object', required = {}}, {}))", "true"),
            ("ngx.print((core.schema.check({type = 'string', pattern = '('}, 'x')))", "false"),
            (
                "ngx.print(core.schema.TYPE_CONSUMER, core.schema.TYPE_METADATA, core.schema.host_def.type)",
                "12string",
            ),
            (
                "local s = {default = {}} for i = 1, 20 do core.schema.check({type = 'number'}, i) end ngx.print('made')",
                "made",
            ),
        ] {
            assert_eq!(output_of(&format!("local core = require('apisix.core') {body}")), expected, "{body}");
        }
    }
}
