//! A compiled schema: nodes that refer to each other by index, so that a schema may contain itself.

use std::collections::BTreeMap;

use serde_json::{Number, Value};

use super::format::Format;
use super::pcre::Pattern;

pub(super) type NodeId = usize;

/// One schema. Keywords that it does not have cost a comparison.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// `false` as a schema.
    pub(super) never: bool,
    /// `true` or `false` as a schema, which has no type that could be unspecified.
    pub(super) boolean: bool,
    pub(super) types: Types,
    pub(super) object: Option<Box<ObjectRules>>,
    pub(super) array: Option<Box<ArrayRules>>,
    pub(super) string: Option<Box<StringRules>>,
    pub(super) number: Option<Box<NumberRules>>,
    pub(super) enumeration: Option<Vec<Value>>,
    pub(super) all_of: Vec<NodeId>,
    pub(super) any_of: Option<AnyOf>,
    pub(super) one_of: Vec<NodeId>,
    pub(super) condition: Option<Condition>,
    pub(super) discriminator: Option<Box<Discriminator>>,
    pub(super) unevaluated: Option<Box<Unevaluated>>,
    pub(super) not: Option<NodeId>,
    pub(super) format: Option<Format>,
    pub(super) constant: Option<Box<Value>>,
    pub(super) default: Option<Box<Value>>,
    /// Why a field with this schema does nothing, if it is taken for compatibility only.
    pub(super) inert: Option<String>,
}

impl Node {
    /// The schemas that are applied to the same value as this one.
    pub(super) fn in_place(&self) -> Vec<NodeId> {
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
        if let Some(object) = &self.object {
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

/// The keyword `type`.
#[derive(Debug, Default)]
pub(super) enum Types {
    #[default]
    Any,
    One(JsonType),
    Several(Vec<JsonType>),
}

/// A name that `type` may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonType {
    Object,
    Array,
    /// Object or array: a name that APISIX adds to the standard ones.
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
    /// Required names that `properties` does not have.
    pub(super) required: Vec<String>,
    /// Dependencies of names that `properties` does not have.
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
    /// Why it must not be there, if only the other side may send it.
    pub(super) barred: Option<&'static str>,
}

/// The demands that the presence of a property makes.
#[derive(Debug)]
pub(super) enum Dependency {
    Names(Vec<String>),
    Schema(NodeId),
}

/// The values that may stand beside the named properties, or behind the described items.
#[derive(Debug, Default)]
pub(super) enum Additional {
    /// The schema is silent: anything passes, but nobody is said to read it.
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

/// How many items are of a schema.
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
    /// The text of a failure, which lists what the branches require.
    pub(super) failure: String,
}

/// Which branch a value is of, by the text of a property (OpenAPI).
#[derive(Debug)]
pub(super) struct Discriminator {
    pub(super) property: String,
    pub(super) branches: BTreeMap<String, NodeId>,
}

/// What may stand in a value that no other part of its schema has looked at.
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
