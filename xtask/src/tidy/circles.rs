//! Circles of modules: files of a crate that use each other in a ring can only be read together.
//!
//! A module may use what its ancestors offer: a folder's `mod.rs` holds what its files share. So a step
//! up does not count, and every other step does.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::{Source, words};

const RULE: &str = "no circles of modules";

/// Steps that close a circle and stay, from file to file, or from and to folders, which end with `/`;
/// each with the reason.
const KNOWN: &[(&str, &str, &str)] = &[
    (
        "crates/sigma-wire/src/h3/datagrams.rs",
        "crates/sigma-wire/src/h3/common.rs",
        "a connection delivers datagrams to its tunnels, and a tunnel sends them by its connection",
    ),
    (
        "extensions/lua/engine/streamed.rs",
        "extensions/lua/",
        "a function that sends its output in pieces goes on as the source of the response",
    ),
    (
        "crates/sigma-convert/src/import/caddy/",
        "crates/sigma-convert/src/import/caddy/",
        "blocks of the language hold blocks of other kinds, so their converters call each other",
    ),
    (
        "crates/sigma-convert/src/import/haproxy/",
        "crates/sigma-convert/src/import/haproxy/",
        "a rule adds to the chain, and the chain closes the paths of rules that it cannot keep",
    ),
    (
        "crates/sigma-convert/src/import/nginx/",
        "crates/sigma-convert/src/import/nginx/",
        "blocks of the language hold blocks of other kinds, so their converters call each other",
    ),
    (
        "crates/sigma-convert/src/import/traefik/",
        "crates/sigma-convert/src/import/traefik/",
        "blocks of the language hold blocks of other kinds, so their converters call each other",
    ),
    (
        "crates/sigma-config/src/settings/tls.rs",
        "crates/sigma-config/src/resources/",
        "versions of TLS are named where resources are",
    ),
    (
        "crates/sigma-schema/src/validation/pcre/class.rs",
        "crates/sigma-schema/src/validation/pcre/translate.rs",
        "a class holds escapes, and a pattern holds classes",
    ),
    (
        "crates/sigma-net/src/tls/",
        "crates/sigma-net/src/stream.rs",
        "a stream may be encrypted, over another stream",
    ),
    (
        "crates/sigma-observe/src/error_lines.rs",
        "crates/sigma-observe/src/log_buffer.rs",
        "lines of errors go the way of the access log, which tells its own errors so",
    ),
    (
        "crates/sigma-observe/src/log_output.rs",
        "crates/sigma-observe/src/log_buffer.rs",
        "the errors and targets of a log are named where it is",
    ),
    (
        "crates/sigma-proxy/src/snapshot/",
        "crates/sigma-proxy/src/compile/",
        "a snapshot holds what compiling it has to compare",
    ),
    (
        "crates/sigma-proxy/src/compile/certificates.rs",
        "crates/sigma-proxy/src/compile/compiled.rs",
        "a certificate is compiled of an ssl, and a compiled resource may hold one",
    ),
    (
        "crates/sigma-proxy/src/worker/mod.rs",
        "crates/sigma-proxy/src/exchange/",
        "a worker keeps the memory of exchanges that are over",
    ),
    (
        "crates/sigma-proxy/src/worker/mod.rs",
        "crates/sigma-proxy/src/attempt/outbound.rs",
        "a worker hands out calls, which use its connections",
    ),
    (
        "crates/sigma-proxy/src/exchange/response.rs",
        "crates/sigma-proxy/src/exchange/ask.rs",
        "a response may wait for a subrequest, which is an exchange",
    ),
    (
        "crates/sigma-upstream/src/health/",
        "crates/sigma-upstream/src/endpoint.rs",
        "an endpoint has its health, which is reported by address",
    ),
    (
        "xtask/src/bench/process.rs",
        "xtask/src/bench/",
        "a process is one of a contender's, started at its place",
    ),
    ("xtask/src/bench/launch.rs", "xtask/src/bench/contender.rs", "programs are listed with the contenders"),
    (
        "xtask/src/bench/suite/",
        "xtask/src/bench/report.rs",
        "a report names its suites, and a suite writes into its report",
    ),
    ("xtask/src/bench/install.rs", "xtask/src/bench/suite/", "each suite has its programs installed"),
];

/// A place in a crate, such as `["route", "tree"]`; empty for its root.
pub(super) type Path = Vec<String>;

/// Finds the circles of every crate.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        if let Some(folder) = root(&source.path) {
            crates.entry(folder).or_default().push(source);
        }
    }
    let mut findings = Vec::new();
    let mut needed = BTreeSet::new();
    for (folder, files) in crates {
        let mut steps = steps(folder, &files);
        for (from, to) in closing(&steps) {
            let step = (files[from].path.as_str(), files[to].path.as_str());
            if let Some(known) =
                KNOWN.iter().position(|known| covers(known.0, step.0) && covers(known.1, step.1))
            {
                steps[from].remove(&to);
                needed.insert(known);
            }
        }
        for circle in circles(&steps) {
            let paths: Vec<&str> = circle.iter().map(|&at| files[at].path.as_str()).collect();
            let remedy = format!(
                "{} use each other in a ring: move the shared parts below them, or pass them as arguments",
                paths.join(", ")
            );
            findings.push(Finding::new(RULE, paths[0], remedy));
        }
    }
    for (_, (from, to, _)) in KNOWN.iter().enumerate().filter(|(known, _)| !needed.contains(known)) {
        let remedy =
            format!("no step from it to {to} closes a circle any more: drop it from KNOWN in circles.rs");
        findings.push(Finding::new(RULE, *from, remedy));
    }
    findings
}

/// The folder of the root module of the crate that a file belongs to, with a slash at its end.
fn root(path: &str) -> Option<&str> {
    if let Some(group) = path.strip_prefix("plugins/").or_else(|| path.strip_prefix("extensions/")) {
        return Some(&path[..path.len() - group.len() + group.find('/')? + 1]);
    }
    path.find("/src/").map(|at| &path[..at + "/src/".len()])
}

/// Which files each file uses, by number.
fn steps(folder: &str, files: &[&Source]) -> Vec<BTreeSet<usize>> {
    let places: Vec<Path> = files.iter().map(|file| place(&file.path[folder.len()..])).collect();
    let numbers: BTreeMap<&Path, usize> = places.iter().zip(0..).collect();
    let mut steps = vec![BTreeSet::new(); files.len()];
    for (at, file) in files.iter().enumerate() {
        let own = &places[at];
        let code = file.code[..file.tests_from].join("\n");
        for path in used(&code, own, |child| numbers.contains_key(&[&own[..], &[child.to_owned()]].concat()))
        {
            // The rest of the path names something within the module.
            let module = (0..=path.len()).rev().find_map(|end| numbers.get(&path[..end].to_vec()));
            if let Some(&module) = module.filter(|&&module| !own.starts_with(&places[module])) {
                steps[at].insert(module);
            }
        }
    }
    steps
}

/// The module that a file is. The folder of a plugin has the plugin's name, and its module has `_` instead of `-`.
pub(super) fn place(path: &str) -> Path {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let parts = path.split('/').filter(|part| !matches!(*part, "mod" | "lib" | "main"));
    parts.map(|part| part.replace('-', "_")).collect()
}

/// The paths within the crate that `code` of the module `own` names.
pub(super) fn used(code: &str, own: &[String], is_child: impl Fn(&str) -> bool) -> Vec<Path> {
    let mut paths = Vec::new();
    for (at, word) in words(code) {
        let rest = &code[at + word.len()..];
        if !rest.starts_with("::") || code[..at].ends_with("::") {
            continue;
        }
        let base = match word {
            "crate" => Vec::new(),
            "self" => own.to_vec(),
            "super" => own[..own.len().saturating_sub(1)].to_vec(),
            child if is_child(child) => [own, &[child.to_owned()]].concat(),
            _ => continue,
        };
        tree(&rest[2..], base, &mut paths);
    }
    paths
}

/// Adds the paths after `base::`, with a path for each name in braces; returns the rest.
fn tree<'c>(code: &'c str, base: Path, paths: &mut Vec<Path>) -> &'c str {
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|next: char| next.is_whitespace() || next == ',');
            if rest.is_empty() {
                return rest;
            }
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            let after = tree(rest, base.clone(), paths);
            // A renamed item has its new name here; anything unexpected is skipped.
            let end = after.find([',', '}', '{']).unwrap_or(after.len());
            rest = if after.len() == rest.len() && end == 0 { &after[1..] } else { &after[end..] };
        }
    }
    let length = code.find(|next: char| next != '_' && !next.is_alphanumeric()).unwrap_or(code.len());
    let (name, rest) = code.split_at(length);
    let mut path = base;
    match name {
        "super" => drop(path.pop()),
        "self" | "" => {}
        name => path.push(name.to_owned()),
    }
    match rest.strip_prefix("::") {
        Some(more) => tree(more, path, paths),
        None => {
            paths.push(path);
            rest
        }
    }
}

/// Whether an entry covers a file.
fn covers(place: &str, path: &str) -> bool {
    path == place || (place.ends_with('/') && path.starts_with(place))
}

/// All steps that lead back to where they come from.
fn closing(steps: &[BTreeSet<usize>]) -> Vec<(usize, usize)> {
    let all = steps.iter().enumerate().flat_map(|(from, to)| to.iter().map(move |&to| (from, to)));
    all.filter(|&(from, to)| reach(steps, to).contains(&from)).collect()
}

/// Groups of more than one that all lead to each other, each in order.
fn circles(steps: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..steps.len()).map(|from| reach(steps, from)).collect();
    let mut circles = BTreeSet::new();
    for (from, all) in reached.iter().enumerate().filter(|(from, all)| all.contains(from)) {
        let circle: Vec<usize> = all.iter().copied().filter(|&to| reached[to].contains(&from)).collect();
        circles.insert(circle);
    }
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// All that `from` leads to.
fn reach(steps: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<usize> = steps[from].iter().copied().collect();
    while let Some(at) = next.pop() {
        if reached.insert(at) {
            next.extend(&steps[at]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: usize) {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(&format!("crates/a/src/{path}"), text)).collect();
        let findings = super::check(&sources);
        let circles = findings.iter().filter(|finding| finding.remedy.contains("ring")).count();
        assert_eq!(circles, expected, "{files:?}: {findings:?}");
    }

    #[test]
    fn a_ring_is_found_and_a_step_up_is_no_ring() {
        check(&[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")], 1);
        check(
            &[
                ("a.rs", "use crate::{c, b::{B as D, E}};"),
                ("b.rs", "fn b() { super::a::a() }"),
                ("c.rs", ""),
            ],
            1,
        );
        check(&[("a.rs", "use crate::b::B;"), ("b.rs", "// use crate::a::A;\n")], 0);
        check(&[("a/mod.rs", "mod b;\nuse b::B;"), ("a/b.rs", "use super::A;")], 0);
        check(
            &[
                ("a/mod.rs", "mod b;\nuse b::B;"),
                ("a/b.rs", "use crate::c::C;"),
                ("c.rs", "use crate::a::A;"),
            ],
            1,
        );
        let test = "#[cfg(test)]\nmod tests {\n  use crate::a::A;\n}";
        check(&[("a.rs", "use crate::b::B;"), ("b.rs", test)], 0);
    }
}
