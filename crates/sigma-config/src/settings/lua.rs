//! Plugins in Lua files.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Plugins in Lua files. They are read at the start, by a reload, and by a `PUT` of the Admin API's
/// `/apisix/admin/plugins/reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lua {
    /// Where Lua files are: names with one `?`, separated by `;`, such as `/etc/sigma/lua/?.lua`. The plugin `hello` is
    /// the module `apisix.plugins.hello`, so its file is `/etc/sigma/lua/apisix/plugins/hello.lua`. Unset: no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The name of `path` in APISIX; `path` takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_lua_path: Option<String>,
    /// Folders whose files plugins in Lua files may read with `io.open`. Scripts of routes never may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readable_folders: Vec<PathBuf>,
}

impl Lua {
    /// Returns the search path; None without files.
    #[must_use]
    pub fn search_path(&self) -> Option<&str> {
        self.path.as_deref().or(self.extra_lua_path.as_deref()).filter(|path| !path.trim().is_empty())
    }

    /// Returns these settings with relative paths in a folder.
    #[must_use]
    pub(crate) fn within(&self, folder: &Path) -> Lua {
        let joined = |path: &str| {
            let templates = path.split(';').map(str::trim).filter(|one| !one.is_empty());
            let templates = templates.map(|one| folder.join(one).display().to_string());
            templates.collect::<Vec<_>>().join(";")
        };
        Lua {
            path: self.search_path().map(joined),
            extra_lua_path: None,
            readable_folders: self.readable_folders.iter().map(|one| folder.join(one)).collect(),
        }
    }

    /// Returns the folders in which files are searched.
    pub fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let templates = self.search_path().unwrap_or_default().split(';').map(str::trim);
        templates.filter_map(|template| Some(PathBuf::from(template.split_once('?')?.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_begin_in_the_folder() {
        let lua = Lua {
            extra_lua_path: Some("a/?.lua;/b/?.lua;;".to_owned()),
            readable_folders: vec!["c".into(), "/d".into()],
            ..Lua::default()
        };
        let within = lua.within(Path::new("/w"));
        assert_eq!(within.search_path(), Some("/w/a/?.lua;/b/?.lua"));
        assert_eq!(within.readable_folders, [PathBuf::from("/w/c"), PathBuf::from("/d")]);
        assert_eq!(within.folders().collect::<Vec<_>>(), [PathBuf::from("/w/a/"), PathBuf::from("/b/")]);
        assert_eq!(Lua::default().within(Path::new("/w")), Lua::default());
    }
}
