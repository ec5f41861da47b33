//! The subset of JSONPath (RFC 9535) that selects values by their position.

use serde_json::Value;

/// Maximum number of values that one path may match.
const FOUND_MAX: usize = 1_000;

/// A path: names, `[n]`, `[*]`, `.*`, `['name']`, and `..` before any of them. The leading `$` is optional.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Step {
    /// Matches below any value, at any depth.
    anywhere: bool,
    select: Select,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Select {
    Name(String),
    Index(usize),
    All,
}

impl JsonPath {
    /// Parses a path.
    ///
    /// # Errors
    /// Returns a sentence if the path is not in this subset.
    pub fn parse(text: &str) -> Result<JsonPath, String> {
        let wrong = || format!("`{text}` is not a supported JSONPath");
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        // A single name is a path.
        let mut steps = Vec::new();
        let mut is_first = rest.len() == text.len();
        while !rest.is_empty() {
            let mut anywhere = false;
            let in_brackets;
            if let Some(after) = rest.strip_prefix("..") {
                (anywhere, in_brackets) = (true, after.starts_with('['));
                rest = after;
            } else if let Some(after) = rest.strip_prefix('.') {
                in_brackets = false;
                rest = after;
            } else {
                in_brackets = rest.starts_with('[');
                if !in_brackets && !is_first {
                    return Err(wrong());
                }
            }
            is_first = false;
            let (select, after) =
                if in_brackets { bracketed(rest) } else { named(rest) }.ok_or_else(wrong)?;
            steps.push(Step { anywhere, select });
            rest = after;
        }
        if steps.is_empty() { Err(wrong()) } else { Ok(JsonPath(steps)) }
    }

    /// Returns the values that the path matches, in order.
    #[must_use]
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![value];
        for Step { anywhere, select } in &self.0 {
            let mut next = Vec::new();
            for value in found {
                if *anywhere { descend(select, value, &mut next) } else { pick(select, value, &mut next) }
            }
            next.truncate(FOUND_MAX);
            found = next;
        }
        found
    }
}

impl JsonPath {
    /// Calls `edit` for every value that the path matches. A value for which it returns [`Fate::Removed`] is removed
    /// from its list or object.
    pub fn edit(&self, value: &mut Value, edit: &mut dyn FnMut(&mut Value) -> Fate) {
        edit_at(&self.0, value, edit);
    }
}

/// The fate of an edited value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The value stays, as edited.
    Kept,
    /// The value is removed.
    Removed,
}

/// The reader of the document has bounded the depth.
fn edit_at(steps: &[Step], value: &mut Value, edit: &mut dyn FnMut(&mut Value) -> Fate) {
    let [Step { anywhere, select }, rest @ ..] = steps else { return };
    let mut visit = |is_meant: bool, value: &mut Value| {
        // Deeper matches come first: `edit` may remove or replace the value itself.
        if *anywhere {
            edit_at(steps, value, edit);
        }
        match (is_meant, rest.is_empty()) {
            (false, _) => Fate::Kept,
            (true, true) => edit(value),
            (true, false) => {
                edit_at(rest, value, edit);
                Fate::Kept
            }
        }
    };
    match value {
        Value::Object(members) => members.retain(|name, value| {
            let is_meant = match select {
                Select::Name(known) => known == name,
                Select::All => true,
                Select::Index(_) => false,
            };
            visit(is_meant, value) == Fate::Kept
        }),
        Value::Array(items) => {
            let mut at = 0;
            items.retain_mut(|value| {
                let is_meant = match select {
                    Select::Index(known) => *known == at,
                    Select::All => true,
                    Select::Name(_) => false,
                };
                at += 1;
                visit(is_meant, value) == Fate::Kept
            });
        }
        _ => {}
    }
}

/// Parses `name` or `*`, and returns the rest.
fn named(text: &str) -> Option<(Select, &str)> {
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match name {
        "*" => Some((Select::All, rest)),
        name if !name.is_empty() && !name.contains(['*', ']', '\'', '"', '$', '?', '@']) => {
            Some((Select::Name(name.to_owned()), rest))
        }
        _ => None,
    }
}

/// Parses `[n]`, `[*]` or a quoted name in brackets, and returns the rest.
fn bracketed(text: &str) -> Option<(Select, &str)> {
    let inner = text.strip_prefix('[')?;
    for quote in ['\'', '"'] {
        if let Some(quoted) = inner.strip_prefix(quote) {
            let (name, rest) = quoted.split_once(quote)?;
            return Some((Select::Name(name.to_owned()), rest.strip_prefix(']')?));
        }
    }
    let (what, rest) = inner.split_once(']')?;
    let select = if what == "*" { Select::All } else { Select::Index(what.parse().ok()?) };
    Some((select, rest))
}

fn pick<'v>(select: &Select, value: &'v Value, found: &mut Vec<&'v Value>) {
    match (select, value) {
        (Select::Name(name), Value::Object(members)) => found.extend(members.get(name)),
        (Select::Index(index), Value::Array(items)) => found.extend(items.get(*index)),
        (Select::All, Value::Array(items)) => found.extend(items),
        (Select::All, Value::Object(members)) => found.extend(members.values()),
        _ => {}
    }
}

/// The reader of the document has bounded the depth.
fn descend<'v>(select: &Select, value: &'v Value, found: &mut Vec<&'v Value>) {
    pick(select, value, found);
    match value {
        Value::Array(items) => items.iter().for_each(|item| descend(select, item, found)),
        Value::Object(members) => members.values().for_each(|member| descend(select, member, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_find_values() {
        let value = json!({"a": {"b": [1, {"c": 2}]}, "c": 3, "d.e": 4});
        let check = |path: &str, expected: Value| {
            let found: Value = JsonPath::parse(path).unwrap().find(&value).into_iter().cloned().collect();
            assert_eq!(found, expected, "{path}");
        };
        check("c", json!([3]));
        check("$.c", json!([3]));
        check("a.b[0]", json!([1]));
        check("$.a.b[*]", json!([1, {"c": 2}]));
        check("$.a.b[1].c", json!([2]));
        check("$..c", json!([3, 2]));
        check("$['d.e']", json!([4]));
        check("$.a.*", json!([[1, {"c": 2}]]));
        check("$.none", json!([]));
        check("a.b[9]", json!([]));
        for wrong in ["$", "$[", "a[", "a[x]", "$.a.", "a..", "$a", "a]b", "$.a[?(@.x)]", "['a"] {
            assert!(JsonPath::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_edit_values() {
        let check = |path: &str, fate: Fate, expected: Value| {
            let mut value = json!({"a": [{"b": 1}, {"b": {"b": 2}}, 3], "b": 4});
            JsonPath::parse(path).unwrap().edit(&mut value, &mut |found| {
                *found = json!("x");
                fate
            });
            assert_eq!(value, expected, "{path}");
        };
        check("b", Fate::Removed, json!({"a": [{"b": 1}, {"b": {"b": 2}}, 3]}));
        check("a[*].b", Fate::Kept, json!({"a": [{"b": "x"}, {"b": "x"}, 3], "b": 4}));
        check("a[1]", Fate::Removed, json!({"a": [{"b": 1}, 3], "b": 4}));
        check("a[*]", Fate::Removed, json!({"a": [], "b": 4}));
        check("$..b", Fate::Removed, json!({"a": [{}, {}, 3]}));
        check("$..b", Fate::Kept, json!({"a": [{"b": "x"}, {"b": "x"}, 3], "b": "x"}));
        check("$..b..b", Fate::Kept, json!({"a": [{"b": 1}, {"b": {"b": "x"}}, 3], "b": 4}));
        check("$.*", Fate::Removed, json!({}));
        check("c.d", Fate::Removed, json!({"a": [{"b": 1}, {"b": {"b": 2}}, 3], "b": 4}));
    }
}
