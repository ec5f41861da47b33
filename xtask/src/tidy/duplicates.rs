//! Two versions of one dependency: twice the code to trust, to build and to ship.
//!
//! `cargo deny` refuses them too, where it is installed; this needs no network and no tool.

use std::collections::BTreeMap;

use super::{Finding, Repository, read};

const RULE: &str = "one version of each dependency";
const LOCK: &str = "Cargo.lock";
const DENY: &str = "deny.toml";

/// Holds the lock file against the list of exceptions in `deny.toml`.
pub(super) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    Ok(differences(&read(&repository.root, LOCK)?, &read(&repository.root, DENY)?))
}

fn differences(lock: &str, deny: &str) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version) in packages(lock) {
        versions.entry(name).or_default().push(version);
    }
    let skipped = skipped(deny);
    let is_skipped =
        |name: &str, version: &str| skipped.iter().any(|(_, crate_)| *crate_ == format!("{name}@{version}"));
    let mut findings = Vec::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        // The newest is the one that the others have to come up to.
        let older = &versions[..versions.len() - 1];
        for version in older.iter().filter(|version| !is_skipped(name, version)) {
            let remedy = format!(
                "{name} is there in versions {}: bring their users to one, or name {name}@{version} under `skip` in \
                 {DENY} with the reason",
                versions.join(" and ")
            );
            findings.push(Finding::new(RULE, LOCK, remedy));
        }
    }
    for (line, crate_) in skipped {
        let (name, version) = crate_.split_once('@').unwrap_or((crate_, ""));
        let is_older = versions.get(name).is_some_and(|all| all[..all.len() - 1].contains(&version));
        if !is_older {
            let remedy = format!("{crate_} is not a second version of anything any more: drop the line");
            findings.push(Finding::at(RULE, DENY, line, remedy));
        }
    }
    findings
}

/// Returns names and versions in the order of the lock file, where versions of one name ascend.
fn packages(lock: &str) -> impl Iterator<Item = (&str, &str)> {
    lock.split("[[package]]")
        .skip(1)
        .filter_map(|package| Some((field(package, "name")?, field(package, "version")?)))
}

/// The text of `name = "text"`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'))
}

/// Returns the names in `skip`, each with its line; a line without a reason names nothing.
fn skipped(deny: &str) -> Vec<(usize, &str)> {
    let list = deny.lines().enumerate().skip_while(|(_, line)| !line.starts_with("skip = ["));
    let list = list.skip(1).take_while(|(_, line)| !line.starts_with(']'));
    let name = |line: &'_ str| -> Option<(usize, usize)> {
        let start = line.find("crate = \"")? + "crate = \"".len();
        line.contains("reason = \"").then_some((start, start + line[start..].find('"')?))
    };
    list.filter_map(|(number, line)| name(line).map(|(start, end)| (number, &line[start..end]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_versions_are_named_with_a_reason() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.0.0\"\n";
        let check = |skip: &str, expected: usize| {
            let findings = differences(lock, &format!("[bans]\nskip = [\n{skip}\n]\n"));
            assert_eq!(findings.len(), expected, "{skip}: {findings:?}");
        };
        check("  { crate = \"a@1.0.0\", reason = \"b wants it\" },", 0);
        check("", 1);
        check("  { crate = \"a@1.0.0\" },", 1);
        check("  { crate = \"a@2.0.0\", reason = \"the newest\" },", 2);
        check(
            "  { crate = \"a@1.0.0\", reason = \"b wants it\" },\n  { crate = \"c@1.0.0\", reason = \"d\" },",
            1,
        );
    }
}
