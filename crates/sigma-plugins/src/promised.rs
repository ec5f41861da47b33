//! Promised schemas: `schema.json` in the folder of each plugin has the schemas of its configurations, and the defaults
//! that views show. Read a difference before you take it over with `SIGMA_BLESS=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sigma_plugin::{Kind as _, Roster};
use sigma_schema::described::OWN_DEFAULT;
use sigma_schema::plugins::{PluginSchemas, PluginScope};

use super::*;

/// The member of `schema.json` with the shown defaults.
const SHOWN: &str = "shown_defaults";

/// Plugins that APISIX does not have.
const OWN_PLUGINS: [&str; 18] = [
    "compose",
    "digest-auth",
    "ext-authz",
    "forward-client-cert",
    "forward-proxy",
    "forwarded-fields",
    "limit-bandwidth",
    "login-guard",
    "rbac",
    "realtime",
    "realtime-publish",
    "response-shaping",
    "security-headers",
    "static-files",
    "statsd",
    "upstream-auth",
    "wasm",
    "zstd",
];

/// All plugins of this version. The tests have the descriptor of `wasm`, and not its engine.
fn all_plugins() -> Vec<&'static Descriptor> {
    let others = ROSTER.iter().copied().filter(|plugin| plugin.name != "wasm");
    others.chain(sigma_wasm::ROSTER.iter().copied()).collect()
}

/// The folder of a plugin. A crate in `extensions` that has the name of its plugin is the plugin's folder.
fn folder(plugin: &str) -> PathBuf {
    let group = left_out::group_of(plugin);
    let inside = if group == plugin { String::new() } else { format!("/{plugin}") };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [format!("plugins/{group}/{plugin}"), format!("extensions/{group}{inside}")];
    let found = places.iter().map(|place| root.join(place)).find(|place| place.is_dir());
    found.unwrap_or_else(|| panic!("{plugin} has no folder: {places:?}"))
}

/// The present schemas of each plugin.
fn present() -> BTreeMap<&'static str, Value> {
    let plugins = all_plugins();
    let roster =
        Roster::new(plugins.iter().map(|plugin| Arc::new(**plugin) as Arc<dyn sigma_plugin::Kind>), None);
    let of_plugin = |plugin: &&'static Descriptor| {
        let mut schemas = json!({
            "route": roster.schema(plugin.name, PluginScope::Http),
            "consumer": plugin.auth.and(roster.schema(plugin.name, PluginScope::Consumer)),
            "metadata": roster.schema(plugin.name, PluginScope::Metadata),
            "attributes": roster.attributes(plugin.name),
        });
        schemas.as_object_mut().unwrap().retain(|_, schema| !schema.is_null());
        bare(&mut schemas);
        if !OWN_PLUGINS.contains(&plugin.name) {
            schemas[SHOWN] = shown_defaults(plugin);
        }
        (plugin.name, schemas)
    };
    plugins.iter().map(of_plugin).collect()
}

/// The present schemas of each plugin, and the promised ones; with `SIGMA_BLESS=1` the present ones become the promised
/// ones.
static COMPARED: LazyLock<BTreeMap<&str, [Value; 2]>> = LazyLock::new(|| {
    let compared = |(plugin, present): (&'static str, Value)| {
        let path = folder(plugin).join("schema.json");
        if std::env::var_os("SIGMA_BLESS").is_some() {
            std::fs::write(&path, format!("{present:#}\n")).unwrap();
        }
        let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (plugin, [present, serde_json::from_slice(&file).unwrap()])
    };
    present().into_iter().map(compared).collect()
});

/// A schema without what people alone read, its lists of names in order.
fn bare(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(bare),
        Value::Object(members) => {
            members.retain(|keyword, value| keyword != "description" || !value.is_string());
            members.values_mut().for_each(bare);
            if let Some(Value::Array(names)) = members.get_mut("required") {
                names.sort_by_key(Value::to_string);
            }
            let sorted: BTreeMap<_, _> = std::mem::take(members).into_iter().collect();
            members.extend(sorted);
        }
        _ => {}
    }
}

/// Returns the paths of the fields that have a default, in a schema from which Sigma's own fields are marked.
fn with_default(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
    let Some(members) = schema.as_object() else { return };
    if members.contains_key(OWN_DEFAULT) {
        return;
    }
    if members.contains_key("default") {
        found.insert(path.to_owned());
    }
    for (keyword, applied) in members {
        match (keyword.as_str(), applied) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    with_default(&path, property, found);
                }
            }
            ("items" | "then" | "else" | "additionalProperties", applied) => {
                with_default(path, applied, found);
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(branches)) => {
                branches.iter().for_each(|branch| with_default(path, branch, found));
            }
            ("patternProperties", Value::Object(patterns)) => {
                patterns.values().for_each(|applied| with_default(path, applied, found));
            }
            _ => {}
        }
    }
}

/// The fields of a plugin that have a default in APISIX too.
fn shown_defaults(plugin: &Descriptor) -> Value {
    let mut of_plugin = serde_json::Map::new();
    for (title, scope) in [("route", PluginScope::Http), ("consumer", PluginScope::Consumer)] {
        let mut found = BTreeSet::new();
        with_default("", &plugin.schema(scope).unwrap_or_default(), &mut found);
        if !found.is_empty() {
            of_plugin.insert(title.to_owned(), found.into_iter().collect());
        }
    }
    of_plugin.into()
}

#[test]
fn schemas_are_those_that_were_promised() {
    for (name, files) in COMPARED.iter() {
        let [present, promised] = files.each_ref().map(|file| {
            let mut schemas = file.clone();
            schemas.as_object_mut().unwrap().remove(SHOWN);
            schemas
        });
        // Such a mark is taken out of fields alone: in a map of any names it would encrypt nothing.
        assert!(!present.to_string().contains(r#""confidential":true"#), "{name}");
        assert!(!present.to_string().contains(OWN_DEFAULT), "{name}");
        assert_eq!(present, promised, "{name}: {present:#}");
    }
}

/// Views add a default to a plugin that APISIX has only if APISIX has the default too. `shown_defaults` lists
/// them: compare a difference with APISIX's schema, and mark a default of Sigma's alone with `own_default`. Then
/// `SIGMA_BLESS=1` takes the list over.
#[test]
fn shown_defaults_equal_apisix() {
    for (name, [present, promised]) in COMPARED.iter() {
        assert_eq!(present.get(SHOWN), promised.get(SHOWN), "{name}");
    }
}
