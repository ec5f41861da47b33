//! A compiled schema: nodes that refer to each other by index, so that a schema may contain itself.

use std::collections::BTreeMap;

use serde_json::{Number, Value};

use super::format::Format;
use super::pcre::Pattern;

pub(super) type NodeId = usize;

/// One schema. An absent keyword costs one comparison.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The schema `false`.
    pub(super) never: bool,
    /// The schema `true` or `false`, which has no keywords.
    pub(super) boolean: bool,
    pub(super) types: Types,
    pub(super) rules: TypeRules,
    pub(super) enumeration: Option<Vec<Value>>,
    pub(super) combined: Combinators,
    pub(super) unevaluated: Option<Box<Unevaluated>>,
    pub(super) format: Option<Format>,
    pub(super) constant: Option<Box<Value>>,
    pub(super) default: Option<Box<Value>>,
    /// Why a field with this schema has no effect, if it is accepted for compatibility only.
    pub(super) inert: Option<String>,
}

impl Node {
    /// Returns the schemas that apply to the same value as this one.
    pub(super) fn in_place(&self) -> Vec<NodeId> {
        let mut ids = self.combined.in_place();
        if let Some(object) = &self.rules.object {
            let all = object.properties.iter().filter_map(|property| property.dependency.as_ref());
            for dependency in all.chain(object.dependencies.iter().map(|(_, dependency)| dependency)) {
                if let Dependency::Schema(id) = dependency {
                    ids.push(*id);
                }
            }
        }
        ids
    }
}

/// The keywords for values of one type.
#[derive(Debug, Default)]
pub(super) struct TypeRules {
    pub(super) object: Option<Box<ObjectRules>>,
    pub(super) array: Option<Box<ArrayRules>>,
    pub(super) string: Option<Box<StringRules>>,
    pub(super) number: Option<Box<NumberRules>>,
}

/// The keywords that combine other schemas for the same value.
#[derive(Debug, Default)]
pub(super) struct Combinators {
    pub(super) all_of: Vec<NodeId>,
    pub(super) any_of: Option<AnyOf>,
    pub(super) one_of: Vec<NodeId>,
    pub(super) condition: Option<Condition>,
    pub(super) discriminator: Option<Box<Discriminator>>,
    pub(super) not: Option<NodeId>,
}

impl Combinators {
    /// Returns the combined schemas.
    fn in_place(&self) -> Vec<NodeId> {
        let mut ids = self.all_of.clone();
        ids.extend(self.any_of.iter().flat_map(|any| &any.branches));
        ids.extend(&self.one_of);
        ids.extend(self.not);
        ids.extend(self.discriminator.iter().flat_map(|choice| choice.branches.values()));
        if let Some(condition) = &self.condition {
            ids.push(condition.test);
            ids.extend(condition.then);
            ids.extend(condition.otherwise);
        }
        ids
    }
}

/// The keyword `type`.
#[derive(Debug, Default)]
pub(super) enum Types {
    #[default]
    Any,
    One(JsonType),
    Several(Vec<JsonType>),
}

/// A type name in `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonType {
    Object,
    Array,
    /// Object or array, a type name that APISIX adds.
    Table,
    String,
    Number,
    Integer,
    Boolean,
    Null,
}

impl JsonType {
    const ALL: [JsonType; 8] = [
        JsonType::Object,
        JsonType::Array,
        JsonType::Table,
        JsonType::String,
        JsonType::Number,
        JsonType::Integer,
        JsonType::Boolean,
        JsonType::Null,
    ];

    pub(super) fn parse(name: &str) -> Option<JsonType> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            JsonType::Object => "object",
            JsonType::Array => "array",
            JsonType::Table => "table",
            JsonType::String => "string",
            JsonType::Number => "number",
            JsonType::Integer => "integer",
            JsonType::Boolean => "boolean",
            JsonType::Null => "null",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ObjectRules {
    pub(super) properties: Vec<Property>,
    /// Required names that are not in `properties`.
    pub(super) required: Vec<String>,
    /// Dependencies of names that are not in `properties`.
    pub(super) dependencies: Vec<(String, Dependency)>,
    pub(super) patterns: Vec<(Pattern, NodeId)>,
    pub(super) additional: Additional,
    pub(super) names: Option<NodeId>,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Property {
    pub(super) name: String,
    pub(super) node: NodeId,
    pub(super) required: bool,
    pub(super) dependency: Option<Dependency>,
    /// Why it is refused, if only the other side may send it.
    pub(super) barred: Option<&'static str>,
}

/// The requirement that follows from the presence of a property.
#[derive(Debug)]
pub(super) enum Dependency {
    Names(Vec<String>),
    Schema(NodeId),
}

/// The schema of values other than the named properties or the described items.
#[derive(Debug, Default)]
pub(super) enum Additional {
    /// The keyword is absent: every member is valid, but may have no effect.
    #[default]
    Unsaid,
    Anything,
    Nothing,
    Schema(NodeId),
}

#[derive(Debug, Default)]
pub(super) struct ArrayRules {
    pub(super) items: Items,
    pub(super) contains: Option<Contains>,
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
    pub(super) unique: bool,
}

/// The number of items that must match a schema.
#[derive(Debug)]
pub(super) struct Contains {
    pub(super) node: NodeId,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) enum Items {
    #[default]
    Anything,
    Each(NodeId),
    Tuple(Vec<NodeId>, Additional),
}

#[derive(Debug, Default)]
pub(super) struct StringRules {
    pub(super) min: Option<u64>,
    pub(super) max: Option<u64>,
    pub(super) pattern: Option<Pattern>,
}

#[derive(Debug, Default)]
pub(super) struct NumberRules {
    pub(super) min: Option<Number>,
    pub(super) max: Option<Number>,
    pub(super) above: Option<Number>,
    pub(super) below: Option<Number>,
    pub(super) multiple_of: Option<Number>,
}

#[derive(Debug)]
pub(super) struct AnyOf {
    pub(super) branches: Vec<NodeId>,
    /// The failure text, which lists the required fields of each branch.
    pub(super) failure: String,
}

/// The choice of a branch by a text property (OpenAPI).
#[derive(Debug)]
pub(super) struct Discriminator {
    pub(super) property: String,
    pub(super) branches: BTreeMap<String, NodeId>,
}

/// The schema of members that no other keyword of the schema evaluates.
#[derive(Debug)]
pub(super) struct Unevaluated {
    pub(super) properties: Option<NodeId>,
    pub(super) items: Option<NodeId>,
}

#[derive(Debug)]
pub(super) struct Condition {
    pub(super) test: NodeId,
    pub(super) then: Option<NodeId>,
    pub(super) otherwise: Option<NodeId>,
}
