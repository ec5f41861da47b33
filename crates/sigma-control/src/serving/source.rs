//! Reading the configuration file.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use sigma_config::{Checked, ParseOptions};
use sigma_convert::seed::Seeds;
use sigma_plugin::{Kind, Roster};
use sigma_schema::Problem;
use sigma_schema::plugins::{NoPlugins, PluginSchemas};

use super::file_stamp::FileStamp;
use super::plugin_files::AllPlugins;

/// Largest configuration file; a file of a hundred thousand routes has about half of it.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Where a configuration comes from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The `options.json` next to a `sigma.json`.
    pub companion: Option<PathBuf>,
    /// `-instance` of the original Sigma's command line.
    pub instances: Option<u16>,
    /// Invalid resources are closed instead of stopping the file.
    pub skip_invalid: bool,
    /// The pid file of a gateway whose configuration names none.
    pub default_pid_file: Option<PathBuf>,
    /// The state of the files when they were read last, for `--watch`. Copies share it.
    seen: Arc<Mutex<Option<Seen>>>,
}

/// The files as they were read.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Taken before: a change during the reading is another state.
    stamps: [Option<FileStamp>; 2],
    /// Of the texts; None if they could not be read.
    hash: Option<u64>,
}

/// The texts of a configuration.
#[derive(Hash)]
struct Texts {
    file: String,
    companion: Option<String>,
}

/// Why a configuration cannot be used. All problems of a file come together.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}{}", remedy(source))]
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
        /// The problems, in the order of the document.
        problems: Vec<Problem>,
    },
}

/// Returns the remedy for a file that cannot be read.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; name your configuration with -c, or let `sigma init` write one",
        _ => "",
    }
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
        Source {
            path: path.into(),
            companion: None,
            instances: None,
            skip_invalid: false,
            default_pid_file: None,
            seen: Arc::default(),
        }
    }

    /// Reads and checks. `plugins` are the build's plugins.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has problems.
    pub fn load(&self, plugins: &dyn PluginSchemas) -> Result<Checked, LoadError> {
        self.check(&self.read()?, plugins)
    }

    /// Returns the plugins of the build with those in files that the configuration names. Files that cannot be loaded
    /// are among them, and refuse every configuration.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be read, or if the search for files has mistakes.
    pub fn plugins(&self, built_in: Vec<Arc<dyn Kind>>) -> Result<AllPlugins, LoadError> {
        self.plugins_of(&self.texts()?, built_in)
    }

    fn plugins_of(&self, texts: &Texts, built_in: Vec<Arc<dyn Kind>>) -> Result<AllPlugins, LoadError> {
        let settings = self
            .with_options(texts, &NoPlugins, |options| sigma_config::plugin_files_of(&texts.file, options));
        AllPlugins::built_in(built_in).with_files(&settings).map_err(|problems| self.invalid(problems))
    }

    /// As [`Source::load`], with the plugins in files as they are now; the calling thread goes on with its other tasks
    /// while files are read. `rosters` returns the plugins for the check.
    pub(crate) async fn load_aside<R>(
        &self,
        built_in: Vec<Arc<dyn Kind>>,
        rosters: impl FnOnce(&AllPlugins) -> (Arc<Roster>, R),
    ) -> Result<(Checked, AllPlugins, R), LoadError> {
        let source = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let texts = source.read()?;
            let plugins = source.plugins_of(&texts, built_in)?;
            Ok::<_, LoadError>((texts, plugins))
        });
        // It ends early in a panic only.
        let failed =
            |error| LoadError::Read { path: self.path.clone(), source: std::io::Error::other(error) };
        let (texts, plugins) = read.await.map_err(failed)??;
        if !plugins.files.broken.is_empty() {
            return Err(self.invalid(plugins.files.broken));
        }
        let (roster, kept) = rosters(&plugins);
        Ok((self.check(&texts, &*roster)?, plugins, kept))
    }

    fn read(&self) -> Result<Texts, LoadError> {
        let stamps = self.stamps();
        let texts = self.texts();
        let hash = texts.as_ref().ok().map(Texts::hash_of);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Seen { stamps, hash });
        texts
    }

    fn texts(&self) -> Result<Texts, LoadError> {
        Ok(Texts { file: read(&self.path)?, companion: self.companion.as_deref().map(read).transpose()? })
    }

    fn check(&self, texts: &Texts, plugins: &dyn PluginSchemas) -> Result<Checked, LoadError> {
        let parse = |options: &ParseOptions<'_>| sigma_config::parse(&texts.file, options);
        self.with_options(texts, plugins, parse).map_err(|problems| self.invalid(problems))
    }

    fn with_options<R>(
        &self,
        texts: &Texts,
        plugins: &dyn PluginSchemas,
        run: impl FnOnce(&ParseOptions<'_>) -> R,
    ) -> R {
        let formats = Seeds { companion: texts.companion.as_deref(), instances: self.instances };
        run(&ParseOptions {
            env: &|name| std::env::var(name).ok(),
            formats: &formats,
            skip_invalid: self.skip_invalid,
            plugins,
            now: unix_seconds(),
            max_bytes: FILE_BYTES_MAX,
            ..ParseOptions::default()
        })
    }

    /// Problems found after parsing, with this file's name.
    pub fn invalid(&self, problems: Vec<Problem>) -> LoadError {
        LoadError::Invalid { path: self.path.clone(), problems }
    }

    /// Whether the files are there and in another state than when they were read last.
    pub(crate) fn has_changed(&self) -> bool {
        let Some(seen) = *self.seen.lock().unwrap_or_else(PoisonError::into_inner) else { return false };
        let now = self.stamps();
        if now[0].is_none() {
            return false;
        }
        if now != seen.stamps {
            return true;
        }
        let may_hide = seen.stamps.iter().flatten().any(FileStamp::is_fresh);
        if !may_hide || now.iter().flatten().any(FileStamp::is_fresh) {
            return false;
        }
        // Once, when no further write can hide: a state in which a file was read while it was new.
        let hash = self.texts().ok().map(|texts| texts.hash_of());
        if hash == seen.hash {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Seen { stamps: now, ..seen });
        }
        hash != seen.hash
    }

    fn stamps(&self) -> [Option<FileStamp>; 2] {
        [FileStamp::of(&self.path), self.companion.as_deref().and_then(FileStamp::of)]
    }
}

impl Texts {
    fn hash_of(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const OLD: &str = "upstream: http://127.0.0.1:1\n";
    const NEW: &str = "upstream: http://127.0.0.1:2\n";

    /// A file that was written an hour ago, so that its stamp shows every further write.
    fn written(text: &str) -> (tempfile::TempDir, Source) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sigma.yaml");
        fs::write(&path, text).unwrap();
        age(&path, 3600);
        let source = Source::file(path);
        (folder, source)
    }

    fn age(path: &Path, seconds: u64) {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn a_change_after_the_reading_is_seen() {
        type Change = fn(&Path);
        let changes: [(&str, bool, Change); 9] = [
            ("nothing", false, |_| {}),
            ("another length", true, |path| fs::write(path, "workers: 1\n").unwrap()),
            ("the same length", true, |path| fs::write(path, NEW).unwrap()),
            ("empty", true, |path| fs::write(path, "").unwrap()),
            ("an older file moved there", true, |path| {
                let other = path.with_extension("other");
                fs::write(&other, OLD).unwrap();
                age(&other, 7200);
                fs::rename(other, path).unwrap();
            }),
            ("a file of the same time moved there", true, |path| {
                let time = fs::metadata(path).unwrap().modified().unwrap();
                let other = path.with_extension("other");
                fs::write(&other, NEW).unwrap();
                fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
                fs::rename(other, path).unwrap();
            }),
            ("a link to another file", true, |path| {
                let other = path.with_extension("other");
                fs::write(&other, NEW).unwrap();
                fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink(other, path).unwrap();
            }),
            ("a set-back time", true, |path| age(path, 7200)),
            ("gone", false, |path| fs::remove_file(path).unwrap()),
        ];
        for (name, expected, change) in changes {
            let (_folder, source) = written(OLD);
            assert!(!source.has_changed(), "nothing was read");
            source.read().unwrap();
            change(&source.path);
            assert_eq!(source.clone().has_changed(), expected, "{name}");
            if source.read().is_ok() {
                assert!(!source.has_changed() || expected, "{name}");
            }
        }
    }

    /// The stamp is taken before the reading: a write in between makes another state.
    #[test]
    fn a_change_during_the_reading_is_seen() {
        let (_folder, source) = written(OLD);
        let before = source.stamps();
        fs::write(&source.path, NEW).unwrap();
        *source.seen.lock().unwrap() = Some(Seen { stamps: before, hash: None });
        assert!(source.has_changed());
    }

    /// Two writes within one step of the clock leave the same stamp.
    #[test]
    fn a_write_that_leaves_no_trace_is_found_by_its_text() {
        let (_folder, source) = written(OLD);
        source.read().unwrap();
        fs::write(&source.path, NEW).unwrap();
        age(&source.path, 3600);
        let mut seen = source.seen.lock().unwrap().unwrap();
        let fresh = |text: &str| {
            let companion = None;
            let hash = Texts { file: text.to_owned(), companion }.hash_of();
            Seen { stamps: source.stamps().map(|stamp| stamp.map(FileStamp::as_fresh)), hash: Some(hash) }
        };
        for (text, expected) in [(OLD, true), (NEW, false)] {
            seen = fresh(text);
            *source.seen.lock().unwrap() = Some(seen);
            assert_eq!(source.has_changed(), expected, "{text}");
        }
        assert!(seen.stamps[0].unwrap().is_fresh());
        assert!(!source.seen.lock().unwrap().unwrap().stamps[0].unwrap().is_fresh(), "looked at once");
    }

    #[test]
    fn the_companion_counts_too() {
        let (folder, mut source) = written("{}");
        let companion = folder.path().join("options.json");
        fs::write(&companion, "{}").unwrap();
        age(&companion, 3600);
        source.companion = Some(companion.clone());
        source.read().unwrap();
        assert!(!source.has_changed());
        fs::write(&companion, "{ }").unwrap();
        assert!(source.has_changed());
    }
}
