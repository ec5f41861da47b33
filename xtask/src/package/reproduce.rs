//! `cargo xtask package --reproduce`: builds the commit twice, in folders with other names, and compares the results byte
//! by byte.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{Build, Guidance, Options, Release, build, make, output};

/// Names of the folders; of other lengths, so that a path that is left in a binary moves the bytes behind it.
const FOLDERS: [&str; 2] = ["first", "another-folder/second"];

/// The ends of files that a build leaves and that are the same if it can be reproduced.
const COMPARED: [&str; 2] = ["rlib", "so"];

/// Builds twice and compares; what differs is an error. With a package that is not the program, its libraries and those
/// that it needs are compared: a cheap check of the compiler's flags.
pub(super) fn run(root: &Path, release: &Release, options: &Options, package: &str) -> anyhow::Result<()> {
    let all = root.join("target/reproduce");
    if all.exists() {
        std::fs::remove_dir_all(&all)?;
    }
    let mut made = Vec::new();
    for name in FOLDERS {
        let folder = all.join(name);
        export(root, &folder)?;
        println!("building {package} in {}", folder.display());
        made.push(of_folder(&folder, release, options, package)?);
    }
    let differences = differences(&made[0], &made[1])?;
    ensure!(
        differences.is_empty(),
        "the two builds are not the same:\n{}\ncompare them in {}",
        differences.join("\n"),
        all.display()
    );
    println!("the two builds of {package} are the same: {} files", files(&made[0])?.len());
    Ok(())
}

/// The files of the commit, as `git archive` has them.
fn export(root: &Path, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut git = Command::new("git")
        .args(["archive", "--format=tar", "HEAD"])
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("`git` cannot be run")?;
    let archive = git.stdout.take().context("git writes")?;
    output(Command::new("tar").args(["-x", "-C"]).arg(folder).stdin(archive))?;
    ensure!(git.wait()?.success(), "`git archive` failed");
    Ok(())
}

/// The folder with the files of one build that are compared.
fn of_folder(folder: &Path, release: &Release, options: &Options, package: &str) -> anyhow::Result<PathBuf> {
    let counts = options.profile_data()?;
    let how = Build {
        package,
        fully_static: options.fully_static,
        profile: &options.profile,
        guidance: counts.as_deref().map_or(Guidance::None, Guidance::Use),
    };
    let built = build(folder, release, &how)?;
    if package == "sigma" {
        let out = folder.join("target/package");
        std::fs::create_dir_all(&out)?;
        make(folder, release, &built.join("sigma"), &out)?;
        return Ok(out);
    }
    let kept = folder.join("target/compared");
    std::fs::create_dir_all(&kept)?;
    for entry in std::fs::read_dir(built.join("deps"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| COMPARED.iter().any(|compared| end == *compared)) {
            std::fs::copy(&path, kept.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(kept)
}

/// The files below a folder, by their paths in it.
fn files(folder: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => drop(found.insert(path.strip_prefix(folder)?.to_owned())),
            }
        }
    }
    Ok(found)
}

/// Differences between two folders, a line for each file. Folders without files are an error: nothing was compared.
pub(super) fn differences(first: &Path, second: &Path) -> anyhow::Result<Vec<String>> {
    let (ours, theirs) = (files(first)?, files(second)?);
    ensure!(!ours.is_empty() && !theirs.is_empty(), "there is nothing to compare");
    let mut found = Vec::new();
    for name in ours.union(&theirs) {
        let text = name.display();
        match (ours.contains(name), theirs.contains(name)) {
            (true, false) => found.push(format!("{text}: in the first build alone")),
            (false, true) => found.push(format!("{text}: in the second build alone")),
            _ => {
                let [a, b] = [std::fs::read(first.join(name))?, std::fs::read(second.join(name))?];
                found.extend(difference(&a, &b).map(|what| format!("{text}: {what}")));
            }
        }
    }
    Ok(found)
}

/// The first difference between two files.
fn difference(a: &[u8], b: &[u8]) -> Option<String> {
    let at = a.iter().zip(b).position(|(a, b)| a != b);
    let around = |bytes: &[u8], at: usize| {
        let part = &bytes[at.saturating_sub(16)..bytes.len().min(at + 48)];
        String::from_utf8_lossy(part).escape_debug().to_string()
    };
    match at {
        Some(at) => {
            Some(format!("other bytes from {at} on: \"{}\" and \"{}\"", around(a, at), around(b, at)))
        }
        None if a.len() != b.len() => Some(format!("{} and {} bytes", a.len(), b.len())),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let folder = Folder::new("reproduce");
        let [first, second] = ["a", "b"].map(|name| folder.0.join(name));
        for side in [&first, &second] {
            std::fs::create_dir_all(side.join("deep")).unwrap();
        }
        assert!(differences(&first, &second).unwrap_err().to_string().contains("nothing to compare"));
        for side in [&first, &second] {
            std::fs::write(side.join("deep/same"), "same").unwrap();
        }
        assert_eq!(differences(&first, &second).unwrap(), [""; 0]);
        std::fs::write(first.join("alone"), "").unwrap();
        std::fs::write(second.join("deep/other"), "").unwrap();
        std::fs::write(first.join("program"), "text /home/me/sigma text").unwrap();
        std::fs::write(second.join("program"), "text /srv/build text").unwrap();
        std::fs::write(first.join("short"), "abc").unwrap();
        std::fs::write(second.join("short"), "abcd").unwrap();
        let found = differences(&first, &second).unwrap();
        let expected = [
            "alone: in the first build alone",
            "deep/other: in the second build alone",
            "program: other bytes from 6 on: \"text /home/me/sigma text\" and \"text /srv/build text\"",
            "short: 3 and 4 bytes",
        ];
        assert_eq!(found, expected);
    }

    /// The folders have other lengths, or a path could stay and nothing would move.
    #[test]
    fn the_folders_have_other_lengths() {
        assert_ne!(FOLDERS[0].len(), FOLDERS[1].len());
    }
}
