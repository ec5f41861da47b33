//! YAML text of a built document.

use serde_json::Value;

/// Returns the document as YAML, with a line of its origin.
///
/// # Errors
/// Returns a sentence if the document has no form in YAML, or a text that would begin an environment variable.
pub fn text(document: &Value, origin: &str, format: &str) -> Result<String, String> {
    let origin: String = origin.chars().map(|char| if char.is_control() { '?' } else { char }).collect();
    if let Some(found) = variable(document) {
        return Err(format!(
            "`{found}` has `${{{{`, which would begin an environment variable; change the source"
        ));
    }
    let text = serde_norway::to_string(document).map_err(|error| error.to_string())?;
    Ok(format!("# Converted from {origin} by `sigma import {format}`.\n{text}"))
}

/// A text in the value with the beginning of an environment variable.
fn variable(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => text.contains("${{").then_some(text),
        Value::Array(list) => list.iter().find_map(variable),
        Value::Object(map) => map.values().find_map(variable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_keep_their_type() {
        let yaml = text(&json!({"a": "yes", "b": "1e5", "c": 2}), "a\nb.conf", "nginx").expect("a document");
        assert!(yaml.starts_with("# Converted from a?b.conf by `sigma import nginx`.\n"), "{yaml}");
        let read: Value = serde_norway::from_str(&yaml).expect("YAML");
        assert_eq!(read, json!({"a": "yes", "b": "1e5", "c": 2}));
        assert!(text(&json!(["${{HOME}}"]), "a", "nginx").is_err());
    }
}
