//! The two ways of changing a part of a resource.

use serde_json::{Map, Value};

use sigma_schema::document::is_deeper;

use super::decode::{RESOURCE_DEPTH, too_deep};
use super::reply::Refusal;

/// Merges a patch into an object: null removes, objects are merged, everything else replaces.
/// An empty object is an empty list to APISIX, and replaces.
pub(crate) fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match (target.get_mut(&name), value) {
            (_, Value::Null) => {
                target.shift_remove(&name);
            }
            (Some(Value::Object(present)), Value::Object(given))
                if !present.is_empty() && !given.is_empty() =>
            {
                merge(present, given);
            }
            (_, value) => {
                target.insert(name, value);
            }
        }
    }
}

/// Puts `value` in at a path below an object, and makes the objects on the way. The result is no
/// deeper than what may be sent as a whole.
pub(crate) fn replace(target: &mut Map<String, Value>, path: &[String], value: Value) -> Result<(), Refusal> {
    // Every part of the path is an object around the rest.
    if RESOURCE_DEPTH.checked_sub(path.len()).is_none_or(|left| is_deeper(&value, left)) {
        return Err(Refusal::bad(format_args!("invalid sub-path: {}", too_deep(RESOURCE_DEPTH))));
    }
    let Some((last, way)) = path.split_last() else { return Ok(()) };
    let mut object = target;
    for (depth, name) in way.iter().enumerate() {
        let next = object.entry(name.as_str()).or_insert_with(|| Value::Object(Map::new()));
        if next.as_array().is_some_and(Vec::is_empty) {
            *next = Value::Object(Map::new());
        }
        object = next
            .as_object_mut()
            .ok_or_else(|| Refusal::bad(format_args!("invalid sub-path: /{}", path[..=depth].join("/"))))?;
    }
    object.insert(last.clone(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(object) => object,
            other => panic!("{other} is not an object"),
        }
    }

    #[test]
    fn patches_are_merged() {
        let check = |target: Value, patch: Value, expected: Value| {
            let mut target = object(target);
            merge(&mut target, object(patch));
            assert_eq!(Value::Object(target), expected);
        };
        check(json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2}));
        check(
            json!({"a": {"x": 1, "y": 2}}),
            json!({"a": {"x": null, "z": 3}}),
            json!({"a": {"y": 2, "z": 3}}),
        );
        check(json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]}));
        check(json!({"a": {"x": 1}}), json!({"a": {}}), json!({"a": {}}));
        check(json!({"a": {}}), json!({"a": {"x": null}}), json!({"a": {"x": null}}));
        check(json!({"a": {"x": 1}}), json!({"a": 5}), json!({"a": 5}));
        check(json!({"a": 1, "b": 2}), json!({"a": null, "c": null}), json!({"b": 2}));
    }

    #[test]
    fn paths_and_values_have_a_depth() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        let check = |path: usize, levels: usize, holds: bool| {
            let mut target = Map::new();
            let got = replace(&mut target, &vec!["a".to_owned(); path], nested(levels));
            let said = "invalid sub-path: nested deeper than 62 levels";
            assert_eq!(got, if holds { Ok(()) } else { Err(Refusal::bad(said)) }, "{path} and {levels}");
            assert!(!is_deeper(&Value::Object(target), RESOURCE_DEPTH));
        };
        check(62, 0, true);
        check(63, 0, false);
        check(2, 60, true);
        check(2, 61, false);
        check(15_000, 0, false);
    }

    #[test]
    fn paths_are_replaced() {
        let check = |target: Value, path: &str, value: Value, expected: Result<Value, &str>| {
            let mut target = object(target);
            let path: Vec<String> = path.split('/').map(str::to_owned).collect();
            let got = replace(&mut target, &path, value).map(|()| Value::Object(target));
            match expected {
                Ok(expected) => assert_eq!(got.expect("a valid path"), expected),
                Err(text) => assert_eq!(got.expect_err("an invalid path"), Refusal::bad(text)),
            }
        };
        check(
            json!({"a": {"b": 1, "c": 2}}),
            "a/b",
            json!({"x": 1}),
            Ok(json!({"a": {"b": {"x": 1}, "c": 2}})),
        );
        check(json!({}), "a/b/c", json!(1), Ok(json!({"a": {"b": {"c": 1}}})));
        check(json!({"a": []}), "a/b", json!(1), Ok(json!({"a": {"b": 1}})));
        check(json!({"a": {"b": 1}}), "a/b/c", json!(1), Err("invalid sub-path: /a/b"));
        check(json!({"a": [1]}), "a/0", json!(1), Err("invalid sub-path: /a"));
    }
}
