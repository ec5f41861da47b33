//! Files with resources, and the differences between two configurations.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};
use sigma_config::ParseOptions;
use sigma_config::shorthand::{self, Resources};
use sigma_schema::document::Document;
use sigma_schema::problem::Problem;

/// Largest file in bytes, as the Admin API takes it.
const FILE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// The sections of a configuration.
const SECTIONS: [&str; 13] = [
    "routes",
    "services",
    "upstreams",
    "consumers",
    "ssls",
    "global_rules",
    "protos",
    "plugin_configs",
    "consumer_groups",
    "plugin_metadata",
    "stream_routes",
    "secrets",
    "plugins",
];
/// Keys that only the server has, or that come back in another form than they were sent.
const NOT_COMPARED: [&str; 5] = ["create_time", "update_time", "key", "keys", "client_key"];

/// The variables of this shell.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Sections whose resources are checked here as well, after a refusal.
const CHECKED: [&str; 9] = [
    "routes",
    "services",
    "upstreams",
    "ssls",
    "protos",
    "plugin_configs",
    "consumer_groups",
    "global_rules",
    "stream_routes",
];

/// The content of a file, as a gateway gets it.
pub(crate) struct Sent {
    /// The resource, or the whole configuration.
    pub(crate) value: Value,
    written: Written,
}

/// A file as it was written, for the check of this program.
struct Written {
    file: PathBuf,
    text: String,
    /// The section of a resource; None for a whole configuration.
    section: Option<&'static str>,
}

impl Sent {
    /// Reads a resource for a path such as `routes/1`, its variables replaced and its short forms written out.
    pub(crate) fn resource(file: &Path, path: &str) -> Result<Sent> {
        let text = text(file)?;
        let name = path.split('/').next().unwrap_or_default();
        let section = CHECKED.into_iter().find(|section| *section == name);
        let written = Written { file: file.to_owned(), text, section };
        let value = written.resource().map_err(|problems| match section {
            Some(_) => written.listed(problems),
            None => listed(file, &problems),
        })?;
        Ok(Sent { value, written })
    }

    /// Reads a whole configuration, as a file of a gateway has it; the gateway's own settings are omitted, and named
    /// on standard error. A key that is neither section nor setting is refused: a misspelt section would be an empty
    /// one, and remove everything of its kind.
    pub(crate) fn configuration(file: &Path) -> Result<Sent> {
        let written = Written { file: file.to_owned(), text: text(file)?, section: None };
        let found = written.configuration().map_err(|problems| written.listed(problems))?;
        if !found.settings.is_empty() {
            let names = found.settings.join(", ");
            eprintln!(
                "{}: settings belong to each process, so these are ignored here: {names}",
                file.display()
            );
        }
        let object = found.sections;
        for name in object.keys() {
            let section = name.strip_suffix("_conf_version").unwrap_or(name);
            if !SECTIONS.contains(&section) {
                let sections = SECTIONS.join(", ");
                bail!("{}: `{name}` is not a section of resources; use one of {sections}", file.display());
            }
        }
        Ok(Sent { value: Value::Object(object), written })
    }

    /// Adds the problems that this program finds to a refusal of the gateway: all of them, with their lines and remedies.
    pub(crate) fn refused(&self, error: anyhow::Error) -> anyhow::Error {
        if !error.to_string().starts_with("400: ") {
            return error;
        }
        match self.written.problems() {
            problems if problems.is_empty() => error,
            problems => anyhow!("{error}\n{}", lines(&self.written.file, &problems)),
        }
    }
}

impl Written {
    fn resource(&self) -> Result<Value, Vec<Problem>> {
        let document = Document::parse(&self.text, FILE_BYTES_MAX)?;
        shorthand::resource(document, &*crate::roster::roster(), &variable)
    }

    fn configuration(&self) -> Result<Resources, Vec<Problem>> {
        let document = Document::parse(&self.text, FILE_BYTES_MAX)?;
        shorthand::resources(document, &*crate::roster::roster(), &variable)
    }

    /// Returns all problems of the file as an error, or at least these.
    fn listed(&self, problems: Vec<Problem>) -> anyhow::Error {
        match self.problems() {
            all if all.is_empty() => listed(&self.file, &problems),
            all => listed(&self.file, &all),
        }
    }

    /// Returns the problems that `sigma check` would list, except those about other resources, which the store may
    /// have, and about settings.
    fn problems(&self) -> Vec<Problem> {
        let plugins = crate::roster::roster();
        let options = ParseOptions {
            env: &variable,
            plugins: &*plugins,
            max_bytes: FILE_BYTES_MAX,
            ..ParseOptions::default()
        };
        let text = match self.section {
            // As the only item of its section.
            Some(section) => {
                let lines: Vec<String> = self.text.lines().map(|line| format!("  {line}\n")).collect();
                format!("{section}:\n-\n{}", lines.concat())
            }
            None => self.text.clone(),
        };
        let found = sigma_config::parse(&text, &options).err().unwrap_or_default();
        found
            .into_iter()
            .filter(|problem| problem.code != "reference")
            .filter_map(|one| self.own(one))
            .collect()
    }

    /// Returns a problem with the place in this file, if it is about a resource in it.
    fn own(&self, mut problem: Problem) -> Option<Problem> {
        let Some(section) = self.section else {
            let name = problem.pointer.split(['.', '[']).next().unwrap_or_default();
            return SECTIONS.contains(&name).then_some(problem);
        };
        let place = problem.pointer.strip_prefix(&format!("{section}[0]"))?;
        let place = place.trim_start_matches('.').to_owned();
        // The id is in the path of the call.
        if place == "id" {
            return None;
        }
        problem.pointer = place;
        problem.line = problem.line.and_then(|line| line.checked_sub(WRAPPING_LINES));
        Some(problem)
    }
}

/// Lines before a resource that is checked as the only item of its section.
const WRAPPING_LINES: u32 = 2;

/// Reads a part of a resource, its variables replaced and its short forms written out.
pub(crate) fn part(file: &Path) -> Result<Value> {
    let written = Written { file: file.to_owned(), text: text(file)?, section: None };
    written.resource().map_err(|problems| listed(file, &problems))
}

/// Reads a file, or standard input for `-`.
fn text(file: &Path) -> Result<String> {
    if file != Path::new("-") {
        return std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(FILE_BYTES_MAX as u64 + 1);
    input.read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}

fn listed(file: &Path, problems: &[Problem]) -> anyhow::Error {
    anyhow!(lines(file, problems))
}

fn lines(file: &Path, problems: &[Problem]) -> String {
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect();
    lines.join("\n")
}

/// Leaves the resources alone, without the versions of the sections.
pub(crate) fn without_bookkeeping(configuration: &mut Value) {
    if let Some(object) = configuration.as_object_mut() {
        object.retain(|name, _| SECTIONS.contains(&name.as_str()));
    }
}

/// The resources of a configuration by section and identity.
fn items(configuration: &Value) -> BTreeMap<String, &Map<String, Value>> {
    let mut found = BTreeMap::new();
    for section in SECTIONS.iter().filter(|section| **section != "plugins") {
        let list = configuration.get(section).and_then(Value::as_array);
        for item in list.into_iter().flatten().filter_map(Value::as_object) {
            let id = match item.get("id").or_else(|| item.get("username")) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
            // A consumer may carry an id too, but is known by its name.
            let name = item.get("username").and_then(Value::as_str).map_or(id, str::to_owned);
            found.insert(format!("{section}/{name}"), item);
        }
    }
    found
}

/// One line for every resource that is new (`+`), gone (`-`) or changed (`~`, with the members
/// that are different). Private keys are not compared: they are encrypted on one side.
pub(crate) fn differences(present: &Value, wanted: &Value) -> Vec<String> {
    let (present, wanted) = (items(present), items(wanted));
    let mut lines: BTreeMap<&String, String> = BTreeMap::new();
    for (key, item) in &wanted {
        match present.get(key) {
            None => drop(lines.insert(key, format!("+ {key}"))),
            Some(before) => {
                let mut paths = Vec::new();
                compare("", before, item, &mut paths);
                if !paths.is_empty() {
                    lines.insert(key, format!("~ {key}: {}", paths.join(", ")));
                }
            }
        }
    }
    for key in present.keys().filter(|key| !wanted.contains_key(*key)) {
        lines.insert(key, format!("- {key}"));
    }
    lines.into_values().collect()
}

fn compare(path: &str, before: &Map<String, Value>, after: &Map<String, Value>, found: &mut Vec<String>) {
    let mut names: Vec<&String> =
        before.keys().chain(after.keys().filter(|k| !before.contains_key(*k))).collect();
    // Of the keys, only keys of certificates are not comparable.
    let in_certificate = before.contains_key("cert") || after.contains_key("cert");
    names.retain(|name| {
        !NOT_COMPARED.contains(&name.as_str()) || (name.starts_with("key") && !in_certificate)
    });
    for name in names {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match (before.get(name), after.get(name)) {
            (Some(Value::Object(before)), Some(Value::Object(after))) => compare(&path, before, after, found),
            (before, after) if before == after => {}
            // An id may be a number on one side.
            (Some(Value::String(text)), Some(Value::Number(number))) if *text == number.to_string() => {}
            // The position of an item has its id if the item does not.
            (Some(_), None) if name == "id" => {}
            _ => found.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_told() {
        let check = |present: Value, wanted: Value, expected: &[&str]| {
            assert_eq!(differences(&present, &wanted), expected);
        };
        let route = |id: Value, uri: &str| json!({"routes": [{"id": id, "uri": uri, "update_time": 1}]});
        check(route(json!("1"), "/"), route(json!(1), "/"), &[]);
        check(route(json!("1"), "/"), route(json!("1"), "/a"), &["~ routes/1: uri"]);
        check(route(json!("1"), "/"), json!({}), &["- routes/1"]);
        check(json!({}), route(json!("1"), "/"), &["+ routes/1"]);
        let consumer =
            |key: &str| json!({"consumers": [{"username": "j", "plugins": {"key-auth": {"key": key}}}]});
        check(consumer("a"), consumer("b"), &["~ consumers/j: plugins.key-auth.key"]);
        let ssl = |key: &str| json!({"ssls": [{"id": "1", "cert": "c", "key": key}]});
        check(ssl("cipher"), ssl("--- plain"), &[]);
    }

    #[test]
    fn a_misspelt_section_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "route:\n- id: 1\n").expect("written");
        let refused = Sent::configuration(file.path()).err().expect("not a section").to_string();
        assert!(refused.contains("`route` is not a section"), "{refused}");
        std::fs::write(file.path(), "routes:\n- id: 1\nroutes_conf_version: 3\n#END\n").expect("written");
        assert!(Sent::configuration(file.path()).is_ok());
    }

    /// A problem of a short form does not hide the others.
    #[test]
    fn all_problems_are_listed() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let check = |text: &str, path: &str| {
            std::fs::write(file.path(), text).expect("written");
            let refused = match path {
                "" => Sent::configuration(file.path()),
                path => Sent::resource(file.path(), path),
            };
            let refused = refused.err().expect(text).to_string();
            for words in ["`path`", "upstream"] {
                assert!(refused.lines().any(|line| line.contains(words)), "{words} in {refused}");
            }
            assert!(refused.lines().count() > 1, "{refused}");
            refused
        };
        let refused = check("path: /b\nupstream: \"127.0.0.1:9000\"\n", "routes/1");
        assert!(!refused.contains("routes[0]") && refused.contains("line 2: "), "{refused}");
        check("{ path: /b, upstream: \"127.0.0.1:9000\" }", "routes");
        check("routes:\n- path: /b\n  upstream: \"127.0.0.1:9000\"\n", "");
    }

    #[test]
    fn a_refusal_of_the_gateway_gets_the_remedies() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "{path: /b, upstream_id: stored}").expect("written");
        let sent = Sent::resource(file.path(), "routes/1").expect("read");
        let refused = sent.refused(anyhow!("400: additional properties forbidden")).to_string();
        assert!(
            refused.starts_with("400: additional") && refused.contains("did you mean `uri`"),
            "{refused}"
        );
        assert!(!refused.contains("stored"), "the store may have it: {refused}");
        assert_eq!(sent.refused(anyhow!("503: away")).to_string(), "503: away");
    }
}
