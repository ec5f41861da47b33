//! Costs of GraphQL fields, for the plugin `graphql-limit-count`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::optional::Unset;

/// GraphQL names joined by dots.
const PATH_PATTERN: &str = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$";

/// The cost of the fields at one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decoration {
    /// The fields: `Type` means every field that returns it, or the operation of a root type; `Type.field` that field;
    /// `Type.field.field` the last field in exactly this chain.
    pub field_path: FieldPath,
    /// The cost that the field adds; 1 unless a shorter path sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub add_value: Option<f64>,
    /// Arguments whose values are added as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ArgumentName>>")]
    pub add_arguments: Option<Vec<Box<str>>>,
    /// The factor for the cost inside the field; 1 unless a shorter path sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub mul_value: Option<f64>,
    /// Arguments whose values multiply that cost as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ArgumentName>>")]
    pub mul_arguments: Option<Vec<Box<str>>>,
}

/// The schema of a non-empty name.
struct ArgumentName;

impl JsonSchema for ArgumentName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ArgumentName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "minLength": 1})
    }
}

impl Decoration {
    /// Reads a decoration from the store, below its service.
    ///
    /// # Errors
    /// Returns a sentence if it is invalid.
    pub fn of_record(value: &Value) -> Result<Decoration, String> {
        let members = value.as_object().ok_or("it is not an object")?;
        let told = ["field_path", "add_value", "add_arguments", "mul_value", "mul_arguments"];
        let told: Map<String, Value> =
            told.iter().filter_map(|name| Some(((*name).to_owned(), members.get(*name)?.clone()))).collect();
        let read = Decoration::deserialize(Value::Object(told)).map_err(|error| error.to_string())?;
        read.check().map(|()| read)
    }

    fn check(&self) -> Result<(), String> {
        let is_amount = |value: &Option<f64>| value.is_none_or(|value| value.is_finite() && value >= 0.0);
        match is_amount(&self.add_value) && is_amount(&self.mul_value) {
            true => Ok(()),
            false => Err("add_value and mul_value are numbers from 0 on".to_owned()),
        }
    }
}

/// At least one name, joined by dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(Box<[Box<str>]>);

impl FieldPath {
    /// Returns the names.
    #[must_use]
    pub fn names(&self) -> &[Box<str>] {
        &self.0
    }

    fn last(&self) -> &str {
        // The source text is never empty.
        self.0.last().map_or("", |name| &**name)
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.join(".").serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FieldPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let is_first = |b: u8| b.is_ascii_alphabetic() || b == b'_';
        let is_name = |name: &str| {
            name.bytes().next().is_some_and(is_first)
                && name.bytes().all(|b| is_first(b) || b.is_ascii_digit())
        };
        if !text.split('.').all(is_name) {
            let reason = format!("`{text}` is not a path of names such as Query.users");
            return Err(serde::de::Error::custom(reason));
        }
        Ok(FieldPath(text.split('.').map(Into::into).collect()))
    }
}

impl JsonSchema for FieldPath {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FieldPath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": PATH_PATTERN})
    }
}

/// The decorations of a service: its own, and those that the store has below it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decorations {
    own: Vec<Decoration>,
    /// All decorations, by the last name of their paths, shorter paths first.
    sorted: Vec<Decoration>,
    /// Whether the store has an invalid one, so that costs are unknown.
    is_partial: bool,
}

impl Unset for Decorations {
    const UNSET: &'static Self = &Decorations { own: Vec::new(), sorted: Vec::new(), is_partial: false };
}

impl Decorations {
    /// Replaces the decorations that the store has below the service. None is an invalid one.
    pub fn set_below(&mut self, below: impl IntoIterator<Item = Option<Decoration>>) {
        self.sorted.clone_from(&self.own);
        self.is_partial = false;
        for one in below {
            self.is_partial |= one.is_none();
            self.sorted.extend(one);
        }
        let order = |one: &Decoration| (one.field_path.last().to_owned(), one.field_path.names().len());
        self.sorted.sort_by_cached_key(order);
    }

    /// Returns whether there are no decorations, not even an invalid one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty() && !self.is_partial
    }

    /// Returns whether one is invalid. The cost of a query is then unknown, and the query must not count as cheap.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns the decorations whose paths end with this name, shorter paths first.
    pub fn ending_in<'d>(&'d self, name: &'d str) -> impl Iterator<Item = &'d Decoration> {
        let first = self.sorted.partition_point(|one| one.field_path.last() < name);
        self.sorted[first..].iter().take_while(move |one| one.field_path.last() == name)
    }
}

impl Serialize for Decorations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.own.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Decorations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let own = Vec::<Decoration>::deserialize(deserializer)?;
        for (at, one) in own.iter().enumerate() {
            one.check().map_err(serde::de::Error::custom)?;
            if own[..at].iter().any(|other| other.field_path == one.field_path) {
                let path = one.field_path.names().join(".");
                return Err(serde::de::Error::custom(format!("field_path {path} is decorated twice")));
            }
        }
        let mut all = Decorations { own, ..Decorations::default() };
        all.set_below([]);
        Ok(all)
    }
}

impl JsonSchema for Decorations {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Decorations".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Vec::<Decoration>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn decorations_are_found_by_the_last_name() {
        let written = json!([
            {"field_path": "Query.a.b", "add_value": 1.0}, {"field_path": "b"},
            {"field_path": "T.b", "mul_arguments": ["n"]}, {"field_path": "T.c"},
        ]);
        let mut all = Decorations::deserialize(&written).unwrap();
        assert_eq!(serde_json::to_value(&all).unwrap(), written);
        let found = |all: &Decorations, name: &str| -> Vec<String> {
            all.ending_in(name).map(|one| one.field_path.names().join(".")).collect()
        };
        assert_eq!(found(&all, "b"), ["b", "T.b", "Query.a.b"]);
        let record = json!({"id": "1", "service_id": "s", "field_path": "U.b", "create_time": 1});
        all.set_below([Some(Decoration::of_record(&record).unwrap())]);
        assert_eq!(found(&all, "b"), ["b", "T.b", "U.b", "Query.a.b"]);
        all.set_below([]);
        assert_eq!(found(&all, "b").len(), 3);
        assert!(found(&all, "a").is_empty() && found(&all, "z").is_empty());
        assert!(!all.is_partial() && Decorations::default().is_empty());
        let mut none = Decorations::default();
        none.set_below([None]);
        assert!(none.is_partial() && !none.is_empty());
        none.set_below([]);
        assert!(none.is_empty());
    }

    #[test]
    fn invalid_decorations_are_refused() {
        let check = |value: Value, expected: &str| {
            let error = Decoration::of_record(&value).unwrap_err();
            assert!(error.contains(expected), "{value}: {error}");
        };
        check(json!([]), "it is not an object");
        check(json!({}), "missing field `field_path`");
        check(json!({"field_path": "a..b"}), "`a..b` is not a path of names");
        check(json!({"field_path": "a.1"}), "`a.1` is not a path of names");
        check(json!({"field_path": ""}), "`` is not a path of names");
        check(json!({"field_path": "a", "add_value": -1}), "numbers from 0 on");
        let twice = json!([{"field_path": "a"}, {"field_path": "a"}]);
        let error = Decorations::deserialize(&twice).unwrap_err().to_string();
        assert_eq!(error, "field_path a is decorated twice");
    }
}
