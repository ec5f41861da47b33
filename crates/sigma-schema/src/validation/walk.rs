//! Applies a compiled schema to a value.
//!
//! The value is borrowed until a default is added; then the objects on the path to it become owned. A branch of
//! `anyOf`, `oneOf` or `if` works on its own borrow. So the additions of a failing branch are lost.

use std::borrow::Cow;
use std::cell::RefCell;

use serde_json::{Map, Value};

use super::equality::Empties;
use super::node::{
    Additional, ArrayRules, Contains, Dependency, Items, JsonType, Node, NodeId, ObjectRules, Property,
    StringRules, Types,
};
pub(super) use super::place::{Step, ValuePosition};
use super::plain::{self, PlainMessage};
use super::range;
use super::untrusted::{self, StepBudget};
use super::{equality, is_secret_reference, number, remedy, text};
use crate::problem::Problem;

/// Maximum nesting of schemas on the path to one value. Only a recursive schema comes near it; the limit keeps the
/// recursion within a small stack.
pub(super) const MAX_DEPTH: usize = 256;

#[derive(Clone, Copy)]
pub(super) struct Walk<'s> {
    pub(super) nodes: &'s [Node],
    /// The remaining steps for a value of a client; None for a value of an operator.
    pub(super) step_budget: Option<&'s StepBudget>,
    /// Where failures go if all of them are wanted; otherwise the first one ends the walk.
    found: Option<&'s RefCell<Vec<Problem>>>,
    /// Whether those failures use the messages of [`plain`], one for each mistake.
    pub(super) is_plain: bool,
}

pub(super) type Outcome = Result<(), String>;

impl<'s> Walk<'s> {
    pub(super) fn new(nodes: &'s [Node]) -> Self {
        Walk { nodes, step_budget: None, found: None, is_plain: false }
    }

    pub(super) fn of_untrusted(nodes: &'s [Node], step_budget: &'s StepBudget) -> Self {
        Walk { nodes, step_budget: Some(step_budget), found: None, is_plain: false }
    }

    /// Returns every failure of a value.
    pub(super) fn problems(
        nodes: &[Node],
        id: NodeId,
        value: &Value,
        at: &ValuePosition<'_>,
        is_plain: bool,
    ) -> Vec<Problem> {
        let found = RefCell::new(Vec::new());
        let walk = Walk { nodes, step_budget: None, found: Some(&found), is_plain };
        // With a place for failures the walk comes to its end.
        let _ = walk.node(id, &mut Cow::Borrowed(value), at);
        found.into_inner()
    }

    /// Takes steps of an untrusted sender; the cost of an operator's value does not matter.
    pub(super) fn spend(&self, steps: impl FnOnce() -> usize) -> Outcome {
        match self.step_budget {
            Some(step_budget) if !step_budget.spend(steps()) => Err(String::new()),
            _ => Ok(()),
        }
    }

    pub(super) fn empties(&self) -> Empties {
        if self.step_budget.is_some() { Empties::Differ } else { Empties::Same }
    }

    fn is(&self, kind: JsonType, value: &Value) -> bool {
        is(kind, value, self.empties())
    }

    /// Returns the text for a value of the wrong type, with JSON type names for files and Lua type names for the Admin
    /// API.
    pub(super) fn wrong_type(&self, expected: &str, value: &Value) -> String {
        let found = if self.found.is_some() { text::json_type(value) } else { text::lua_type(value) };
        format!("wrong type: expected {expected}, got {found}")
    }

    fn equal(&self, left: &Value, right: &Value) -> bool {
        equality::equal(left, right, self.empties())
    }

    fn shown<'t>(&self, text: &'t str) -> &'t str {
        if self.step_budget.is_some() { untrusted::shown(text) } else { text }
    }

    /// Ends the walk with a text, or records it with place and remedy and continues.
    pub(super) fn fail(
        &self,
        at: &ValuePosition<'_>,
        code: &'static str,
        text: impl Into<String>,
        remedy: impl FnOnce() -> Option<String>,
    ) -> Outcome {
        let Some(found) = self.found else { return Err(text.into()) };
        let mut problem = Problem::new(at.pointer(), code, text);
        problem.hint = remedy();
        add(&mut found.borrow_mut(), problem, self.is_plain);
        Ok(())
    }

    /// Returns whether all failures are collected, in plain words.
    pub(super) fn collects_plainly(&self) -> bool {
        self.is_plain && self.found.is_some()
    }

    /// Does the same as [`Walk::fail`], with another message for the writer of a file.
    pub(super) fn fail_as(
        &self,
        at: &ValuePosition<'_>,
        code: &'static str,
        text: impl Into<String>,
        remedy: impl FnOnce() -> Option<String>,
        said: impl FnOnce() -> PlainMessage,
    ) -> Outcome {
        if !self.collects_plainly() {
            return self.fail(at, code, text, remedy);
        }
        let PlainMessage { message, hint } = said();
        self.fail(at, code, message, || hint)
    }

    /// Fails with a text that does not name its cause, a failure of the schema `id`. The problem has the place and the
    /// remedy of the cause.
    pub(super) fn fail_because(
        &self,
        at: &ValuePosition<'_>,
        text: &str,
        id: NodeId,
        value: &Value,
    ) -> Outcome {
        if self.found.is_none() {
            return Err(text.to_owned());
        }
        let mut causes = Walk::problems(self.nodes, id, value, at, self.is_plain);
        if !self.is_plain {
            for cause in &mut causes {
                cause.hint = cause.hint.take().or(Some(std::mem::take(&mut cause.message)));
                text.clone_into(&mut cause.message);
            }
        }
        self.fail_for(causes)
    }

    /// Fails with the given failures.
    pub(super) fn fail_for(&self, causes: Vec<Problem>) -> Outcome {
        let Some(found) = self.found else { return Err(String::new()) };
        causes.into_iter().for_each(|cause| add(&mut found.borrow_mut(), cause, self.is_plain));
        Ok(())
    }

    /// Applies one schema. APISIX has the same order of keywords, which decides which failure is
    /// reported.
    pub(super) fn node(&self, id: NodeId, value: &mut Cow<'_, Value>, at: &ValuePosition<'_>) -> Outcome {
        self.spend(|| 1)?;
        if at.depth > MAX_DEPTH {
            self.step_budget.inspect(|step_budget| step_budget.exhaust());
            let text = format!("more than {MAX_DEPTH} nested schemas, simplify the schema or the value");
            return self.fail(at, "schema", text, || None);
        }
        let node = &self.nodes[id];
        if node.never {
            let remove = || Some("remove it".to_owned());
            let said = || PlainMessage::new("is not allowed here", remove());
            return self.fail_as(at, "schema", "expect false always", remove, said);
        }
        if let Err(expected) = check_type(&node.types, value, self.empties()) {
            let said = || plain::of_type(&[&node.types], value, at.name());
            let text = self.wrong_type(&expected, value);
            return self.fail_as(at, "type", text, || remedy::of_null(value), said);
        }
        if let Some(rules) = &node.rules.object
            && self.is(JsonType::Object, value)
        {
            self.object(rules, value, at)?;
        }
        if let Some(rules) = &node.rules.array
            && self.is(JsonType::Array, value)
        {
            self.array(rules, value, at)?;
        }
        if let (Some(rules), Value::String(text)) = (&node.rules.string, &**value) {
            self.string(rules, text, at)?;
        }
        if let (Some(rules), Value::Number(number)) = (&node.rules.number, &**value)
            && let Err(text) = number::check(rules, number)
        {
            let said = || PlainMessage::new(range::of_range(rules, number), None);
            self.fail_as(at, "range", text, || None, said)?;
        }
        if let Some(allowed) = &node.enumeration
            && !allowed.iter().any(|candidate| self.equal(candidate, value))
        {
            let said = || plain::of_choice(allowed, value, at.name());
            let text = "matches none of the enum values";
            self.fail_as(at, "enum", text, || remedy::of_choice(allowed, value), said)?;
        }
        self.combinations(node, value, at)?;
        if let Some(rules) = &node.unevaluated {
            self.unevaluated(id, rules, value, at)?;
        }
        if let (Some(format), Value::String(text)) = (node.format, &**value)
            && !(format.holds)(text)
        {
            let message = format!("expect valid {} format but got: {}", format.name, self.shown(text));
            let said = || plain::of_form(text, || remedy::of_format(format.name), format.name);
            self.fail_as(at, "format", message, || remedy::of_format(format.name), said)?;
        }
        match &node.constant {
            Some(constant) if !self.equal(constant, value) => {
                let only = std::slice::from_ref(&**constant);
                let said = || plain::of_choice(only, value, at.name());
                let text = "failed to check const value";
                self.fail_as(at, "enum", text, || remedy::of_choice(only, value), said)
            }
            _ => Ok(()),
        }
    }

    /// Applies the schema of a property or an item, where a reference to a secret replaces a text
    /// that is not known yet.
    fn field(&self, id: NodeId, value: &mut Cow<'_, Value>, at: &ValuePosition<'_>) -> Outcome {
        let node = &self.nodes[id];
        let may_be_text = matches!(node.types, Types::Any | Types::One(JsonType::String)) && !node.boolean;
        match &**value {
            Value::String(text) if self.step_budget.is_none() && may_be_text && is_secret_reference(text) => {
                Ok(())
            }
            _ => self.node(id, value, at),
        }
    }

    fn object(&self, rules: &ObjectRules, value: &mut Cow<'_, Value>, at: &ValuePosition<'_>) -> Outcome {
        // Only the fields that were written count, not those that defaults add.
        let count = value.as_object().map_or(0, Map::len) as u64;
        for property in &rules.properties {
            self.property(property, value, at)?;
        }
        for name in &rules.required {
            self.required(name, value, at)?;
        }
        for (name, dependency) in &rules.dependencies {
            if member(value, name).is_some() {
                self.dependency(name, dependency, value, at)?;
            }
        }
        self.other_properties(rules, value, at)?;
        if let Some(min) = rules.min.filter(|min| count < *min) {
            let text = format!("expect object to have at least {min} properties");
            let said = || plain::of_count(count, min, "entries", at.name());
            self.fail_as(at, "length", text, || None, said)?;
        }
        match rules.max.filter(|max| count > *max) {
            Some(max) => {
                let text = format!("expect object to have at most {max} properties");
                let said = || PlainMessage::new(format!("{count} entries; at most {max} are allowed"), None);
                self.fail_as(at, "length", text, || None, said)
            }
            None => Ok(()),
        }
    }

    pub(super) fn required(&self, name: &str, value: &Value, at: &ValuePosition<'_>) -> Outcome {
        match member(value, name) {
            Some(_) => Ok(()),
            None => {
                let add = || Some(format!("add `{name}`"));
                self.fail_as(at, "missing", required(name), add, || plain::of_missing(name))
            }
        }
    }

    fn property(&self, property: &Property, value: &mut Cow<'_, Value>, at: &ValuePosition<'_>) -> Outcome {
        let name = &property.name;
        if let Some(reason) = property.barred {
            return match member(value, name) {
                Some(_) => {
                    self.fail(at, "unknown_key", format!("property {} {reason}", text::quoted(name)), || None)
                }
                None => Ok(()),
            };
        }
        let mut field = match (member(value, name), &self.nodes[property.node].default) {
            (Some(present), _) => Cow::Borrowed(present),
            (None, Some(default)) => Cow::Owned(Value::clone(default)),
            (None, None) if property.required => return self.required(name, value, at),
            (None, None) => return Ok(()),
        };
        self.field(property.node, &mut field, &at.member(name))
            .map_err(|cause| format!("property {} validation failed: {cause}", text::quoted(name)))?;
        if let Cow::Owned(field) = field {
            self.set(value, name, field)?;
        }
        match &property.dependency {
            Some(dependency) => self.dependency(name, dependency, value, at),
            None => Ok(()),
        }
    }

    fn dependency(
        &self,
        name: &str,
        dependency: &Dependency,
        value: &mut Cow<'_, Value>,
        at: &ValuePosition<'_>,
    ) -> Outcome {
        let (name, plain_name) = (text::quoted(name), name);
        match dependency {
            Dependency::Names(names) => match names.iter().find(|needed| member(value, needed).is_none()) {
                Some(needed) => {
                    let text = format!("property {} is required when {name} is set", text::quoted(needed));
                    let said = || {
                        PlainMessage::new(
                            format!("`{needed}` is required together with `{plain_name}`"),
                            None,
                        )
                    };
                    self.fail_as(at, "missing", text, || Some(format!("add `{needed}`")), said)
                }
                None => Ok(()),
            },
            Dependency::Schema(id) => self
                .node(*id, value, &at.same())
                .map_err(|cause| format!("failed to validate dependent schema for {name}: {cause}")),
        }
    }

    /// `patternProperties`, `additionalProperties`, `propertyNames`.
    fn other_properties(
        &self,
        rules: &ObjectRules,
        value: &mut Cow<'_, Value>,
        at: &ValuePosition<'_>,
    ) -> Outcome {
        let unbound = matches!(rules.additional, Additional::Unsaid | Additional::Anything);
        if unbound && rules.patterns.is_empty() && rules.names.is_none() {
            return Ok(());
        }
        let mut changed = Vec::new();
        for (key, entry) in value.as_object().into_iter().flatten() {
            let at = &at.member(key);
            self.spend(|| 1 + untrusted::of_text(key))?;
            if let Some(names) = rules.names {
                self.node(names, &mut Cow::Owned(Value::from(key.as_str())), &at.same())
                    .map_err(|cause| format!("failed to validate property name {key}: {cause}"))?;
            }
            let mut known = rules.properties.iter().any(|property| property.name == *key);
            let mut field = Cow::Borrowed(entry);
            for (pattern, id) in rules.patterns.iter().filter(|(pattern, _)| pattern.is_match(key)) {
                known = true;
                self.field(*id, &mut field, &at.same()).map_err(|cause| {
                    format!("failed to validate {key} (matching {}): {cause}", text::quoted(pattern.source()))
                })?;
            }
            match rules.additional {
                Additional::Nothing if !known => {
                    let text = format!("additional properties forbidden, found {key}");
                    let known: Vec<&str> = rules.properties.iter().map(|known| &*known.name).collect();
                    let hint = || Some(remedy::of_unknown(key, &known));
                    let said = || PlainMessage::new(format!("unknown field `{key}`"), hint());
                    self.fail_as(at, "unknown_key", text, hint, said)?;
                }
                Additional::Schema(id) if !known => self
                    .field(id, &mut field, &at.same())
                    .map_err(|cause| format!("failed to validate additional property {key}: {cause}"))?,
                _ => {}
            }
            if let Cow::Owned(field) = field {
                changed.push((key.clone(), field));
            }
        }
        for (key, field) in changed {
            self.set(value, &key, field)?;
        }
        Ok(())
    }

    fn array(&self, rules: &ArrayRules, value: &mut Cow<'_, Value>, at: &ValuePosition<'_>) -> Outcome {
        // An empty object comes here as well.
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let count = items.len() as u64;
        if let Some(min) = rules.min.filter(|min| count < *min) {
            let said = || plain::of_count(count, min, "items", at.name());
            let text = format!("expect array to have at least {min} items");
            self.fail_as(at, "length", text, || None, said)?;
        }
        if let Some(max) = rules.max.filter(|max| count > *max) {
            let said = || PlainMessage::new(format!("{count} items; at most {max} are allowed"), None);
            let text = format!("expect array to have at most {max} items");
            self.fail_as(at, "length", text, || None, said)?;
        }
        let mut changed = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let id = match schema_of_item(&rules.items, index) {
                Ok(Some(id)) => id,
                Ok(None) => continue,
                Err(text) => return self.fail(at, "length", text, || None),
            };
            let mut field = Cow::Borrowed(item);
            self.field(id, &mut field, &at.inner(Step::Element(index)))
                .map_err(|cause| format!("failed to validate item {}: {cause}", index + 1))?;
            if let Cow::Owned(field) = field {
                changed.push((index, field));
            }
        }
        if let Some(contains) = &rules.contains {
            self.contains(contains, items, at)?;
        }
        if rules.unique {
            self.spend(|| items.iter().map(untrusted::of_value).sum())?;
        }
        if rules.unique
            && let Some((first, second)) = equality::first_repeated(items)
        {
            let text = format!("expected unique items but items {first} and {second} are equal");
            let remove = || Some("remove one".to_owned());
            let said = || PlainMessage::new(format!("items {first} and {second} are equal"), remove());
            self.fail_as(at, "unique", text, remove, said)?;
        }
        for (index, field) in changed {
            self.owned(value)?[index] = field;
        }
        Ok(())
    }

    fn contains(&self, contains: &Contains, items: &[Value], at: &ValuePosition<'_>) -> Outcome {
        let found = items.iter().filter(|item| self.attempt(contains.node, item, at).is_some());
        // A count stops as soon as its result is certain.
        let enough = contains.max.map_or(contains.min, |max| max.saturating_add(1));
        let found = found.take(usize::try_from(enough).unwrap_or(usize::MAX)).count() as u64;
        let text = match (contains.min, contains.max) {
            (1, _) if found < 1 => "expect array to contain an item that matches the schema".to_owned(),
            (min, _) if found < min => {
                format!("expect array to contain at least {min} items that match the schema")
            }
            (_, Some(max)) if found > max => {
                format!("expect array to contain at most {max} items that match the schema")
            }
            _ => return Ok(()),
        };
        self.fail(at, "schema", text, || None)
    }

    fn string(&self, rules: &StringRules, text: &str, at: &ValuePosition<'_>) -> Outcome {
        self.spend(|| untrusted::of_text(text))?;
        if rules.min.is_some() || rules.max.is_some() {
            let length = text.chars().count() as u64;
            if let Some(min) = rules.min.filter(|min| length < *min) {
                let said = || plain::of_short(text, min, at.name());
                let text = format!("string too short, expected at least {min}, got {length}");
                self.fail_as(at, "length", text, || None, said)?;
            }
            if let Some(max) = rules.max.filter(|max| length > *max) {
                let text = format!("string too long, expected at most {max}, got {length}");
                let said =
                    || PlainMessage::new(format!("{length} characters; at most {max} are allowed"), None);
                self.fail_as(at, "length", text, || None, said)?;
            }
        }
        match &rules.pattern {
            Some(pattern) if !pattern.is_match(text) => {
                let source = pattern.source();
                let found = text::quoted(self.shown(text));
                let said = || plain::of_form(text, || remedy::of_pattern(source), source);
                let text = format!("failed to match pattern {} with {found}", text::quoted(source));
                self.fail_as(at, "pattern", text, || remedy::of_pattern(source), said)
            }
            _ => Ok(()),
        }
    }

    /// Whether the schema matches; if so, `value` gets its defaults.
    pub(super) fn adopt(&self, id: NodeId, value: &mut Cow<'_, Value>, at: &ValuePosition<'_>) -> bool {
        match self.attempt(id, value, at) {
            Some(Some(added)) => {
                *value = Cow::Owned(added);
                true
            }
            outcome => outcome.is_some(),
        }
    }

    /// `None`: the schema does not match. `Some(Some(…))`: it does, and this is the value with its
    /// defaults.
    pub(super) fn attempt(&self, id: NodeId, value: &Value, at: &ValuePosition<'_>) -> Option<Option<Value>> {
        let mut trial = Cow::Borrowed(value);
        Walk { found: None, ..*self }.node(id, &mut trial, &at.same()).ok()?;
        match trial {
            Cow::Owned(added) => Some(Some(added)),
            Cow::Borrowed(_) => Some(None),
        }
    }

    /// Sets a member of an object, or of an empty array used as an object.
    fn set(&self, value: &mut Cow<'_, Value>, name: &str, field: Value) -> Outcome {
        let value = self.owned(value)?;
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        value[name] = field;
        Ok(())
    }

    fn owned<'c>(&self, value: &'c mut Cow<'_, Value>) -> Result<&'c mut Value, String> {
        if let Cow::Borrowed(value) = value {
            self.spend(|| untrusted::of_value(value))?;
        }
        Ok(value.to_mut())
    }
}

/// Adds a problem. Several parts of a schema may report the same problem.
fn add(found: &mut Vec<Problem>, problem: Problem, is_plain: bool) {
    let again = |other: &Problem| {
        other.pointer == problem.pointer
            && if problem.hint.is_some() && !is_plain {
                other.hint == problem.hint
            } else {
                *other == problem
            }
    };
    if !found.iter().any(again) {
        found.push(problem);
    }
}

fn required(name: &str) -> String {
    format!("property {} is required", text::quoted(name))
}

pub(super) fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.as_object()?.get(name)
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

/// Returns whether the value has the type. For an operator's value an empty object is also an array and an empty array
/// an object.
fn is(kind: JsonType, value: &Value, empties: Empties) -> bool {
    match (kind, value) {
        (JsonType::Object, Value::Object(_))
        | (JsonType::Array, Value::Array(_))
        | (JsonType::Table, Value::Object(_) | Value::Array(_))
        | (JsonType::String, Value::String(_))
        | (JsonType::Number, Value::Number(_))
        | (JsonType::Boolean, Value::Bool(_))
        | (JsonType::Null, Value::Null) => true,
        (JsonType::Object, Value::Array(items)) => empties == Empties::Same && items.is_empty(),
        (JsonType::Array, Value::Object(map)) => empties == Empties::Same && map.is_empty(),
        (JsonType::Integer, Value::Number(number)) => number::is_integer(number),
        _ => false,
    }
}

pub(super) fn check_type(types: &Types, value: &Value, empties: Empties) -> Outcome {
    let expected = match types {
        Types::Any => return Ok(()),
        Types::One(kind) if is(*kind, value, empties) => return Ok(()),
        Types::One(kind) => kind.name().to_owned(),
        Types::Several(kinds) if kinds.iter().any(|kind| is(*kind, value, empties)) => return Ok(()),
        Types::Several(kinds) => {
            let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            format!("one of {}", names.join(", "))
        }
    };
    Err(expected)
}
