//! Files with resources, and the differences between two configurations.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};
use sigma_config::shorthand;
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

/// Reads a resource, its variables replaced and its short forms written out.
pub(crate) fn read(file: &Path) -> Result<Value> {
    shorthand::resource(document(file)?, &*crate::roster::roster(), &variable)
        .map_err(|problems| listed(file, &problems))
}

/// Reads YAML or JSON from a file, or from standard input for `-`.
fn document(file: &Path) -> Result<Document> {
    let mut text = String::new();
    if file == Path::new("-") {
        let mut input = std::io::stdin().lock().take(FILE_BYTES_MAX as u64 + 1);
        input.read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let document = Document::parse(&text, FILE_BYTES_MAX);
    document.map_err(|problems| listed(file, &problems))
}

fn listed(file: &Path, problems: &[Problem]) -> anyhow::Error {
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect();
    anyhow!(lines.join("\n"))
}

/// Reads a whole configuration, as a file of a gateway has it; the gateway's own settings are left
/// out, and named on standard error. A key that is neither section nor setting is refused: a misspelt
/// section would be an empty one, and remove everything of its kind.
pub(crate) fn configuration(file: &Path) -> Result<Value> {
    let found = shorthand::resources(document(file)?, &*crate::roster::roster(), &variable)
        .map_err(|problems| listed(file, &problems))?;
    if !found.settings.is_empty() {
        let names = found.settings.join(", ");
        eprintln!("{}: settings belong to each process and are left out here: {names}", file.display());
    }
    let object = found.sections;
    for name in object.keys() {
        let section = name.strip_suffix("_conf_version").unwrap_or(name);
        if !SECTIONS.contains(&section) {
            let sections = SECTIONS.join(", ");
            bail!("{}: `{name}` is no section of resources; there are {sections}", file.display());
        }
    }
    Ok(Value::Object(object))
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
        let refused = configuration(file.path()).expect_err("no section").to_string();
        assert!(refused.contains("`route` is no section"), "{refused}");
        std::fs::write(file.path(), "routes:\n- id: 1\nroutes_conf_version: 3\n#END\n").expect("written");
        assert!(configuration(file.path()).is_ok());
    }
}
