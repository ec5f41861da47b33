//! Compiles the JSON of a schema to nodes.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

use super::Schema;
use super::dialect::{Anchors, Dialect};
use super::node::{
    Additional, AnyOf, ArrayRules, Combinators, Condition, Contains, Dependency, Items, JsonType, Node,
    NodeId, NumberRules, ObjectRules, Property, StringRules, TypeRules, Types, Unevaluated,
};
use super::pcre::{InvalidPattern, Pattern};

/// Maximum nesting of schemas, equal to the limit of the JSON parser.
const MAX_DEPTH: usize = 128;

/// The function that compiles patterns.
pub(super) type Patterns = fn(&str) -> Result<Pattern, InvalidPattern>;

pub(super) fn compile(schema: &Value, patterns: Patterns) -> Result<Schema, String> {
    let mut compiler = Compiler { patterns, ..Compiler::new(schema, Dialect::Draft7) };
    let root = compiler.at("")?;
    Ok(Schema { nodes: compiler.finish()?, root })
}

/// Keywords of later drafts, with their draft 7 equivalents. A draft 7 validator would ignore them and accept every
/// value, so they are refused.
const LATER: [(&str, &str); 9] = [
    ("prefixItems", "write a list under `items`"),
    ("dependentRequired", "write `dependencies`"),
    ("dependentSchemas", "write `dependencies`"),
    ("unevaluatedProperties", "write `additionalProperties`"),
    ("unevaluatedItems", "write `additionalItems`"),
    ("minContains", "leave it out"),
    ("maxContains", "leave it out"),
    ("$dynamicRef", "write `$ref`"),
    ("$recursiveRef", "write `$ref`"),
];

/// The position of a schema in the document, on the stack: only an error needs it.
pub(super) struct SchemaPosition<'p> {
    outer: Option<&'p SchemaPosition<'p>>,
    step: Step<'p>,
    depth: usize,
}

enum Step<'p> {
    /// A JSON pointer, the outermost part of the path.
    From(&'p str),
    Member(&'p str),
    Element(usize),
}

impl<'p> SchemaPosition<'p> {
    fn at(pointer: &'p str) -> SchemaPosition<'p> {
        SchemaPosition { outer: None, step: Step::From(pointer), depth: 0 }
    }

    pub(super) fn child(&'p self, name: &'p str) -> SchemaPosition<'p> {
        self.inner(Step::Member(name))
    }

    fn inner(&'p self, step: Step<'p>) -> SchemaPosition<'p> {
        SchemaPosition { outer: Some(self), step, depth: self.depth + 1 }
    }

    /// Returns the position as a JSON pointer.
    pub(super) fn pointer(&self) -> String {
        let outer = self.outer.map_or_else(String::new, SchemaPosition::pointer);
        match self.step {
            Step::From(pointer) => pointer.to_owned(),
            Step::Member(name) => format!("{outer}/{}", name.replace('~', "~0").replace('/', "~1")),
            Step::Element(index) => format!("{outer}/{index}"),
        }
    }

    pub(super) fn wrong(&self, keyword: &str, expected: &str) -> String {
        format!("schema at `{}/{keyword}` must be {expected}", self.pointer())
    }
}

/// The keywords of a schema. Scanning its few members is cheaper than hashing the name of each of fifty possible
/// keywords.
#[derive(Clone, Copy)]
pub(super) struct Keywords<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Keywords<'a> {
    pub(super) fn get(self, keyword: &str) -> Option<&'a Value> {
        self.0.iter().find(|(name, _)| *name == keyword).map(|(_, value)| value)
    }

    pub(super) fn has(self, keyword: &str) -> bool {
        self.get(keyword).is_some()
    }
}

pub(super) struct Compiler<'a> {
    pub(super) document: &'a Value,
    pub(super) dialect: Dialect,
    patterns: Patterns,
    anchors: Option<Anchors>,
    nodes: Vec<Node>,
    /// The node of each schema, so that each referenced schema is compiled once. The key is the address in memory,
    /// which is stable while the document is borrowed.
    known: HashMap<usize, NodeId>,
    /// Referenced schemas that still need compilation, each with its pointer. The list prevents recursion: a chain of
    /// references may be as long as the document.
    later: Vec<(NodeId, String, &'a Value)>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(document: &'a Value, dialect: Dialect) -> Compiler<'a> {
        Compiler {
            document,
            dialect,
            patterns: Pattern::compile,
            anchors: None,
            nodes: Vec::new(),
            known: HashMap::new(),
            later: Vec::new(),
        }
    }

    /// Compiles the schema at a JSON pointer of the document.
    pub(super) fn at(&mut self, pointer: &str) -> Result<NodeId, String> {
        let schema =
            self.document.pointer(pointer).ok_or_else(|| format!("there is no schema at `{pointer}`"))?;
        self.schema(&SchemaPosition::at(pointer), schema)
    }

    /// Returns the nodes of all schemas, and of those that they refer to.
    pub(super) fn finish(mut self) -> Result<Vec<Node>, String> {
        while let Some((id, pointer, schema)) = self.later.pop() {
            self.nodes[id] = self.made(&SchemaPosition::at(&pointer), schema)?;
        }
        refuse_loops(&self.nodes)?;
        Ok(self.nodes)
    }

    pub(super) fn schema(&mut self, place: &SchemaPosition<'_>, schema: &'a Value) -> Result<NodeId, String> {
        if let Some(id) = self.known.get(&address(schema)) {
            return Ok(*id);
        }
        if place.depth > MAX_DEPTH {
            let pointer = place.pointer();
            return Err(format!("schema at `{pointer}` is nested more than {MAX_DEPTH} levels deep"));
        }
        if let Some(reference) = self.dialect.reference_alone(schema) {
            return self.reference(place, reference);
        }
        // Registered before its parts, which may refer to it.
        let id = self.new_node(schema);
        self.nodes[id] = self.made(place, schema)?;
        Ok(id)
    }

    fn new_node(&mut self, schema: &'a Value) -> NodeId {
        let id = self.nodes.len();
        self.nodes.push(Node::default());
        self.known.insert(address(schema), id);
        id
    }

    fn made(&mut self, place: &SchemaPosition<'_>, schema: &'a Value) -> Result<Node, String> {
        Ok(match schema {
            Value::Bool(accept) => Node { never: !accept, boolean: true, ..Node::default() },
            Value::Object(map) => self.node(place, Keywords(map))?,
            // Lua cannot tell an empty array from an empty object.
            Value::Array(items) if items.is_empty() => Node::default(),
            _ => return Err(format!("schema at `{}` must be an object or a boolean", place.pointer())),
        })
    }

    /// The schema that is referred to, which is compiled once nothing else is under way.
    pub(super) fn reference(
        &mut self,
        place: &SchemaPosition<'_>,
        reference: &str,
    ) -> Result<NodeId, String> {
        let (pointer, target) = self.resolve(place, reference)?;
        if let Some(id) = self.known.get(&address(target)) {
            return Ok(*id);
        }
        let id = self.new_node(target);
        self.later.push((id, pointer, target));
        Ok(id)
    }

    /// The schema that a `$ref` finally leads to, and its pointer.
    fn resolve(
        &mut self,
        place: &SchemaPosition<'_>,
        reference: &str,
    ) -> Result<(String, &'a Value), String> {
        /// References to references; more than this is a circle.
        const MAX_HOPS: usize = 32;
        let lost = |why: &str| format!("schema at `{}/$ref`: `{reference}` {why}", place.pointer());
        let mut current = reference;
        for _ in 0..MAX_HOPS {
            let Some(fragment) = current.strip_prefix('#') else {
                return Err(lost("is outside this schema, copy it to `definitions`"));
            };
            let mut pointer = super::text::percent_decoded(fragment);
            if !pointer.is_empty() && !pointer.starts_with('/') && self.dialect != Dialect::Draft7 {
                let anchors = self.anchors.get_or_insert_with(|| Anchors::of(self.document));
                pointer = anchors.find(&pointer).map_err(lost)?.to_owned();
            }
            let Some(target) = self.document.pointer(&pointer) else { return Err(lost("leads nowhere")) };
            match self.dialect.reference_alone(target) {
                Some(next) => current = next,
                None => return Ok((pointer, target)),
            }
        }
        Err(lost("refers to itself"))
    }

    fn node(&mut self, place: &SchemaPosition<'_>, said: Keywords<'a>) -> Result<Node, String> {
        match self.dialect {
            Dialect::Draft7 => {
                if let Some((keyword, remedy)) = LATER.iter().find(|(keyword, _)| said.has(keyword)) {
                    let pointer = place.pointer();
                    return Err(format!("schema at `{pointer}/{keyword}` is of a draft after 7, {remedy}"));
                }
                self.plain_node(place, said)
            }
            Dialect::OpenApi { .. } => self.open_api_node(place, said),
        }
    }

    /// Compiles the keywords of all dialects.
    pub(super) fn plain_node(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
    ) -> Result<Node, String> {
        let condition = match said.get("if") {
            Some(test) => Some(Condition {
                test: self.schema(&place.child("if"), test)?,
                then: self.optional(place, said, "then")?,
                otherwise: self.optional(place, said, "else")?,
            }),
            None => None,
        };
        Ok(Node {
            never: false,
            boolean: false,
            types: types(place, said)?,
            rules: TypeRules {
                object: self.object(place, said)?.map(Box::new),
                array: self.array(place, said)?.map(Box::new),
                string: self.string(place, said)?.map(Box::new),
                number: numbers(place, said)?.map(Box::new),
            },
            enumeration: array(place, said, "enum")?.cloned(),
            combined: Combinators {
                all_of: self.list(place, said, "allOf")?,
                any_of: self.any_of(place, said)?,
                one_of: self.list(place, said, "oneOf")?,
                condition,
                discriminator: None,
                not: self.optional(place, said, "not")?,
            },
            unevaluated: self.unevaluated(place, said)?,
            format: self.dialect.format(said.get("format").and_then(Value::as_str)),
            constant: said.get("const").cloned().map(Box::new),
            // Other dialects do not add defaults to values that only pass through.
            default: said.get("default").filter(|_| self.dialect == Dialect::Draft7).cloned().map(Box::new),
            inert: inert(said),
        })
    }

    fn unevaluated(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
    ) -> Result<Option<Box<Unevaluated>>, String> {
        let properties = self.optional(place, said, "unevaluatedProperties")?;
        let items = self.optional(place, said, "unevaluatedItems")?;
        let is_any = properties.is_some() || items.is_some();
        Ok(is_any.then(|| Box::new(Unevaluated { properties, items })))
    }

    pub(super) fn optional(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
        keyword: &str,
    ) -> Result<Option<NodeId>, String> {
        said.get(keyword).map(|schema| self.schema(&place.child(keyword), schema)).transpose()
    }

    pub(super) fn list(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
        keyword: &str,
    ) -> Result<Vec<NodeId>, String> {
        let Some(schemas) = array(place, said, keyword)? else { return Ok(Vec::new()) };
        let place = place.child(keyword);
        let numbered = schemas.iter().enumerate();
        numbered.map(|(index, schema)| self.schema(&place.inner(Step::Element(index)), schema)).collect()
    }

    fn any_of(&mut self, place: &SchemaPosition<'_>, said: Keywords<'a>) -> Result<Option<AnyOf>, String> {
        let branches = self.list(place, said, "anyOf")?;
        if branches.is_empty() {
            return Ok(None);
        }
        let schemas = said.get("anyOf").and_then(Value::as_array).into_iter().flatten();
        let required: Vec<String> =
            schemas.filter_map(|schema| schema.get("required")).map(Value::to_string).collect();
        let mut failure = "object matches none of the required".to_owned();
        if !required.is_empty() {
            failure = format!("{failure}: {}", required.join(" or "));
        }
        Ok(Some(AnyOf { branches, failure }))
    }

    fn object(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
    ) -> Result<Option<ObjectRules>, String> {
        const KEYWORDS: [&str; 10] = [
            "properties",
            "required",
            "dependencies",
            "dependentRequired",
            "dependentSchemas",
            "patternProperties",
            "additionalProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
        ];
        if !KEYWORDS.iter().any(|keyword| said.has(keyword)) {
            return Ok(None);
        }
        let mut required = names(place, said.get("required"), "required")?;
        let mut dependencies = self.dependencies(place, said)?;
        let mut properties = Vec::new();
        for (name, schema) in object(place, said, "properties")?.into_iter().flatten() {
            let node = self.schema(&place.child("properties").child(name), schema)?;
            let dependency = dependencies.iter().position(|(dependent, _)| dependent == name);
            properties.push(Property {
                name: name.clone(),
                node,
                required: required.contains(name),
                dependency: dependency.map(|index| dependencies.remove(index).1),
                barred: self.barred(schema),
            });
            required.retain(|needed| needed != name);
        }
        let mut patterns = Vec::new();
        for (pattern, schema) in object(place, said, "patternProperties")?.into_iter().flatten() {
            let outer = place.child("patternProperties");
            let place = outer.child(pattern);
            patterns.push((self.pattern(&place, pattern)?, self.schema(&place, schema)?));
        }
        Ok(Some(ObjectRules {
            properties,
            required,
            dependencies,
            patterns,
            additional: self.additional(place, said, "additionalProperties")?,
            names: self.optional(place, said, "propertyNames")?,
            min: count(place, said, "minProperties")?,
            max: count(place, said, "maxProperties")?,
        }))
    }

    fn dependencies(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
    ) -> Result<Vec<(String, Dependency)>, String> {
        let mut dependencies = Vec::new();
        for (name, dependency) in object(place, said, "dependencies")?.into_iter().flatten() {
            let place = place.child("dependencies");
            let dependency = match dependency {
                Value::Array(_) => Dependency::Names(names(&place, Some(dependency), name)?),
                _ => Dependency::Schema(self.schema(&place.child(name), dependency)?),
            };
            dependencies.push((name.clone(), dependency));
        }
        // Draft 7 has no such keywords; see `LATER`.
        for (name, needed) in object(place, said, "dependentRequired")?.into_iter().flatten() {
            let needed = names(&place.child("dependentRequired"), Some(needed), name)?;
            dependencies.push((name.clone(), Dependency::Names(needed)));
        }
        for (name, schema) in object(place, said, "dependentSchemas")?.into_iter().flatten() {
            let id = self.schema(&place.child("dependentSchemas").child(name), schema)?;
            dependencies.push((name.clone(), Dependency::Schema(id)));
        }
        Ok(dependencies)
    }

    fn additional(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
        keyword: &str,
    ) -> Result<Additional, String> {
        Ok(match said.get(keyword) {
            None => Additional::Unsaid,
            Some(Value::Bool(true)) => Additional::Anything,
            Some(Value::Bool(false)) => Additional::Nothing,
            Some(schema) => Additional::Schema(self.schema(&place.child(keyword), schema)?),
        })
    }

    fn array(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
    ) -> Result<Option<ArrayRules>, String> {
        const KEYWORDS: [&str; 6] =
            ["items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"];
        if !KEYWORDS.iter().any(|keyword| said.has(keyword)) {
            return Ok(None);
        }
        let items = match said.get("items") {
            _ if said.has("prefixItems") => {
                Items::Tuple(self.list(place, said, "prefixItems")?, self.additional(place, said, "items")?)
            }
            None => Items::Anything,
            Some(Value::Array(schemas)) if !schemas.is_empty() => Items::Tuple(
                self.list(place, said, "items")?,
                self.additional(place, said, "additionalItems")?,
            ),
            Some(schema) => Items::Each(self.schema(&place.child("items"), schema)?),
        };
        let unique = match said.get("uniqueItems") {
            None => false,
            Some(Value::Bool(unique)) => *unique,
            Some(_) => return Err(place.wrong("uniqueItems", "a boolean")),
        };
        Ok(Some(ArrayRules {
            items,
            contains: self.contains(place, said)?,
            min: count(place, said, "minItems")?,
            max: count(place, said, "maxItems")?,
            unique,
        }))
    }

    fn contains(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
    ) -> Result<Option<Contains>, String> {
        let Some(node) = self.optional(place, said, "contains")? else { return Ok(None) };
        let min = count(place, said, "minContains")?.unwrap_or(1);
        Ok(Some(Contains { node, min, max: count(place, said, "maxContains")? }))
    }

    fn string(&self, place: &SchemaPosition<'_>, said: Keywords<'_>) -> Result<Option<StringRules>, String> {
        let pattern = match said.get("pattern") {
            None => None,
            Some(Value::String(source)) => Some(self.pattern(&place.child("pattern"), source)?),
            Some(_) => return Err(place.wrong("pattern", "a string")),
        };
        let rules = StringRules {
            min: count(place, said, "minLength")?,
            max: count(place, said, "maxLength")?,
            pattern,
        };
        let present = rules.min.is_some() || rules.max.is_some() || rules.pattern.is_some();
        Ok(present.then_some(rules))
    }

    fn pattern(&self, place: &SchemaPosition<'_>, source: &str) -> Result<Pattern, String> {
        (self.patterns)(source).map_err(|error| format!("schema at `{}`: {error}", place.pointer()))
    }
}

/// Returns the identity of a schema: its address in memory.
fn address(schema: &Value) -> usize {
    std::ptr::from_ref(schema).addr()
}

/// The prefix of the description of a field that is accepted for APISIX's sake but has no effect.
pub const INERT: &str = "Without effect";

fn inert(said: Keywords<'_>) -> Option<String> {
    let reason = said.get("description")?.as_str()?.strip_prefix(INERT)?;
    Some(reason.split_once(": ")?.1.trim_end_matches('.').to_owned())
}

fn types(place: &SchemaPosition<'_>, said: Keywords<'_>) -> Result<Types, String> {
    let wrong = || place.wrong("type", "the name of a JSON type or a list of such names");
    let parse = |name: &Value| name.as_str().and_then(JsonType::parse).ok_or_else(wrong);
    match said.get("type") {
        None => Ok(Types::Any),
        Some(Value::Array(names)) => names.iter().map(parse).collect::<Result<_, _>>().map(Types::Several),
        Some(name) => parse(name).map(Types::One),
    }
}

fn numbers(place: &SchemaPosition<'_>, said: Keywords<'_>) -> Result<Option<NumberRules>, String> {
    let number = |keyword: &str| match said.get(keyword) {
        // Draft 4 has a boolean in addition to `minimum`.
        None | Some(Value::Bool(_)) => Ok(None),
        Some(Value::Number(number)) => Ok(Some(number.clone())),
        Some(_) => Err(place.wrong(keyword, "a number")),
    };
    let strict = |keyword: &str| said.get(keyword) == Some(&Value::Bool(true));
    let mut rules = NumberRules {
        min: number("minimum")?,
        max: number("maximum")?,
        above: number("exclusiveMinimum")?,
        below: number("exclusiveMaximum")?,
        multiple_of: number("multipleOf")?,
    };
    if strict("exclusiveMinimum") {
        rules.above = rules.min.take();
    }
    if strict("exclusiveMaximum") {
        rules.below = rules.max.take();
    }
    if rules.multiple_of.as_ref().and_then(Number::as_f64).is_some_and(|step| step <= 0.0) {
        return Err(place.wrong("multipleOf", "greater than 0"));
    }
    let all = [&rules.min, &rules.max, &rules.above, &rules.below, &rules.multiple_of];
    let present = all.iter().any(|rule| rule.is_some());
    Ok(present.then_some(rules))
}

fn count(place: &SchemaPosition<'_>, said: Keywords<'_>, keyword: &str) -> Result<Option<u64>, String> {
    let wrong = || place.wrong(keyword, "an integer of at least 0");
    match said.get(keyword) {
        None => Ok(None),
        Some(Value::Number(number)) => {
            let integer = super::number::integer(number).and_then(|integer| u64::try_from(integer).ok());
            integer.map(Some).ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

fn names(place: &SchemaPosition<'_>, list: Option<&Value>, keyword: &str) -> Result<Vec<String>, String> {
    let wrong = || place.wrong(keyword, "a list of property names");
    let Some(list) = list else { return Ok(Vec::new()) };
    let name = |name: &Value| name.as_str().map(str::to_owned).ok_or_else(wrong);
    list.as_array().ok_or_else(wrong)?.iter().map(name).collect()
}

pub(super) fn array<'v>(
    place: &SchemaPosition<'_>,
    said: Keywords<'v>,
    keyword: &str,
) -> Result<Option<&'v Vec<Value>>, String> {
    match said.get(keyword) {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(place.wrong(keyword, "an array")),
    }
}

pub(super) fn object<'v>(
    place: &SchemaPosition<'_>,
    said: Keywords<'v>,
    keyword: &str,
) -> Result<Option<&'v Map<String, Value>>, String> {
    match said.get(keyword) {
        None => Ok(None),
        Some(Value::Array(items)) if items.is_empty() => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(place.wrong(keyword, "an object")),
    }
}

/// Refuses a schema that applies itself to the same value, which would never end.
fn refuse_loops(nodes: &[Node]) -> Result<(), String> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; nodes.len()];
    let mut stack: Vec<NodeId> = (0..nodes.len()).collect();
    while let Some(&id) = stack.last() {
        if marks[id] != Mark::New {
            marks[id] = Mark::Done;
            stack.pop();
            continue;
        }
        marks[id] = Mark::Open;
        for next in nodes[id].in_place() {
            match marks[next] {
                Mark::New => stack.push(next),
                Mark::Open => return Err("a `$ref` in the schema refers to itself".to_owned()),
                Mark::Done => {}
            }
        }
    }
    Ok(())
}
