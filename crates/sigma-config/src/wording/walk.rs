//! Applies a compiled schema to a value.
//!
//! The value is borrowed until a default has to be added; then the objects on the way to it become
//! owned. A branch of `anyOf`, `oneOf` or `if` works on a borrow of its own, so what a branch that
//! fails has added vanishes with it.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::node::{
    Additional, ArrayRules, Condition, Dependency, Items, JsonType, Node, NodeId, NumberRules, ObjectRules,
    Property, StringRules, Types,
};
use super::{equality, is_secret_reference, number, text};

/// Schemas within schemas on the way to one value. Only a schema that contains itself comes near it;
/// the number keeps the recursion within a small stack.
const MAX_DEPTH: usize = 256;

pub(super) struct Walk<'s> {
    nodes: &'s [Node],
}

type Outcome = Result<(), String>;

impl<'s> Walk<'s> {
    pub(super) fn new(nodes: &'s [Node]) -> Self {
        Walk { nodes }
    }

    /// Applies one schema. The order of the keywords is that of APISIX and decides which failure is
    /// reported.
    pub(super) fn node(&self, id: NodeId, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        if depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} nested schemas, simplify the schema or the value"));
        }
        let depth = depth + 1;
        let node = &self.nodes[id];
        if node.never {
            return Err("expect false always".to_owned());
        }
        check_type(&node.types, value)?;
        if let Some(rules) = &node.object
            && is(JsonType::Object, value)
        {
            self.object(rules, value, depth)?;
        }
        if let Some(rules) = &node.array
            && is(JsonType::Array, value)
        {
            self.array(rules, value, depth)?;
        }
        if let (Some(rules), Value::String(text)) = (&node.string, &**value) {
            check_string(rules, text)?;
        }
        if let (Some(rules), Value::Number(number)) = (&node.number, &**value) {
            check_number(rules, number)?;
        }
        if let Some(allowed) = &node.enumeration
            && !allowed.iter().any(|candidate| equality::equal(candidate, value))
        {
            return Err("matches none of the enum values".to_owned());
        }
        self.combinations(node, value, depth)?;
        if let (Some(format), Value::String(text)) = (node.format, &**value)
            && !(format.holds)(text)
        {
            return Err(format!("expect valid {} format but got: {text}", format.name));
        }
        match &node.constant {
            Some(constant) if !equality::equal(constant, value) => {
                Err("failed to check const value".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Applies the schema of a property or an item, where a reference to a secret stands for a text
    /// that is not known yet.
    fn field(&self, id: NodeId, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        let node = &self.nodes[id];
        let may_be_text = matches!(node.types, Types::Any | Types::One(JsonType::String)) && !node.boolean;
        match &**value {
            Value::String(text) if may_be_text && is_secret_reference(text) => Ok(()),
            _ => self.node(id, value, depth),
        }
    }

    fn object(&self, rules: &ObjectRules, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        // Only the fields that were written count, not those that defaults add.
        let count = value.as_object().map_or(0, Map::len) as u64;
        for property in &rules.properties {
            self.property(property, value, depth)?;
        }
        for name in &rules.required {
            if member(value, name).is_none() {
                return Err(required(name));
            }
        }
        for (name, dependency) in &rules.dependencies {
            if member(value, name).is_some() {
                self.dependency(name, dependency, value, depth)?;
            }
        }
        self.other_properties(rules, value, depth)?;
        if let Some(min) = rules.min.filter(|min| count < *min) {
            return Err(format!("expect object to have at least {min} properties"));
        }
        match rules.max.filter(|max| count > *max) {
            Some(max) => Err(format!("expect object to have at most {max} properties")),
            None => Ok(()),
        }
    }

    fn property(&self, property: &Property, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        let name = &property.name;
        let mut field = match (member(value, name), &self.nodes[property.node].default) {
            (Some(present), _) => Cow::Borrowed(present),
            (None, Some(default)) => Cow::Owned(default.clone()),
            (None, None) if property.required => return Err(required(name)),
            (None, None) => return Ok(()),
        };
        self.field(property.node, &mut field, depth)
            .map_err(|cause| format!("property {} validation failed: {cause}", text::quoted(name)))?;
        if let Cow::Owned(field) = field {
            set(value, name, field);
        }
        match &property.dependency {
            Some(dependency) => self.dependency(name, dependency, value, depth),
            None => Ok(()),
        }
    }

    fn dependency(
        &self,
        name: &str,
        dependency: &Dependency,
        value: &mut Cow<'_, Value>,
        depth: usize,
    ) -> Outcome {
        let name = text::quoted(name);
        match dependency {
            Dependency::Names(names) => match names.iter().find(|needed| member(value, needed).is_none()) {
                Some(needed) => {
                    Err(format!("property {} is required when {name} is set", text::quoted(needed)))
                }
                None => Ok(()),
            },
            Dependency::Schema(id) => self
                .node(*id, value, depth)
                .map_err(|cause| format!("failed to validate dependent schema for {name}: {cause}")),
        }
    }

    /// `patternProperties`, `additionalProperties`, `propertyNames`.
    fn other_properties(&self, rules: &ObjectRules, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        let unbound = matches!(rules.additional, Additional::Unsaid | Additional::Anything);
        if unbound && rules.patterns.is_empty() && rules.names.is_none() {
            return Ok(());
        }
        let mut changed = Vec::new();
        for (key, entry) in value.as_object().into_iter().flatten() {
            if let Some(names) = rules.names {
                self.node(names, &mut Cow::Owned(Value::from(key.as_str())), depth)
                    .map_err(|cause| format!("failed to validate property name {key}: {cause}"))?;
            }
            let mut known = rules.properties.iter().any(|property| property.name == *key);
            let mut field = Cow::Borrowed(entry);
            for (pattern, id) in rules.patterns.iter().filter(|(pattern, _)| pattern.is_match(key)) {
                known = true;
                self.field(*id, &mut field, depth).map_err(|cause| {
                    format!("failed to validate {key} (matching {}): {cause}", text::quoted(pattern.source()))
                })?;
            }
            match rules.additional {
                Additional::Nothing if !known => {
                    return Err(format!("additional properties forbidden, found {key}"));
                }
                Additional::Schema(id) if !known => self
                    .field(id, &mut field, depth)
                    .map_err(|cause| format!("failed to validate additional property {key}: {cause}"))?,
                _ => {}
            }
            if let Cow::Owned(field) = field {
                changed.push((key.clone(), field));
            }
        }
        for (key, field) in changed {
            set(value, &key, field);
        }
        Ok(())
    }

    fn array(&self, rules: &ArrayRules, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        // An empty object comes here as well.
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let count = items.len() as u64;
        if let Some(min) = rules.min.filter(|min| count < *min) {
            return Err(format!("expect array to have at least {min} items"));
        }
        if let Some(max) = rules.max.filter(|max| count > *max) {
            return Err(format!("expect array to have at most {max} items"));
        }
        let mut changed = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let Some(id) = schema_of_item(&rules.items, index)? else { continue };
            let mut field = Cow::Borrowed(item);
            self.field(id, &mut field, depth)
                .map_err(|cause| format!("failed to validate item {}: {cause}", index + 1))?;
            if let Cow::Owned(field) = field {
                changed.push((index, field));
            }
        }
        if let Some(id) = rules.contains
            && !items.iter().any(|item| self.node(id, &mut Cow::Borrowed(item), depth).is_ok())
        {
            return Err("expect array to contain an item that matches the schema".to_owned());
        }
        if rules.unique
            && let Some((first, second)) = equality::first_repeated(items)
        {
            return Err(format!("expected unique items but items {first} and {second} are equal"));
        }
        for (index, field) in changed {
            value.to_mut()[index] = field;
        }
        Ok(())
    }

    /// `allOf`, `anyOf`, `oneOf`, `if`, `not`.
    fn combinations(&self, node: &Node, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        for (index, id) in node.all_of.iter().enumerate() {
            self.node(*id, value, depth).map_err(|cause| format!("allOf {} failed: {cause}", index + 1))?;
        }
        if let Some(any) = &node.any_of
            && !any.branches.iter().any(|id| self.adopt(*id, value, depth))
        {
            return Err(any.failure.clone());
        }
        if !node.one_of.is_empty() {
            self.one_of(&node.one_of, value, depth)?;
        }
        if let Some(condition) = &node.condition {
            self.condition(condition, value, depth)?;
        }
        match node.not {
            Some(id) if self.attempt(id, value, depth).is_some() => {
                Err("value wasn't supposed to match schema".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn one_of(&self, branches: &[NodeId], value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        let mut matched = None;
        for (index, id) in branches.iter().enumerate() {
            let Some(added) = self.attempt(*id, value, depth) else { continue };
            if let Some((earlier, _)) = matched {
                return Err(format!(
                    "value should match only one schema, but matches both schemas {earlier} and {}",
                    index + 1
                ));
            }
            matched = Some((index + 1, added));
        }
        let Some((_, added)) = matched else {
            return Err("value should match only one schema, but matches none".to_owned());
        };
        if let Some(added) = added {
            *value = Cow::Owned(added);
        }
        Ok(())
    }

    fn condition(&self, condition: &Condition, value: &mut Cow<'_, Value>, depth: usize) -> Outcome {
        let (clause, id) = match self.adopt(condition.test, value, depth) {
            true => ("then", condition.then),
            false => ("else", condition.otherwise),
        };
        match id {
            Some(id) => self.node(id, value, depth).map_err(|_| format!("{clause} clause did not match")),
            None => Ok(()),
        }
    }

    /// Whether the schema matches; if so, `value` gets its defaults.
    fn adopt(&self, id: NodeId, value: &mut Cow<'_, Value>, depth: usize) -> bool {
        match self.attempt(id, value, depth) {
            Some(Some(added)) => {
                *value = Cow::Owned(added);
                true
            }
            outcome => outcome.is_some(),
        }
    }

    /// `None`: the schema does not match. `Some(Some(…))`: it does, and this is the value with its
    /// defaults.
    fn attempt(&self, id: NodeId, value: &Value, depth: usize) -> Option<Option<Value>> {
        let mut trial = Cow::Borrowed(value);
        self.node(id, &mut trial, depth).ok()?;
        match trial {
            Cow::Owned(added) => Some(Some(added)),
            Cow::Borrowed(_) => Some(None),
        }
    }
}

fn required(name: &str) -> String {
    format!("property {} is required", text::quoted(name))
}

fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.as_object()?.get(name)
}

/// Sets a member of an object, or of the empty array that stands for one.
fn set(value: &mut Cow<'_, Value>, name: &str, field: Value) {
    let value = value.to_mut();
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value[name] = field;
}

fn schema_of_item(items: &Items, index: usize) -> Result<Option<NodeId>, String> {
    Ok(match items {
        Items::Anything => None,
        Items::Each(id) => Some(*id),
        Items::Tuple(ids, additional) => match (ids.get(index), additional) {
            (Some(id), _) | (None, Additional::Schema(id)) => Some(*id),
            (None, Additional::Unsaid | Additional::Anything) => None,
            (None, Additional::Nothing) => {
                return Err(format!("expect array to have at most {} items", ids.len()));
            }
        },
    })
}

/// Whether the value is of the type. An empty object is an array and an empty array an object.
fn is(kind: JsonType, value: &Value) -> bool {
    match (kind, value) {
        (JsonType::Object, Value::Object(_))
        | (JsonType::Array, Value::Array(_))
        | (JsonType::Table, Value::Object(_) | Value::Array(_))
        | (JsonType::String, Value::String(_))
        | (JsonType::Number, Value::Number(_))
        | (JsonType::Boolean, Value::Bool(_))
        | (JsonType::Null, Value::Null) => true,
        (JsonType::Object, Value::Array(items)) => items.is_empty(),
        (JsonType::Array, Value::Object(map)) => map.is_empty(),
        (JsonType::Integer, Value::Number(number)) => number::is_integer(number),
        _ => false,
    }
}

fn check_type(types: &Types, value: &Value) -> Outcome {
    let expected = match types {
        Types::Any => return Ok(()),
        Types::One(kind) if is(*kind, value) => return Ok(()),
        Types::One(kind) => kind.name().to_owned(),
        Types::Several(kinds) if kinds.iter().any(|kind| is(*kind, value)) => return Ok(()),
        Types::Several(kinds) => {
            let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            format!("one of {}", names.join(", "))
        }
    };
    Err(format!("wrong type: expected {expected}, got {}", text::lua_type(value)))
}

fn check_string(rules: &StringRules, text: &str) -> Outcome {
    if rules.min.is_some() || rules.max.is_some() {
        let length = text.chars().count() as u64;
        if let Some(min) = rules.min.filter(|min| length < *min) {
            return Err(format!("string too short, expected at least {min}, got {length}"));
        }
        if let Some(max) = rules.max.filter(|max| length > *max) {
            return Err(format!("string too long, expected at most {max}, got {length}"));
        }
    }
    match &rules.pattern {
        Some(pattern) if !pattern.is_match(text) => Err(format!(
            "failed to match pattern {} with {}",
            text::quoted(pattern.source()),
            text::quoted(text)
        )),
        _ => Ok(()),
    }
}

fn check_number(rules: &NumberRules, value: &Number) -> Outcome {
    let bounds = [
        (&rules.min, &[Ordering::Greater, Ordering::Equal][..], "at least"),
        (&rules.max, &[Ordering::Less, Ordering::Equal][..], "at most"),
        (&rules.above, &[Ordering::Greater][..], "greater than"),
        (&rules.below, &[Ordering::Less][..], "smaller than"),
    ];
    for (bound, accepted, words) in bounds {
        if let Some(bound) = bound
            && !accepted.contains(&number::compare(value, bound))
        {
            return Err(format!("expected {} to be {words} {}", number::lua(value), number::lua(bound)));
        }
    }
    match &rules.multiple_of {
        Some(step) if !number::is_multiple(value, step) => {
            Err(format!("expected {} to be a multiple of {}", number::lua(value), number::lua(step)))
        }
        _ => Ok(()),
    }
}
