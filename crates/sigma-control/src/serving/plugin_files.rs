//! Plugins in files, next to the plugins of the build.

use std::collections::BTreeSet;
use std::sync::Arc;

use sigma_config::PluginFiles;
use sigma_config::plugins::enabled;
use sigma_plugin::scripts::{FileKinds, FileSearch};
use sigma_plugin::{Kind, Roster};
use sigma_schema::Problem;

/// The plugins that a configuration may name.
#[derive(Debug, Clone)]
pub struct AllPlugins {
    /// The plugins of the build, and the names of those that it has left out.
    pub built_in: Vec<Arc<dyn Kind>>,
    /// The search for files; None without files.
    pub search: Option<FileSearch>,
    /// The plugins in files.
    pub files: FileKinds,
    /// All of them, enabled.
    pub roster: Arc<Roster>,
}

impl AllPlugins {
    /// Returns the plugins of the build alone.
    pub fn built_in(built_in: Vec<Arc<dyn Kind>>) -> AllPlugins {
        let roster = Arc::new(Roster::new(built_in.iter().cloned(), None));
        AllPlugins { built_in, search: None, files: FileKinds::default(), roster }
    }

    /// Adds the plugins in files that a configuration names. It blocks while it reads them.
    ///
    /// # Errors
    /// Returns the mistakes of the search path, and files that take the name of a plugin of the build.
    pub(crate) fn with_files(self, settings: &PluginFiles) -> Result<AllPlugins, Vec<Problem>> {
        let Some(search) = search(settings, &self.built_in) else { return Ok(self) };
        let Some(scripts) = self.roster.scripts() else {
            let message = "`lua.path` is set, but this build has no Lua engine";
            return Err(vec![Problem::new("lua.path", "no_engine", message)]);
        };
        let files = scripts.files(&search);
        if !files.refused.is_empty() {
            return Err(files.refused);
        }
        let roster = Arc::new(Roster::new(self.kinds_with(&files), None));
        Ok(AllPlugins { search: Some(search), files, roster, ..self })
    }

    /// Returns the plugins of the build, and those in files.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Arc<dyn Kind>> {
        self.kinds_with(&self.files)
    }

    fn kinds_with<'a>(&'a self, files: &'a FileKinds) -> impl Iterator<Item = Arc<dyn Kind>> + use<'a> {
        self.built_in.iter().chain(&files.kinds).cloned()
    }

    /// Returns a number that changes when the files change, and how they look without being read.
    pub(crate) fn stamp(&self) -> Option<u64> {
        let search = self.search.as_ref()?;
        Some(self.roster.scripts()?.stamp(search))
    }
}

/// The search for files that the settings ask for.
fn search(settings: &PluginFiles, built_in: &[Arc<dyn Kind>]) -> Option<FileSearch> {
    let path = settings.lua.search_path()?.to_owned();
    let owned = |names: BTreeSet<&str>| names.into_iter().map(Box::from).collect();
    let names = enabled(settings.plugins.as_deref(), settings.stream_plugins.as_deref());
    Some(FileSearch {
        path,
        readable_folders: settings.lua.readable_folders.clone(),
        enabled: names.map(|names| names.map(owned)),
        taken: built_in.iter().map(|kind| Box::from(kind.name())).collect(),
    })
}
