//! Groups and opposites of conditions in the syntax of `vars`.

use serde_json::Value;

/// Returns a group of conditions; a single one is the group itself.
pub(super) fn group(operator: &str, mut conditions: Vec<Value>) -> Value {
    match conditions.len() {
        1 => conditions.remove(0),
        _ => {
            conditions.insert(0, operator.into());
            Value::Array(conditions)
        }
    }
}

/// Returns the opposite of a condition.
pub(super) fn negated(condition: Value) -> Value {
    let Value::Array(mut parts) = condition else { return condition };
    let other = match parts.first().and_then(Value::as_str) {
        Some("OR") => Some("AND"),
        Some("AND") => Some("OR"),
        _ => None,
    };
    if let Some(other) = other {
        return group(other, parts.split_off(1).into_iter().map(negated).collect());
    }
    match parts.get(1).and_then(Value::as_str) {
        Some("!") => {
            parts.remove(1);
        }
        Some("==") => parts[1] = "~=".into(),
        Some("~=") => parts[1] = "==".into(),
        _ => parts.insert(1, "!".into()),
    }
    Value::Array(parts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn opposites() {
        let both = json!(["AND", ["a", "==", "1"], ["OR", ["b", "!", "~~", "x"], ["c", "in", ["1"]]]]);
        let expected = json!(["OR", ["a", "~=", "1"], ["AND", ["b", "~~", "x"], ["c", "!", "in", ["1"]]]]);
        assert_eq!(negated(both.clone()), expected);
        assert_eq!(negated(negated(both.clone())), both);
    }
}
