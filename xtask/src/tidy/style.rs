//! Rules that a single Rust file shows: its doc, its words, its tests, its `unsafe`.

use super::Finding;
use super::source::{Source, words};

/// Words that mark unfinished work. Spelled in parts, since this file is checked too.
const UNFINISHED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

/// Parts of names that explain nothing.
const EMPTY_NAMES: [&str; 6] = ["manager", "helper", "helpers", "util", "utils", "misc"];

/// The only crate with `unsafe`.
const UNSAFE_HOME: &str = "crates/sigma-net/";

/// Tests of servers that `make test-servers` installs, with what their packages bring.
const REAL_SERVERS: &str = "crates/sigma/tests/feature/servers/";

/// How many lines above an `unsafe` its note may stand.
const SAFETY_REACH: usize = 6;

/// Files whose tests may sleep, with the reason.
const SLEEPERS: &[(&str, &str)] = &[
    ("crates/sigma-control/src/operators/stress/tests.rs", "the clock is paused: a sleep moves it"),
    ("crates/sigma/tests/feature/stress.rs", "the test is about the latency of a node"),
    (
        "crates/sigma-net/src/quic/tests/networks.rs",
        "networks that delay packets; a pause in which the timeouts of a connection expire",
    ),
    (
        "crates/sigma-net/src/quic/tests/early_data.rs",
        "counts of the other end raise no event: they are polled for, up to a deadline",
    ),
    ("extensions/lua/engine/pace.rs", "the test is about the pauses between turns"),
    (
        "crates/sigma-net/src/quic/tests.rs",
        "counts of the other end raise no event: they are polled for, up to a deadline",
    ),
    (
        "crates/sigma/tests/feature/supervised.rs",
        "the test is about a signal at any moment of an exec, and no event marks these moments",
    ),
    (
        "crates/sigma-net/src/deadline.rs",
        "the test is about the clock of an idle thread, and only time makes it rest",
    ),
    ("crates/sigma-testkit/", "the harness polls for what no event announces, up to a deadline"),
    (
        "crates/sigma-upstream/src/watch.rs",
        "a published address raises no event: it is polled for, up to a deadline",
    ),
    (
        "crates/sigma-upstream/src/health/checker.rs",
        "a turned state raises no event: it is polled for, up to a deadline",
    ),
    (
        "crates/sigma-control/src/store/embedded/",
        "the test is about a time to live, which passes without an event",
    ),
    (
        "plugins/traffic/limit-count/tests/installed.rs",
        "a Redis that is back raises no event: it is polled for",
    ),
    ("crates/sigma-plugin-kit/src/redis/tests.rs", "a Redis that is back raises no event: it is polled for"),
    (
        "crates/sigma/tests/feature/tls.rs",
        "a turned health raises no event: it is polled for, up to a deadline",
    ),
    (
        "crates/sigma-proxy/src/edge/listen/simulation/",
        "it sleeps in made-up time, which passes when all wait",
    ),
    ("crates/sigma-proxy/src/simulation/", "it sleeps in made-up time, which passes when all wait"),
    ("crates/sigma-control/src/simulation/", "the clock is paused: a sleep moves it"),
    ("crates/sigma-control/tests/store_", "a real etcd raises no event: it is polled for, up to a deadline"),
];

/// Applies the rules to one file.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(module_doc(source));
    findings.extend(file_name(source));
    for line in 0..source.lines.len() {
        findings.extend(unfinished(source, line));
        findings.extend(tests(source, line));
        findings.extend(examples(source, line));
        findings.extend(programs(source, line));
        findings.extend(names(source, line));
        findings.extend(unsafe_code(source, line));
    }
    findings
}

fn module_doc(source: &Source) -> Option<Finding> {
    let first = source.lines.iter().find(|line| !line.trim().is_empty());
    let remedy = "open the file with a //! line about its content and its reason";
    (!first.is_some_and(|line| line.starts_with("//!")))
        .then(|| Finding::at("module doc", &source.path, 0, remedy))
}

fn file_name(source: &Source) -> Option<Finding> {
    let stem = source.path.rsplit('/').next()?.strip_suffix(".rs")?;
    let remedy = format!("the name {stem} explains nothing: name the file after the noun it defines");
    is_empty_name(stem).then(|| Finding::new("names", &source.path, remedy))
}

fn unfinished(source: &Source, line: usize) -> Option<Finding> {
    let (_, word) = words(&source.lines[line]).find(|(_, word)| UNFINISHED.contains(word))?;
    let remedy = format!("{word} is work without an owner: do it now or file an issue and drop the mark");
    Some(Finding::at("no unfinished marks", &source.path, line, remedy))
}

fn tests(source: &Source, line: usize) -> Option<Finding> {
    let code = &source.code[line];
    if code.contains("#[ignore") {
        let remedy = "an ignored test checks nothing: make it fast and steady, or remove it";
        return Some(Finding::at("no ignored tests", &source.path, line, remedy));
    }
    let allowed = SLEEPERS.iter().any(|(place, _)| source.path.starts_with(place));
    let sleeps = words(code).any(|(at, word)| word == "sleep" && code[at + word.len()..].starts_with('('));
    if source.ships(line) || allowed || !sleeps {
        return None;
    }
    let remedy = "a sleep is too short on a busy machine and too long on an idle one: wait for the event up to a \
                  deadline, or add the file to SLEEPERS with its reason";
    Some(Finding::at("no sleeps in tests", &source.path, line, remedy))
}

/// `cargo xtask test` compiles no examples of documentation: a program for each would take longer than all unit tests.
fn examples(source: &Source, line: usize) -> Option<Finding> {
    let text = source.lines[line].trim_start();
    let comment = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"))?;
    let remedy = "no test runs examples in comments: write a test, or a sentence";
    comment
        .trim_start()
        .starts_with("```")
        .then(|| Finding::at("no examples in comments", &source.path, line, remedy))
}

/// A bare machine has no `kill` and no `ps`; tests of real servers run where they were installed.
fn programs(source: &Source, line: usize) -> Option<Finding> {
    let text = &source.lines[line];
    let missing =
        ["kill", "pkill", "ps"].iter().find(|name| text.contains(&format!("Command::new(\"{name}\")")))?;
    let remedy = format!("a bare machine has no program {missing}: send signals with rustix, read /proc");
    let allowed = source.path.starts_with(REAL_SERVERS);
    (!allowed).then(|| Finding::at("programs", &source.path, line, remedy))
}

fn names(source: &Source, line: usize) -> Option<Finding> {
    let mut previous = "";
    for (_, word) in words(&source.code[line]) {
        if ["struct", "enum", "trait", "mod", "fn", "type"].contains(&previous) && is_empty_name(word) {
            let remedy = format!("the name {word} explains nothing: name the content or the action");
            return Some(Finding::at("names", &source.path, line, remedy));
        }
        previous = word;
    }
    None
}

/// Whether a part of `name`, in snake or camel case, is one of [`EMPTY_NAMES`].
fn is_empty_name(name: &str) -> bool {
    let mut parts = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            parts.push('_');
        }
        parts.push(letter.to_ascii_lowercase());
    }
    parts.split('_').any(|part| EMPTY_NAMES.contains(&part))
}

fn unsafe_code(source: &Source, line: usize) -> Option<Finding> {
    if !words(&source.code[line]).any(|(_, word)| word == "unsafe") {
        return None;
    }
    if !source.path.starts_with(UNSAFE_HOME) {
        let remedy = "unsafe belongs in sigma-net only: offer the operation there behind a safe function";
        return Some(Finding::at("unsafe", &source.path, line, remedy));
    }
    let noted =
        source.lines[line.saturating_sub(SAFETY_REACH)..=line].iter().any(|text| text.contains("SAFETY"));
    let remedy = "write a SAFETY note above it that says why the contract holds";
    (!noted).then(|| Finding::at("unsafe", &source.path, line, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_its_case() {
        let check = |path: &str, body: &str, expected: &[&str]| {
            let source = Source::new(path, &format!("//! Doc.\n{body}"));
            let found: Vec<_> = super::check(&source).iter().map(|finding| finding.rule).collect();
            assert_eq!(found, expected, "{path}: {body:?}");
        };
        let library = "crates/sigma-proxy/src/a.rs";
        check(library, "fn a() { sleep(b); }", &[]);
        check(library, "#[cfg(test)]\nmod tests {\n  fn a() { sleep(b); }\n}", &["no sleeps in tests"]);
        check("crates/sigma-testkit/src/a.rs", "fn a() { sleep(b); }", &[]);
        check(library, "#[ignore = \"slow\"]", &["no ignored tests"]);
        check(library, "/// ```\nfn a() {}", &["no examples in comments"]);
        check(library, &format!("// {}: later", UNFINISHED[0]), &["no unfinished marks"]);
        check(library, "fn a() { Command::new(\"kill\"); }", &["programs"]);
        check(&format!("{REAL_SERVERS}a.rs"), "fn a() { Command::new(\"kill\"); }", &[]);
        check(library, "struct PoolManager;", &["names"]);
        check(library, "fn manages_pool() {}", &[]);
        check("crates/sigma-proxy/src/utils.rs", "", &["names"]);
        check(library, "unsafe { a() }", &["unsafe"]);
        check(library, "#![forbid(unsafe_code)] // unsafe", &[]);
        check("crates/sigma-net/src/a.rs", "unsafe { a() }", &["unsafe"]);
        check("crates/sigma-net/src/a.rs", "// SAFETY: a is pure.\nunsafe { a() }", &[]);
    }

    #[test]
    fn a_file_without_doc_is_found() {
        let findings = super::check(&Source::new("crates/a/src/lib.rs", "fn a() {}\n"));
        assert_eq!(findings.len(), 1, "{findings:?}");
    }
}
