//! The files of a search path, read at one time.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sigma_plugin::scripts::FileSearch;
use sigma_schema::Problem;

use super::PLACE;
use crate::loaded::Token;

/// The most files on the search path: more are a mistake, such as `/?.lua`.
const MOST_FILES: usize = 5_000;
/// The most bytes of all files: they stay in memory.
const MOST_BYTES: u64 = 32 << 20;
/// The most folders nested in each other; links may lead in circles.
const MOST_DEPTH: usize = 16;

/// The files of a search path. Workers load modules from them, so that all have the same version.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// By module name.
    files: BTreeMap<Box<str>, LuaFile>,
    /// Changes with names and texts.
    pub(super) content: u64,
    /// Grows with each reading.
    pub(super) number: u64,
    /// The folders that scripts may read.
    pub(super) readable: Vec<PathBuf>,
    /// The identity for Lua states.
    pub(super) token: Token,
}

/// A Lua file.
#[derive(Debug)]
pub(crate) struct LuaFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// A file that a search has found.
struct BundleFile {
    module: Box<str>,
    path: PathBuf,
    bytes: u64,
    modified: Option<std::time::SystemTime>,
}

impl Bundle {
    /// Reads all files of a search path.
    ///
    /// # Errors
    /// Returns the first mistake of the path, or a file that cannot be read.
    pub(super) fn read(search: &FileSearch) -> Result<Bundle, Problem> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let mut files = BTreeMap::new();
        let mut hasher = DefaultHasher::new();
        for BundleFile { module, path, .. } in find(&search.path)? {
            let text = fs::read(&path).map_err(|error| problem(&path, &error.to_string()))?;
            let text = String::from_utf8(text).map_err(|_| problem(&path, "the file is not UTF-8"))?;
            (&module, &path, &text).hash(&mut hasher);
            files.insert(module, LuaFile { path, text });
        }
        search.readable_folders.hash(&mut hasher);
        search.enabled.hash(&mut hasher);
        Ok(Bundle {
            files,
            content: hasher.finish(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            readable: search.readable_folders.clone(),
            token: Token::new(),
        })
    }

    /// As [`Bundle::read`], with one more file as a module.
    pub(super) fn with(file: &Path, module: &str, search: &FileSearch) -> Result<Bundle, Problem> {
        let mut bundle = Bundle::read(search)?;
        let text = fs::read_to_string(file).map_err(|error| problem(file, &error.to_string()))?;
        bundle.files.insert(module.into(), LuaFile { path: file.to_owned(), text });
        Ok(bundle)
    }

    /// The file of a module.
    pub(crate) fn file(&self, module: &str) -> Option<&LuaFile> {
        self.files.get(module)
    }

    /// The names of all modules, in their order.
    pub(super) fn modules(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(|name| &**name)
    }
}

/// A number that changes when names, lengths or times of files on the path change.
pub(crate) fn stamp(search: &FileSearch) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Ok(found) = find(&search.path) {
        for BundleFile { module, path, bytes, modified } in found {
            (module, path, bytes, modified).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The files of all templates. The first template with a module counts.
fn find(path: &str) -> Result<Vec<BundleFile>, Problem> {
    let mut found: Vec<BundleFile> = Vec::new();
    for template in path.split(';').map(str::trim).filter(|template| !template.is_empty()) {
        let wrong = |reason: &str| Problem::new(PLACE, "search_path", format!("`{template}`: {reason}"));
        let Some((folder, rest)) = template.split_once('?') else {
            return Err(wrong("a path needs one `?`, such as /etc/sigma/lua/?.lua"));
        };
        if rest.contains('?') || !rest.ends_with(".lua") || !(folder.is_empty() || folder.ends_with('/')) {
            return Err(wrong("write it like /etc/sigma/lua/?.lua or /etc/sigma/lua/?/init.lua"));
        }
        let folder = if folder.is_empty() { Path::new(".") } else { Path::new(folder) };
        let mut modules = Vec::new();
        walk(folder, "", rest, MOST_DEPTH, &mut modules).map_err(|reason| wrong(&reason))?;
        modules.retain(|one: &BundleFile| !found.iter().any(|known| known.module == one.module));
        found.extend(modules);
        let bytes: u64 = found.iter().map(|one| one.bytes).sum();
        if found.len() > MOST_FILES || bytes > MOST_BYTES {
            return Err(wrong(&format!("it has more than {MOST_FILES} files or {} MiB", MOST_BYTES >> 20)));
        }
    }
    found.sort_by(|one, other| one.module.cmp(&other.module));
    Ok(found)
}

/// Adds the files below a folder whose names end with `suffix`. `module` is the name of the folder as a module.
fn walk(
    folder: &Path,
    module: &str,
    suffix: &str,
    depth: usize,
    found: &mut Vec<BundleFile>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Links are followed: volumes of containers consist of them. A link to nothing is no file.
        let Ok(about) = fs::metadata(entry.path()) else { continue };
        let below = if module.is_empty() { name.clone() } else { format!("{module}/{name}") };
        if about.is_dir() {
            if depth > 0 && !name.starts_with('.') {
                walk(&entry.path(), &below, suffix, depth - 1, found)?;
            }
            continue;
        }
        if let Some(module) = below.strip_suffix(suffix).filter(|module| !module.is_empty()) {
            if found.len() > MOST_FILES {
                return Err(format!("{} has more than {MOST_FILES} files", folder.display()));
            }
            found.push(BundleFile {
                module: module.replace('/', ".").into(),
                path: entry.path(),
                bytes: about.len(),
                modified: about.modified().ok(),
            });
        }
    }
    Ok(())
}

fn problem(path: &Path, reason: &str) -> Problem {
    Problem::new(PLACE, "lua_file", format!("cannot read {}: {reason}", path.display()))
}
