//! Contradictions in the cache of a route or service.

use serde_json::Value;

use super::Object;
use sigma_schema::problem::{Problem, element, member};

/// Returns the contradictions in the cache of a route or a service.
pub(crate) fn breaches(item: &Object) -> Vec<Problem> {
    let Some(cache) = item.get("cache").and_then(Value::as_object) else { return Vec::new() };
    let mut found = Vec::new();
    if item.get("plugins").and_then(|plugins| plugins.get("proxy-cache")).is_some() {
        let message = "`cache` and the plugin proxy-cache are both set";
        found.push(Problem::new("cache", "conflict", message).hint("keep one of the two"));
    }
    for place in ["key", "bypass", "no_store"] {
        let parts = cache.get(place).and_then(Value::as_array).into_iter().flatten();
        for (number, part) in parts.enumerate() {
            if let Some(problem) = part.as_str().and_then(unusable) {
                found.push(problem.within(&element(&member("cache", place), number)));
            }
        }
    }
    found
}

/// Returns why a part of a key is invalid.
fn unusable(part: &str) -> Option<Problem> {
    let name = part.strip_prefix('$')?;
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !is_name {
        let message = format!("`{part}` is not a variable");
        return Some(Problem::new("", "variable", message).hint("a variable is `$` and a name: $arg_page"));
    }
    (name == "request_method").then(|| {
        let message = "the method must not be in the key: responses to GET also serve HEAD";
        Problem::new("", "conflict", message).hint("leave it out")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let check = |item: Value, expected: &[&str]| {
            let found = breaches(item.as_object().unwrap());
            let places: Vec<&str> = found.iter().map(|problem| &*problem.pointer).collect();
            assert_eq!(places, expected, "{item}");
        };
        check(json!({ "plugins": { "proxy-cache": {} } }), &[]);
        check(json!({ "cache": { "key": ["$host", "x$", "/"] } }), &[]);
        check(json!({ "cache": {}, "plugins": { "proxy-cache": {} } }), &["cache"]);
        let parts = json!({ "key": ["a", "$"], "bypass": ["$a-b"], "no_store": ["$request_method"] });
        check(json!({ "cache": parts }), &["cache.key[1]", "cache.bypass[0]", "cache.no_store[0]"]);
    }
}
