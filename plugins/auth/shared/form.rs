//! Names and values as they stand in the query of a URL and in the body of a form.

use std::fmt::Write;

use serde_json::{Map, Value};
use sigma_plugin::variables::pairs;

/// Pairs of names and values, as the query of a URL or as the body of a form.
#[derive(Default)]
pub(crate) struct Form(String);

impl Form {
    /// Adds a pair.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Form {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(&escaped(name.as_bytes()));
        self.0.push('=');
        self.0.push_str(&escaped(value.as_ref()));
        self
    }

    /// The text of all pairs.
    pub(crate) fn text(self) -> String {
        self.0
    }
}

/// A text as a part of a URL that means nothing but itself: everything is escaped that is not unreserved
/// (RFC 3986 §2.3).
pub(crate) fn escaped(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The fields of a form; None if one of them is no text, has no value, or appears twice: readers differ in
/// which one they take.
pub(crate) fn fields(form: &[u8]) -> Option<Map<String, Value>> {
    let mut fields = Map::new();
    for (name, value) in pairs(form) {
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).ok();
        if fields.insert(text(&name)?, text(&value?)?.into()).is_some() {
            return None;
        }
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_forms_are_read_again() {
        let form = Form::default().with("a b", "&=#%+/ü").with("c", "").with("~", [0, 255]);
        assert_eq!(form.0, "a%20b=%26%3D%23%25%2B%2F%C3%BC&c=&~=%00%FF");
        let form = Form::default().with("a b", "&=#%+/ü\n\0").with("c", "");
        let read = fields(form.text().as_bytes()).map(Value::Object);
        assert_eq!(read, Some(json!({"a b": "&=#%+/ü\n\0", "c": ""})));
    }

    #[test]
    fn a_form_says_each_thing_once() {
        let many: Vec<String> = (0..150).map(|n| format!("n{n}=v+{n}")).collect();
        let read = fields(many.join("&").as_bytes()).unwrap();
        assert_eq!((read.len(), &read["n149"]), (150, &json!("v 149")));
        for form in ["a=1&a=1", "a=1&%61=2", "a", "a=%ff", "%ff=1"] {
            assert_eq!(fields(form.as_bytes()), None, "{form}");
        }
    }
}
