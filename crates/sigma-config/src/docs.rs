//! The configuration reference, generated from the schema that also checks files.

use std::fmt::Write;

use serde_json::Value;
use sigma_schema::docs::{cell, type_with_references, words_of};

use crate::schema;

/// Returns the JSON schema of a configuration in its full form (no shorthand), draft 2020-12.
#[must_use]
pub fn schema() -> Value {
    schema::schema().clone()
}

/// Returns the reference as Markdown: one table per object, in a fixed order.
///
/// Types are described in words, because authors of files do not know the names of Rust types.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Configuration reference\n\nOne file, YAML or JSON. `${{NAME}}` and `${{NAME:=default}}` take environment variables. YAML's anchors and aliases work; its merge keys (`<<`) do not.\n",
    );
    section(&mut out, "Top level", schema::schema());
    for (name, definition) in schema::definitions().into_iter().flatten() {
        match form_of(definition) {
            DefinitionForm::Object => section(&mut out, &title_of(name), definition),
            DefinitionForm::Words => words(&mut out, &title_of(name), definition),
            DefinitionForm::Inline => {}
        }
    }
    out
}

/// How a definition is shown.
enum DefinitionForm {
    /// A table of its keys.
    Object,
    /// A table of its words.
    Words,
    /// The type in words wherever it is used.
    Inline,
}

fn form_of(definition: &Value) -> DefinitionForm {
    if definition.get("properties").is_some() {
        DefinitionForm::Object
    } else if words_of(definition).len() > 1 {
        DefinitionForm::Words
    } else {
        DefinitionForm::Inline
    }
}

/// Turns `NiubixAdmin` into `Niubix admin`.
fn title_of(name: &str) -> String {
    let mut title = String::with_capacity(name.len() + 2);
    for letter in name.chars() {
        if letter.is_uppercase() && !title.is_empty() {
            title.push(' ');
            title.extend(letter.to_lowercase());
        } else {
            title.push(letter);
        }
    }
    title
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
            // Objects have their own tables.
            Some(Value::Object(_)) => "see its table".to_owned(),
            Some(value) => format!("`{}`", cell(&value.to_string())),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| `{key}` | {} | {default} | {} |",
            cell(&type_with_references(property, &reference)),
            cell(property.get("description").and_then(Value::as_str).unwrap_or_default())
        );
    }
}

fn words(out: &mut String, title: &str, definition: &Value) {
    heading(out, title, definition);
    out.push_str("| word | meaning |\n|---|---|\n");
    for (word, meaning) in words_of(definition) {
        let _ = writeln!(out, "| `{word}` | {} |", cell(meaning));
    }
}

fn heading(out: &mut String, title: &str, object: &Value) {
    let _ = write!(out, "\n## {title}\n\n");
    if let Some(text) = object.get("description").and_then(Value::as_str) {
        let _ = write!(out, "{text}\n\n");
    }
}

/// Returns a link to the table of a definition, or its type in words.
fn reference(name: &str) -> String {
    let Some(definition) = schema::definitions().and_then(|all| all.get(name)) else {
        return "any".to_owned();
    };
    match form_of(definition) {
        DefinitionForm::Inline => type_with_references(definition, &reference),
        DefinitionForm::Object | DefinitionForm::Words => {
            let title = title_of(name).to_lowercase();
            format!("[{title}](#{})", title.replace(' ', "-"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_names_every_key_with_its_default() {
        let reference = reference_markdown();
        assert_eq!(reference, reference_markdown());
        for line in [
            "| `request_line_bytes` | integer from 0 | `8192` |",
            "| `priority` | integer | `0` |",
            "| `roundrobin` | Weighted round robin. |",
            "| `upstream_id` | string or integer from 1 |",
            "| `workers` | integer 1 to 65535 or `auto` | `\"auto\"` |",
            "| `nodes` | object of integers from 0 or list of [node](#node) |",
            "| `http` | [router kind](#router-kind) |",
            "| `hosts` | list of strings (host pattern) |",
            "## Access log\n",
        ] {
            assert!(reference.contains(line), "{line}\n{reference}");
        }
    }

    /// The reference has the names of the file, not of the code.
    #[test]
    fn names_of_rust_types_are_not_shown() {
        let reference = reference_markdown();
        for name in schema::definitions().into_iter().flatten().map(|(name, _)| name) {
            let several_words = name.chars().skip(1).any(char::is_uppercase);
            assert!(!several_words || !reference.contains(name.as_str()), "{name}");
        }
        for link in reference.split("](#").skip(1).filter_map(|rest| rest.split_once(')')) {
            let heading = format!("\n## {}\n", link.0.replace('-', " "));
            assert!(reference.to_lowercase().contains(&heading), "{heading}");
        }
    }
}
