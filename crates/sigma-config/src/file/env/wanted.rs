//! The types that a field accepts, by the schemas of its document.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;

use super::Holds;
use crate::bundled;
use crate::check::kind_of;
use crate::plugins::scope_of;
use crate::resources::SECTIONS;
use crate::resources::kind::Kind;
use sigma_schema::plugins::{PluginSchemas, PluginScope};

/// The type that a field accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldType {
    /// Texts, but neither numbers nor booleans.
    Text,
    /// Numbers or booleans, but no texts.
    Scalar,
    /// Both, or the field is unknown.
    Any,
}

/// Returns the schemas of `plugin_attr` by plugin name.
pub(super) fn attributes(document: &Value, holds: Holds<'_>) -> HashMap<String, Value> {
    let Holds::File(plugins) = holds else { return HashMap::new() };
    let all = document.get("plugin_attr").and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(name, _)| Some((name.clone(), plugins.attributes(name)?))).collect()
}

/// A place in a document, with the schemas that describe it.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    place: LocationKind<'a>,
    schemas: Vec<Cow<'a, Value>>,
    /// The configurations of plugins below this place; the JSON pointers begin here.
    children: Vec<(String, &'a Value)>,
    attributes: &'a HashMap<String, Value>,
}

/// The kind of a place that schemas do not describe.
#[derive(Clone, Copy)]
enum LocationKind<'a> {
    /// A file.
    Root(&'a dyn PluginSchemas),
    /// A section of resources.
    Section(&'static str, &'a dyn PluginSchemas),
    /// A resource; None for a resource of any kind.
    Resource(Option<Kind>, &'a dyn PluginSchemas),
    /// The member `plugins` of a resource.
    Plugins(Option<Kind>, &'a dyn PluginSchemas),
    /// The setting `plugin_attr`.
    Attributes,
    /// A place that schemas describe, or an unknown one.
    Inside,
}

impl<'a> Fields<'a> {
    pub(super) fn of(holds: Holds<'a>, attributes: &'a HashMap<String, Value>) -> Fields<'a> {
        let (place, schemas) = match holds {
            Holds::File(plugins) => {
                (LocationKind::Root(plugins), vec![Cow::Borrowed(bundled::of_settings())])
            }
            Holds::Resource(plugins) => (LocationKind::Resource(None, plugins), any_kind()),
            Holds::Foreign => (LocationKind::Inside, Vec::new()),
        };
        Fields { place, schemas, children: Vec::new(), attributes }
    }

    fn inside(&self, schemas: Vec<Cow<'a, Value>>) -> Fields<'a> {
        Fields { place: LocationKind::Inside, schemas, children: Vec::new(), attributes: self.attributes }
    }

    /// Returns the fields of the element `index`, whose value is `item`.
    pub(super) fn item(&self, index: usize, item: &Value) -> Fields<'a> {
        if let LocationKind::Section(section, plugins) = self.place {
            return self.resource(kind_of(section, item), item, plugins);
        }
        self.with_children(below(&self.schemas, None), &index.to_string())
    }

    /// Returns the fields of the member `key`, whose value is `value`.
    pub(super) fn member(&self, key: &str, value: &Value) -> Fields<'a> {
        match self.place {
            LocationKind::Root(plugins) => {
                if let Some(section) = SECTIONS.into_iter().find(|section| *section == key) {
                    let place = LocationKind::Section(section, plugins);
                    return Fields { place, ..self.inside(Vec::new()) };
                }
                if key == "upstream" {
                    return self.inside(vec![Cow::Borrowed(bundled::of_kind(Kind::Upstream))]);
                }
                if key == "plugin_attr" {
                    return Fields { place: LocationKind::Attributes, ..self.inside(Vec::new()) };
                }
            }
            LocationKind::Resource(kind, plugins) if key == "plugins" => {
                return Fields { place: LocationKind::Plugins(kind, plugins), ..self.inside(Vec::new()) };
            }
            LocationKind::Plugins(kind, plugins) => return self.plugin(kind, key, value, plugins),
            LocationKind::Attributes => {
                return self.inside(self.attributes.get(key).map(Cow::Borrowed).into_iter().collect());
            }
            _ => {}
        }
        self.with_children(below(&self.schemas, Some(key)), &key.replace('~', "~0").replace('/', "~1"))
    }

    fn with_children(&self, mut schemas: Vec<Cow<'a, Value>>, token: &str) -> Fields<'a> {
        let mut children = Vec::new();
        for (pointer, schema) in &self.children {
            let Some(rest) = pointer.strip_prefix('/').and_then(|rest| rest.strip_prefix(token)) else {
                continue;
            };
            match rest {
                "" => schemas.push(Cow::Borrowed(*schema)),
                rest if rest.starts_with('/') => children.push((rest.to_owned(), *schema)),
                _ => {}
            }
        }
        Fields { children, ..self.inside(schemas) }
    }

    fn resource(&self, kind: Kind, item: &Value, plugins: &'a dyn PluginSchemas) -> Fields<'a> {
        if kind == Kind::PluginMetadata {
            let name = item.get("id").and_then(Value::as_str).unwrap_or_default();
            let schema = plugins.schema(name, PluginScope::Metadata).map(Cow::Borrowed);
            let own = Cow::Borrowed(bundled::of_kind(kind));
            return self.inside(schema.into_iter().chain([own]).collect());
        }
        let schemas = vec![Cow::Borrowed(bundled::of_kind(kind))];
        Fields { place: LocationKind::Resource(Some(kind), plugins), ..self.inside(schemas) }
    }

    fn plugin(
        &self,
        kind: Option<Kind>,
        name: &str,
        conf: &Value,
        plugins: &'a dyn PluginSchemas,
    ) -> Fields<'a> {
        let scopes = match kind {
            Some(kind) => vec![scope_of(kind, name, plugins)],
            None => vec![PluginScope::Http, PluginScope::Consumer, PluginScope::Stream],
        };
        let own = scopes.iter().filter_map(|scope| plugins.schema(name, *scope)).map(Cow::Borrowed);
        let schemas = own.chain([Cow::Owned(with_meta())]).collect();
        let children = scopes.iter().flat_map(|scope| plugins.children(name, *scope, conf));
        let children = children
            .filter_map(|(pointer, name)| Some((pointer, plugins.schema(&name, PluginScope::Http)?)))
            .collect();
        Fields { children, ..self.inside(schemas) }
    }

    /// Returns the type that the value at this place must have.
    pub(super) fn wanted(&self) -> FieldType {
        let mut found = Types::default();
        self.schemas.iter().for_each(|schema| types(schema, &mut found));
        match (found.text, found.scalar) {
            (true, false) => FieldType::Text,
            (false, true) => FieldType::Scalar,
            _ => FieldType::Any,
        }
    }
}

fn any_kind<'a>() -> Vec<Cow<'a, Value>> {
    Kind::ALL.into_iter().map(|kind| Cow::Borrowed(bundled::of_kind(kind))).collect()
}

fn with_meta() -> Value {
    serde_json::json!({ "properties": { "_meta": crate::plugins::meta_schema() } })
}

/// Keywords whose schemas describe the same value.
const LISTS: [&str; 3] = ["anyOf", "oneOf", "allOf"];
const BRANCHES: [&str; 3] = ["if", "then", "else"];

/// Calls `visit` for `schema` and its alternatives.
fn alternatives<'s>(schema: &'s Value, visit: &mut dyn FnMut(&'s Value)) {
    visit(schema);
    let lists = LISTS.iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
    let branches = BRANCHES.iter().filter_map(|name| schema.get(name));
    lists.chain(branches).for_each(|schema| alternatives(schema, visit));
}

/// Returns the schemas of a member, or of the elements without a key.
fn below<'a>(schemas: &[Cow<'a, Value>], key: Option<&str>) -> Vec<Cow<'a, Value>> {
    let mut found = Vec::new();
    for schema in schemas {
        match schema {
            Cow::Borrowed(schema) => found.extend(members(schema, key).into_iter().map(Cow::Borrowed)),
            Cow::Owned(schema) => found.extend(members(schema, key).into_iter().cloned().map(Cow::Owned)),
        }
    }
    found
}

fn members<'s>(schema: &'s Value, key: Option<&str>) -> Vec<&'s Value> {
    let mut members = Vec::new();
    alternatives(schema, &mut |schema| match key {
        Some(key) => {
            let named = schema.get("properties").and_then(|all| all.get(key));
            let patterns = schema.get("patternProperties").and_then(Value::as_object);
            let of_patterns = patterns.into_iter().flatten().map(|(_, schema)| schema);
            let others = schema.get("additionalProperties").filter(|others| others.is_object());
            match named {
                Some(named) => members.push(named),
                None => members.extend(of_patterns.chain(others)),
            }
        }
        None => members.extend(schema.get("items").filter(|items| items.is_object())),
    });
    members
}

#[derive(Default)]
struct Types {
    text: bool,
    scalar: bool,
}

/// Adds the types of a schema.
fn types(schema: &Value, found: &mut Types) {
    alternatives(schema, &mut |schema| {
        let of_word = |word: &Value, found: &mut Types| match word.as_str() {
            Some("string") => found.text = true,
            Some("integer" | "number" | "boolean") => found.scalar = true,
            _ => {}
        };
        match schema.get("type") {
            Some(Value::Array(words)) => words.iter().for_each(|word| of_word(word, found)),
            Some(word) => of_word(word, found),
            None => {
                let words = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                for word in words.chain(schema.get("const")) {
                    found.text |= word.is_string();
                    found.scalar |= word.is_number() || word.is_boolean();
                }
            }
        }
    });
}
