//! Requests that try the conditions of a route: one that fits and ones that just miss.

use super::super::probe::{Probe, borders};
use super::model::Route;
use super::predicates::Conditions;

/// Maximum number of probes of a route.
const MOST: usize = 24;

/// Returns the probes of a route.
pub(super) fn of(route: &Route<'_>, conditions: &Conditions) -> Vec<Probe> {
    let mut probes = Vec::new();
    let base = base(route, conditions);
    for pattern in route.paths() {
        let target = example(&pattern);
        probes.push(Probe {
            name: format!("{}: {pattern}", route.id),
            target: target.clone(),
            ..base.clone()
        });
        for border in borders(target.trim_end_matches("/x/y")) {
            probes.push(Probe {
                name: format!("{}: beside {pattern}", route.id),
                target: border,
                ..base.clone()
            });
        }
    }
    if probes.is_empty() {
        probes.push(Probe {
            name: format!("{}: any path", route.id),
            target: "/".to_owned(),
            ..base.clone()
        });
    }
    let fits = probes[0].clone();
    if !conditions.methods.is_empty() {
        let other = ["GET", "POST", "PUT", "DELETE"]
            .iter()
            .find(|it| !conditions.methods.iter().any(|name| name == *it));
        if let Some(method) = other {
            probes.push(Probe {
                name: format!("{}: another method", route.id),
                method: (*method).to_owned(),
                ..fits.clone()
            });
        }
    }
    if !base.host.is_empty() {
        probes.push(Probe {
            name: format!("{}: another host", route.id),
            host: "other.invalid".to_owned(),
            ..fits.clone()
        });
        probes.push(Probe {
            name: format!("{}: host in capitals", route.id),
            host: base.host.to_uppercase(),
            ..fits.clone()
        });
    }
    for at in 0..fits.headers.len() {
        let mut without = fits.clone();
        let (name, _) = without.headers.remove(at);
        without.name = format!("{}: without {name}", route.id);
        probes.push(without);
    }
    probes.truncate(MOST);
    probes
}

/// A request that meets all conditions but the path.
fn base(route: &Route<'_>, conditions: &Conditions) -> Probe {
    let mut probe = Probe::get("", "", "/");
    if let Some(method) = conditions.methods.first() {
        method.clone_into(&mut probe.method);
    }
    for it in &route.predicates {
        match it.name.to_ascii_lowercase().as_str() {
            "host" => {
                let pattern = it.many("patterns").into_iter().next().unwrap_or_default();
                probe.host = pattern.replace("**", "a").replace('*', "a").replace(['{', '}'], "");
            }
            "header" => {
                if let Some(name) = it.one("header") {
                    probe.headers.push((name.to_owned(), text_for(it.one("regexp"))));
                }
            }
            "cookie" => {
                if let Some(name) = it.one("name") {
                    probe
                        .headers
                        .push(("Cookie".to_owned(), format!("{name}={}", text_for(it.one("regexp")))));
                }
            }
            _ => {}
        }
    }
    probe
}

/// A text that probably matches a regular expression.
fn text_for(regexp: Option<&str>) -> String {
    let Some(regexp) = regexp else { return "1".to_owned() };
    let whole = format!("^(?:{regexp})$");
    let Ok(regex) = regex::Regex::new(&whole) else { return "1".to_owned() };
    let literal: String = regexp.chars().map(|char| if char == '.' { 'a' } else { char }).collect();
    let candidates = [literal.as_str(), "1", "12", "a", "abc", "true", "a1", "1.0", "1234"];
    candidates.into_iter().find(|text| regex.is_match(text)).unwrap_or("1").to_owned()
}

/// A path that a pattern matches.
fn example(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(char) = rest.chars().next() {
        match char {
            '{' => {
                let end = rest.find('}').map_or(rest.len(), |at| at + 1);
                out.push_str(if rest[..end].contains(':') { "1" } else { "v" });
                rest = &rest[end..];
                continue;
            }
            '*' if rest.starts_with("**") => {
                out.push_str("x/y");
                rest = &rest[2..];
                continue;
            }
            '*' => out.push('w'),
            '?' => out.push('q'),
            other => out.push(other),
        }
        rest = &rest[char.len_utf8()..];
    }
    out
}
