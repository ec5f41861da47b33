//! Arguments of a query, or of a form, as an object.

use serde_json::{Map, Value};
use sigma_plugin::variables::pairs;

/// Arguments by their names: a text each, `true` for one without a value, a list where there are several.
///
/// # Errors
/// Returns an error, which is a sentence, if there are more than `most`, or one is no UTF-8.
pub(crate) fn read(query: &[u8], most: usize) -> Result<Value, String> {
    if pairs(query).count() > most {
        return Err(format!("more than {most} values"));
    }
    let mut fields = Map::new();
    for (name, value) in pairs(query) {
        let value = match &value {
            Some(value) => text(value)?.into(),
            None => Value::Bool(true),
        };
        add(&mut fields, text(&name)?, value);
    }
    Ok(Value::Object(fields))
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// Adds a value; several of one name are a list.
pub(crate) fn add(fields: &mut Map<String, Value>, name: &str, value: Value) {
    match fields.get_mut(name) {
        None => drop(fields.insert(name.to_owned(), value)),
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
}
