//! Profile-guided optimisation: a build that counts what runs, load on it, and its counts for the build of a release.
//!
//! The counts are of one commit and one compiler, so each release makes its own. They are a file, by which others can
//! build the same program again (`--profile-data`).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::{Build, Release, build, output, text};

/// The part of counts in a build.
#[derive(Clone, Copy)]
pub(super) enum Guidance<'p> {
    /// Nothing.
    None,
    /// The program writes counts into this folder when it ends.
    Count(&'p Path),
    /// The compiler optimises by the counts in this file.
    Use(&'p Path),
}

impl Guidance<'_> {
    /// The flags of rustc.
    pub(super) fn flags(self) -> Vec<String> {
        match self {
            Guidance::None => Vec::new(),
            Guidance::Count(folder) => vec![format!("-Cprofile-generate={}", folder.display())],
            // Code that no load has run is no mistake.
            Guidance::Use(file) => vec![
                format!("-Cprofile-use={}", file.display()),
                "-Cllvm-args=-pgo-warn-missing-function=false".to_owned(),
            ],
        }
    }

    /// The flags of rustc for the link alone. The settings of the profile stay as they are: they are part of the names
    /// of functions, and the counts of a function are found by its name.
    pub(super) fn link_flags(self, profile: &str) -> &'static [&'static str] {
        match self {
            // The compiler counts before it links, so the longest optimisation at the link is of no use here.
            Guidance::Count(_) if profile == "dist" => &["-Clto=thin"],
            _ => &[],
        }
    }
}

/// Builds a program that counts, loads it with the benchmarks, and returns the file with the counts.
pub(super) fn make(root: &Path, release: &Release, profile: &str) -> anyhow::Result<PathBuf> {
    let merger = merger()?;
    let work = root.join("target/profile-guided");
    let counts = work.join("counts");
    if counts.exists() {
        std::fs::remove_dir_all(&counts)?;
    }
    std::fs::create_dir_all(&counts)?;
    let how = Build { package: "sigma", fully_static: false, profile, guidance: Guidance::Count(&counts) };
    let program = work.join("sigma");
    std::fs::copy(build(root, release, &how)?.join("sigma"), &program)?;
    crate::bench::exercise(root, &program)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&counts)? {
        files.push(entry?.path());
    }
    ensure!(!files.is_empty(), "the program has left no counts in {}", counts.display());
    let file = work.join("sigma.profdata");
    output(Command::new(&merger).args(["merge", "--output"]).arg(&file).args(&files))?;
    println!("the counts of {} processes are in {}", files.len(), file.display());
    Ok(file)
}

/// Prints the share of the counted functions that are in the program. Counts of another build have other names, and are
/// without an effect: that is no error, so that old counts never fail a build.
///
/// # Errors
/// Returns an error if the counts or the program cannot be read.
pub(super) fn check(counts: &Path, program: &Path) -> anyhow::Result<()> {
    let shown = text(Command::new(merger()?).args(["show", "--all-functions"]).arg(counts))?;
    let binary = std::fs::read(program).with_context(|| format!("{} cannot be read", program.display()))?;
    let names: HashSet<&[u8]> = binary.split(|byte| *byte == 0).filter(|name| name.len() > 2).collect();
    let counted = counted(&shown);
    let found = counted.iter().filter(|name| names.contains(name.as_bytes())).count();
    println!(
        "{found} of {} counted functions are in the program by their names; others are inlined",
        counted.len()
    );
    if found * 20 < counted.len() {
        println!(
            "these counts are of another build and have little effect: make new ones with --profile-guided"
        );
    }
    Ok(())
}

/// The names of the functions that ran, from the list that `llvm-profdata show --all-functions` prints.
fn counted(shown: &str) -> Vec<&str> {
    let (mut names, mut name) = (Vec::new(), None);
    for line in shown.lines() {
        if let Some(function) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) {
            // A function that only its own object file sees has this file in front of its name.
            name = function.strip_suffix(':').and_then(|function| function.rsplit(';').next());
        } else if line.trim_start().strip_prefix("Function count: ").is_some_and(|count| count != "0") {
            names.extend(name.take());
        }
    }
    names
}

/// The program that merges counts, of the same LLVM as the compiler's: another one cannot read them.
fn merger() -> anyhow::Result<String> {
    let version = text(Command::new("rustc").arg("-vV"))?;
    let wanted = llvm_version(&version).context("`rustc -vV` names no version of LLVM")?;
    let names = [format!("llvm-profdata-{wanted}"), "llvm-profdata".to_owned()];
    let found = names.into_iter().find(|name| {
        let shown = Command::new(name).arg("--version").output();
        shown.is_ok_and(|shown| llvm_version(&String::from_utf8_lossy(&shown.stdout)) == Some(wanted))
    });
    found.with_context(|| {
        format!("`llvm-profdata` of LLVM {wanted} is missing: install llvm-{wanted}, on Debian `apt-get install llvm-{wanted}`")
    })
}

/// The first number of the version of LLVM in the output of a tool.
fn llvm_version(text: &str) -> Option<u32> {
    let at = text.split("LLVM version").nth(1)?;
    at.trim_start_matches([':', ' ']).split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{counted, llvm_version};

    #[test]
    fn functions_that_ran_are_counted() {
        let shown = "Counters:\n  _RNvC5sigma4main:\n    Hash: 0x1\n    Counters: 2\n    Function count: 7\n  \
                     sigma.1-cgu.0;_RNvC5sigma5local:\n    Hash: 0x2\n    Counters: 1\n    Function count: 1\n  \
                     _RNvC5sigma5never:\n    Hash: 0x3\n    Counters: 1\n    Function count: 0\nTotal functions: 3\n";
        assert_eq!(counted(shown), ["_RNvC5sigma4main", "_RNvC5sigma5local"]);
    }

    #[test]
    fn versions_of_llvm_are_read_from_the_tools() {
        let check = |text: &str, expected: Option<u32>| assert_eq!(llvm_version(text), expected, "{text:?}");
        check("release: 1.95.0\nLLVM version: 22.1.2\n", Some(22));
        check("Debian LLVM version 14.0.6\n  Optimized build.\n", Some(14));
        check("llvm-profdata: command not found\n", None);
        check("LLVM version unknown\n", None);
    }
}
