//! `cargo xtask docs`: writes the documents that are made from code.
//!
//! `cargo xtask tidy` compares the same texts with the files, so a stale one does not go in.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// A document that a generator writes from the code.
pub(crate) struct Generated {
    /// Relative to the repository.
    pub(crate) path: &'static str,
    /// Gives the text the file must have.
    pub(crate) text: fn() -> String,
}

/// All generated documents. `docs/benchmarks.md` is not among them: its figures come from a run.
pub(crate) const GENERATED: &[Generated] =
    &[Generated { path: "docs/configuration.md", text: sigma_config::docs::reference_markdown }];

/// The command that brings all of [`GENERATED`] up to date.
pub(crate) const COMMAND: &str = "cargo xtask docs";

/// Writes every generated document below `root`.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    for document in GENERATED {
        let path = root.join(document.path);
        fs::write(&path, (document.text)()).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", document.path);
    }
    Ok(())
}
