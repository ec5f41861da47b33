//! Plugins in Lua files.
//!
//! | module | subject |
//! |---|---|
//! | `bundle` | the files of a search path |
//! | `description` | the description of a plugin in its file |
//! | `endpoints` | paths that plugins serve themselves |
//! | `instance` | a plugin with one configuration |
//! | `kind` | a file as a kind of plugin |
//! | `library` | the modules of the files in one Lua state |
//! | `reading` | `io.open` for folders that the node's configuration names |

mod bundle;
mod description;
mod endpoints;
mod flow;
mod instance;
mod kind;
mod library;
mod reading;

use std::sync::Arc;

use sigma_plugin::Kind;
use sigma_plugin::scripts::{FileKinds, FileSearch};
use sigma_schema::Problem;

use bundle::Bundle;
use kind::FileKind;

pub(crate) use bundle::stamp;

/// The modules of plugins for requests, and for sessions.
const FOLDERS: [&str; 2] = ["apisix.plugins.", "apisix.stream.plugins."];

/// The setting that problems of files name.
const PLACE: &str = "lua.path";

/// Reads the plugins of a search path.
pub(crate) fn load(search: &FileSearch) -> FileKinds {
    let bundle = match Bundle::read(search) {
        Ok(bundle) => Arc::new(bundle),
        Err(problem) => return FileKinds { refused: vec![problem], ..FileKinds::default() },
    };
    let mut loaded = FileKinds { content: bundle.content, ..FileKinds::default() };
    for name in names(&bundle, search) {
        if search.taken.contains(&*name) {
            let file = FOLDERS.iter().find_map(|folder| bundle.file(&format!("{folder}{name}")));
            let path = file.map(|file| file.path.display().to_string()).unwrap_or_default();
            let message = format!("{path}: the plugin {name} is built in; rename the file");
            loaded.refused.push(Problem::new(PLACE, "name_taken", message));
            continue;
        }
        let kind = FileKind::load(&bundle, &name, search);
        if let Some(reason) = kind.broken() {
            loaded.broken.push(Problem::new(PLACE, "lua_file", reason));
        }
        loaded.kinds.push(Arc::new(kind) as Arc<dyn Kind>);
    }
    if !loaded.refused.is_empty() {
        loaded.kinds.clear();
    }
    loaded
}

/// Reads one file as a plugin, with the modules of a search path.
///
/// # Errors
/// Returns an error message if the file cannot be loaded.
pub(crate) fn load_one(file: &std::path::Path, path: &str) -> Result<Arc<dyn Kind>, String> {
    let search = FileSearch { path: path.to_owned(), ..FileSearch::default() };
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or("plugin").to_owned();
    let module = format!("{}{name}", FOLDERS[0]);
    let bundle = Bundle::with(file, &module, &search).map_err(|problem| problem.message)?;
    let kind = FileKind::load(&Arc::new(bundle), &name, &search);
    match kind.broken() {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(Arc::new(kind)),
    }
}

/// The names of the plugins to load, in their order.
fn names(bundle: &Bundle, search: &FileSearch) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = Vec::new();
    for (folder, enabled) in FOLDERS.iter().zip(&search.enabled) {
        for module in bundle.modules() {
            // Modules below a plugin are its parts.
            let name = module.strip_prefix(folder).filter(|name| !name.contains('.'));
            let is_enabled = |name: &str| enabled.as_ref().is_none_or(|names| names.contains(name));
            names.extend(name.filter(|name| is_enabled(name)).map(Box::from));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests;
