//! Texts as values: a parameter or a field of a form is a number or a list because its schema says so.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Number, Value};
use sigma_schema::openapi::{OpenApi, Part};
use sigma_schema::validation::{Reading, SchemaId, Schemas, Sender};

/// How deep values are that texts are made into: a list in a member of an object.
const MOST_LEVELS: usize = 2;

/// Most shapes of one document: members of members, where each schema is counted as often as it is referred to.
const MOST_SHAPES: usize = 500_000;

/// Schemas that are looked at for the types of one.
const MOST_SURVEYED: usize = 1_000;

/// How many texts of one request are tried as values of several types, and the steps for each: further texts
/// get the first type.
pub(super) const TRIALS: u32 = 1_000;
const TRIAL_STEPS: u64 = 100;

/// The possible types of a value by its schema.
#[derive(Debug)]
pub(super) struct Shape {
    /// The schema.
    pub(super) id: SchemaId,
    scalars: Scalars,
    items: Option<Box<Shape>>,
    members: Option<Box<Members>>,
}

/// The members of an object.
#[derive(Debug, Default)]
struct Members {
    properties: BTreeMap<String, Shape>,
    additional: Option<Shape>,
}

/// Types of values that are one text.
#[derive(Debug, Default, Clone, Copy)]
struct Scalars {
    number: bool,
    boolean: bool,
    null: bool,
    string: bool,
}

/// The types in several schemas for the same value.
#[derive(Default)]
struct Survey<'d> {
    scalars: Scalars,
    is_array: bool,
    is_object: bool,
    items: Option<Part<'d>>,
    properties: BTreeMap<&'d str, Part<'d>>,
    additional: Option<Part<'d>>,
    seen: HashSet<String>,
}

impl<'d> Survey<'d> {
    fn look(&mut self, document: &'d OpenApi, schema: Part<'d>) -> Result<(), String> {
        let mut left = vec![schema];
        while let Some(schema) = left.pop() {
            if self.seen.len() >= MOST_SURVEYED || !self.seen.insert(schema.pointer.clone()) {
                continue;
            }
            // From 3.1 on a reference may have company.
            if schema.text("$ref").is_some_and(|reference| reference.starts_with("#/")) {
                left.push(document.resolved(schema.clone())?);
            }
            for keyword in ["allOf", "anyOf", "oneOf"] {
                left.extend(schema.member(keyword).iter().flat_map(Part::elements));
            }
            left.extend(["then", "else"].iter().filter_map(|keyword| schema.member(keyword)));
            self.types(&schema);
            if let Some(items) = schema.member("items").filter(|items| items.value.is_object()) {
                self.items.get_or_insert(items);
            }
            for (name, property) in schema.member("properties").iter().flat_map(Part::members) {
                self.properties.entry(name).or_insert(property);
            }
            if let Some(additional) =
                schema.member("additionalProperties").filter(|part| part.value.is_object())
            {
                self.additional.get_or_insert(additional);
            }
        }
        Ok(())
    }

    fn types(&mut self, schema: &Part<'_>) {
        let has = |keywords: &[&str]| keywords.iter().any(|keyword| schema.value.get(*keyword).is_some());
        if schema.is("nullable") {
            self.scalars.null = true;
        }
        match schema.value.get("type") {
            Some(Value::String(name)) => self.named(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.named(name))
            }
            // The keywords define the type.
            _ => {
                self.is_object |= has(&["properties", "additionalProperties"]);
                self.is_array |= has(&["items", "prefixItems"]);
                self.scalars.number |=
                    has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]);
                self.scalars.string |= has(&["minLength", "maxLength", "pattern", "format"]);
                let values = schema.value.get("enum").and_then(Value::as_array).into_iter().flatten();
                for value in values.chain(schema.value.get("const")) {
                    self.named(match value {
                        Value::Null => "null",
                        Value::Bool(_) => "boolean",
                        Value::Number(_) => "number",
                        Value::String(_) => "string",
                        Value::Array(_) => "array",
                        Value::Object(_) => "object",
                    });
                }
            }
        }
    }

    fn named(&mut self, name: &str) {
        match name {
            "integer" | "number" => self.scalars.number = true,
            "boolean" => self.scalars.boolean = true,
            "null" => self.scalars.null = true,
            "string" => self.scalars.string = true,
            "array" => self.is_array = true,
            "object" => self.is_object = true,
            _ => {}
        }
    }
}

/// A document that is being read.
pub(super) struct Source<'d> {
    pub(super) document: &'d OpenApi,
    pub(super) reading: Reading<'d>,
    /// How many shapes there may still be.
    left: usize,
}

impl<'d> Source<'d> {
    /// Begins with what messages of a sender have to be like.
    pub(super) fn new(document: &'d OpenApi, sender: Sender) -> Source<'d> {
        let reading = Reading::new(document.root().value, document.dialect(sender));
        Source { document, reading, left: MOST_SHAPES }
    }
}

impl Shape {
    /// That of a schema of a document.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the schema cannot be read.
    pub(super) fn of(source: &mut Source<'_>, schema: Part<'_>) -> Result<Shape, String> {
        Shape::within(source, &schema.pointer, MOST_LEVELS)
    }

    fn within(source: &mut Source<'_>, pointer: &str, levels: usize) -> Result<Shape, String> {
        source.left = source.left.checked_sub(1).ok_or("forms and parameters have too many members")?;
        let id = source.reading.schema(pointer)?;
        let document = source.document;
        let Some(value) = document.root().value.pointer(pointer) else {
            return Err(format!("no schema at `{pointer}`"));
        };
        let mut survey = Survey::default();
        survey.look(document, Part { pointer: pointer.to_owned(), value })?;
        let Some(levels) = levels.checked_sub(1) else {
            return Ok(Shape { id, scalars: survey.scalars, items: None, members: None });
        };
        let mut inner = |part: &Part<'_>| Shape::within(source, &part.pointer, levels);
        let items = survey.items.as_ref().filter(|_| survey.is_array).map(&mut inner).transpose()?;
        // Without their own schema, items are texts.
        let items = match items {
            None if survey.is_array => {
                Some(Shape { id, scalars: Scalars::default(), items: None, members: None })
            }
            items => items,
        };
        let mut members = None;
        if survey.is_object {
            let mut found = Members::default();
            for (name, property) in &survey.properties {
                found.properties.insert((*name).to_owned(), inner(property)?);
            }
            found.additional = survey.additional.as_ref().map(&mut inner).transpose()?;
            members = Some(Box::new(found));
        }
        Ok(Shape { id, scalars: survey.scalars, items: items.map(Box::new), members })
    }

    /// Whether it may be a list.
    pub(super) fn is_list(&self) -> bool {
        self.items.is_some()
    }

    /// The shape of its items, if it is nothing but a list.
    pub(super) fn item(&self) -> Option<&Shape> {
        self.items.as_deref().filter(|_| !self.is_scalar())
    }

    /// Whether it may be an object.
    pub(super) fn is_object(&self) -> bool {
        self.members.is_some()
    }

    /// Whether it may be one text.
    pub(super) fn is_scalar(&self) -> bool {
        let Scalars { number, boolean, null, string } = self.scalars;
        number || boolean || null || string || (self.items.is_none() && self.members.is_none())
    }

    /// Whether the schema names a member.
    pub(super) fn has_member(&self, name: &str) -> bool {
        self.members.as_ref().is_some_and(|members| members.properties.contains_key(name))
    }

    /// The shape of a member, if the schema says something of it.
    pub(super) fn member(&self, name: &str) -> Option<&Shape> {
        let members = self.members.as_ref()?;
        members.properties.get(name).or(members.additional.as_ref())
    }
}

/// Makes values of the texts of one request.
pub(super) struct Texts<'s> {
    pub(super) schemas: &'s Schemas,
    /// How many may still be tried; see [`TRIALS`].
    pub(super) trials: Cell<u32>,
}

impl<'s> Texts<'s> {
    pub(super) fn new(schemas: &'s Schemas) -> Texts<'s> {
        Texts { schemas, trials: Cell::new(TRIALS) }
    }

    /// One text: of the types that the schema takes, the first one by which the schema is satisfied.
    pub(super) fn scalar(&self, shape: Option<&Shape>, text: &str) -> Value {
        let as_text = || Value::String(text.to_owned());
        let Some(shape) = shape else { return as_text() };
        let Scalars { number, boolean, null, string } = shape.scalars;
        let mut candidates = Vec::new();
        candidates.extend(number.then(|| self::number(text)).flatten());
        match text {
            "true" | "false" if boolean => candidates.push(Value::Bool(text == "true")),
            "null" if null => candidates.push(Value::Null),
            _ => {}
        }
        // A text of another type is refused as a text.
        if string || candidates.is_empty() {
            candidates.push(as_text());
        }
        if candidates.len() == 1 {
            return candidates.remove(0);
        }
        let trials = self.trials.get();
        let fits = |value: &Value| self.schemas.check_of_stranger(shape.id, value, TRIAL_STEPS).is_ok();
        let at = match trials.checked_sub(1) {
            Some(left) => {
                self.trials.set(left);
                candidates.iter().position(fits).unwrap_or(0)
            }
            None => 0,
        };
        candidates.swap_remove(at)
    }

    /// Texts as a list.
    pub(super) fn list<'t>(&self, shape: &Shape, texts: impl Iterator<Item = &'t str>) -> Value {
        texts.map(|text| self.scalar(shape.items.as_deref(), text)).collect()
    }

    /// Texts with names as an object.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if a name appears twice.
    pub(super) fn object<'t>(
        &self,
        shape: &Shape,
        pairs: impl Iterator<Item = (&'t str, &'t str)>,
    ) -> Result<Value, String> {
        let mut members = Map::new();
        for (name, text) in pairs {
            let value = self.scalar(shape.member(name), text);
            if members.insert(name.to_owned(), value).is_some() {
                return Err(format!("the property {name} occurs more than once"));
            }
        }
        Ok(Value::Object(members))
    }

    /// Texts of one name: one where the schema takes one, and otherwise a list.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there are several and no list is meant: readers differ in which one
    /// they take.
    pub(super) fn repeated(&self, shape: Option<&Shape>, texts: &[&str]) -> Result<Value, String> {
        match (shape, texts) {
            (Some(shape), [one]) if shape.is_list() && shape.is_scalar() => {
                let value = self.scalar(Some(shape), one);
                let fits = self.schemas.check_of_stranger(shape.id, &value, TRIAL_STEPS).is_ok();
                Ok(if fits { value } else { self.list(shape, texts.iter().copied()) })
            }
            (Some(shape), _) if shape.is_list() => Ok(self.list(shape, texts.iter().copied())),
            (shape, [one]) => Ok(self.scalar(shape, one)),
            _ => Err("it occurs more than once".to_owned()),
        }
    }
}

/// A number as JSON writes it.
fn number(text: &str) -> Option<Value> {
    // A reader of JSON lets spaces stand around it.
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    is_plain.then(|| serde_json::from_str::<Number>(text).ok()).flatten().map(Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the value of a text by a schema, as one text and as one of several.
    fn read(schema: &Value, texts: &[&str]) -> Result<Value, String> {
        let document = json!({"openapi": "3.1.0", "s": schema, "int": {"type": "integer"}});
        let document = OpenApi::of(document).unwrap();
        let mut source = Source::new(&document, Sender::Client);
        let part = Part { pointer: "/s".to_owned(), value: schema };
        let shape = Shape::of(&mut source, part).unwrap();
        let schemas = source.reading.finish().unwrap();
        Texts::new(&schemas).repeated(Some(&shape), texts)
    }

    #[test]
    fn texts_are_what_their_schemas_say() {
        let check = |schema: Value, texts: &[&str], expected: Value| {
            assert_eq!(read(&schema, texts), Ok(expected), "{schema} {texts:?}");
        };
        check(json!({"type": "integer"}), &["7"], json!(7));
        check(json!({"$ref": "#/int"}), &["-7e1"], json!(-70.0));
        for text in ["07", "+7", " 7", "0x7", "7_000", "1e999", "NaN", "", "7a"] {
            check(json!({"type": "integer"}), &[text], json!(text));
        }
        check(json!({"type": "string"}), &["7"], json!("7"));
        check(json!({}), &["7"], json!("7"));
        check(json!({"minimum": 5}), &["3"], json!(3));
        check(json!({"enum": [1, "a"]}), &["1"], json!(1));
        check(json!({"enum": [1, "a"]}), &["a"], json!("a"));
        check(json!({"type": "boolean"}), &["true"], json!(true));
        check(json!({"type": "boolean"}), &["TRUE"], json!("TRUE"));
        check(json!({"type": ["integer", "null"]}), &["null"], Value::Null);
        let either =
            json!({"anyOf": [{"type": "integer", "maximum": 5}, {"type": "string", "maxLength": 2}]});
        check(either.clone(), &["4"], json!(4));
        check(either.clone(), &["44"], json!("44"));
        check(either, &["444"], json!(444));
        let list = json!({"type": "array", "items": {"$ref": "#/int"}});
        check(list.clone(), &["1"], json!([1]));
        check(list, &["1", "b"], json!([1, "b"]));
        let list_or_one = json!({"oneOf": [{"type": "string", "maxLength": 1}, {"type": "array", "items": {"type": "string"}}]});
        check(list_or_one.clone(), &["a"], json!("a"));
        check(list_or_one, &["ab"], json!(["ab"]));
        // Schemas that refer to themselves end.
        let own = json!({"type": "object", "properties": {"a": {"$ref": "#/s"}, "b": {"$ref": "#/s"}}});
        check(own, &["x"], json!("x"));
        let twice = Err("it occurs more than once".to_owned());
        assert_eq!(read(&json!({"type": "integer"}), &["1", "2"]), twice);
        assert_eq!(read(&json!({}), &["1", "2"]), twice);
    }
}
