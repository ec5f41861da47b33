//! `post_arg.<path>`: a field of a request body that is JSON, a form, or multipart.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use super::VarValue;
use crate::json_path::JsonPath;

/// The path of a field in a structured body, as APISIX writes it: names joined by dots, or a JSONPath, whose value is a
/// list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BodyField {
    written: String,
    path: JsonPath,
}

impl BodyField {
    /// The prefix of such variables.
    pub const PREFIX: &str = "post_arg.";

    /// Parses a path. Returns None if it is invalid.
    #[must_use]
    pub fn parse(written: &str) -> Option<BodyField> {
        // In `post_arg..a` the first of the two dots is part of the prefix.
        let path = match written.as_bytes().first() {
            Some(b'.') => format!("$.{written}"),
            Some(b'[') => format!("${written}"),
            _ => written.to_owned(),
        };
        Some(BodyField { written: written.to_owned(), path: JsonPath::parse(&path).ok()? })
    }

    /// Returns the value in a body, or None if it is absent or `null`.
    #[must_use]
    pub fn value(&self, body: &Value) -> Option<VarValue<'static>> {
        let found = self.path.find(body);
        if self.is_search() {
            return (!found.is_empty()).then(|| list(found));
        }
        match found.first()? {
            Value::Null => None,
            Value::Bool(truth) => Some(VarValue::Bool(*truth)),
            Value::Array(items) => Some(list(items)),
            single => Some(VarValue::Text(text(single))),
        }
    }

    /// Returns whether the path may match several values.
    fn is_search(&self) -> bool {
        self.written.contains(['[', '*']) || self.written.starts_with('.') || self.written.contains("..")
    }
}

impl fmt::Display for BodyField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", BodyField::PREFIX, self.written)
    }
}

fn list<'v>(values: impl IntoIterator<Item = &'v Value>) -> VarValue<'static> {
    VarValue::List(values.into_iter().map(text).collect())
}

/// Returns a string as it is, any other value as JSON.
fn text(value: &Value) -> Cow<'static, [u8]> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Cow::Owned(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_bodies() {
        let body = json!({
            "a": {"b": "x", "n": 1, "yes": true, "none": null, "list": ["p", 2], "object": {"k": 1}},
            "l": [{"b": "y"}, {"b": "z"}],
        });
        let check = |path: &str, expected: Option<VarValue<'_>>| {
            let field = BodyField::parse(path).expect("a path");
            assert_eq!(field.value(&body), expected, "{path}");
            assert_eq!(field.to_string(), format!("post_arg.{path}"));
        };
        let list = |items: &[&str]| {
            Some(VarValue::List(items.iter().map(|item| Cow::Owned(item.as_bytes().to_vec())).collect()))
        };
        check("a.b", Some(VarValue::text("x")));
        check("a.n", Some(VarValue::text("1")));
        check("a.yes", Some(VarValue::Bool(true)));
        check("a.none", None);
        check("a.list", list(&["p", "2"]));
        check("a.object", Some(VarValue::text(r#"{"k":1}"#)));
        check("a.b.c", None);
        check("l[1].b", list(&["z"]));
        check("l[*].b", list(&["y", "z"]));
        check(".b", list(&["x", "y", "z"]));
        check("l[9].b", None);
        for wrong in ["a[", "a.", "a[?(@.b)]", "a..", "["] {
            assert!(BodyField::parse(wrong).is_none(), "{wrong}");
        }
    }
}
