//! Remedies for invalid values.

use serde_json::Value;

use super::examples::inner_example;
use super::node::{Node, NodeId, Types};
use crate::forms;
use crate::problem::closest;
use crate::synonyms::{Nearest, common, nearest_field};

/// Returns the remedy for a key without a value, which YAML allows.
pub(super) fn of_null(value: &Value) -> Option<String> {
    value.is_null().then(|| "the key has no value: write a value, or remove the key".to_owned())
}

/// Maximum number of names that a remedy lists.
pub(super) const MOST_NAMES: usize = 8;

/// Returns the remedy for an unknown field, with the fields that exist.
pub(super) fn of_unknown(name: &str, known: &[&str]) -> String {
    match nearest_field(name, known) {
        Some(Nearest::Field(name)) => format!("did you mean `{name}`?"),
        Some(Nearest::Meant(name)) => match inner_example(name) {
            Some(example) => format!("did you mean `{name}`? For example {example}"),
            None => format!("did you mean `{name}`?"),
        },
        Some(Nearest::Within(field, name)) => format!("did you mean `{field}.{name}`?"),
        Some(Nearest::Plugin(name)) => {
            format!(
                "did you mean the plugin `{name}`? It goes into `plugins` of a route, or of `global_rules`"
            )
        }
        None if known.is_empty() => "remove it".to_owned(),
        None if known.len() <= MOST_NAMES => format!("known fields are {}", known.join(", ")),
        None => {
            let names = common(known, MOST_NAMES - 1).join(", ");
            format!("some of the fields here are {names}")
        }
    }
}

pub(super) fn of_choice(allowed: &[Value], value: &Value) -> Option<String> {
    let words = allowed.iter().filter_map(Value::as_str);
    match value.as_str().and_then(|written| closest(written, words)) {
        Some(word) => Some(format!("did you mean `{word}`?")),
        None => Some(format!("one of {}", listed(allowed.iter().map(Value::to_string), "or"))),
    }
}

pub(super) fn of_pattern(source: &str) -> Option<String> {
    forms::of_pattern(source).map(|form| form.hint.to_owned())
}

pub(super) fn of_format(name: &str) -> Option<String> {
    forms::of_format(name).map(|form| form.hint.to_owned())
}

/// Returns the types that branches accept, if the value has another type.
pub(super) fn of_types(nodes: &[Node], branches: &[NodeId]) -> Option<String> {
    let names = branches.iter().flat_map(|id| match &nodes[*id].types {
        Types::Any => Vec::new(),
        Types::One(kind) => vec![kind.name()],
        Types::Several(kinds) => kinds.iter().map(|kind| kind.name()).collect(),
    });
    Some(format!("expected {}", listed(names.map(str::to_owned), "or")))
}

/// Returns the remedy where several branches are possible: the missing fields of the closest branches, or a known form.
pub(super) fn of_branches(nodes: &[Node], branches: &[NodeId], value: &Value) -> Option<String> {
    let form = |id: &NodeId| of_pattern(nodes[*id].rules.string.as_ref()?.pattern.as_ref()?.source());
    let lacking = branches.iter().map(|id| lacking(&nodes[*id], value));
    let lacking: Vec<Vec<&str>> = lacking.filter(|lacking| !lacking.is_empty()).collect();
    let Some(least) = lacking.iter().map(Vec::len).min() else { return branches.iter().find_map(form) };
    let choices = lacking.into_iter().filter(|lacking| lacking.len() == least);
    Some(format!("add {}", listed(choices.map(|names| listed(names.into_iter().map(code), "and")), "or")))
}

/// Returns the fields that a schema requires and a value lacks.
pub(super) fn lacking<'n>(node: &'n Node, value: &Value) -> Vec<&'n str> {
    required(node).filter(|name| value.get(name).is_none()).collect()
}

/// Returns how many of the fields that a schema requires a value has.
pub(super) fn present(node: &Node, value: &Value) -> usize {
    required(node).filter(|name| value.get(name).is_some()).count()
}

/// Returns the first field that one branch requires and the other does not.
pub(super) fn own<'n>(node: &'n Node, other: &Node) -> Option<&'n str> {
    required(node).find(|name| !required(other).any(|theirs| theirs == *name))
}

/// Returns the fields of two matching branches of which only one may match.
pub(super) fn of_several(both: [&str; 2]) -> Option<String> {
    Some(keep_one(both))
}

/// Returns the fields of a value that must not occur together.
pub(super) fn excluded<'n>(nodes: &'n [Node], id: NodeId, value: &Value) -> Vec<&'n str> {
    let branches = nodes[id].combined.any_of.as_ref().map_or(&[][..], |any| &any.branches);
    let all_there = |id: &&NodeId| required(&nodes[**id]).all(|name| value.get(name).is_some());
    required(&nodes[*branches.iter().find(all_there).unwrap_or(&id)]).collect()
}

/// Returns the remedy for a value that matches a forbidden schema.
pub(super) fn of_excluded(nodes: &[Node], id: NodeId, value: &Value) -> Option<String> {
    let names = excluded(nodes, id, value);
    match names[..] {
        [] => None,
        [name] => Some(format!("remove `{name}`")),
        _ => Some(keep_one(names)),
    }
}

fn keep_one<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    format!("keep one of {}", listed(names.into_iter().map(code), "and"))
}

fn required(node: &Node) -> impl Iterator<Item = &str> {
    node.rules.object.iter().flat_map(|rules| {
        let named = rules.properties.iter().filter(|property| property.required);
        named.map(|property| property.name.as_str()).chain(rules.required.iter().map(String::as_str))
    })
}

pub(super) fn code(name: &str) -> String {
    format!("`{name}`")
}

/// Formats `a, b or c`, each item once.
pub(super) fn listed(items: impl Iterator<Item = String>, word: &str) -> String {
    let mut all: Vec<String> = Vec::new();
    items.for_each(|item| {
        if !all.contains(&item) {
            all.push(item);
        }
    });
    match all.pop() {
        Some(last) if !all.is_empty() => format!("{} {word} {last}", all.join(", ")),
        last => last.unwrap_or_default(),
    }
}
