//! `valid_referers` and its variable `$invalid_referer`.

use serde_json::{Value, json};

use super::level::Level;
use super::pattern::Pattern;
use super::state::State;
use super::texts::{Variables, matched};

/// Returns the text of `$invalid_referer`: empty for a valid referer, else `1`. None if an expression is not supported.
pub(super) fn invalid_referer(
    variables: &mut Variables,
    state: &State<'_>,
    level: &Level<'_>,
) -> Option<String> {
    let lines = level.all(&["valid_referers"]);
    if lines.is_empty() {
        return Some(String::new());
    }
    let (mut entries, mut passes_none, mut passes_blocked) = (Vec::new(), false, false);
    for word in lines.iter().flat_map(|line| &line.args) {
        match word.as_str() {
            "none" => passes_none = true,
            "blocked" => passes_blocked = true,
            "server_names" => {
                let names = state.server.level.own_all(&["server_name"]);
                for name in names.iter().flat_map(|line| &line.args).filter(|name| !name.is_empty()) {
                    entries.push(entry(name)?);
                }
            }
            name => entries.push(entry(name)?),
        }
    }
    let verdict = |passes: bool| if passes { "" } else { "1" };
    entries.push(json!({"match": "^$", "value": verdict(passes_none)}));
    entries.push(json!({"match": "^https?://", "value": "1", "ignore_case": true}));
    let map = json!({"map": "${http_referer}", "regex": entries, "default": verdict(passes_blocked)});
    Some(variables.made('i', map))
}

/// The entry of a valid name: an expression, or a host that may have a wildcard and a path.
fn entry(name: &str) -> Option<Value> {
    if let Some(expression) = name.strip_prefix('~') {
        let expression = match expression.strip_prefix('^') {
            Some(rest) => format!("^https?://(?:{rest})"),
            None => format!("^https?://.*(?:{expression})"),
        };
        return Some(matched(&Pattern::new(&expression, true).ok()?, ""));
    }
    let (host, path) = name.split_at(name.find('/').unwrap_or(name.len()));
    let escaped = regex::escape(host);
    let host = if let Some(rest) = host.strip_prefix("*.") {
        format!(r"[^/:]+\.{}", regex::escape(rest))
    } else if let Some(rest) = host.strip_prefix('.') {
        format!(r"(?:[^/:]+\.)?{}", regex::escape(rest))
    } else if let Some(rest) = host.strip_suffix(".*") {
        format!(r"{}\.[^/:]+", regex::escape(rest))
    } else {
        escaped
    };
    let end = if path.is_empty() { "(?:/|$)".to_owned() } else { regex::escape(path) };
    let pattern = format!("^https?://{host}(?::[0-9]*)?{end}");
    Some(json!({"match": pattern, "value": "", "ignore_case": true}))
}
