//! The configuration reference, made from the same schema that files are checked against.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::forms;
use crate::schema;

/// The JSON schema of a configuration in its full form (no shorthand), draft 2020-12.
#[must_use]
pub fn schema() -> Value {
    schema::schema().clone()
}

/// The reference as Markdown: one table per object, in a fixed order.
///
/// Types are named in words: the names of Rust's types mean nothing to who writes a file.
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
    /// Spelt out wherever it is used.
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

/// `NiubixAdmin` as `Niubix admin`.
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

/// The words of an enumeration, each with its meaning.
fn words_of(definition: &Value) -> Vec<(&str, &str)> {
    let branches = definition.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    branches.chain(std::iter::once(definition)).flat_map(words_of_branch).collect()
}

fn words_of_branch(branch: &Value) -> impl Iterator<Item = (&str, &str)> {
    let meaning = branch.get("description").and_then(Value::as_str).unwrap_or_default();
    let constant = branch.get("const").into_iter();
    let several = branch.get("enum").and_then(Value::as_array).into_iter().flatten();
    constant.chain(several).filter_map(move |word| Some((word.as_str()?, meaning)))
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

/// The type of a property of any JSON schema in words, as [`reference_markdown`] has it.
#[must_use]
pub fn type_in_words(property: &Value) -> String {
    type_of(property)
}

fn type_of(property: &Value) -> String {
    let Some(object) = property.as_object() else { return "any".to_owned() };
    if let Some(name) = object.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
        return reference(name);
    }
    // Beside a type they are conditions.
    for key in ["anyOf", "oneOf"].into_iter().filter(|_| !object.contains_key("type")) {
        if let Some(branches) = object.get(key).and_then(Value::as_array) {
            let mut kinds: Vec<String> = branches.iter().map(type_of).filter(|name| name != "null").collect();
            // A form that is said in several ways is said once.
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
    either(names.into_iter().filter(|name| !several || *name != "null").map(|name| simple(name, object)))
}

/// A definition: a link to its table, or what it is.
fn reference(name: &str) -> String {
    let Some(definition) = schema::definitions().and_then(|all| all.get(name)) else {
        return "any".to_owned();
    };
    match form_of(definition) {
        DefinitionForm::Inline => type_of(definition),
        DefinitionForm::Object | DefinitionForm::Words => {
            let title = title_of(name).to_lowercase();
            format!("[{title}](#{})", title.replace(' ', "-"))
        }
    }
}

/// Each kind of value once.
fn either(kinds: impl Iterator<Item = String>) -> String {
    let mut shown: Vec<String> = Vec::new();
    for kind in kinds {
        if !shown.contains(&kind) {
            shown.push(kind);
        }
    }
    shown.join(" or ")
}

/// A value of one of JSON's types.
fn simple(name: &str, property: &Map<String, Value>) -> String {
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

/// `integer from 1` as `integers from 1`; a link stays as it is.
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

/// Text for one table cell.
#[must_use]
pub fn cell(text: &str) -> String {
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

    /// The reference has the names of the file, not those of the code.
    #[test]
    fn no_name_of_a_rust_type_is_shown() {
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
