//! JSON from programs: without comments, and with duplicate members refused as in a file. Parsers disagree on which
//! duplicate counts, so a guard could read another value than the node.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::problem::{element, member};

/// The error for a text that is not strict JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// It is not JSON.
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
    /// An object has a member twice; the pointer, such as `upstream.nodes`.
    #[error("the member `{0}` exists twice; remove one")]
    Duplicate(String),
}

/// Parses JSON and refuses objects with duplicate members.
///
/// # Errors
/// Returns an error for a text that is not JSON, or for the first duplicate member.
pub fn strict_json(text: &[u8]) -> Result<Value, JsonError> {
    let state = State::default();
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = PointedValue(&state).deserialize(&mut reader)?;
    reader.end()?;
    match state.duplicate.into_inner() {
        Some(place) => Err(JsonError::Duplicate(place)),
        None => Ok(value),
    }
}

#[derive(Default)]
struct State {
    pointer: RefCell<String>,
    duplicate: RefCell<Option<String>>,
}

/// The value at the pointer of the state.
struct PointedValue<'s>(&'s State);

impl PointedValue<'_> {
    /// Reads something below this place.
    fn below<T>(&self, pointer: String, read: impl FnOnce() -> T) -> T {
        let outer = self.0.pointer.replace(pointer);
        let read = read();
        *self.0.pointer.borrow_mut() = outer;
        read
    }
}

impl<'de> DeserializeSeed<'de> for PointedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PointedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let pointer = element(&self.0.pointer.borrow(), list.len());
            match self.below(pointer, || items.next_element_seed(PointedValue(self.0)))? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let pointer = member(&self.0.pointer.borrow(), &name);
            if map.contains_key(&name) {
                self.0.duplicate.borrow_mut().get_or_insert_with(|| pointer.clone());
            }
            let value = self.below(pointer, || members.next_value_seed(PointedValue(self.0)))?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_members_are_named() {
        let check = |text: &str, expected: &str| {
            let found = strict_json(text.as_bytes()).expect_err(text).to_string();
            assert_eq!(found, format!("the member `{expected}` exists twice; remove one"), "{text}");
        };
        check(r#"{"a":1,"a":1}"#, "a");
        check(r#"{"uri":"/x","vars":[],"vars":[]}"#, "vars");
        check(r#"{"upstream":{"nodes":{"a:1":1,"a:1":2}}}"#, r#"upstream.nodes["a:1"]"#);
        check(r#"{"plugins":{"key-auth":{},"cors":{},"key-auth":{}}}"#, "plugins.key-auth");
        check(r#"[{"a":1},{"a":1,"b":2,"a":3}]"#, "[1].a");
        check(r#"{"a":[[{"b":{"c":1,"c":2}}]]}"#, "a[0][0].b.c");
        // Names are compared after unescaping.
        check(r#"{"plugins":1,"plug\u0069ns":2}"#, "plugins");
        check(r#"{"a":1,"b":1,"b":2,"a":2}"#, "b");
        check(r#"{"a":{"x":1,"x":2},"a":{}}"#, "a.x");
        check(r#"{"":1,"":2}"#, r#"[""]"#);
        check(r#"{"a":null,"a":null}"#, "a");
    }

    #[test]
    fn all_other_json_is_read() {
        let texts = [
            "1",
            "-1",
            "1.5",
            "18446744073709551615",
            "1e3",
            "null",
            "true",
            "\"a\\u00e4\"",
            "[]",
            "{}",
            " [1, 2 ] ",
            r#"{"a":{"a":{"a":[{"a":1},{"a":1}]}}}"#,
            "x",
            "{",
            "[1,]",
            "{} {}",
            "1e999",
            "\"\\x\"",
            "",
        ];
        for text in texts {
            let (strict, plain) = (strict_json(text.as_bytes()), serde_json::from_str::<Value>(text));
            match plain {
                Ok(plain) => assert_eq!(strict.expect(text), plain),
                Err(plain) => assert_eq!(strict.expect_err(text).to_string(), plain.to_string()),
            }
        }
        let deep = "[".repeat(1000);
        assert!(strict_json(deep.as_bytes()).is_err());
    }
}
