//! Environment variables in a document: `${{NAME}}`, `${{NAME:=default}}`.
//!
//! Substitution follows parsing, so that a value can never change the structure around it.

use serde_json::{Map, Value};

use crate::document::Document;
use crate::problem::{Problem, element, member};

/// Replaces every variable in the keys and string values of `document` by what `lookup` says.
/// A value that a variable was used in and that then reads as a number, `true` or `false` becomes
/// one.
pub fn substitute(document: &mut Document, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<Problem> {
    let mut value = std::mem::take(&mut document.value);
    let mut pass = Pass { document, lookup, problems: Vec::new() };
    pass.value(&mut value, "");
    let problems = pass.problems;
    document.value = value;
    problems
}

struct Pass<'a> {
    document: &'a Document,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<Problem>,
}

impl Pass<'_> {
    fn value(&mut self, value: &mut Value, pointer: &str) {
        match value {
            Value::String(text) => {
                if let Some(replaced) = self.text(text, pointer) {
                    *value = typed(replaced);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.value(item, &element(pointer, index));
                }
            }
            Value::Object(map) => self.object(map, pointer),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn object(&mut self, map: &mut Map<String, Value>, pointer: &str) {
        let variable_keys = map.keys().any(|key| key.contains("${{"));
        for (key, value) in map.iter_mut() {
            self.value(value, &member(pointer, key));
        }
        if !variable_keys {
            return;
        }
        for (key, value) in std::mem::take(map) {
            let place = member(pointer, &key);
            let key = self.text(&key, &place).unwrap_or(key);
            if map.insert(key.clone(), value).is_some() {
                let message =
                    format!("with its variables replaced this key is `{key}`, which is given twice");
                self.problems
                    .push(self.document.problem(&place, "duplicate_key", message).hint("remove one"));
            }
        }
    }

    /// The text with its variables replaced; `None` if it has none.
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

fn typed(text: String) -> Value {
    match text.as_str() {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => match serde_json::from_str::<serde_json::Number>(&text) {
            Ok(number) => Value::Number(number),
            Err(_) => Value::String(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "PORT" => Some("9080".into()),
            "HOST" => Some("example.com".into()),
            "TRUE" => Some("true".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced() {
        let check = |written: serde_json::Value, expected: serde_json::Value| {
            let mut document = Document { value: written, ..Document::default() };
            assert_eq!(substitute(&mut document, &lookup), []);
            assert_eq!(document.value, expected);
        };
        check(json!("${{PORT}}"), json!(9080));
        check(json!("${{ TRUE }}"), json!(true));
        check(json!("http://${{HOST}}:${{PORT}}"), json!("http://example.com:9080"));
        check(json!("${{NONE:=7}}"), json!(7));
        check(json!("${{NONE := a b }}"), json!("a b"));
        check(json!("${{NONE:=}}"), json!(""));
        check(json!("${{EMPTY:=x}}"), json!(""));
        check(json!("9080"), json!("9080"));
        check(json!("${{open"), json!("${{open"));
        check(json!({"${{HOST}}:80": ["${{PORT}}"]}), json!({"example.com:80": [9080]}));
    }

    #[test]
    fn a_missing_variable_is_reported_with_its_line() {
        let mut document = Document::parse("a: 1\nb:\n  - ${{NOPE}} ${{NADA}}\n", 100).unwrap();
        let problems = substitute(&mut document, &lookup);
        assert_eq!(problems.len(), 2);
        assert_eq!((problems[0].pointer.as_str(), problems[0].line), ("b[0]", Some(3)));
        assert_eq!(problems[0].message, "can't find environment variable NOPE");
        assert_eq!(problems[0].hint.as_deref(), Some("set it, or give a default: ${{NOPE:=value}}"));
    }
}
