//! Rules for values from an untrusted sender.

use std::cell::Cell;

use serde_json::Value;

/// Bytes of text that cost one step: searching them takes about the time of a step.
const TEXT_OF_A_STEP: usize = 64;

/// Maximum number of bytes of the value that a failure shows.
const SHOWN: usize = 128;

/// Maximum number of bytes of a failure.
const MOST_TEXT: usize = 1024;

/// The remaining steps for an untrusted value.
#[derive(Debug)]
pub(super) struct StepBudget(Cell<Option<u64>>);

impl StepBudget {
    pub(super) fn new(most_steps: u64) -> StepBudget {
        StepBudget(Cell::new(Some(most_steps)))
    }

    /// Takes steps. Returns false if too few are left.
    pub(super) fn spend(&self, steps: usize) -> bool {
        self.0.set(self.0.get().and_then(|left| left.checked_sub(steps as u64)));
        self.0.get().is_some()
    }

    /// Uses up all steps, which ends the check.
    pub(super) fn exhaust(&self) {
        self.0.set(None);
    }

    /// Returns whether some schema was not fully applied, so that no verdict counts. Under a `not` a failure would
    /// accept the value.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.get().is_none()
    }
}

/// Returns the cost in steps of searching a text.
pub(super) fn of_text(text: &str) -> usize {
    text.len() / TEXT_OF_A_STEP
}

/// Returns the cost in steps of copying or comparing a value.
pub(super) fn of_value(value: &Value) -> usize {
    1 + match value {
        Value::String(text) => of_text(text),
        Value::Array(items) => items.iter().map(of_value).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| of_text(key) + of_value(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Returns the part of a text that a failure shows.
pub(super) fn shown(text: &str) -> &str {
    start(text, SHOWN)
}

/// The text of a failure without what would only send an untrusted sender's own words back.
pub(super) fn cut(mut text: String) -> String {
    if text.len() > MOST_TEXT {
        text.truncate(start(&text, MOST_TEXT).len());
        text.push('…');
    }
    text
}

/// Returns the whole characters within the first bytes of a text.
fn start(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Schema;
    use super::*;

    fn outcome(schema: &Value, value: &Value, most_steps: u64) -> String {
        let schema = Schema::compile(schema).unwrap();
        schema.filled_of_stranger(value, most_steps).map_or_else(|fault| fault, |filled| filled.to_string())
    }

    #[test]
    fn a_stranger_has_no_privilege_of_an_operator() {
        let check = |schema: Value, value: Value, expected: &str| {
            assert_eq!(outcome(&schema, &value, 1000), expected, "{schema} {value}");
        };
        let short = json!({"properties": {"a": {"type": "string", "maxLength": 3}}});
        let long = "property \"a\" validation failed: string too long, expected at most 3, got 11";
        check(short.clone(), json!({"a": "$secret://a"}), long);
        check(short, json!({"a": "$env://abcd"}), long);
        check(json!({"type": "array"}), json!({}), "wrong type: expected array, got table");
        check(json!({"type": "object"}), json!([]), "wrong type: expected object, got table");
        check(
            json!({"type": ["object", "null"]}),
            json!([]),
            "wrong type: expected one of object, null, got table",
        );
        check(json!({"const": {"a": []}}), json!({"a": {}}), "failed to check const value");
        check(json!({"enum": [[]]}), json!({}), "matches none of the enum values");
        check(json!({"required": ["a"]}), json!([]), "[]");
        check(json!({"properties": {"a": {"default": 1}}}), json!({}), r#"{"a":1}"#);
    }

    #[test]
    fn failures_do_not_send_everything_back() {
        let text = outcome(&json!({"pattern": "^a$"}), &json!("é".repeat(1000)), 1000);
        assert!(text.len() < 200 && text.starts_with("failed to match pattern"), "{text}");
        let named = json!({"é".repeat(10_000): 1});
        let text = outcome(&json!({"additionalProperties": false}), &named, 1000);
        assert!(text.len() <= MOST_TEXT + '…'.len_utf8() && text.ends_with('…'), "{text}");
    }

    /// Returns nested objects, each in a member `c`.
    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!({}), |inner, _| json!({ "c": inner }))
    }

    #[test]
    fn work_that_doubles_with_each_level_ends() {
        let branch = |name| json!({"properties": {"c": {"$ref": "#"}}, "required": [name]});
        let schema = json!({"anyOf": [branch("x"), branch("y")]});
        const ENDED: &str = "the value takes too many steps to validate";
        assert_eq!(outcome(&schema, &nested(100), 10_000), ENDED);
        assert_eq!(outcome(&json!({"not": schema}), &nested(100), 10_000), ENDED);
        let otherwise = json!({"if": schema, "then": false});
        assert_eq!(outcome(&otherwise, &nested(100), 10_000), ENDED);
    }

    /// A `not` around a schema that matches at any depth must not accept values nested too deeply.
    #[test]
    fn values_nested_too_deeply_are_refused() {
        let found = json!({"anyOf": [{"required": ["bad"]}, {"required": ["c"], "properties": {"c": {"$ref": "#/not"}}}]});
        let schema = json!({"not": found});
        let mut value = json!({"bad": 1});
        for level in 0..200 {
            let text = outcome(&schema, &value, 1_000_000);
            assert!(text.contains("wasn't supposed") || text.contains("too many steps"), "{level}: {text}");
            value = json!({ "c": value });
        }
        assert_eq!(outcome(&schema, &json!({"c": {}}), 1000), r#"{"c":{}}"#);
    }

    #[test]
    fn texts_and_copies_cost_steps() {
        let long = json!("a".repeat(64 * 100));
        assert_eq!(outcome(&json!({"pattern": "b"}), &long, 100), outcome(&json!(true), &json!(1), 0));
        let many = json!({"a": (0..100).collect::<Vec<_>>()});
        assert!(outcome(&json!({"properties": {"b": {"default": 1}}}), &many, 50).contains("too many"));
        assert!(
            outcome(&json!({"properties": {"a": {"uniqueItems": true}}}), &many, 50).contains("too many")
        );
        assert!(outcome(&json!({"uniqueItems": true}), &many, 1).starts_with('{'));
    }
}
