//! Environment variables in a document: `${{NAME}}`, `${{NAME:=default}}`.
//!
//! Substitution follows parsing, so that a value can never change the structure around it. The field determines the
//! type of the result: a key of digits stays a text. The YAML quotes decide only if the field accepts texts and
//! numbers, or if no schema has the field.

mod wanted;

use serde_json::{Map, Value};

use sigma_schema::document::Document;
use sigma_schema::plugins::PluginSchemas;
use sigma_schema::problem::{Problem, element, member};
use wanted::{FieldType, Fields};

/// The content of a document, which determines the types of its fields.
#[derive(Clone, Copy)]
pub(crate) enum Holds<'a> {
    /// A file, with the plugins of this build.
    File(&'a dyn PluginSchemas),
    /// One resource of an unknown kind.
    Resource(&'a dyn PluginSchemas),
    /// A format without a schema: texts that look like numbers or booleans are converted.
    Foreign,
}

/// Replaces every variable in the keys and string values of `document` by the result of `lookup`.
pub(crate) fn substitute(
    document: &mut Document,
    holds: Holds<'_>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Vec<Problem> {
    if !has_variables(&document.value) {
        return Vec::new();
    }
    let mut value = std::mem::take(&mut document.value);
    let written = value.clone();
    let attributes = wanted::attributes(&written, holds);
    let fields = Fields::of(holds, &attributes);
    let mut pass =
        Pass { document, lookup, problems: Vec::new(), is_foreign: matches!(holds, Holds::Foreign) };
    pass.value(&mut value, "", &fields);
    let problems = pass.problems;
    document.value = value;
    problems
}

fn has_variables(value: &Value) -> bool {
    let is_one = |text: &str| text.contains("${{");
    match value {
        Value::String(text) => is_one(text),
        Value::Array(items) => items.iter().any(has_variables),
        Value::Object(map) => map.iter().any(|(key, value)| is_one(key) || has_variables(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

struct Pass<'a> {
    document: &'a Document,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<Problem>,
    is_foreign: bool,
}

impl Pass<'_> {
    fn value(&mut self, value: &mut Value, pointer: &str, fields: &Fields<'_>) {
        match value {
            Value::String(text) => {
                if let Some(replaced) = self.text(text, pointer) {
                    *value = self.typed(replaced, pointer, fields.wanted());
                }
            }
            Value::Array(items) => {
                let fields: Vec<Fields<'_>> =
                    items.iter().enumerate().map(|(at, item)| fields.item(at, item)).collect();
                for (index, (item, fields)) in items.iter_mut().zip(&fields).enumerate() {
                    self.value(item, &element(pointer, index), fields);
                }
            }
            Value::Object(map) => self.object(map, pointer, fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn object(&mut self, map: &mut Map<String, Value>, pointer: &str, fields: &Fields<'_>) {
        let variable_keys = map.keys().any(|key| key.contains("${{"));
        for (key, value) in map.iter_mut() {
            let fields = fields.member(key, value);
            self.value(value, &member(pointer, key), &fields);
        }
        if !variable_keys {
            return;
        }
        for (key, value) in std::mem::take(map) {
            let place = member(pointer, &key);
            let key = self.text(&key, &place).unwrap_or(key);
            if map.insert(key.clone(), value).is_some() {
                let message = format!("after its variables are replaced, the key `{key}` exists twice");
                self.problems
                    .push(self.document.problem(&place, "duplicate_key", message).hint("remove one"));
            }
        }
    }

    /// Returns the value of a text after substitution.
    fn typed(&self, text: String, pointer: &str, wanted: FieldType) -> Value {
        let is_plain = self.is_foreign || self.document.plain.contains(pointer);
        let may_be_typed = match wanted {
            FieldType::Text => false,
            FieldType::Scalar => true,
            FieldType::Any => is_plain,
        };
        if may_be_typed { scalar(text) } else { Value::String(text) }
    }

    /// Returns the text after substitution; `None` without a variable.
    fn text(&mut self, text: &str, pointer: &str) -> Option<String> {
        let mut out = String::new();
        let mut rest = text;
        let mut used = false;
        while let Some((before, after)) = rest.split_once("${{") {
            let Some((inside, after)) = after.split_once("}}") else { break };
            out.push_str(before);
            rest = after;
            used = true;
            let (name, default) = match inside.split_once(":=") {
                Some((name, default)) => (name.trim(), Some(default.trim())),
                None => (inside.trim(), None),
            };
            match ((self.lookup)(name), default) {
                (Some(value), _) => out.push_str(&value),
                (None, Some(default)) => out.push_str(default),
                (None, None) => self.missing(name, pointer),
            }
        }
        out.push_str(rest);
        used.then_some(out)
    }

    fn missing(&mut self, name: &str, pointer: &str) {
        let message = format!("can't find environment variable {name}");
        let hint = format!("set it, or give a default: ${{{{{name}:=value}}}}");
        self.problems.push(self.document.problem(pointer, "environment", message).hint(hint));
    }
}

/// Converts a text to a number or a boolean, if it is one. A number that cannot be stored exactly stays a text.
fn scalar(text: String) -> Value {
    match text.as_str() {
        "true" => return Value::Bool(true),
        "false" => return Value::Bool(false),
        _ => {}
    }
    let is_integer = text.strip_prefix('-').unwrap_or(&text).bytes().all(|b| b.is_ascii_digit());
    match serde_json::from_str::<serde_json::Number>(&text) {
        Ok(number) if !(is_integer && number.is_f64()) => Value::Number(number),
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests;
