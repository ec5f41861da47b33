//! The conditions of a decision in the syntax of routes.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::decision::{Decision, Host, Path};

/// Inserts hosts, paths, methods, listeners and `vars`.
pub(super) fn insert(route: &mut Map<String, Value>, decision: &Decision, names: &[(u16, String)]) {
    let mut vars = decision.conditions.clone();
    let (paths, condition) = paths(&decision.paths);
    let paths = distinct(paths);
    match paths.as_slice() {
        [path] => route.insert("uri".to_owned(), path.clone().into()),
        paths => route.insert("uris".to_owned(), json!(paths)),
    };
    vars.extend(condition);
    let (hosts, condition) = hosts(&decision.hosts);
    if !hosts.is_empty() {
        route.insert("hosts".to_owned(), json!(distinct(hosts)));
    }
    vars.extend(condition);
    if !decision.methods.is_empty() {
        route.insert("methods".to_owned(), json!(distinct(decision.methods.clone())));
    }
    insert_listeners(route, &decision.ports, names);
    if !vars.is_empty() {
        route.insert("vars".to_owned(), Value::Array(vars));
    }
}

/// Returns a list without items that it has already: two conditions may name one thing.
fn distinct(list: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    list.into_iter().filter(|item| known.insert(item.clone())).collect()
}

/// Inserts the names of listeners, unless all of them are meant.
fn insert_listeners(route: &mut Map<String, Value>, ports: &[u16], names: &[(u16, String)]) {
    if ports.is_empty() || names.iter().all(|(port, _)| ports.contains(port)) {
        return;
    }
    let mut listeners: Vec<&String> =
        names.iter().filter(|(port, _)| ports.contains(port)).map(|(_, name)| name).collect();
    listeners.dedup();
    route.insert("listeners".to_owned(), json!(listeners));
}

/// Path patterns, and a condition for paths that have no pattern.
fn paths(paths: &[Path]) -> (Vec<String>, Option<Value>) {
    let mut patterns = Vec::new();
    for path in paths {
        match path {
            Path::Exact(text) if is_plain(text) => patterns.push(text.clone()),
            Path::Prefix(text) if is_plain(text) => patterns.push(format!("{text}*")),
            Path::Segments(text) if is_plain(text) => {
                let text = text.trim_end_matches('/');
                if !text.is_empty() {
                    patterns.push(text.to_owned());
                }
                patterns.push(format!("{text}/*"));
            }
            Path::Regex { pattern, ignore_case } => {
                patterns.push(format!("{}{pattern}", if *ignore_case { "~*" } else { "~" }));
            }
            _ => return (vec!["/*".to_owned()], Some(any_of(paths.iter().map(path_condition).collect()))),
        }
    }
    if patterns.is_empty() {
        patterns.push("/*".to_owned());
    }
    (patterns, None)
}

/// Whether a text has no character that is special in a path pattern.
fn is_plain(text: &str) -> bool {
    text.starts_with('/') && !text.contains(['*', ':']) && text.chars().all(|char| !char.is_control())
}

pub(super) fn path_condition(path: &Path) -> Value {
    match path {
        Path::Exact(text) => json!(["uri", "==", text]),
        Path::Prefix(text) => json!(["uri", "~~", format!("^{}", regex::escape(text))]),
        Path::Segments(text) => {
            json!(["uri", "~~", format!("^{}(?:/|$)", regex::escape(text.trim_end_matches('/')))])
        }
        Path::Regex { pattern, ignore_case } => {
            json!(["uri", if *ignore_case { "~*" } else { "~~" }, pattern])
        }
    }
}

/// Host patterns, and a condition for hosts that have no pattern.
fn hosts(hosts: &[Host]) -> (Vec<String>, Option<Value>) {
    let mut patterns = Vec::new();
    for host in hosts {
        match host {
            Host::Exact(name) if is_host(name) => patterns.push(name.clone()),
            Host::Suffix(name) if is_host(name) => patterns.push(format!("*.{name}")),
            _ => return (Vec::new(), Some(any_of(hosts.iter().map(host_condition).collect()))),
        }
    }
    (patterns, None)
}

fn is_host(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte))
}

pub(super) fn host_condition(host: &Host) -> Value {
    match host {
        Host::Exact(name) => json!(["host", "==", name]),
        Host::Suffix(name) => json!(["host", "~*", format!("\\.{}$", regex::escape(name))]),
        Host::Prefix(name) => json!(["host", "~*", format!("^{}\\.", regex::escape(name))]),
        Host::Regex(pattern) => json!(["host", "~*", pattern]),
    }
}

/// A condition that holds if one of them holds.
fn any_of(mut conditions: Vec<Value>) -> Value {
    if conditions.len() == 1 {
        return conditions.remove(0);
    }
    let mut group = vec![json!("OR")];
    group.append(&mut conditions);
    Value::Array(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_items_are_written_once() {
        let mut decision = Decision::new(
            super::super::super::source::SourceLine::default(),
            "a",
            super::super::super::decision::Target::Drop,
        );
        decision.hosts = vec![Host::Exact("a.test".to_owned()), Host::Exact("a.test".to_owned())];
        decision.paths = vec![Path::Prefix("/a".to_owned()), Path::Prefix("/a".to_owned())];
        let mut route = Map::new();
        insert(&mut route, &decision, &[]);
        assert_eq!((&route["hosts"], &route["uri"]), (&json!(["a.test"]), &json!("/a*")));
    }

    #[test]
    fn mixed_patterns_become_one_condition() {
        let regex = Path::Regex { pattern: "\\.php$".to_owned(), ignore_case: false };
        let (patterns, condition) = paths(&[Path::Exact("/a".to_owned()), regex]);
        assert_eq!(patterns, ["/a", "~\\.php$"]);
        assert_eq!(condition, None);
        let (patterns, condition) = paths(&[Path::Exact("/a*".to_owned()), Path::Exact("/b".to_owned())]);
        assert_eq!(patterns, ["/*"]);
        assert_eq!(condition, Some(json!(["OR", ["uri", "==", "/a*"], ["uri", "==", "/b"]])));
        let (patterns, condition) = hosts(&[Host::Prefix("www".to_owned())]);
        assert!(patterns.is_empty());
        assert_eq!(condition, Some(json!(["host", "~*", "^www\\."])));
    }
}
