//! `cargo xtask docs`: writes the documents that are made from code.
//!
//! `cargo xtask tidy` compares the same texts with the files, so a stale one does not go in.

mod troubleshooting;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use sigma_plugin::{Descriptor, Kind};

/// A document that a generator writes from the code.
pub(crate) struct Generated {
    /// Relative to the repository.
    pub(crate) path: String,
    /// The text the file must have.
    pub(crate) text: String,
}

/// All generated documents. `docs/benchmarks.md` is not among them: its figures come from a run.
pub(crate) fn generated() -> Vec<Generated> {
    let mut kinds = sigma_plugins::kinds();
    // The build of the tools lacks its engine, which takes minutes to compile.
    let wasm = sigma_wasm::ROSTER.iter().map(|plugin| Descriptor { group: "wasm", ..**plugin });
    kinds.extend(wasm.map(|plugin| Arc::new(plugin) as Arc<dyn Kind>));
    kinds.sort_by(|one, other| one.name().cmp(other.name()));
    let document = |path: &str, text: String| Generated { path: path.to_owned(), text };
    let mut all = vec![
        document("docs/configuration.md", sigma_config::docs::reference_markdown()),
        document("docs/edge-profile.md", sigma_config::profile::edge_markdown()),
        document("docs/lua-calls.md", sigma_lua::reference_markdown()),
        document("docs/troubleshooting.md", troubleshooting::page()),
        document(&format!("{PLUGINS}README.md"), sigma_plugin::docs::index(&kinds)),
    ];
    all.extend(kinds.iter().map(|plugin| {
        document(&format!("{PLUGINS}{}.md", plugin.name()), sigma_plugin::docs::reference(&**plugin))
    }));
    all
}

/// The folder of the plugins' references; nothing in it is written by hand.
pub(crate) const PLUGINS: &str = "docs/plugins/";

/// The command that brings all of [`generated`] up to date.
pub(crate) const COMMAND: &str = "cargo xtask docs";

/// Writes every generated document below `root`.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(root.join(PLUGINS)).with_context(|| format!("cannot make {PLUGINS}"))?;
    let all = generated();
    for entry in fs::read_dir(root.join(PLUGINS))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !all.iter().any(|document| document.path == format!("{PLUGINS}{name}")) {
            // Its plugin is gone.
            fs::remove_file(root.join(PLUGINS).join(&name))?;
        }
    }
    for document in &all {
        let path = root.join(&document.path);
        fs::write(&path, &document.text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", document.path);
    }
    Ok(())
}
