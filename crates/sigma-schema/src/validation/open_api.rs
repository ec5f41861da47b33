//! Keywords of OpenAPI schemas that draft 7 does not have.

use std::collections::BTreeMap;

use serde_json::{Number, Value};

use super::compile::{Compiler, Keywords, SchemaPosition, array, object};
use super::dialect::{Dialect, Sender};
use super::node::{Discriminator, JsonType, Node, NodeId, NumberRules, Types};

/// Maximum number of references that are followed for a keyword of a property.
const MOST_HOPS: usize = 32;

impl<'a> Compiler<'a> {
    /// A schema of OpenAPI.
    pub(super) fn open_api_node(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
    ) -> Result<Node, String> {
        if said.has("$id") {
            return Err(format!("schema at `{}/$id` changes what `$ref` means, remove it", place.pointer()));
        }
        let Dialect::OpenApi { is_3_1, .. } = self.dialect else { return self.plain_node(place, said) };
        let mut node = self.plain_node(place, said)?;
        let references = ["$ref", "$dynamicRef"].into_iter().filter_map(|name| said.get(name)?.as_str());
        for reference in references {
            let id = self.reference(place, reference)?;
            node.combined.all_of.push(id);
        }
        if !is_3_1 && said.get("nullable") == Some(&Value::Bool(true)) {
            node.types = match std::mem::take(&mut node.types) {
                Types::One(kind) => Types::Several(vec![kind, JsonType::Null]),
                other => other,
            };
        }
        bound(&mut node, said.get("format").and_then(Value::as_str));
        if said.has("discriminator") {
            self.discriminate(place, said, &mut node)?;
        }
        Ok(node)
    }

    /// Returns why this side must not send a property, or None if it may.
    pub(super) fn barred(&self, schema: &Value) -> Option<&'static str> {
        let Dialect::OpenApi { sender, .. } = self.dialect else { return None };
        let (keyword, reason) = match sender {
            Sender::Client => ("readOnly", "is read-only"),
            Sender::Node => ("writeOnly", "is write-only"),
        };
        let mut schema = schema;
        for _ in 0..MOST_HOPS {
            let reference = schema.get("$ref").and_then(Value::as_str);
            let says = schema.get(keyword) == Some(&Value::Bool(true));
            if says && (reference.is_none() || self.dialect.reference_alone(schema).is_none()) {
                return Some(reason);
            }
            schema = self.document.pointer(reference?.strip_prefix('#')?)?;
        }
        None
    }

    /// Has the discriminator choose among the branches of `oneOf` or `anyOf`. Without branches it only lists
    /// schemas that extend this one, and has no effect on values.
    fn discriminate(
        &mut self,
        place: &SchemaPosition<'_>,
        said: Keywords<'a>,
        node: &mut Node,
    ) -> Result<(), String> {
        let at = place.child("discriminator");
        let Some(Value::Object(named)) = said.get("discriminator") else {
            return Err(place.wrong("discriminator", "an object"));
        };
        let named = Keywords(named);
        let property = named.get("propertyName").and_then(Value::as_str);
        let property = property.ok_or_else(|| at.wrong("propertyName", "a string"))?;
        let keyword = if said.has("oneOf") { "oneOf" } else { "anyOf" };
        let Some(schemas) = array(place, said, keyword)? else { return Ok(()) };
        let ids = match keyword {
            "oneOf" => std::mem::take(&mut node.combined.one_of),
            _ => node.combined.any_of.take().map(|any| any.branches).unwrap_or_default(),
        };
        let mut branches: BTreeMap<String, NodeId> = BTreeMap::new();
        for (schema, id) in schemas.iter().zip(ids) {
            let reference = schema.get("$ref").and_then(Value::as_str);
            let reference = reference
                .ok_or_else(|| at.wrong("propertyName", "used with branches that are references"))?;
            branches.insert(reference.rsplit('/').next().unwrap_or_default().to_owned(), id);
        }
        for (name, target) in object(&at, named, "mapping")?.into_iter().flatten() {
            let target = target.as_str().ok_or_else(|| at.wrong("mapping", "an object of strings"))?;
            // The name of a component, or a reference.
            let id = match target.starts_with('#') {
                true => self.reference(&at, target)?,
                false => self.reference(&at, &format!("#/components/schemas/{target}"))?,
            };
            branches.insert(name.clone(), id);
        }
        node.combined.discriminator =
            Some(Box::new(Discriminator { property: property.to_owned(), branches }));
        Ok(())
    }
}

/// Adds the bounds of an integer format.
fn bound(node: &mut Node, format: Option<&str>) {
    let (min, max): (Number, Number) = match format {
        Some("int32") => (i32::MIN.into(), i32::MAX.into()),
        Some("int64") => (i64::MIN.into(), i64::MAX.into()),
        _ => return,
    };
    let rules = node.rules.number.get_or_insert_with(|| Box::new(NumberRules::default()));
    // A bound that the schema itself has stays.
    rules.min.get_or_insert(min);
    rules.max.get_or_insert(max);
}
