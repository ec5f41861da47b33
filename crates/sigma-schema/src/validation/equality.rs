//! Equality of values: numbers by value, `{}` equals `[]`, keys in any order.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt::Write;

use serde_json::Value;

use super::number;

/// Whether `{}` equals `[]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Empties {
    /// As in Lua.
    Same,
    /// As in JSON.
    Differ,
}

/// Returns whether the values are equal.
pub(super) fn equal(left: &Value, right: &Value, empties: Empties) -> bool {
    let equal = |left: &Value, right: &Value| equal(left, right, empties);
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => number::compare(left, right) == Ordering::Equal,
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            let in_right = |(key, value): (&String, &Value)| right.get(key).is_some_and(|r| equal(value, r));
            left.len() == right.len() && left.iter().all(in_right)
        }
        (Value::Array(array), Value::Object(map)) | (Value::Object(map), Value::Array(array)) => {
            empties == Empties::Same && array.is_empty() && map.is_empty()
        }
        _ => left == right,
    }
}

/// Returns the first two equal items, counted from 1. Scalars are compared before tables, as in APISIX. Equal items
/// have one canonical text, so the work does not grow with the square of the length.
pub(super) fn first_repeated(items: &[Value]) -> Option<(usize, usize)> {
    let mut seen = HashMap::with_capacity(items.len());
    let mut tables: Option<(usize, usize)> = None;
    for (index, item) in items.iter().enumerate() {
        let mut text = String::new();
        canonical(item, &mut text);
        let first = *seen.entry(text).or_insert(index + 1);
        if first == index + 1 {
            continue;
        }
        if !item.is_array() && !item.is_object() {
            return Some((first, index + 1));
        }
        if tables.is_none_or(|(earliest, _)| first < earliest) {
            tables = Some((first, index + 1));
        }
    }
    tables
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => {
            // Writing to a String cannot fail.
            let _ = match number::integer(number) {
                Some(integer) => write!(out, "{integer}"),
                None => write!(out, "{:e}", number.as_f64().unwrap_or_default()),
            };
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push('[');
                canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            for (key, value) in entries {
                let _ = write!(out, "{{{}:", Value::from(key.as_str()));
                canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(_) | Value::Object(_) => out.push_str("{}"),
        Value::Null | Value::Bool(_) | Value::String(_) => {
            let _ = write!(out, "{value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equality_and_repetition_agree() {
        let cases = [
            (json!(1), json!(1.0), true),
            (json!(1), json!("1"), false),
            (json!({}), json!([]), true),
            (json!({"a": 1, "b": [2]}), json!({"b": [2.0], "a": 1}), true),
            (json!([[1], 2]), json!([[1, 2]]), false),
            (json!({"a": {"b": 1}}), json!({"a": {}, "b": 1}), false),
            (json!(null), json!(false), false),
            (json!(1e300), json!(1e300), true),
            (json!("a\"b"), json!("a\"b"), true),
        ];
        for (left, right, expected) in cases {
            assert_eq!(equal(&left, &right, Empties::Same), expected, "{left} {right}");
            let repeated = first_repeated(&[left.clone(), right.clone()]);
            assert_eq!(repeated.is_some(), expected, "{left} {right}");
        }
    }

    #[test]
    fn scalars_come_first() {
        let items = [json!([1]), json!([2]), json!("a"), json!([2]), json!([1]), json!("a")];
        assert_eq!(first_repeated(&items), Some((3, 6)));
        assert_eq!(first_repeated(&[json!([1]), json!([2]), json!([2]), json!([1])]), Some((1, 4)));
    }
}
