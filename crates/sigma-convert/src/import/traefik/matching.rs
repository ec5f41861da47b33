//! Conditions of a decision from a rule.

use serde_json::{Value, json};

use super::super::decision::{Host, Path};
use super::super::logic::{group, negated};
use super::rule::Rule;

/// Maximum number of alternatives that become decisions of their own.
const MAX_ALTERNATIVES: usize = 32;

/// The conditions of one alternative of a rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Matching {
    pub(super) hosts: Vec<Host>,
    pub(super) paths: Vec<Path>,
    pub(super) methods: Vec<String>,
    pub(super) conditions: Vec<Value>,
}

/// A matcher in the terms of a decision.
enum Atom {
    Always,
    Host(Host),
    Path(Path),
    Method(String),
    Other(Value),
}

/// Returns the alternatives of a rule. `old` selects the syntax of Traefik 2.
pub(super) fn alternatives(rule: &Rule, old: bool) -> Result<Vec<Matching>, String> {
    let branches = match rule {
        Rule::Or(rules) if rules.len() <= MAX_ALTERNATIVES && !is_uniform(rules) => rules.as_slice(),
        rule => std::slice::from_ref(rule),
    };
    branches.iter().map(|branch| matching(branch, old)).collect()
}

/// Whether all alternatives are the same positive matcher of hosts or paths, so that one decision has them all.
fn is_uniform(rules: &[Rule]) -> bool {
    ["host", "path", "pathprefix", "method"].iter().any(|kind| {
        rules.iter().all(|rule| match rule {
            Rule::Matcher { name, not: false, .. } => {
                name == kind
                    || (*kind == "path" && name == "pathprefix")
                    || (*kind == "host" && name == "hostheader")
            }
            _ => false,
        })
    })
}

fn matching(rule: &Rule, old: bool) -> Result<Matching, String> {
    let mut result = Matching::default();
    let mut parts = Vec::new();
    flatten(rule, &mut parts);
    for part in parts {
        match part {
            Rule::Matcher { name, arguments, not: false } => {
                let atoms = atoms(name, arguments, old)?;
                insert(&mut result, atoms);
            }
            Rule::Or(rules) if is_uniform(rules) => {
                let mut all = Vec::new();
                for rule in rules {
                    let Rule::Matcher { name, arguments, .. } = rule else { continue };
                    all.extend(atoms(name, arguments, old)?);
                }
                insert(&mut result, all);
            }
            other => result.conditions.push(condition(other, old)?),
        }
    }
    Ok(result)
}

fn flatten<'r>(rule: &'r Rule, parts: &mut Vec<&'r Rule>) {
    match rule {
        Rule::And(rules) => rules.iter().for_each(|rule| flatten(rule, parts)),
        rule => parts.push(rule),
    }
}

/// Adds alternatives of one kind; a second group of the same kind becomes a condition, because both must hold.
fn insert(result: &mut Matching, atoms: Vec<Atom>) {
    if atoms.iter().any(|atom| matches!(atom, Atom::Always)) {
        return;
    }
    let (mut hosts, mut paths, mut methods, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let count = atoms.len();
    for atom in atoms {
        others.push(value(&atom));
        match atom {
            Atom::Host(host) => hosts.push(host),
            Atom::Path(path) => paths.push(path),
            Atom::Method(method) => methods.push(method),
            Atom::Other(_) | Atom::Always => {}
        }
    }
    if hosts.len() == count && result.hosts.is_empty() {
        result.hosts = hosts;
    } else if paths.len() == count && result.paths.is_empty() {
        result.paths = paths;
    } else if methods.len() == count && result.methods.is_empty() && methods.iter().all(|it| is_known(it)) {
        result.methods = methods;
    } else {
        result.conditions.push(group("OR", others));
    }
}

/// Whether routes can name the method.
fn is_known(method: &str) -> bool {
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"]
        .contains(&method)
}

/// Returns a rule as a condition on variables.
fn condition(rule: &Rule, old: bool) -> Result<Value, String> {
    let all = |rules: &[Rule]| rules.iter().map(|rule| condition(rule, old)).collect::<Result<Vec<_>, _>>();
    Ok(match rule {
        Rule::And(rules) => group("AND", all(rules)?),
        Rule::Or(rules) => group("OR", all(rules)?),
        Rule::Matcher { name, arguments, not } => {
            let values: Vec<Value> = atoms(name, arguments, old)?.iter().map(value).collect();
            match not {
                false => group("OR", values),
                true => group("AND", values.into_iter().map(negated).collect()),
            }
        }
    })
}

fn value(atom: &Atom) -> Value {
    match atom {
        Atom::Always => json!(["uri", "~~", "^/"]),
        Atom::Host(Host::Exact(name)) => json!(["host", "==", name]),
        Atom::Host(Host::Suffix(name)) => json!(["host", "~~", format!("\\.{}$", regex::escape(name))]),
        Atom::Host(Host::Prefix(name)) => json!(["host", "~~", format!("^{}\\.", regex::escape(name))]),
        Atom::Host(Host::Regex(pattern)) => json!(["host", "~~", pattern]),
        Atom::Path(Path::Exact(path)) => json!(["uri", "==", path]),
        Atom::Path(Path::Prefix(path)) => json!(["uri", "~~", format!("^{}", regex::escape(path))]),
        Atom::Path(Path::Segments(path)) => json!(["uri", "~~", format!("^{}(?:/|$)", regex::escape(path))]),
        Atom::Path(Path::Regex { pattern, .. }) => json!(["uri", "~~", pattern]),
        Atom::Method(method) => json!(["request_method", "==", method]),
        Atom::Other(condition) => condition.clone(),
    }
}

/// Returns the alternatives of a matcher.
fn atoms(name: &str, arguments: &[String], old: bool) -> Result<Vec<Atom>, String> {
    let counts: &[usize] = match name {
        _ if old => &[],
        "header" | "headerregexp" => &[2],
        "query" | "queryregexp" => &[1, 2],
        _ => &[1],
    };
    if arguments.is_empty() || arguments.iter().any(String::is_empty) {
        return Err(format!("`{name}` needs an argument"));
    }
    if !counts.is_empty() && !counts.contains(&arguments.len()) {
        return Err(format!("`{name}` has {} arguments, which Traefik 3 refuses", arguments.len()));
    }
    let first = &arguments[0];
    let second = arguments.get(1).map_or("", String::as_str);
    let each = |make: &dyn Fn(&String) -> Result<Atom, String>| arguments.iter().map(make).collect();
    match name {
        "host" | "hostheader" => each(&|name| host(name)),
        "hostregexp" => each(&|pattern| Ok(Atom::Host(Host::Regex(host_regex(pattern, old)?)))),
        "path" if old => each(&|path| old_path(path, true)),
        "pathprefix" if old => each(&|path| old_path(path, false)),
        "path" => Ok(vec![Atom::Path(Path::Exact(slashed(first)?))]),
        "pathprefix" => Ok(vec![Atom::Path(Path::Prefix(slashed(first)?))]),
        "pathregexp" => Ok(vec![Atom::Path(Path::Regex { pattern: regex(first)?, ignore_case: false })]),
        "method" => each(&|method| Ok(Atom::Method(method.to_ascii_uppercase()))),
        "header" | "headers" => Ok(vec![Atom::Other(json!([header(first)?, "==", second]))]),
        "headerregexp" | "headersregexp" => {
            Ok(vec![Atom::Other(json!([header(first)?, "~~", regex(second)?]))])
        }
        "query" if old => each(&|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok(Atom::Other(query(name, value)))
        }),
        "query" => Ok(vec![Atom::Other(query(first, second))]),
        "queryregexp" if arguments.len() == 1 => Ok(vec![Atom::Other(query(first, ""))]),
        "queryregexp" => Ok(vec![Atom::Other(json!([format!("arg_{first}"), "~~", regex(second)?]))]),
        "clientip" => Ok(vec![Atom::Other(json!(["remote_addr", "ipmatch", arguments]))]),
        _ => Err(format!("`{name}` is not a matcher of HTTP routers")),
    }
}

fn host(name: &str) -> Result<Atom, String> {
    let name = name.to_ascii_lowercase();
    let name = name.trim_end_matches('.');
    if name == "*" {
        return Ok(Atom::Always);
    }
    if !name.is_ascii() {
        return Err(format!("`{name}` is not ASCII"));
    }
    if let Some(rest) = name.strip_prefix("*.") {
        // One label, where a suffix of Sigma has any number.
        return Ok(Atom::Host(Host::Regex(format!("^[^.]+\\.{}$", regex::escape(rest)))));
    }
    Ok(Atom::Host(Host::Exact(name.to_owned())))
}

fn slashed(path: &str) -> Result<String, String> {
    match path.starts_with('/') {
        true => Ok(path.to_owned()),
        false => Err(format!("the path `{path}` does not begin with a slash")),
    }
}

/// Checks a regular expression of Go: the crate `regex` has the same syntax but for `\Q…\E` and `\C`.
pub(super) fn regex(pattern: &str) -> Result<String, String> {
    let pattern = unquoted(pattern);
    match regex::RegexBuilder::new(&pattern).size_limit(1 << 20).build() {
        Ok(_) => Ok(pattern),
        Err(_) => Err(format!("the regular expression `{pattern}` is not supported")),
    }
}

/// Writes `\Q…\E` out.
fn unquoted(pattern: &str) -> String {
    let Some((before, rest)) = pattern.split_once("\\Q") else { return pattern.to_owned() };
    let (quoted, after) = rest.split_once("\\E").unwrap_or((rest, ""));
    format!("{before}{}{}", regex::escape(quoted), unquoted(after))
}

/// The pattern of a host in Traefik 2 has `{name:pattern}` in a plain text.
fn host_regex(pattern: &str, old: bool) -> Result<String, String> {
    match old {
        true => template(pattern, "[^.]+").map(|pattern| format!("^{pattern}$")),
        false => regex(pattern),
    }
}

fn old_path(path: &str, whole: bool) -> Result<Atom, String> {
    let path = slashed(path)?;
    Ok(Atom::Path(match (path.contains('{'), whole) {
        (false, true) => Path::Exact(path),
        (false, false) => Path::Prefix(path),
        (true, whole) => {
            let end = if whole { "$" } else { "" };
            Path::Regex { pattern: format!("^{}{end}", template(&path, "[^/]+")?), ignore_case: false }
        }
    }))
}

/// Returns the regular expression of a text with `{name}` and `{name:pattern}`.
fn template(text: &str, plain: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        out.push_str(&regex::escape(&rest[..start]));
        let mut depth = 0_usize;
        let end = rest[start..].char_indices().find(|(_, char)| {
            match char {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let Some((end, _)) = end else { return Err(format!("`{text}`: `}}` is missing")) };
        let inner = &rest[start + 1..start + end];
        let pattern = inner.split_once(':').map_or(plain, |(_, pattern)| pattern);
        out.push_str(&format!("(?:{pattern})"));
        rest = &rest[start + end + 1..];
    }
    out.push_str(&regex::escape(rest));
    regex(&out)
}

/// Returns the variable of a header field.
pub(super) fn header(name: &str) -> Result<String, String> {
    let valid =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match valid {
        true => Ok(format!("http_{}", name.to_ascii_lowercase().replace('-', "_"))),
        false => Err(format!("`{name}` is not the name of a header field")),
    }
}

/// One of the values of an argument; the variable has the first one.
fn query(name: &str, value: &str) -> Value {
    let pair = format!("(?:^|&){}={}(?:&|$)", regex::escape(name), regex::escape(value));
    json!(["OR", [format!("arg_{name}"), "==", value], ["args", "~~", pair]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Matching> {
        alternatives(&Rule::parse(text).unwrap(), false).unwrap()
    }

    #[test]
    fn alternatives_become_decisions() {
        let found = of("(Host(`A.test`) || Host(`b.test`)) && PathPrefix(`/a`) && !Method(`GET`)");
        let hosts = vec![Host::Exact("a.test".to_owned()), Host::Exact("b.test".to_owned())];
        let expected = Matching {
            hosts,
            paths: vec![Path::Prefix("/a".to_owned())],
            methods: Vec::new(),
            conditions: vec![json!(["request_method", "~=", "GET"])],
        };
        assert_eq!(found, [expected]);
        assert_eq!(of("Host(`a`) || PathPrefix(`/b`)").len(), 2);
        let nested = of("Host(`a`) && (Path(`/b`) || Header(`X-A`, `1`) && !ClientIP(`10.0.0.0/8`))");
        assert_eq!(
            nested[0].conditions,
            [json!([
                "OR",
                ["uri", "==", "/b"],
                ["AND", ["http_x_a", "==", "1"], ["remote_addr", "!", "ipmatch", ["10.0.0.0/8"]]]
            ])]
        );
        assert_eq!(of("Path(`/a`) && PathRegexp(`b$`)")[0].conditions, [json!(["uri", "~~", "b$"])]);
    }

    #[test]
    fn wrong_numbers_of_arguments_are_refused() {
        for text in ["Method(`GET`, `POST`)", "Header(`X`)", "Path(`x`)", "Nothing(`x`)", "PathRegexp(`(`)"] {
            assert!(alternatives(&Rule::parse(text).unwrap(), false).is_err(), "{text}");
        }
        let old = Rule::parse("Host(`a`, `b`) && Path(`/x/{id:[0-9]+}`)").unwrap();
        let found = alternatives(&old, true).unwrap();
        assert_eq!(found[0].hosts.len(), 2);
        let pattern = "^/x/(?:[0-9]+)$".to_owned();
        assert_eq!(found[0].paths, [Path::Regex { pattern, ignore_case: false }]);
    }
}
