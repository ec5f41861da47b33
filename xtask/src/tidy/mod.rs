//! `cargo xtask tidy`: the rules of the house that a tool can check.
//!
//! The same checks run as a test of this crate, so `cargo test` fails where the house is left. Every finding names
//! the rule, the place and the remedy; a rule that cannot say what to do instead does not belong here.

mod circles;
mod docs;
mod duplicates;
mod fields;
mod glossary;
mod layering;
mod lock;
mod owned;
mod plane;
mod plugin_folders;
mod prose;
mod size;
mod source;
mod style;
mod tuples;
mod unsafe_blocks;

use std::cmp::Ordering;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use source::Source;

/// One place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    rule: &'static str,
    /// File, and line from 1 where one is known.
    place: String,
    /// The problem there and the remedy.
    remedy: String,
}

impl Finding {
    fn new(rule: &'static str, place: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { rule, place: place.into(), remedy: remedy.into() }
    }

    /// A finding at a line, counted from 0.
    fn at(rule: &'static str, path: &str, line: usize, remedy: impl Into<String>) -> Self {
        Self::new(rule, format!("{path}:{}", line + 1), remedy)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}: {}", self.place, self.rule, self.remedy)
    }
}

/// The files of the repository that the rules look at.
struct Repository {
    root: PathBuf,
    /// Every file that git tracks or would track, relative to the root, in order.
    paths: Vec<String>,
    sources: Vec<Source>,
}

impl Repository {
    fn read(root: &Path) -> anyhow::Result<Self> {
        let output = Command::new("git")
            .arg("-C")
            .arg(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .context("cannot run git, which lists the files to check")?;
        ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
        // A file removed and not yet committed is still listed.
        let mut paths: Vec<String> =
            text.split('\0').filter(|path| root.join(path).is_file()).map(str::to_owned).collect();
        paths.sort();
        let rust = paths.iter().filter(|path| path.ends_with(".rs"));
        let sources =
            rust.map(|path| Ok(Source::new(path, &read(root, path)?))).collect::<anyhow::Result<_>>()?;
        Ok(Self { root: root.to_owned(), paths, sources })
    }
}

fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path} as text"))
}

/// Applies all rules to the repository at `root`.
fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let repository = Repository::read(root)?;
    let mut findings = layering::check(&repository)?;
    findings.extend(plane::check(&repository));
    findings.extend(plugin_folders::check(&repository));
    findings.extend(circles::check(&repository.sources));
    findings.extend(owned::check(&repository.sources));
    findings.extend(duplicates::check(&repository)?);
    findings.extend(size::check(&repository.sources));
    findings.extend(tuples::check(&repository.sources));
    findings.extend(fields::check(&repository.sources));
    findings.extend(unsafe_blocks::check(&repository.sources));
    for source in &repository.sources {
        findings.extend(style::check(source));
    }
    findings.extend(docs::check(&repository)?);
    findings.extend(prose::check(&repository)?);
    findings.extend(glossary::check(&repository)?);
    findings.extend(lock::check(&repository)?);
    Ok(findings)
}

/// Compares the findings about `key` with its number in `at_most`, which may only fall; a key without a line has 0.
fn at_most(rule: &'static str, numbers: &[(&str, usize)], key: &str, found: Vec<Finding>) -> Vec<Finding> {
    let number = numbers.iter().find(|(known, _)| *known == key).map_or(0, |(_, number)| *number);
    match found.len().cmp(&number) {
        Ordering::Less => {
            let remedy = format!("{} places of `{key}` are left: lower its number in AT_MOST", found.len());
            vec![Finding::new(rule, key, remedy)]
        }
        Ordering::Equal => Vec::new(),
        Ordering::Greater => found,
    }
}

/// Prints every finding; fails if there is one.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let findings = check(root)?;
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} places leave the rules of the house", findings.len());
    }
    println!("tidy");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_may_only_fall() {
        let check = |number: usize, found: usize, expected: usize| {
            let found = (0..found).map(|_| Finding::new("rule", "a", "mend it")).collect();
            assert_eq!(at_most("rule", &[("a", number)], "a", found).len(), expected, "{number}");
        };
        check(2, 2, 0);
        check(2, 3, 3);
        check(2, 1, 1);
        assert_eq!(at_most("rule", &[], "b", vec![Finding::new("rule", "b", "mend it")]).len(), 1);
    }

    #[test]
    fn the_repository_is_tidy() {
        let root = crate::repository().expect("tests run where they were built");
        let findings = check(&root).expect("git and the files can be read");
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }
}
