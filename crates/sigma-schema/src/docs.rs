//! English descriptions of JSON schema parts, for the references of settings, resources and plugins.

use serde_json::{Map, Value};

use crate::forms;

/// Returns the type of a property in words: "list of integers from 1". A reference (`$ref`) is "any".
#[must_use]
pub fn type_in_words(property: &Value) -> String {
    type_with_references(property, &|_| "any".to_owned())
}

/// Returns the type of a property in words. `reference` returns the words for the name of a definition.
pub fn type_with_references(property: &Value, reference: &dyn Fn(&str) -> String) -> String {
    let type_of = |property: &Value| type_with_references(property, reference);
    let Some(object) = property.as_object() else { return "any".to_owned() };
    if let Some(name) = object.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
        return reference(name);
    }
    // Next to a type they are conditions.
    for key in ["anyOf", "oneOf"].into_iter().filter(|_| !object.contains_key("type")) {
        if let Some(branches) = object.get(key).and_then(Value::as_array) {
            let mut kinds: Vec<String> = branches.iter().map(type_of).filter(|name| name != "null").collect();
            // A form that has several notations is listed once.
            if kinds.iter().any(|kind| kind.starts_with("string (")) {
                kinds.retain(|kind| kind != "string");
            }
            return either(kinds.into_iter());
        }
    }
    let words = words_of(property);
    if !words.is_empty() {
        return either(words.into_iter().map(|(word, _)| format!("`{word}`")));
    }
    let names: Vec<&str> = match object.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => return "any".to_owned(),
    };
    let several = names.len() > 1;
    either(
        names
            .into_iter()
            .filter(|name| !several || *name != "null")
            .map(|name| simple(name, object, &type_of)),
    )
}

/// Returns the words of an enumeration, each with its meaning.
pub fn words_of(definition: &Value) -> Vec<(&str, &str)> {
    let branches = definition.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    branches.chain(std::iter::once(definition)).flat_map(words_of_branch).collect()
}

fn words_of_branch(branch: &Value) -> impl Iterator<Item = (&str, &str)> {
    let meaning = branch.get("description").and_then(Value::as_str).unwrap_or_default();
    let constant = branch.get("const").into_iter();
    let several = branch.get("enum").and_then(Value::as_array).into_iter().flatten();
    constant.chain(several).filter_map(move |word| Some((word.as_str()?, meaning)))
}

/// Joins the kinds without repetition.
fn either(kinds: impl Iterator<Item = String>) -> String {
    let mut shown: Vec<String> = Vec::new();
    for kind in kinds {
        if !shown.contains(&kind) {
            shown.push(kind);
        }
    }
    shown.join(" or ")
}

/// Describes a value with one JSON type.
fn simple(name: &str, property: &Map<String, Value>, type_of: &dyn Fn(&Value) -> String) -> String {
    let text = |key: &str| property.get(key).and_then(Value::as_str);
    match name {
        "array" => match property.get("items") {
            Some(items) => format!("list of {}", plural(&type_of(items))),
            None => "list".to_owned(),
        },
        "object" => match property
            .get("additionalProperties")
            .or_else(|| property.get("patternProperties")?.get(".*"))
            .filter(|values| values.is_object())
        {
            Some(values) if type_of(values) != "any" => format!("object of {}", plural(&type_of(values))),
            _ => "object".to_owned(),
        },
        "string" => {
            let form = text("format").and_then(forms::of_format);
            let form = form.or_else(|| text("pattern").and_then(forms::of_pattern));
            match form.and_then(|form| form.shown) {
                Some(form) => format!("string ({form})"),
                None => "string".to_owned(),
            }
        }
        "integer" | "number" => format!("{name}{}", range_of(property)),
        other => other.to_owned(),
    }
}

/// Turns `integer from 1` into `integers from 1`; a link stays as it is.
fn plural(kind: &str) -> String {
    let nouns = ["string", "integer", "number", "boolean", "object", "list"];
    match nouns.iter().find_map(|noun| Some((noun, kind.strip_prefix(noun)?))) {
        Some((noun, rest)) => format!("{noun}s{rest}"),
        None => kind.to_owned(),
    }
}

fn range_of(property: &Map<String, Value>) -> String {
    let bound = |key: &str| property.get(key).filter(|bound| bound.as_f64().is_some_and(|b| b.abs() < 1e9));
    match (bound("minimum"), bound("maximum"), bound("exclusiveMinimum")) {
        (Some(low), Some(high), _) => format!(" {low} to {high}"),
        (Some(low), None, _) => format!(" from {low}"),
        (None, _, Some(low)) => format!(" more than {low}"),
        _ => String::new(),
    }
}

/// Returns text for one table cell.
#[must_use]
pub fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}
