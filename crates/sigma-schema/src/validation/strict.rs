//! Finds fields without effect: unknown fields, and fields of a schema part that does not apply.
//!
//! APISIX's schemas leave most objects open: a misspelt field is accepted and the default applies. Clients see the
//! schemas unchanged; this module derives which objects are closed. An object is closed if some part of its schema
//! names or forbids properties, and no part allows others.
//! The parts are the schema itself, `allOf`, `anyOf`, `oneOf`, `if`, `then`, `else` and `dependencies`. A name in any
//! part is known.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::node::{Additional, Dependency, Items, JsonType, Node, NodeId, ObjectRules, Types};
use super::walk::{ValuePosition, Walk};
use super::{Schema, remedy};
use crate::problem::{Problem, element, join, member};

/// The reason why a field has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The field does not exist; these fields do.
    Unknown(Vec<String>),
    /// The field exists, but has no effect with the object's other fields.
    Idle,
    /// The field exists for compatibility only; the reason for that.
    Inert(String),
}

/// A field without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Pointer of its object, relative to the checked value; empty for that value.
    pub object: String,
    /// Its name.
    pub name: String,
    /// The reason.
    pub why: Why,
}

impl Unread {
    /// Creates an unknown field of the outermost object. `known` are the fields that exist.
    #[must_use]
    pub fn unknown(name: &str, known: Vec<String>) -> Unread {
        Unread { object: String::new(), name: name.to_owned(), why: Why::Unknown(known) }
    }

    /// Returns its pointer.
    #[must_use]
    pub fn pointer(&self) -> String {
        member(&self.object, &self.name)
    }

    /// Prefixes the pointer with `outer`.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Unread {
        self.object = join(outer, &self.object);
        self
    }

    /// Returns whether the field does not exist.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.why, Why::Unknown(_))
    }

    /// Returns the remedy.
    #[must_use]
    pub fn remedy(&self) -> String {
        match &self.why {
            Why::Unknown(known) => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                remedy::of_unknown(&self.name, &known)
            }
            Why::Idle => "remove it, or add the field that it belongs to".to_owned(),
            Why::Inert(_) => "remove it".to_owned(),
        }
    }

    /// Returns the error in one sentence, for responses that consist of a text.
    #[must_use]
    pub fn sentence(&self) -> String {
        let place = if self.object.is_empty() { String::new() } else { format!(" at {}", self.object) };
        format!("unknown field `{}`{place}: {}", self.name, self.remedy())
    }

    /// Returns the field as an error.
    #[must_use]
    pub fn refused(&self) -> Problem {
        let message = format!("unknown field `{}`", self.name);
        Problem::new(self.pointer(), "unknown_key", message).hint(self.remedy())
    }

    /// Returns the field as a warning.
    #[must_use]
    pub fn ignored(&self) -> Problem {
        let (code, message) = match &self.why {
            Why::Unknown(_) => ("unknown_key", format!("unknown field `{}`, without effect", self.name)),
            Why::Idle => ("no_effect", format!("`{}` has no effect here", self.name)),
            Why::Inert(reason) => ("no_effect", format!("`{}` has no effect: {reason}", self.name)),
        };
        Problem::new(self.pointer(), code, message).hint(self.remedy())
    }
}

/// One schema that applies to a value.
#[derive(Debug, Clone, Copy)]
struct Part {
    node: NodeId,
    /// Whether it applies; false for a branch that is not taken.
    applies: bool,
}

/// Returns all fields without effect in a `value` that the schema accepts. `also` are names that are known in the
/// outermost object.
pub(super) fn unread(schema: &Schema, value: &Value, also: &[&str]) -> Vec<Unread> {
    let filled = schema.filled(value).unwrap_or(Cow::Borrowed(value));
    let mut search = Search { nodes: &schema.nodes, found: Vec::new(), also };
    search.value(&[Part { node: schema.root, applies: true }], value, &filled, "");
    search.found
}

struct Search<'s> {
    nodes: &'s [Node],
    found: Vec<Unread>,
    also: &'s [&'s str],
}

impl<'s> Search<'s> {
    /// Checks one value. `filled` is the value with defaults, which conditions use.
    fn value(&mut self, parts: &[Part], value: &Value, filled: &Value, place: &str) {
        let parts = self.expanded(parts, filled);
        match value {
            Value::Object(members) => self.object(&parts, members, filled, place),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let of_item = self.of_item(&parts, index);
                    let filled = filled.get(index).unwrap_or(item);
                    self.value(&of_item, item, filled, &element(place, index));
                }
            }
            _ => {}
        }
    }

    /// Returns the parts with all schemas that describe the same value. They cannot form a cycle, see
    /// [`super::compile`].
    fn expanded(&self, parts: &[Part], value: &Value) -> Vec<Part> {
        let mut all = Vec::new();
        let mut open = parts.to_vec();
        while let Some(part) = open.pop() {
            all.push(part);
            let node = &self.nodes[part.node];
            let mut add = |node, applies| open.push(Part { node, applies: part.applies && applies });
            node.combined.all_of.iter().for_each(|id| add(*id, true));
            let branches =
                node.combined.any_of.iter().flat_map(|any| &any.branches).chain(&node.combined.one_of);
            branches.for_each(|id| add(*id, self.matches(*id, value)));
            if let Some(condition) = &node.combined.condition {
                let holds = self.matches(condition.test, value);
                add(condition.test, holds);
                condition.then.into_iter().for_each(|id| add(id, holds));
                condition.otherwise.into_iter().for_each(|id| add(id, !holds));
            }
            for (name, dependency) in node.rules.object.iter().flat_map(|object| dependencies(object)) {
                if let Dependency::Schema(id) = dependency {
                    add(*id, value.get(name).is_some());
                }
            }
        }
        all
    }

    fn matches(&self, id: NodeId, value: &Value) -> bool {
        Walk::new(self.nodes).node(id, &mut Cow::Borrowed(value), &ValuePosition::ROOT).is_ok()
    }

    fn object(&mut self, parts: &[Part], members: &Map<String, Value>, filled: &Value, place: &str) {
        let rules: Vec<(&'s ObjectRules, bool)> = parts
            .iter()
            .filter(|part| takes_objects(&self.nodes[part.node]))
            .filter_map(|part| Some((self.nodes[part.node].rules.object.as_deref()?, part.applies)))
            .collect();
        let names = |rules: &ObjectRules| {
            !rules.properties.is_empty() || matches!(rules.additional, Additional::Nothing)
        };
        let is_closed = rules.iter().any(|(rules, _)| names(rules))
            && !rules.iter().any(|(rules, _)| matches!(rules.additional, Additional::Anything));
        for (name, value) in members {
            let of_member: Vec<Part> =
                rules.iter().flat_map(|(rules, applies)| described(rules, name, *applies)).collect();
            if of_member.is_empty() {
                let is_known = place.is_empty() && self.also.contains(&name.as_str());
                if is_closed && !is_known {
                    self.report(place, name, Why::Unknown(known(&rules)));
                }
                continue;
            }
            // Tools write defaults out, which is never a mistake.
            let is_default =
                of_member.iter().any(|part| self.nodes[part.node].default.as_deref() == Some(value));
            let inert = of_member.iter().find_map(|part| self.nodes[part.node].inert.clone());
            let idle = (!of_member.iter().any(|part| part.applies)).then_some(Why::Idle);
            if let Some(why) = idle.or(inert.map(Why::Inert)) {
                if !is_default {
                    self.report(place, name, why);
                }
                continue;
            }
            self.value(&of_member, value, filled.get(name).unwrap_or(value), &member(place, name));
        }
    }

    fn report(&mut self, place: &str, name: &str, why: Why) {
        self.found.push(Unread { object: place.to_owned(), name: name.to_owned(), why });
    }

    fn of_item(&self, parts: &[Part], index: usize) -> Vec<Part> {
        let item = |part: &Part| {
            let rules = self.nodes[part.node].rules.array.as_deref()?;
            let node = match &rules.items {
                Items::Anything => None,
                Items::Each(id) => Some(*id),
                Items::Tuple(ids, additional) => match (ids.get(index), additional) {
                    (Some(id), _) | (None, Additional::Schema(id)) => Some(*id),
                    _ => None,
                },
            };
            Some(Part { node: node?, applies: part.applies })
        };
        parts.iter().filter_map(item).collect()
    }
}

/// Returns the schemas of one part for a member: by its name, by matching patterns, or for other members.
fn described(rules: &ObjectRules, name: &str, applies: bool) -> Vec<Part> {
    let named = rules.properties.iter().filter(|property| property.name == name).map(|found| found.node);
    let patterns = rules.patterns.iter().filter(|(pattern, _)| pattern.is_match(name)).map(|(_, id)| *id);
    let mut nodes: Vec<NodeId> = named.chain(patterns).collect();
    if let (true, Additional::Schema(id)) = (nodes.is_empty(), &rules.additional) {
        nodes.push(*id);
    }
    nodes.into_iter().map(|node| Part { node, applies }).collect()
}

fn known(rules: &[(&ObjectRules, bool)]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for property in rules.iter().flat_map(|(rules, _)| &rules.properties) {
        if !names.contains(&property.name) {
            names.push(property.name.clone());
        }
    }
    names
}

fn dependencies(object: &ObjectRules) -> impl Iterator<Item = (&str, &Dependency)> {
    let named = object.properties.iter();
    let named = named.filter_map(|property| Some((property.name.as_str(), property.dependency.as_ref()?)));
    named.chain(object.dependencies.iter().map(|(name, dependency)| (name.as_str(), dependency)))
}

/// Returns whether the schema describes objects with members. A branch for another type does not.
fn takes_objects(node: &Node) -> bool {
    let takes = |kind: &JsonType| matches!(kind, JsonType::Object | JsonType::Table);
    match &node.types {
        Types::Any => true,
        Types::One(kind) => takes(kind),
        Types::Several(kinds) => kinds.iter().any(takes),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks the reported fields of a value.
    #[track_caller]
    fn check(schema: &Value, value: &Value, expected: &[&str]) {
        let schema = Schema::compile(schema).unwrap();
        assert_eq!(schema.check(value), Ok(()), "{value}");
        let told =
            |field: &Unread| if field.is_unknown() { field.sentence() } else { field.ignored().to_string() };
        let found: Vec<String> = schema.unread(value, &["id"]).iter().map(told).collect();
        assert_eq!(found, expected, "{value}");
    }

    #[test]
    fn a_schema_that_names_properties_is_closed() {
        let schema = json!({"type": "object", "properties": {
            "count": {"type": "integer"},
            "free": {"type": "object"},
            "labels": {"type": "object", "patternProperties": {"^a": {"type": "string"}}},
            "typed": {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
            "open": {"type": "object", "properties": {"a": {}}, "additionalProperties": true},
            "list": {"type": "array", "items": {"type": "object", "properties": {"host": {}, "port": {}}}},
        }});
        check(&schema, &json!({"id": 1, "count": 1, "free": {"x": {"y": 1}}, "typed": {"b": 1}}), &[]);
        check(&schema, &json!({"labels": {"ab": "1", "c": 2}, "open": {"b": 1}}), &[]);
        let wrong = json!({"coutn": 1, "list": [{"host": 1}, {"prot": 1, "id": 2}], "free": []});
        let expected = [
            "unknown field `coutn`: did you mean `count`?",
            "unknown field `prot` at list[1]: did you mean `port`?",
            "unknown field `id` at list[1]: known fields are host, port",
        ];
        check(&schema, &wrong, &expected);
        check(&json!({"type": "object", "required": ["a"]}), &json!({"a": 1, "b": 2}), &[]);
    }

    #[test]
    fn every_part_of_a_schema_names_fields() {
        let named = |name: &str| json!({"properties": {name: {}}});
        let schema = json!({
            "properties": {"all": {}},
            "allOf": [named("of_all")],
            "anyOf": [named("one"), {"required": ["other"], "properties": {"other": {}}}],
            "dependencies": {"all": named("dependent")},
            "if": {"required": ["of_all"]},
            "then": named("then"),
            "else": named("else"),
        });
        let value = json!({"all": 1, "of_all": 1, "one": 1, "other": 1, "dependent": 1, "then": 1});
        check(&schema, &value, &[]);
        check(&schema, &json!({"all": 1, "els": 1}), &["unknown field `els`: did you mean `else`?"]);
        // A branch for another type does not describe objects.
        let nodes = json!({"anyOf": [
            {"type": "object", "patternProperties": {".*": {"type": "integer"}}},
            {"type": "array", "items": named("host")},
        ]});
        check(&nodes, &json!({"127.0.0.1:80": 1}), &[]);
        check(&nodes, &json!([{"hosts": 1}]), &["unknown field `hosts` at [0]: did you mean `host`?"]);
    }

    #[test]
    fn a_field_without_effect_is_reported_unless_it_is_a_default() {
        let schema = json!({
            "properties": {
                "policy": {"enum": ["local", "redis"], "default": "local"},
                "old": {"type": "integer", "default": 7, "description": "Without effect: there is no pool."},
            },
            "if": {"properties": {"policy": {"enum": ["redis"]}}},
            "then": {"properties": {"redis_host": {}, "redis_port": {"default": 6379}}},
        });
        check(&schema, &json!({"policy": "redis", "redis_host": "h", "old": 7}), &[]);
        let expected = [
            "redis_host: `redis_host` has no effect here (remove it, or add the field that it belongs to)",
            "old: `old` has no effect: there is no pool (remove it)",
        ];
        check(&schema, &json!({"redis_host": "h", "redis_port": 6379, "old": 8}), &expected);
    }
}
