//! Fields of Traefik's configuration: names without regard to case, durations, sizes.

use super::super::tree::{Member, Tree};

/// Returns the member of a name in any case.
pub(super) fn member<'t>(tree: &'t Tree, name: &str) -> Option<&'t Member> {
    tree.members().iter().rev().find(|member| member.key.eq_ignore_ascii_case(name))
}

/// Returns the value of a field.
pub(super) fn field<'t>(tree: &'t Tree, name: &str) -> Option<&'t Tree> {
    member(tree, name).map(|member| &member.value)
}

/// Returns the value at a path of fields.
pub(super) fn at<'t>(tree: &'t Tree, path: &[&str]) -> Option<&'t Tree> {
    path.iter().try_fold(tree, |tree, name| field(tree, name))
}

/// Returns the text of a field.
pub(super) fn text<'t>(tree: &'t Tree, name: &str) -> Option<&'t str> {
    field(tree, name).and_then(Tree::text).filter(|text| !text.is_empty())
}

/// Returns whether a field is set to true.
pub(super) fn is_true(tree: &Tree, name: &str) -> bool {
    field(tree, name).and_then(Tree::boolean) == Some(true)
}

/// Returns the texts of a list; labels give lists as one text with commas.
pub(super) fn texts(tree: &Tree, name: &str) -> Vec<String> {
    field(tree, name).map(list).unwrap_or_default()
}

/// Returns the texts of a list.
pub(super) fn list(tree: &Tree) -> Vec<String> {
    tree.texts().into_iter().filter(|text| !text.is_empty()).collect()
}

/// Returns a duration in seconds: `1m30s`, or a number of seconds.
pub(super) fn seconds(tree: &Tree, name: &str) -> Option<f64> {
    duration(text(tree, name)?)
}

/// Parses a duration of Go; a number without a unit is in seconds.
pub(super) fn duration(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return Some(number).filter(|number| number.is_finite() && *number >= 0.0);
    }
    let mut sum = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|char: char| !(char.is_ascii_digit() || char == '.'))?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let units =
            [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let (unit, factor) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        sum += number * factor;
        rest = &rest[unit.len()..];
    }
    Some(sum)
}

/// Returns a duration as a JSON number, whole where it can be.
pub(super) fn number(seconds: f64) -> serde_json::Value {
    match seconds.fract() == 0.0 && seconds < 1e9 {
        true => (seconds as u64).into(),
        false => serde_json::json!(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let cases =
            [("1m30s", Some(90.0)), ("10", Some(10.0)), ("250ms", Some(0.25)), ("x", None), ("1y", None)];
        for (text, seconds) in cases {
            assert_eq!(duration(text), seconds, "{text}");
        }
    }
}
