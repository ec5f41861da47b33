//! The lines of `sigma check` for mistakes that newcomers and users of other gateways make: `mistakes/*.yaml`.
//!
//! A file has documents with two texts: `config`, which is a configuration, and `says`, all lines that the command
//! prints about it, without the name of the file. `SIGMA_BLESS=1` writes the lines that come into the files; read the
//! difference before it is committed. `SIGMA_CASE=part` checks only the files whose name contains `part`.

#![allow(clippy::unwrap_used, reason = "a failed step of a test may panic")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const MARK: &str = "\n---\n";
const CONFIG: &str = "config: |\n";
const SAYS: &str = "says: |";

/// The most characters of a line behind the place: a reader takes it in at a glance.
const LONGEST: usize = 330;

/// Words of JSON Schema and of Lua that no message may have.
const JARGON: [&str; 11] = [
    "matches none",
    "matches both",
    "clause did not match",
    "validation failed",
    "additional propert",
    "property \"",
    "wrong type",
    "expect array",
    "expect object",
    "enum values",
    "failed to match pattern",
];

struct Mistake {
    /// Comments before the configuration.
    head: String,
    config: String,
    says: String,
}

impl Mistake {
    fn parse(document: &str) -> Mistake {
        let (head, rest) = document.split_once(CONFIG).expect("a document has `config: |`");
        let (config, says) = rest.split_once(&format!("\n{SAYS}")).unwrap_or((rest, ""));
        let lines = |text: &str| {
            text.lines().fold(String::new(), |all, line| all + line.strip_prefix("  ").unwrap_or(line) + "\n")
        };
        let says = says.strip_prefix('\n').unwrap_or(says);
        Mistake { head: head.to_owned(), config: lines(config), says: lines(says) }
    }

    fn text(&self) -> String {
        let indented = |text: &str| {
            text.lines().fold(String::new(), |mut all, line| {
                let space = if line.is_empty() { "" } else { "  " };
                writeln!(all, "{space}{line}").unwrap();
                all
            })
        };
        format!("{}{CONFIG}{}{SAYS}\n{}", self.head, indented(&self.config), indented(&self.says))
    }
}

/// The lines of the command for a configuration.
fn said(config: &str, folder: &Path) -> String {
    const NAME: &str = "sigma.yaml";
    std::fs::write(folder.join(NAME), config).unwrap();
    let sigma =
        Command::new(env!("CARGO_BIN_EXE_sigma")).args(["check", NAME]).current_dir(folder).output().unwrap();
    let lines = [sigma.stderr, sigma.stdout].map(|text| String::from_utf8(text).unwrap()).concat();
    let prefix = format!("{NAME}: ");
    lines.lines().fold(String::new(), |all, line| all + line.strip_prefix(&prefix).unwrap_or(line) + "\n")
}

/// The differences of one file.
fn check(path: &Path) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut mistakes: Vec<Mistake> = text.split(MARK).map(Mistake::parse).collect();
    let mut wrong = Vec::new();
    for mistake in &mut mistakes {
        let found = said(&mistake.config, folder.path());
        for line in found.lines() {
            if line.chars().count() > LONGEST || JARGON.iter().any(|word| line.contains(word)) {
                wrong.push(format!("{}: not for readers: {line}", path.display()));
            }
        }
        if found != mistake.says {
            wrong.push(format!(
                "{}\n{}expected\n{}found\n{found}",
                path.display(),
                mistake.config,
                mistake.says
            ));
            mistake.says = found;
        }
    }
    if std::env::var_os("SIGMA_BLESS").is_some() {
        let all: Vec<String> = mistakes.iter().map(Mistake::text).collect();
        std::fs::write(path, all.join(&MARK[1..])).unwrap();
    }
    wrong
}

#[test]
fn a_mistake_is_one_line() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes");
    let wanted = std::env::var("SIGMA_CASE").unwrap_or_default();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().contains(&wanted));
    files.sort();
    let wrong: Vec<String> = files.iter().flat_map(|file| check(file)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
