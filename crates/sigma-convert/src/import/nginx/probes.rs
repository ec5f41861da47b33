//! Requests from the model of the source: for each name and location one that fits and one that just misses.

use super::super::probe::{Probe, borders};
use super::level::Level;
use super::locations;
use super::parse::Directive;

/// Maximum number of requests.
const MOST_PROBES: usize = 5_000;

/// Returns the requests for the servers of a block `http`.
pub(super) fn probes(http: &Level<'_>) -> Vec<Probe> {
    let mut probes = Vec::new();
    for server in http.own_all(&["server"]) {
        let port = port(server);
        let hosts = hosts(server);
        let Some((main, others)) = hosts.split_first() else { continue };
        let mut push = |name: &str, host: &str, target: &str| {
            let mut probe = Probe::get(name, host, target);
            probe.port = port;
            probes.push(probe);
        };
        push("the first name", main, "/");
        for host in others {
            push("another name, or a similar one", host, "/");
        }
        for (name, target) in targets(server.children()) {
            push(&name, main, &target);
        }
        methods(server, main, port, &mut probes);
    }
    probes.truncate(MOST_PROBES);
    probes
}

fn port(server: &Directive) -> u16 {
    let listen = server.children().iter().find(|child| child.name == "listen");
    listen.and_then(|listen| listen.arg(0).rsplit(':').next()?.parse().ok()).unwrap_or(80)
}

/// Hosts that the names match, and hosts that they just miss.
fn hosts(server: &Directive) -> Vec<String> {
    let mut hosts = Vec::new();
    for line in server.children().iter().filter(|child| child.name == "server_name") {
        for name in &line.args {
            match name.as_str() {
                "_" | "" => {}
                name if name.starts_with('~') => {}
                name => {
                    if let Some(rest) = name.strip_prefix("*.") {
                        hosts.extend([format!("probe.{rest}"), rest.to_owned()]);
                    } else if let Some(rest) = name.strip_prefix('.') {
                        hosts.extend([rest.to_owned(), format!("probe.{rest}"), format!("x{rest}")]);
                    } else if let Some(rest) = name.strip_suffix(".*") {
                        hosts.extend([format!("{rest}.example"), rest.to_owned()]);
                    } else {
                        hosts.extend([name.to_owned(), name.to_uppercase(), format!("x{name}")]);
                    }
                }
            }
        }
    }
    if hosts.is_empty() {
        hosts.push("probe.invalid".to_owned());
    }
    hosts
}

/// Targets at the borders of the locations, and of their rewrites.
fn targets(directives: &[Directive]) -> Vec<(String, String)> {
    let mut targets = Vec::new();
    for directive in directives {
        match directive.name.as_str() {
            "location" => {
                let (modifier, text) = locations::parts(directive);
                let name = format!("location {modifier} {text}");
                match modifier {
                    "~" | "~*" => targets.extend(samples(text).into_iter().map(|it| (name.clone(), it))),
                    _ if text.starts_with('/') => {
                        targets.extend(borders(text).into_iter().map(|target| (name.clone(), target)));
                        targets.push((name.clone(), format!("{text}?probe=1")));
                    }
                    _ => {}
                }
                targets.extend(targets_of_inner(directive));
            }
            "rewrite" => {
                let name = format!("rewrite {}", directive.arg(0));
                targets.extend(samples(directive.arg(0)).into_iter().map(|it| (name.clone(), it)));
            }
            _ => {}
        }
    }
    targets
}

fn targets_of_inner(directive: &Directive) -> Vec<(String, String)> {
    targets(directive.children())
}

/// Paths that a simple expression matches: groups by their first alternative, classes by one of their characters.
fn samples(expression: &str) -> Vec<String> {
    let mut path = String::new();
    let body = expression.trim_start_matches('^').trim_end_matches('$');
    let mut chars = body.chars().peekable();
    let mut depth_skip = 0usize;
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('d') => path.push('7'),
                Some('w') => path.push('w'),
                Some('s') => path.push(' '),
                Some(char) => path.push(char),
                None => {}
            },
            '(' => {
                // `?:`, `?<name>` and the like.
                if chars.peek() == Some(&'?') {
                    while chars.peek().is_some_and(|char| !matches!(char, ':' | '>' | '!' | '=')) {
                        chars.next();
                    }
                    chars.next();
                }
            }
            '|' => {
                depth_skip += 1;
                while let Some(char) = chars.peek() {
                    match char {
                        '(' => depth_skip += 1,
                        ')' if depth_skip == 1 => break,
                        ')' => depth_skip -= 1,
                        _ => {}
                    }
                    chars.next();
                }
                depth_skip = 0;
            }
            ')' | '*' | '+' | '?' => {}
            '.' => path.push('x'),
            '[' => {
                let first = chars.next().unwrap_or('x');
                path.push(if first == '^' { 'x' } else { first });
                while chars.next().is_some_and(|char| char != ']') {}
            }
            '{' => while chars.next().is_some_and(|char| char != '}') {},
            char => path.push(char),
        }
    }
    let path = if path.starts_with('/') { path } else { format!("/probe{path}") };
    let path: String = path.chars().filter(|char| char.is_ascii_graphic()).collect();
    vec![path.clone(), format!("{path}x"), path.to_uppercase()]
}

/// Other methods where the source distinguishes methods.
fn methods(server: &Directive, host: &str, port: u16, probes: &mut Vec<Probe>) {
    let mut stack: Vec<&Directive> = server.children().iter().collect();
    while let Some(directive) = stack.pop() {
        let is_about = directive.name == "limit_except"
            || directive.args.iter().any(|arg| arg.contains("$request_method"));
        if is_about {
            for method in ["POST", "DELETE", "OPTIONS"] {
                let mut probe = Probe::get(directive.source(), host, "/");
                probe.method = method.to_owned();
                probe.port = port;
                probes.push(probe);
            }
        }
        stack.extend(directive.children());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_samples() {
        for (expression, expected) in [
            (r"\.(gif|jpg)$", "/probe.gif"),
            (r"^/user/(?<id>\d+)$", "/user/7"),
            (r"^/a{2}/[a-z]+(/.*)?$", "/a/a/x"),
        ] {
            assert_eq!(samples(expression)[0], expected, "{expression}");
        }
    }
}
