//! Configurations: parsed and checked once into types that cannot be invalid.
//!
//! The steps of a text: [`Document`] (JSON or YAML, with lines) → [`Formats`] (formats of other programs are
//! translated) → [`env`] (variables) → shorthands → schema → rules across fields → types. Every step reports all
//! problems that it finds, as [`Problem`]s with path, line, reason and remedy. The crate does no I/O: the caller
//! supplies the text and the environment.

mod advice;
mod bundled;
mod check;
pub mod docs;
mod file;
mod pem;
pub mod plugins;
pub mod resources;
mod rules;
mod schema;
pub mod settings;
pub mod stored;

pub use advice::Surroundings;
pub use file::include::{Included, patterns as include_patterns};
pub use file::quarantine::QuarantinedItem;
pub use file::{env, shorthand, valid_part};
pub use resources::{checks, kind, nodes, reference, table};
pub use settings::{
    acme, audit_log, cache, cloud_identity, config_sources, crypt, discovery, dns, ext_plugin, geoip,
    health_events, health_file, health_sharing, history, io, live, lua, members, process, profile,
    registration, store, tap, tls, wasm,
};

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use file::include::{Joining, Parts};
use resources::{Resources, SECTIONS};
use rules::Object;
use settings::Settings;
use settings::profile::Profile;
use sigma_schema::Problem;
use sigma_schema::document::Document;
use sigma_schema::formats::{Formats, OwnFormat};
use sigma_schema::plugins::{NoPlugins, PluginSchemas};

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Config {
    /// The settings of the process.
    pub settings: Settings,
    /// The resources.
    pub resources: Resources,
}

impl Config {
    /// Returns the full form: every default written out, no shorthand. `parse` of it returns an equal `Config`.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut whole = serde_json::Map::new();
        // Neither type has a map with keys other than strings, nor a serializer that fails.
        for part in [serde_json::to_value(&self.settings), serde_json::to_value(&self.resources)] {
            if let Ok(Value::Object(part)) = part {
                whole.extend(part);
            }
        }
        Value::Object(whole)
    }
}

/// A configuration without problems.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// The warnings.
    pub warnings: Vec<Problem>,
    /// Items that are not served, with [`ParseOptions::skip_invalid`].
    pub quarantined: Vec<QuarantinedItem>,
    /// The name of the format that it was translated from, e.g. `niubix.json`; None for Sigma's own.
    pub format: Option<&'static str>,
}

impl Checked {
    /// Returns the configuration in its full form; see [`Config::to_value`].
    #[must_use]
    pub fn normalized(&self) -> Value {
        self.config.to_value()
    }
}

/// The input of `parse` besides the text.
pub struct ParseOptions<'a> {
    /// The environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The formats that are accepted besides Sigma's own.
    pub formats: &'a dyn Formats,
    /// The text is APISIX's standalone file: a YAML file must end with `#END`, a later resource replaces an earlier one
    /// with the same id, and references between resources are not checked.
    pub standalone_mode: bool,
    /// Invalid items are set aside instead of stopping the file; see [`QuarantinedItem`].
    pub skip_invalid: bool,
    /// The plugins of this build.
    pub plugins: &'a dyn PluginSchemas,
    /// The time in Unix seconds, for expired certificates; 0 to ignore it.
    pub now: i64,
    /// The files that the setting `include` names, in their order. None where they cannot be read.
    pub included: Option<&'a [Included<'a>]>,
    /// The followed documents of `config_sources`, in their order. Only with `included`.
    pub followed: &'a [Included<'a>],
    /// Maximum size of the texts in bytes. The default, 16 MiB, is enough for about ten thousand routes.
    pub max_bytes: usize,
}

impl Default for ParseOptions<'_> {
    fn default() -> Self {
        ParseOptions {
            env: &|_| None,
            formats: &OwnFormat,
            standalone_mode: false,
            skip_invalid: false,
            plugins: &NoPlugins,
            now: 0,
            included: None,
            followed: &[],
            max_bytes: 16 << 20,
        }
    }
}

/// Parses and checks one configuration file. Returns the configuration, or all problems.
pub fn parse(text: &str, options: &ParseOptions<'_>) -> Result<Checked, Vec<Problem>> {
    let mut found = check::Findings::default();
    let located = |parts: &Parts, problems: Vec<Problem>| -> Vec<Problem> {
        problems.into_iter().map(|problem| parts.located(problem)).collect()
    };
    let document = prepared(text, options, &mut found);
    let parts = std::mem::take(&mut found.parts);
    let checked = document.and_then(|document| checked(&document, options, found));
    match checked {
        Ok(mut checked) => {
            checked.warnings = located(&parts, checked.warnings);
            for item in &mut checked.quarantined {
                item.problems = located(&parts, std::mem::take(&mut item.problems));
            }
            Ok(checked)
        }
        Err(problems) => Err(located(&parts, problems)),
    }
}

/// Checks a document in its full form.
fn checked(
    document: &Document,
    options: &ParseOptions<'_>,
    mut found: check::Findings,
) -> Result<Checked, Vec<Problem>> {
    check::check(document, options, &mut found);
    let quarantined = match options.skip_invalid && found.errors.iter().all(file::quarantine::is_in_item) {
        true => QuarantinedItem::take(document, &mut found.errors),
        false => Vec::new(),
    };
    let mut config = match found.errors.is_empty() {
        true => typed(document, &quarantined, &mut found),
        false => Config::default(),
    };
    if found.errors.is_empty() && !options.followed.is_empty() {
        let forbidden = file::followed::forbidden_files(document, &config.settings, options.plugins);
        found.errors.extend(forbidden);
    }
    quarantined.iter().for_each(|item| item.close(document, &mut config.resources));
    once_per_listener(&mut found.errors, found.written_listeners);
    if !found.errors.is_empty() {
        // In document order, for the reader.
        found.errors.sort_by_key(|problem| problem.line);
        return Err(found.errors);
    }
    let ineffective = config.settings.discovery.iter().flat_map(discovery::without_effect);
    found.warnings.extend(ineffective.map(|problem| valid_part::located(document, problem)));
    if config.settings.geoip.databases.is_empty() {
        found.warnings.extend(
            advice::without_places(&document.value).map(|problem| valid_part::located(document, problem)),
        );
    }
    if config.settings.store.is_none() && config.settings.admin.is_none() {
        let whole = advice::whole(&config.settings, &config.resources, options.plugins).into_iter();
        found.warnings.extend(whole.map(|problem| valid_part::located(document, problem)));
    }
    once_per_listener(&mut found.warnings, found.written_listeners);
    found.warnings.sort_by_key(|problem| problem.line);
    Ok(Checked { config, warnings: found.warnings, quarantined, format: found.format })
}

/// Returns the pid file that a configuration names, even if the rest is invalid, because commands for a process need no
/// more. A relative path begins in `process.working_folder`, if that is set.
#[must_use]
pub fn pid_file_of(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    max_bytes: usize,
) -> Option<std::path::PathBuf> {
    let options = ParseOptions { env, max_bytes, ..ParseOptions::default() };
    let document = prepared(text, &options, &mut check::Findings::default())
        .or_else(|_| Document::parse(text, max_bytes));
    let Ok(document) = document else { return written_pid_file(text) };
    let file = document.value.get("pid_file")?.as_str().filter(|file| !file.is_empty())?;
    let folder = document.value.get("process").and_then(|process| process.get("working_folder")?.as_str());
    Some(std::path::Path::new(folder.unwrap_or_default()).join(file))
}

/// Returns the settings of plugins in a configuration that come before its check: the files of plugins, and the
/// settings `plugins` and `stream_plugins`. Settings that cannot be read are unset; the check reports them. Relative
/// paths begin in `process.working_folder`, if that is set.
#[must_use]
pub fn plugin_files_of(text: &str, options: &ParseOptions<'_>) -> PluginFiles {
    let document = prepared(text, options, &mut check::Findings::default());
    let Ok(document) = document else { return PluginFiles::default() };
    fn read<T: serde::de::DeserializeOwned + Default>(document: &Document, name: &str) -> T {
        let value = document.value.get(name).cloned().unwrap_or_default();
        serde_json::from_value::<Option<T>>(value).ok().flatten().unwrap_or_default()
    }
    let folder = document.value.pointer("/process/working_folder").and_then(serde_json::Value::as_str);
    let lua: lua::Lua = read(&document, "lua");
    PluginFiles {
        lua: folder.map_or(lua.clone(), |folder| lua.within(std::path::Path::new(folder))),
        plugins: read(&document, "plugins"),
        stream_plugins: read(&document, "stream_plugins"),
    }
}

/// The settings that decide which files of plugins are read.
#[derive(Debug, Clone, Default)]
pub struct PluginFiles {
    /// The setting `lua`.
    pub lua: lua::Lua,
    /// The setting `plugins`.
    pub plugins: Option<Vec<resources::EnabledPlugin>>,
    /// The setting `stream_plugins`.
    pub stream_plugins: Option<Vec<String>>,
}

/// Returns the pid file of an unparsable text: from its own line at the top level.
fn written_pid_file(text: &str) -> Option<std::path::PathBuf> {
    let value = text.lines().find_map(|line| line.strip_prefix("pid_file:"))?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    let value =
        value.strip_prefix(['"', '\'']).and_then(|inner| inner.strip_suffix(['"', '\''])).unwrap_or(value);
    (!value.is_empty() && !value.contains("${{")).then(|| value.into())
}

/// Removes duplicate problems of a listener at `:port`, which becomes two listeners. `written` is the number of
/// listeners in the document; the second ones come after them.
fn once_per_listener(problems: &mut Vec<Problem>, written: usize) {
    fn place(problem: &Problem) -> Option<(usize, &str)> {
        let (index, rest) = problem.pointer.strip_prefix("listeners[")?.split_once(']')?;
        Some((index.parse().ok()?, rest))
    }
    let all = problems.clone();
    problems.retain(|problem| {
        let Some((_, rest)) = place(problem).filter(|(index, _)| *index >= written) else { return true };
        !all.iter().any(|other| {
            other.message == problem.message
                && place(other).is_some_and(|(index, at)| index < written && at == rest)
        })
    });
}

/// Returns the document of `text` in its full form, not yet checked.
fn prepared(
    text: &str,
    options: &ParseOptions<'_>,
    found: &mut check::Findings,
) -> Result<Document, Vec<Problem>> {
    let mut document = read(text, options)?;
    match options.included {
        Some(included) => {
            let mut joined = Joining::new(text, options.max_bytes);
            joined.add_all(&mut document, included, |_| Vec::new());
            found.errors.extend(file::followed::own_resources(&document));
            joined.add_all(&mut document, options.followed, file::followed::problems);
            found.parts = joined.finish()?;
        }
        None if document.value.get("include").is_some() => {
            let message = "the files of `include` are read by `sigma run` and `sigma check` only";
            let problem = document.problem("include", "conflict", message);
            found.errors.push(problem.hint("write everything into one file"));
        }
        None => {}
    }
    if let Some(problem) = options.formats.refuse(&document) {
        return Err(vec![problem]);
    }
    if options.standalone_mode && !text.trim_start().starts_with('{') && !text.trim_end().ends_with("#END") {
        let problem =
            Problem::new("", "end_flag", "missing valid end flag").hint("end the file with a line `#END`");
        found.errors.push(problem);
    }
    let holds = match options.formats.detect(&document) {
        Some(_) => env::Holds::Foreign,
        None => env::Holds::File(options.plugins),
    };
    found.errors.extend(env::substitute(&mut document, holds, options.env));
    translate(&mut document, options, found)?;
    shorthand::expand(&mut document, found);
    if let Some(root) = document.value.as_object_mut()
        && let Some(profile) = Profile::of_document(root)
    {
        profile.fill_settings(root);
    }
    Ok(document)
}

/// Parses a text; one that is no document with members may be a file of another program.
fn read(text: &str, options: &ParseOptions<'_>) -> Result<Document, Vec<Problem>> {
    let document = Document::parse(text, options.max_bytes);
    let has_members = document.as_ref().is_ok_and(|document| document.value.is_object());
    match options.formats.refuse_text(text).filter(|_| !has_members) {
        Some(problem) => Err(vec![problem]),
        None => document,
    }
}

fn translate(
    document: &mut Document,
    options: &ParseOptions<'_>,
    found: &mut check::Findings,
) -> Result<(), Vec<Problem>> {
    let Some(format) = options.formats.detect(document) else { return Ok(()) };
    found.format = Some(format);
    match options.formats.translate(document) {
        Ok((value, warnings)) => {
            found.warnings.extend(warnings);
            document.value = value;
            // Lines refer to the original, whose pointers do not match the translation.
            document.positions.clear();
            Ok(())
        }
        Err(problems) => {
            let mut all = std::mem::take(&mut found.errors);
            all.extend(problems);
            Err(all)
        }
    }
}

/// From the checked value to the types. The schema and the rules have accepted everything, so an
/// error here is one that they overlooked; it is reported like any other.
fn typed(document: &Document, quarantined: &[QuarantinedItem], found: &mut check::Findings) -> Config {
    let mut config = Config::default();
    let Some(root) = document.value.as_object() else { return config };
    let invalid: HashSet<(&str, usize)> = quarantined.iter().map(QuarantinedItem::place).collect();
    let mut settings = Object::new();
    for (name, value) in root {
        let Some(section) = SECTIONS.into_iter().find(|section| section == name) else {
            settings.insert(name.clone(), value.clone());
            continue;
        };
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default().iter().enumerate();
        let valid: Vec<_> = list.filter(|(index, _)| !invalid.contains(&(section, *index))).collect();
        items(document, &valid, section, &mut config.resources, found);
    }
    match Settings::deserialize(&*sigma_schema::conform::conform(
        &Value::Object(settings),
        bundled::of_settings(),
    )) {
        Ok(settings) => config.settings = settings,
        Err(error) => found.errors.push(document.problem("", "invalid", error.to_string())),
    }
    config
}

/// Of items with the same id the last one stays; only standalone files have such items here.
fn items(
    document: &Document,
    list: &[(usize, &Value)],
    section: &str,
    into: &mut Resources,
    found: &mut check::Findings,
) {
    let last: HashMap<Option<String>, usize> =
        list.iter().map(|(index, item)| (check::id_of(item), *index)).collect();
    for (index, item) in list {
        let id = check::id_of(item);
        if last.get(&id) != Some(index) {
            continue;
        }
        match stored::typed(check::kind_of(section, item), &id.unwrap_or_default(), item) {
            Ok(item) => drop(into.put(item, *index as u64)),
            Err(error) => {
                let pointer = sigma_schema::problem::element(section, *index);
                found.errors.push(document.problem(&pointer, "invalid", error));
            }
        }
    }
}

#[cfg(test)]
mod tests;
