//! The plugins of this build.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use sigma_control::{AllPlugins, Source};
use sigma_plugin::{Kind, Roster};
use sigma_schema::document::Document;

/// The most bytes of a file that is searched for plugins; the check of the configuration has the same limit.
const FILE_BYTES_MAX: usize = 64 << 20;

/// The plugins of this build, and the names of those that it has left out.
pub(crate) fn all_kinds() -> Vec<Arc<dyn Kind>> {
    sigma_plugins::kinds().into_iter().chain(sigma_plugins::left_out()).collect()
}

/// All plugins of this build, enabled.
pub(crate) fn roster() -> Arc<Roster> {
    Arc::new(Roster::new(all_kinds(), None))
}

/// The plugins of this build, and those that a configuration file adds.
///
/// # Errors
/// Returns an error if an added plugin has the name of another one.
fn kinds_for(conf: &Path) -> Result<Vec<Arc<dyn Kind>>> {
    let mut kinds = all_kinds();
    // The check of the configuration reports files that cannot be read, and sections that are invalid.
    let text = std::fs::read_to_string(conf).unwrap_or_default();
    let document = Document::parse(&text, FILE_BYTES_MAX).ok();
    let section = document.as_ref().and_then(|document| document.value.get("wasm"));
    for kind in section.and_then(|section| sigma_plugins::declared(section).ok()).unwrap_or_default() {
        if kinds.iter().any(|known| known.name() == kind.name()) {
            bail!("{}: wasm.plugins: another plugin has the name `{}`", conf.display(), kind.name());
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

/// The plugins of this build, those that the configuration declares, and those in files that it names.
///
/// # Errors
/// Returns an error if the configuration cannot be read, if the search for files has mistakes, or if an added plugin
/// has the name of another one.
pub(crate) fn with_files(source: &Source) -> Result<AllPlugins> {
    Ok(source.plugins(kinds_for(&source.path)?)?)
}
