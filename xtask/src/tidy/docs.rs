//! Documents and comments: the files that they cite exist, and generated ones are up to date.

use super::source::Source;
use super::{Finding, Repository, read};
use crate::docs::{COMMAND, PLUGINS, generated};

const RULE: &str = "docs cite files that exist";

/// Folders that no clone has: tools make them.
const MADE_BY_TOOLS: [&str; 2] = ["fuzz/artifacts", "fuzz/corpus"];

/// Checks every Markdown file, every comment, then every generated document.
pub(super) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut folders: Vec<&str> =
        repository.paths.iter().filter_map(|path| path.split_once('/')).map(|(top, _)| top).collect();
    folders.dedup();
    for path in repository.paths.iter().filter(|path| path.ends_with(".md")) {
        let text = read(&repository.root, path)?;
        findings.extend(citations(path, &text, &folders, |cited| repository.root.join(cited).exists()));
    }
    for source in &repository.sources {
        findings.extend(comments(source, &folders, &repository.paths));
    }
    findings.extend(stale(repository));
    Ok(findings)
}

/// Returns generated documents that differ from the code's output, and documents without a generator.
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
    let remedy = || format!("it differs from the output of the code: run `{COMMAND}`");
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
            findings.push(Finding::at(RULE, path, number, remedy));
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

/// Checks what comments cite in backticks: paths from the repository's root, paths of modules from the
/// crate's own root such as `exchange/retry`, and names of Rust files.
fn comments(source: &Source, folders: &[&str], paths: &[String]) -> Vec<Finding> {
    let home = source.path.split_once("/src/").map_or("/".to_owned(), |(home, _)| format!("{home}/src/"));
    let is_there =
        |cited: &str| paths.iter().any(|path| path == cited || path.starts_with(&format!("{cited}/")));
    let is_module =
        |cited: &str| is_there(&format!("{home}{cited}")) || is_there(&format!("{home}{cited}.rs"));
    let names_file = |name: &str| paths.iter().any(|path| path.rsplit('/').next() == Some(name));
    let mut findings = Vec::new();
    let lines = source.lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
    for (number, line) in lines {
        for span in line.split('`').skip(1).step_by(2) {
            let cited = span.trim_end_matches('/');
            let exists = match span.split_once('/') {
                Some(_) if is_there(cited) || MADE_BY_TOOLS.contains(&cited) => true,
                Some((top, _)) if is_path(span) && is_there(&format!("{home}{top}")) => is_module(cited),
                Some(_) => repository_path(span, folders).is_none_or(&is_there),
                None => !is_path(span) || !span.ends_with(".rs") || span == ".rs" || names_file(span),
            };
            if !exists {
                let remedy =
                    format!("{span} does not exist: cite the file by its present path or drop the sentence");
                findings.push(Finding::at(RULE, &source.path, number, remedy));
            }
        }
    }
    findings
}

/// Whether the text can be a path: nothing in it is a pattern or a call.
fn is_path(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter))
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

    #[test]
    fn files_cited_in_comments_exist() {
        let check = |text: &str, expected: usize| {
            let paths = ["crates/b/src/lib.rs", "crates/b/src/c/d.rs", "docs/a.md"].map(str::to_owned);
            let findings = comments(&Source::new("crates/b/src/lib.rs", text), &["crates", "docs"], &paths);
            assert_eq!(findings.len(), expected, "{text:?}: {findings:?}");
        };
        check("//! see `crates/b/src/lib.rs`, `docs`, `docs/a.md`, `c/d`, `c/d.rs` and `d.rs`", 0);
        check("/// see `crates/b/src/gone.rs`", 1);
        check("// see `c/gone`, `gone.rs`", 2);
        check("// a `text/plain` of `a/b.rs`, `c/*` and `.rs`", 0);
        check("let a = \"`gone.rs`\";", 0);
    }
}
