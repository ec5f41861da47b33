//! Messages about numbers outside their range, for writers of files: the value, and the numbers that are allowed.

use serde_json::Number;

use super::node::NumberRules;
use super::number::{integer, lua};

/// Upper bounds from here on only keep a number within its type. A message names them if they are exceeded.
const TECHNICAL: i128 = i32::MAX as i128;

/// Comparisons in the words of a schema, and how a message continues after `a number`.
const COMPARISONS: [(&str, &str); 5] = [
    ("at least", "of at least"),
    ("at most", "of at most"),
    ("greater than", "greater than"),
    ("smaller than", "less than"),
    ("a multiple of", "that is a multiple of"),
];

/// The number is not in its range.
pub(super) fn of_range(rules: &NumberRules, value: &Number) -> String {
    format!("expected a number {}, got {}", allowed(rules, value), lua(value))
}

fn allowed(rules: &NumberRules, value: &Number) -> String {
    let is_exceeded = |max: &Number| integer(value).zip(integer(max)).is_none_or(|(value, max)| value > max);
    let max = rules.max.as_ref();
    let max = max.filter(|max| integer(max).is_none_or(|max| max < TECHNICAL) || is_exceeded(max));
    let mut parts = match (&rules.min, max) {
        (Some(min), Some(max)) => vec![format!("from {} to {}", lua(min), lua(max))],
        (Some(min), None) => vec![format!("of at least {}", lua(min))],
        (None, Some(max)) if rules.above.is_none() => vec![format!("of at most {}", lua(max))],
        _ => Vec::new(),
    };
    parts.extend(rules.above.iter().map(|bound| format!("greater than {}", lua(bound))));
    if rules.above.is_some() && rules.min.is_none() {
        parts.extend(max.map(|max| format!("at most {}", lua(max))));
    }
    parts.extend(rules.below.iter().map(|bound| format!("less than {}", lua(bound))));
    let multiple = rules.multiple_of.iter().map(|step| format!("that is a multiple of {}", lua(step)));
    let ranges = (!parts.is_empty()).then(|| parts.join(" and "));
    ranges.into_iter().chain(multiple).collect::<Vec<_>>().join(" ")
}

/// Rewords `expected 7 to be at least 200`, which checks of plugins return in the words of a schema.
pub(super) fn reworded(text: &str) -> Option<String> {
    let (before, rest) = text.split_at(text.find("expected ")?);
    let (value, rest) = rest.strip_prefix("expected ")?.split_once(" to be ")?;
    if value.parse::<f64>().is_err() {
        return None;
    }
    let (words, said) = COMPARISONS.into_iter().find(|(words, _)| rest.starts_with(words))?;
    let rest = rest.strip_prefix(words)?.strip_prefix(' ')?;
    let end = rest.find(|c: char| c.is_ascii_whitespace() || matches!(c, ',' | ';' | ')'));
    let (bound, after) = rest.split_at(end.unwrap_or(rest.len()));
    Some(format!("{before}expected a number {said} {bound}, got {value}{after}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::Schema;

    #[track_caller]
    fn check(rules: Value, value: Value, expected: &str) {
        let schema = Schema::compile(&json!({ "properties": { "size": rules } })).unwrap();
        let found: Vec<String> =
            schema.mistakes(&json!({ "size": value }), &[]).iter().map(ToString::to_string).collect();
        assert_eq!(found, [format!("size: {expected}")]);
    }

    #[test]
    fn ranges_are_named_as_a_whole() {
        let port = json!({ "type": "integer", "minimum": 1, "maximum": 65535 });
        check(port.clone(), json!(0), "expected a number from 1 to 65535, got 0");
        check(port, json!(70000), "expected a number from 1 to 65535, got 70000");
        check(json!({ "minimum": 0 }), json!(-1), "expected a number of at least 0, got -1");
        check(json!({ "maximum": 9 }), json!(12), "expected a number of at most 9, got 12");
        check(json!({ "exclusiveMinimum": 0 }), json!(0), "expected a number greater than 0, got 0");
        check(
            json!({ "exclusiveMinimum": 0, "maximum": 1 }),
            json!(3),
            "expected a number greater than 0 and at most 1, got 3",
        );
        check(json!({ "exclusiveMaximum": 5 }), json!(5), "expected a number less than 5, got 5");
        check(
            json!({ "minimum": 1, "multipleOf": 1000 }),
            json!(1500),
            "expected a number of at least 1 that is a multiple of 1000, got 1500",
        );
        check(
            json!({ "minimum": 0.5, "maximum": 1 }),
            json!(0.25),
            "expected a number from 0.5 to 1, got 0.25",
        );
    }

    #[test]
    fn bounds_of_types_are_named_if_they_are_exceeded() {
        let wide = json!({ "minimum": 1, "maximum": 4_294_967_295_u32 });
        check(wide.clone(), json!(0), "expected a number of at least 1, got 0");
        check(wide, json!(4_294_967_296_u64), "expected a number from 1 to 4294967295, got 4294967296");
    }

    #[test]
    fn schema_words_of_plugins_are_reworded() {
        let check = |text: &str, expected: Option<&str>| assert_eq!(reworded(text).as_deref(), expected);
        check("expected 7 to be at least 200", Some("expected a number of at least 200, got 7"));
        check(
            "failed to validate `code`: expected 7 to be at most 1; more",
            Some("failed to validate `code`: expected a number of at most 1, got 7; more"),
        );
        check("expected 0 to be greater than 0", Some("expected a number greater than 0, got 0"));
        check("expected a map to be at least 1", None);
        check("expected 1 to be 2", None);
        check("something else", None);
    }
}
