//! `cargo xtask bench build`: the time of a build from nothing, and the crates that it waits for.
//!
//! Cargo measures each crate and writes which ones it held back (`--timings`). The longest chain is the time that more
//! cores could not save.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Deserialize;

/// Crates of the tables.
const ROWS: usize = 12;

/// A compilation, as cargo's report has it. Times are in seconds from the start of the build.
#[derive(Debug, Deserialize)]
struct Unit {
    i: u32,
    name: String,
    target: String,
    start: f64,
    duration: f64,
    /// Compilations that waited for the end of this one last.
    unblocked_units: Vec<u32>,
    /// Compilations that waited for its metadata last.
    unblocked_rmeta_units: Vec<u32>,
    sections: Option<Vec<(String, Section)>>,
}

#[derive(Debug, Deserialize)]
struct Section {
    end: f64,
}

impl Unit {
    fn end(&self) -> f64 {
        self.start + self.duration
    }

    /// The time until its metadata, which others wait for.
    fn until_metadata(&self) -> f64 {
        let front = self.sections.iter().flatten().find(|(name, _)| name == "frontend");
        front.map_or(self.duration, |(_, section)| section.end)
    }

    fn label(&self) -> String {
        format!("{}{}", self.name, self.target)
    }
}

/// Builds the program in an empty folder and prints what took the time.
pub(super) fn run(root: &Path, work: &Path, profile: &str) -> anyhow::Result<()> {
    let folder = work.join("build");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let begin = Instant::now();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--package", "sigma", "--timings", "--profile", profile]);
    let status = cargo.arg("--target-dir").arg(&folder).current_dir(root).status();
    ensure!(status.context("cannot start cargo")?.success(), "the program cannot be built");
    let seconds = begin.elapsed().as_secs();
    let report = std::fs::read_to_string(folder.join("cargo-timings/cargo-timing.html"))?;
    let table = table(&units(&report)?, profile, seconds, &lines(root)?);
    println!("{table}");
    std::fs::write(work.join("results").join(format!("build-{profile}.md")), table)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// The compilations in cargo's report.
fn units(report: &str) -> anyhow::Result<Vec<Unit>> {
    let list = report.split("UNIT_DATA = ").nth(1).context("cargo's report has no list of compilations")?;
    let first = serde_json::Deserializer::from_str(list).into_iter().next();
    first.context("cargo's report has an empty list")?.context("cargo's report has another form")
}

/// The chain of compilations that ended last, each with the seconds for which the next one waited.
fn chain(units: &[Unit]) -> Vec<(&Unit, f64)> {
    let mut held_back: HashMap<u32, (&Unit, f64)> = HashMap::new();
    for unit in units {
        held_back.extend(unit.unblocked_units.iter().map(|held| (*held, (unit, unit.duration))));
        held_back
            .extend(unit.unblocked_rmeta_units.iter().map(|held| (*held, (unit, unit.until_metadata()))));
    }
    let Some(last) = units.iter().max_by(|a, b| a.end().total_cmp(&b.end())) else { return Vec::new() };
    let (mut chain, mut seen) = (vec![(last, last.duration)], HashSet::from([last.i]));
    while let Some(before) = chain.last().and_then(|(unit, _)| held_back.get(&unit.i))
        && seen.insert(before.0.i)
    {
        chain.push(*before);
    }
    chain.reverse();
    chain
}

/// The lines of the program in each of our crates, without tests.
fn lines(root: &Path) -> anyhow::Result<HashMap<String, usize>> {
    let mut found = HashMap::new();
    for group in ["crates", "plugins", "extensions"] {
        for entry in std::fs::read_dir(root.join(group))? {
            let folder = entry?.path();
            let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
            let Some(name) = name else { continue };
            found.insert(name.trim_matches('"').to_owned(), lines_below(&folder)?);
        }
    }
    Ok(found)
}

fn lines_below(folder: &Path) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            count += if name == "tests" { 0 } else { lines_below(&path)? };
        } else if name.ends_with(".rs") && name != "tests.rs" {
            count += shipped(&std::fs::read_to_string(&path)?);
        }
    }
    Ok(count)
}

/// The lines before the tests of a file.
fn shipped(text: &str) -> usize {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count()
}

fn table(units: &[Unit], profile: &str, seconds: u64, lines: &HashMap<String, usize>) -> String {
    let chain = chain(units);
    let waited: f64 = chain.iter().map(|(_, waited)| waited).sum();
    let mut text = format!(
        "\n## a build from nothing, profile {profile}\n\n{seconds} s; the longest chain takes {waited:.0} s.\n\n| longest \
         chain | seconds |\n|---|--:|\n"
    );
    let row = |text: &mut String, label: &str, figures: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {label} | {figures} |");
    };
    for (unit, waited) in &chain {
        row(&mut text, &unit.label(), &format!("{waited:.0}"));
    }
    text.push_str("\n| longest compilations | seconds | lines |\n|---|--:|--:|\n");
    let mut longest: Vec<&Unit> = units.iter().collect();
    longest.sort_by(|a, b| b.duration.total_cmp(&a.duration));
    for unit in longest.into_iter().take(ROWS) {
        let lines = lines.get(&unit.name).map_or_else(String::new, ToString::to_string);
        row(&mut text, &unit.label(), &format!("{:.0} | {lines}", unit.duration));
    }
    let mut largest: Vec<_> = lines.iter().collect();
    largest.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    text.push_str("\n| largest crates | lines without tests |\n|---|--:|\n");
    for (name, count) in largest.into_iter().take(ROWS) {
        row(&mut text, name, &count.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<script>const UNIT_DATA = [
        {"i":1,"name":"a","target":"","start":0.0,"duration":10.0,"unblocked_units":[],"unblocked_rmeta_units":[2],
         "sections":[["frontend",{"start":0.0,"end":4.0}],["codegen",{"start":4.0,"end":10.0}]]},
        {"i":2,"name":"b","target":"","start":4.0,"duration":7.0,"unblocked_units":[3],"unblocked_rmeta_units":[],
         "sections":null},
        {"i":4,"name":"c","target":"","start":0.0,"duration":12.0,"unblocked_units":[],"unblocked_rmeta_units":[],
         "sections":null},
        {"i":3,"name":"p","target":" bin","start":11.0,"duration":5.0,"unblocked_units":[],"unblocked_rmeta_units":[],
         "sections":null}
    ];
    const CONCURRENCY_DATA = [];</script>"#;

    #[test]
    fn the_chain_leads_to_the_compilation_that_ends_last() {
        let units = units(REPORT).expect("a report");
        let chain: Vec<_> = chain(&units).into_iter().map(|(unit, waited)| (&*unit.name, waited)).collect();
        assert_eq!(chain, [("a", 4.0), ("b", 7.0), ("p", 5.0)]);
        let table = table(&units, "dist", 17, &HashMap::from([("b".to_owned(), 120)]));
        assert!(table.contains("17 s; the longest chain takes 16 s."), "{table}");
        assert!(table.contains("| p bin | 5 |") && table.contains("| b | 7 | 120 |"), "{table}");
        assert!(super::units("<html>").is_err());
    }

    #[test]
    fn lines_are_counted_without_tests() {
        assert_eq!(shipped("mod a;\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n"), 2);
        assert_eq!(shipped("fn a() {\n}\n"), 2);
    }
}
