//! The configuration reference, made from the same schema that files are checked against.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::schema;

/// The JSON schema of a configuration in its full form (no shorthand), draft 2020-12.
#[must_use]
pub fn schema() -> Value {
    schema::schema().clone()
}

/// The reference as Markdown: one table per object, in a fixed order.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Configuration reference\n\nOne file, YAML or JSON. `${{NAME}}` and `${{NAME:=default}}` take environment variables.\n",
    );
    section(&mut out, "Top level", schema::schema());
    for (name, definition) in schema::definitions().into_iter().flatten() {
        if definition.get("properties").is_some() {
            section(&mut out, name, definition);
        } else if definition.get("oneOf").is_some() {
            words(&mut out, name, definition);
        }
    }
    out
}

fn section(out: &mut String, title: &str, object: &Value) {
    heading(out, title, object);
    out.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
    let required: Vec<&str> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (key, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let default = match property.get("default") {
            _ if required.contains(&key.as_str()) => "required".to_owned(),
            None | Some(Value::Null) => "–".to_owned(),
            // Whole objects are explained by their own tables.
            Some(Value::Object(_)) => "see its table".to_owned(),
            Some(value) => format!("`{}`", cell(&value.to_string())),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| `{key}` | {} | {default} | {} |",
            cell(&type_of(property)),
            cell(property.get("description").and_then(Value::as_str).unwrap_or_default())
        );
    }
}

fn words(out: &mut String, title: &str, definition: &Value) {
    heading(out, title, definition);
    out.push_str("| word | meaning |\n|---|---|\n");
    for branch in definition.get("oneOf").and_then(Value::as_array).into_iter().flatten() {
        let meaning = branch.get("description").and_then(Value::as_str).unwrap_or_default();
        let constant = branch.get("const").into_iter();
        let several = branch.get("enum").and_then(Value::as_array).into_iter().flatten();
        for word in constant.chain(several).filter_map(Value::as_str) {
            let _ = writeln!(out, "| `{word}` | {} |", cell(meaning));
        }
    }
}

fn heading(out: &mut String, title: &str, object: &Value) {
    let _ = write!(out, "\n## {title}\n\n");
    if let Some(text) = object.get("description").and_then(Value::as_str) {
        let _ = write!(out, "{text}\n\n");
    }
}

fn type_of(property: &Value) -> String {
    let Some(property) = property.as_object() else { return "any".to_owned() };
    if let Some(name) = property.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next())
    {
        return format!("[{name}](#{})", name.to_ascii_lowercase());
    }
    if let Some(branches) = property.get("anyOf").and_then(Value::as_array) {
        let shown: Vec<String> = branches.iter().map(type_of).filter(|name| name != "null").collect();
        return shown.join(" or ");
    }
    let mut names: Vec<String> = match property.get("type") {
        Some(Value::String(name)) => vec![name.clone()],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => return "any".to_owned(),
    };
    if names.len() > 1 {
        names.retain(|name| name != "null");
    }
    let mut shown = names.join(" or ");
    if let Some(items) = property.get("items") {
        shown = format!("list of {}", type_of(items));
    }
    shown + &range_of(property)
}

fn range_of(property: &Map<String, Value>) -> String {
    let bound = |key: &str| property.get(key).filter(|bound| bound.as_f64().is_some_and(|b| b.abs() < 1e9));
    match (bound("minimum"), bound("maximum"), bound("exclusiveMinimum")) {
        (Some(low), Some(high), _) => format!(", {low} to {high}"),
        (Some(low), None, _) => format!(", from {low}"),
        (None, _, Some(low)) => format!(", more than {low}"),
        _ => String::new(),
    }
}

/// Text for one table cell.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_names_every_key_with_its_default() {
        let reference = reference_markdown();
        assert_eq!(reference, reference_markdown());
        for line in [
            "| `request_line_bytes` | integer, from 0 | `8192` |",
            "| `priority` | integer | `0` |",
            "| `roundrobin` | Weighted round robin. |",
            "| `upstream_id` | [Id](#id) |",
        ] {
            assert!(reference.contains(line), "{line}\n{reference}");
        }
    }
}
