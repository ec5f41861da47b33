//! JSON from another party, read into memory.

use serde_json::Value;
pub use sigma_plugin::json::{unambiguous, values};

/// The reason why a body was not read as JSON.
#[derive(Debug, PartialEq, Eq)]
pub enum Unread {
    /// It has more values than may be held; a value takes a hundred times the memory of its text.
    TooMany,
    /// It is invalid, for this reason.
    Invalid(String),
}

/// Reads the value of a JSON text with at most `most_values` values in it: keys are not counted, and `[]` and `{}`
/// count as if something were in them.
///
/// If an object has a name twice, the last value counts: a caller that forwards the text must write it again, so that
/// no later reader takes the other value.
pub fn read(text: &[u8], most_values: usize) -> Result<Value, Unread> {
    if values(text) > most_values {
        return Err(Unread::TooMany);
    }
    serde_json::from_slice(text).map_err(|error| Unread::Invalid(error.to_string()))
}

/// Reads a text that is forwarded unchanged: an object that has a name twice is invalid, since a later reader may
/// take the other value.
pub fn read_unambiguous(text: &[u8], most_values: usize) -> Result<Value, Unread> {
    if values(text) > most_values {
        return Err(Unread::TooMany);
    }
    unambiguous(text).map_err(|error| Unread::Invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_up_to_the_limit_are_read() {
        let check = |text: &[u8], most, expected: Result<Value, Unread>| {
            assert_eq!(read(text, most), expected, "{}", text.escape_ascii());
        };
        let invalid = |text: &str| Err(Unread::Invalid(text.to_owned()));
        check(b" [1, {\"a\": \"x,[{\\\",\"}] ", 4, Ok(json!([1, {"a": "x,[{\","}])));
        check(b"[1,2,3]", 3, Err(Unread::TooMany));
        check(b"{\"a\":1,\"a\":2}", 9, Ok(json!({"a": 2})));
        check(b"", 9, invalid("EOF while parsing a value at line 1 column 0"));
        check(b"1 2", 9, invalid("trailing characters at line 1 column 3"));
        check(b"\xef\xbb\xbf{}", 9, invalid("expected value at line 1 column 1"));
        check(b"\"\xff\"", 9, invalid("invalid unicode code point at line 1 column 2"));
        check(b"1e999", 9, invalid("number out of range at line 1 column 5"));
        let twice = |text: &[u8]| read_unambiguous(text, 9);
        assert_eq!(twice(b"{\"a\":{\"b\":1},\"b\":[1]}"), Ok(json!({"a": {"b": 1}, "b": [1]})));
        assert_eq!(
            twice(b"[{\"a\":1,\"\\u0061\":2}]"),
            invalid("a name is repeated in an object at line 1 column 19")
        );
        assert_eq!(twice(b"{} x"), invalid("trailing characters at line 1 column 4"));
        assert_eq!(twice(b"[1,2,3,4,5,6,7,8,9]"), Err(Unread::TooMany));
        let deep = [vec![b'['; 200], vec![b']'; 200]].concat();
        check(&deep, 999, invalid("recursion limit exceeded at line 1 column 128"));
    }

    fn counted(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(counted).sum(),
            Value::Object(members) => members.values().map(counted).sum(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn no_value_is_forgotten(parts in prop::collection::vec("[\\[\\]{}\",:\\\\1a]{0,3}", 0..12)) {
            let text = parts.concat();
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                // Repeated names are counted and then not held.
                prop_assert!(values(text.as_bytes()) >= counted(&value), "{text}");
            }
        }
    }
}
