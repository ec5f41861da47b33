//! Documents: what they cite exists, and what is generated is up to date.

use super::{Finding, Repository, read};
use crate::docs::{COMMAND, PLUGINS, generated};

/// Checks every Markdown file, then every generated document.
pub(super) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut folders: Vec<&str> =
        repository.paths.iter().filter_map(|path| path.split_once('/')).map(|(top, _)| top).collect();
    folders.dedup();
    for path in repository.paths.iter().filter(|path| path.ends_with(".md")) {
        let text = read(&repository.root, path)?;
        findings.extend(citations(path, &text, &folders, |cited| repository.root.join(cited).exists()));
    }
    findings.extend(stale(repository));
    Ok(findings)
}

/// Generated documents that are not what the code generates, and such that nothing generates any more.
fn stale(repository: &Repository) -> Vec<Finding> {
    let all = generated();
    let outdated = all
        .iter()
        .filter(|document| read(&repository.root, &document.path).ok().as_ref() != Some(&document.text))
        .map(|document| document.path.as_str());
    let orphans = repository
        .paths
        .iter()
        .filter(|path| path.starts_with(PLUGINS) && !all.iter().any(|document| document.path == **path))
        .map(String::as_str);
    let remedy = || format!("it is not what the code generates: run `{COMMAND}`");
    outdated.chain(orphans).map(|path| Finding::new("generated docs", path, remedy())).collect()
}

/// Checks paths in backticks that start with a top-level folder, and relative links.
fn citations(path: &str, text: &str, folders: &[&str], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let cited = line.split('`').skip(1).step_by(2).filter_map(|span| repository_path(span, folders));
        let linked = links(line).map(|link| resolve(folder, link));
        for wanted in cited.map(str::to_owned).chain(linked).filter(|wanted| !exists(wanted)) {
            let remedy =
                format!("{wanted} does not exist: cite the file by its present path or drop the sentence");
            findings.push(Finding::at("docs cite files that exist", path, number, remedy));
        }
    }
    findings
}

/// The path in a code span, if it is one of this repository's: not a pattern, not a command.
fn repository_path<'a>(span: &'a str, folders: &[&str]) -> Option<&'a str> {
    let path = span.split([':', '#']).next()?;
    let (top, _) = path.split_once('/')?;
    let plain = !path.contains([' ', '*', '<', '{', '$', '…', '(']);
    (plain && folders.contains(&top)).then_some(path)
}

/// The targets of relative links on a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split([')', '#', ' ']).next()?;
        let foreign = target.is_empty()
            || target.contains("://")
            || target.starts_with(['/', '<', '`'])
            || target.starts_with("mailto:");
        (!foreign).then_some(target)
    })
}

/// `link` as seen from `folder`, without `.` and `..`.
fn resolve(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cited_files_exist() {
        let check = |text: &str, expected: usize| {
            let exists = |path: &str| ["docs/a.md", "crates/b/src/lib.rs", "README.md"].contains(&path);
            let findings = citations("docs/a.md", text, &["crates", "docs"], exists);
            assert_eq!(findings.len(), expected, "{text:?}: {findings:?}");
        };
        check("see `crates/b/src/lib.rs:12` and [home](../README.md#x)", 0);
        check("see `crates/b/src/gone.rs`", 1);
        check("see [gone](gone.md) and [b](a.md)", 1);
        check("`crates/*/src`, `other/file.rs`, `text/plain`, [web](https://example.org)", 0);
        check("```\n`crates/gone.rs`\n```\n", 0);
    }
}
