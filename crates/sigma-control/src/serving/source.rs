//! Reading the configuration file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sigma_config::plugins::PluginSchemas;
use sigma_config::{Checked, ParseOptions, Problem};
use sigma_plugin::Roster;

/// Largest configuration file; a file of a hundred thousand routes has about half of it.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Where a configuration comes from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The `options.json` beside a `sigma.json`.
    pub companion: Option<PathBuf>,
    /// `-instance` of the original Sigma's command line.
    pub instances: Option<u16>,
    /// What is invalid among the resources is closed instead of stopping the file.
    pub skip_invalid: bool,
}

/// When a file was changed, and its length.
pub(crate) type Stamp = (SystemTime, u64);

/// What is read of a configuration.
struct Texts {
    file: String,
    companion: Option<String>,
}

/// Why a configuration cannot be used. All problems of a file come together.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file has problems.
    #[error("{}", listed(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, in the order of the document.
        problems: Vec<Problem>,
    },
}

/// One line per problem, the file before each.
pub(crate) fn listed(path: &Path, problems: &[Problem]) -> String {
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("{}: {problem}", path.display())).collect();
    lines.join("\n")
}

impl Source {
    /// A file of its own.
    pub fn file(path: impl Into<PathBuf>) -> Source {
        Source { path: path.into(), companion: None, instances: None, skip_invalid: false }
    }

    /// Reads and checks. `plugins` are those of the build.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has problems.
    pub fn load(&self, plugins: &dyn PluginSchemas) -> Result<Checked, LoadError> {
        self.check(&self.read()?, plugins)
    }

    /// As [`Source::load`]; the calling thread goes on with its other tasks while the file is read.
    pub(crate) async fn load_aside(&self, plugins: &Arc<Roster>) -> Result<Checked, LoadError> {
        let source = self.clone();
        let texts = tokio::task::spawn_blocking(move || source.read()).await;
        // It ends early in a panic only.
        let failed =
            |error| LoadError::Read { path: self.path.clone(), source: std::io::Error::other(error) };
        self.check(&texts.map_err(failed)??, &**plugins)
    }

    fn read(&self) -> Result<Texts, LoadError> {
        Ok(Texts { file: read(&self.path)?, companion: self.companion.as_deref().map(read).transpose()? })
    }

    fn check(&self, texts: &Texts, plugins: &dyn PluginSchemas) -> Result<Checked, LoadError> {
        let options = ParseOptions {
            env: &|name| std::env::var(name).ok(),
            companion: texts.companion.as_deref(),
            instances: self.instances,
            skip_invalid: self.skip_invalid,
            plugins,
            now: unix_seconds(),
            max_bytes: FILE_BYTES_MAX,
            ..ParseOptions::default()
        };
        sigma_config::parse(&texts.file, &options).map_err(|problems| self.invalid(problems))
    }

    /// Problems found after parsing, with this file's name.
    pub fn invalid(&self, problems: Vec<Problem>) -> LoadError {
        LoadError::Invalid { path: self.path.clone(), problems }
    }

    /// Whether the file is there and another one than when `stamp` was taken, which is renewed.
    pub(crate) fn has_changed(&self, stamp: &mut Option<Stamp>) -> bool {
        let now = self.stamp();
        let has_changed = now.is_some() && now != *stamp;
        if has_changed {
            *stamp = now;
        }
        has_changed
    }

    /// A value that changes with the file, for `--watch`.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let meta = std::fs::metadata(&self.path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }
}

/// The time.
pub(crate) fn unix_seconds() -> i64 {
    // A clock before 1970 is as good as none.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

fn read(path: &Path) -> Result<String, LoadError> {
    std::fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}
