//! The texts that the licences of the linked crates require with the program: their own, and their notices of
//! copyright.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::sbom;

/// How files that have a licence or a notice begin, in capitals.
const NAMES: [&str; 6] = ["COPYING", "COPYRIGHT", "LICENCE", "LICENSE", "NOTICE", "UNLICENSE"];

/// The texts of all crates that are linked, each text once, behind the names of those that have it.
///
/// # Errors
/// Returns an error if the metadata has not the form that cargo gives it, or a crate's folder cannot be read.
pub(super) fn document(metadata: &Value) -> anyhow::Result<Vec<u8>> {
    let (mut texts, mut without) = (BTreeMap::<String, BTreeSet<String>>::new(), Vec::new());
    for package in sbom::linked_packages(metadata)? {
        // The project's own licence is next to this file.
        if package["source"].is_null() {
            continue;
        }
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let name = format!("{} {}", field("name"), field("version"));
        let folder = Path::new(field("manifest_path")).parent().context("a crate has a folder")?;
        let found = found(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
        if found.is_empty() {
            without.push(format!("{name}: {}", field("license")));
        }
        for text in found {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    let mut sections: Vec<(String, String)> = texts
        .into_iter()
        .map(|(text, names)| (names.into_iter().collect::<Vec<_>>().join(", "), text))
        .collect();
    sections.sort();
    without.sort();
    let mut out =
        "The crates that are linked into Sigma, and the texts that their licences want handed on.\n"
            .to_owned();
    for (names, text) in sections {
        out.push_str(&format!("\n{}\n{names}\n\n{text}\n", "-".repeat(78)));
    }
    if !without.is_empty() {
        out.push_str(&format!(
            "\n{}\nWithout a text of their own:\n\n{}\n",
            "-".repeat(78),
            without.join("\n")
        ));
    }
    Ok(out.into_bytes())
}

/// The texts in a crate's folder, in the order of their names.
fn found(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.file_type()?.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = String::from_utf8_lossy(&std::fs::read(path)?).replace("\r\n", "\n");
        Ok(text.trim_matches('\n').trim_end().to_owned())
    };
    let texts: Vec<String> = paths.iter().map(read).collect::<std::io::Result<_>>()?;
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}
