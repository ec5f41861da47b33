//! Conditions of `if`: their words, and conditions as entries of maps.

use serde_json::Value;

use super::parse::Directive;
use super::state::Captures;

/// The words of a condition without its parentheses.
pub(super) fn words(directive: &Directive) -> Vec<String> {
    let mut words = directive.args.clone();
    if let Some(first) = words.first_mut() {
        *first = first.strip_prefix('(').unwrap_or(first).to_owned();
    }
    if let Some(last) = words.last_mut() {
        *last = last.strip_suffix(')').unwrap_or(last).to_owned();
    }
    // An empty word is a value in the middle, and no word at the ends.
    if words.first().is_some_and(String::is_empty) {
        words.remove(0);
    }
    if words.len() > 3 && words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    if words.len() == 2 && words[0].starts_with('$') && words[1].is_empty() {
        words.pop();
    }
    words
}

/// A condition as an entry of a map.
pub(super) struct MapEntry {
    pub(super) pattern: String,
    pub(super) ignore_case: bool,
    pub(super) is_negated: bool,
}

/// Returns the variable of a simple condition and its entry, for variables that depend on it.
pub(super) fn as_map(condition: &Value, captures: Option<&Captures>) -> Option<(String, MapEntry)> {
    let list = condition.as_array()?;
    let entry = |pattern: String, ignore_case, is_negated| MapEntry { pattern, ignore_case, is_negated };
    if let Some(Captures::Of { pattern, .. }) = captures.filter(|_| list[0] == "OR") {
        let name = list.last()?[0].as_str()?;
        return Some((name.to_owned(), entry(pattern.text.clone(), pattern.ignore_case, false)));
    }
    if list[0] == "OR" {
        return Some((list[1][0].as_str()?.to_owned(), entry("^$".to_owned(), false, false)));
    }
    let name = list[0].as_str()?.to_owned();
    let value = list.last()?.as_str()?;
    match (list[1].as_str()?, list.len()) {
        ("==", 3) => Some((name, entry(format!("^{}$", regex::escape(value)), false, false))),
        ("~=", 3) => Some((name, entry(format!("^{}$", regex::escape(value)), false, true))),
        ("~~", 3) => Some((name, entry(value.to_owned(), false, false))),
        ("~*", 3) => Some((name, entry(value.to_owned(), true, false))),
        ("!", 4) => Some((name, entry(value.to_owned(), list[2] == "~*", true))),
        _ => None,
    }
}
