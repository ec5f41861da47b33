//! Reading the configuration file.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sigma_config::{Checked, Included, ParseOptions};
use sigma_convert::seed::Seeds;
use sigma_discovery::FollowedDocuments;
use sigma_plugin::{Kind, Roster};
use sigma_schema::Problem;
use sigma_schema::plugins::{NoPlugins, PluginSchemas};

use super::clock::unix_seconds;
use super::file_stamp::FileStamp;
use super::plugin_files::AllPlugins;

/// Largest configuration file; a file of a hundred thousand routes has about half of it.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Most files of one pattern; a folder of one file for each route has fewer.
const INCLUDED_MAX: usize = 10_000;

/// Where a configuration comes from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The `options.json` next to a `sigma.json`.
    pub companion: Option<PathBuf>,
    /// The same as a text of the command line.
    pub companion_text: Option<Arc<str>>,
    /// `-instance` of the original Sigma's command line.
    pub instances: Option<u16>,
    /// `start` of the original Sigma's command line.
    pub in_background: bool,
    /// Invalid resources are closed instead of stopping the file.
    pub skip_invalid: bool,
    /// The pid file of a gateway whose configuration names none.
    pub default_pid_file: Option<PathBuf>,
    /// The followed documents that belong to it.
    pub documents: FollowedDocuments,
    /// The text of a configuration that is not in a file.
    text: Option<Arc<str>>,
    /// The state of the files when they were read last, for `--watch`. Copies share it.
    seen: Arc<Mutex<Option<SourceFiles>>>,
}

/// The files as they were read.
#[derive(Debug, Clone)]
struct SourceFiles {
    /// Taken before: a change during the reading is another state.
    stamps: Stamps,
    /// Of the texts; None if they could not be read.
    hash: Option<u64>,
    /// The patterns of included files.
    patterns: Vec<String>,
}

/// The states of the file, of its companion, and of the included files with their names.
#[derive(Debug, Clone, PartialEq)]
struct Stamps {
    own: [Option<FileStamp>; 2],
    included: Vec<(PathBuf, Option<FileStamp>)>,
}

impl Stamps {
    fn all(&self) -> impl Iterator<Item = &FileStamp> {
        self.own.iter().chain(self.included.iter().map(|(_, stamp)| stamp)).flatten()
    }
}

/// The texts of a configuration.
#[derive(Hash)]
struct Texts {
    file: String,
    companion: Option<String>,
    /// The included files with their paths.
    included: Vec<(PathBuf, String)>,
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
        std::io::ErrorKind::NotFound => "; name your configuration with -c, or create one with `sigma init`",
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
    /// Its own file.
    pub fn file(path: impl Into<PathBuf>) -> Source {
        Source {
            path: path.into(),
            companion: None,
            companion_text: None,
            instances: None,
            in_background: false,
            skip_invalid: false,
            default_pid_file: None,
            documents: FollowedDocuments::default(),
            text: None,
            seen: Arc::default(),
        }
    }

    /// A text of a command, which never changes.
    pub fn text(text: impl Into<Arc<str>>) -> Source {
        Source { text: Some(text.into()), ..Source::file("the command line") }
    }

    /// Returns true if the configuration is not in a file.
    pub fn is_text(&self) -> bool {
        self.text.is_some()
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
        self.plugins_of(&self.unrecorded()?, built_in)
    }

    fn plugins_of(&self, texts: &Texts, built_in: Vec<Arc<dyn Kind>>) -> Result<AllPlugins, LoadError> {
        let settings = self
            .with_options(texts, &NoPlugins, |options| sigma_config::plugin_files_of(&texts.file, options));
        AllPlugins::built_in(built_in).with_files(&settings).map_err(|problems| self.invalid(problems))
    }

    /// As [`Source::load`], with the plugins in files as they are now; the calling thread continues with its other
    /// tasks while files are read. `rosters` returns the plugins for the check.
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

    /// Returns the texts of a command, which are in no file.
    fn of_command(&self) -> Result<Option<Texts>, LoadError> {
        let Some(text) = &self.text else { return Ok(None) };
        Ok(Some(Texts { file: text.to_string(), companion: self.companion()?, included: Vec::new() }))
    }

    /// Returns the text of the `options.json`.
    fn companion(&self) -> Result<Option<String>, LoadError> {
        match &self.companion_text {
            Some(text) => Ok(Some(text.to_string())),
            None => self.companion.as_deref().map(read).transpose(),
        }
    }

    /// Reads the texts, and records no stamps.
    fn unrecorded(&self) -> Result<Texts, LoadError> {
        if let Some(texts) = self.of_command()? {
            return Ok(texts);
        }
        let file = read(&self.path)?;
        let patterns = sigma_config::include_patterns(&file, FILE_BYTES_MAX);
        self.texts_beside(file, &patterns)
    }

    fn read(&self) -> Result<Texts, LoadError> {
        if let Some(texts) = self.of_command()? {
            return Ok(texts);
        }
        let own = self.stamps(&[]).own;
        let file = read(&self.path);
        let patterns = match &file {
            Ok(text) => sigma_config::include_patterns(text, FILE_BYTES_MAX),
            Err(_) => Vec::new(),
        };
        let stamps = Stamps { own, ..self.stamps(&patterns) };
        let texts = file.and_then(|file| self.texts_beside(file, &patterns));
        let hash = texts.as_ref().ok().map(Texts::hash_of);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(SourceFiles { stamps, hash, patterns });
        texts
    }

    fn texts(&self, patterns: &[String]) -> Result<Texts, LoadError> {
        self.texts_beside(read(&self.path)?, patterns)
    }

    fn texts_beside(&self, file: String, patterns: &[String]) -> Result<Texts, LoadError> {
        let companion = self.companion()?;
        let included = self.included(patterns)?;
        let included = included.into_iter().map(|path| read(&path).map(|text| (path, text)));
        Ok(Texts { file, companion, included: included.collect::<Result<_, _>>()? })
    }

    /// Returns the files of these patterns, each once: in the order of the patterns, and of the names of each.
    ///
    /// # Errors
    /// Returns an error for a file or folder that does not exist. A pattern may fit no file.
    fn included(&self, patterns: &[String]) -> Result<Vec<PathBuf>, LoadError> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let mut found: Vec<PathBuf> = Vec::new();
        for pattern in patterns {
            let pattern = folder.join(pattern);
            let name = pattern.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if !name.contains('*') {
                found.push(pattern);
                continue;
            }
            let within = pattern.parent().unwrap_or(Path::new(""));
            let within = if within.as_os_str().is_empty() { Path::new(".") } else { within };
            let failed = |source| LoadError::Read { path: within.to_owned(), source };
            let mut names = Vec::new();
            for entry in std::fs::read_dir(within).map_err(failed)? {
                let entry = entry.map_err(failed)?.file_name();
                names.extend(entry.to_str().filter(|entry| fits(&name, entry)).map(str::to_owned));
                if names.len() > INCLUDED_MAX {
                    let text = format!("the folder has more than {INCLUDED_MAX} files for `{name}`");
                    return Err(failed(std::io::Error::other(text)));
                }
            }
            names.sort_unstable();
            found.extend(names.into_iter().map(|name| pattern.with_file_name(name)));
        }
        let mut seen = std::collections::HashSet::new();
        found.retain(|path| *path != self.path && seen.insert(path.clone()));
        Ok(found)
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
        let (companion, instances) = (texts.companion.as_deref(), self.instances);
        let formats = Seeds { companion, instances, in_background: self.in_background };
        let names: Vec<String> = texts.included.iter().map(|(path, _)| path.display().to_string()).collect();
        let included: Vec<Included<'_>> =
            names.iter().zip(&texts.included).map(|(name, (_, text))| Included { name, text }).collect();
        let followed: Vec<Included<'_>> =
            self.documents.iter().map(|one| Included { name: &one.name, text: &one.text }).collect();
        run(&ParseOptions {
            env: &|name| std::env::var(name).ok(),
            formats: &formats,
            skip_invalid: self.skip_invalid,
            plugins,
            now: unix_seconds(),
            included: Some(&included),
            followed: &followed,
            max_bytes: FILE_BYTES_MAX,
            ..ParseOptions::default()
        })
    }

    /// Problems found after parsing, with this file's name.
    pub fn invalid(&self, mut problems: Vec<Problem>) -> LoadError {
        for problem in problems.iter_mut().filter(|problem| problem.code == "foreign_format") {
            // The command as it can be typed.
            let file = self.path.display().to_string();
            let output = if self.path.ends_with("sigma.yaml") { "gateway.yaml" } else { "sigma.yaml" };
            let command = format!(" {file} -o {output}`");
            problem.hint = problem.hint.take().map(|hint| hint.replace(" FILE -o sigma.yaml`", &command));
        }
        LoadError::Invalid { path: self.path.clone(), problems }
    }

    /// Whether the files are there and in another state than when they were read last.
    pub(crate) fn has_changed(&self) -> bool {
        let Some(seen) = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone() else {
            return false;
        };
        let now = self.stamps(&seen.patterns);
        if now.own[0].is_none() {
            return false;
        }
        if now != seen.stamps {
            return true;
        }
        let may_hide = seen.stamps.all().any(FileStamp::is_fresh);
        if !may_hide || now.all().any(FileStamp::is_fresh) {
            return false;
        }
        // Once, when no further write can hide: a state in which a file was read while it was new.
        let hash = self.texts(&seen.patterns).ok().map(|texts| texts.hash_of());
        if hash == seen.hash {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(SourceFiles { stamps: now, ..seen });
        }
        hash != seen.hash
    }

    /// The files in their present state. Folders that cannot be read count as empty.
    fn stamps(&self, patterns: &[String]) -> Stamps {
        let included = self.included(patterns).unwrap_or_default();
        Stamps {
            own: [FileStamp::of(&self.path), self.companion.as_deref().and_then(FileStamp::of)],
            included: included.into_iter().map(|path| (path.clone(), FileStamp::of(&path))).collect(),
        }
    }
}

impl Texts {
    fn hash_of(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns true if a name fits a pattern, where `*` is any text. As in a shell, it does not begin with a dot unless the
/// pattern does.
fn fits(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else { return rest.is_empty() };
    for part in inner {
        // The first place leaves the most room for those after it.
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

fn read(path: &Path) -> Result<String, LoadError> {
    std::fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

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
        let before = source.stamps(&[]);
        fs::write(&source.path, NEW).unwrap();
        *source.seen.lock().unwrap() = Some(SourceFiles { stamps: before, hash: None, patterns: Vec::new() });
        assert!(source.has_changed());
    }

    /// Two writes within one step of the clock leave the same stamp.
    #[test]
    fn a_write_that_leaves_no_trace_is_found_by_its_text() {
        let (_folder, source) = written(OLD);
        source.read().unwrap();
        fs::write(&source.path, NEW).unwrap();
        age(&source.path, 3600);
        let fresh = |text: &str| {
            let (companion, included) = (None, Vec::new());
            let hash = Texts { file: text.to_owned(), companion, included }.hash_of();
            let Stamps { own, included } = source.stamps(&[]);
            let stamps = Stamps { own: own.map(|stamp| stamp.map(FileStamp::as_fresh)), included };
            SourceFiles { stamps, hash: Some(hash), patterns: Vec::new() }
        };
        let is_fresh = |seen: &SourceFiles| seen.stamps.own[0].unwrap().is_fresh();
        for (text, expected) in [(OLD, true), (NEW, false)] {
            let seen = fresh(text);
            assert!(is_fresh(&seen));
            *source.seen.lock().unwrap() = Some(seen);
            assert_eq!(source.has_changed(), expected, "{text}");
        }
        assert!(!is_fresh(source.seen.lock().unwrap().as_ref().unwrap()), "looked at once");
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

    #[test]
    fn patterns_match_names_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.yaml", "a.yaml", true),
            ("*.yaml", ".a.yaml", false),
            ("*.yaml", "a.yml", false),
            ("*.yaml", ".yaml", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*", "anything", true),
            (".*", ".a", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn included_files_are_read_in_order_and_followed() {
        let (folder, source) = written("include: [conf.d/*.yaml, last.yaml]\n");
        let (a, b) = (folder.path().join("conf.d/a.yaml"), folder.path().join("conf.d/b.yaml"));
        let last = folder.path().join("last.yaml");
        assert!(source.read().is_err(), "the folder does not exist");
        fs::create_dir(folder.path().join("conf.d")).unwrap();
        assert!(source.read().is_err(), "the file does not exist");
        let write = |path: &Path, id: &str| {
            fs::write(path, format!("upstreams:\n- id: {id}\n  nodes: {{ \"127.0.0.1:1\": 1 }}\n")).unwrap();
            age(path, 3600);
        };
        write(&last, "last");
        write(&b, "b");
        let ids = || {
            let checked = source.load(&sigma_schema::plugins::NoPlugins).unwrap();
            checked.config.resources.upstreams.iter().map(|item| item.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids(), ["b", "last"]);
        assert!(!source.has_changed());
        write(&a, "a");
        assert!(source.has_changed(), "a new file");
        assert_eq!(ids(), ["a", "b", "last"]);
        write(&b, "changed");
        assert!(source.has_changed(), "a changed file");
        assert_eq!(ids(), ["a", "changed", "last"]);
        fs::remove_file(&a).unwrap();
        assert!(source.has_changed(), "a removed file");
        fs::write(&b, "upstreams:\n- id: b\n  nodse: {}\n").unwrap();
        let error = source.load(&sigma_schema::plugins::NoPlugins).unwrap_err().to_string();
        assert!(error.contains("conf.d/b.yaml: line 3: upstreams[0]"), "{error}");
    }
}
