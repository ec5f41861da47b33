//! Converts JSON as APISIX accepts it to JSON as the types read it.
//!
//! APISIX is lenient where Lua is: `1.0` is an integer, and the empty object equals the empty list.

use std::borrow::Cow;

use serde_json::Value;

/// Returns `value` in the form that its type reads; borrowed if it has that form already.
pub fn conform<'v>(value: &'v Value, schema: &Value) -> Cow<'v, Value> {
    if !is_loose(value) {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    integers(&mut value);
    containers(&mut value, schema);
    Cow::Owned(value)
}

/// Returns whether any part of `value` may need a change.
fn is_loose(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.is_empty() || items.iter().any(is_loose),
        Value::Object(map) => map.is_empty() || map.values().any(is_loose),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

fn integers(value: &mut Value) {
    // 2^53: below it every integer has one float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < EXACT);
            if let Some(float) = float {
                *value = Value::from(float as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(integers),
        Value::Object(map) => map.values_mut().for_each(integers),
        _ => {}
    }
}

/// Turns an empty container into the type that the schema names first.
fn containers(value: &mut Value, schema: &Value) {
    let wanted = schema.get("type").and_then(Value::as_str);
    match value {
        Value::Array(items) if items.is_empty() && wanted == Some("object") => {
            *value = Value::Object(serde_json::Map::new());
        }
        Value::Object(map) if map.is_empty() && wanted == Some("array") => *value = Value::Array(Vec::new()),
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, schema) in properties.into_iter().flatten() {
                if let Some(member) = map.get_mut(name) {
                    containers(member, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| containers(item, schema));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_equal_in_lua_become_equal() {
        let schema = &json!({
            "type": "object",
            "properties": { "plugins": { "type": "object" }, "vars": { "type": "array" } },
        });
        let loose = json!({ "priority": 1.0, "plugins": [], "vars": {}, "timeout": { "read": 0.5 } });
        let conformed = json!({ "priority": 1, "plugins": {}, "vars": [], "timeout": { "read": 0.5 } });
        assert_eq!(*conform(&loose, schema), conformed);
        let strict = json!({ "uri": "/a", "priority": 1 });
        assert!(matches!(conform(&strict, schema), Cow::Borrowed(_)));
    }
}
