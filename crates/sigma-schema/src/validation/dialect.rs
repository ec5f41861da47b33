//! The differences between OpenAPI schemas and draft 7: 3.0 has its own keywords, 3.1 has draft 2020-12.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::format::Format;

/// The meaning of the keywords of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Drafts 4 to 7 of JSON Schema.
    Draft7,
    /// The schemas of an OpenAPI document.
    OpenApi {
        /// True for version 3.1, where schemas are draft 2020-12; false for 3.0.
        is_3_1: bool,
        /// The sender of the values.
        sender: Sender,
    },
}

/// The sender of a value. Some properties are allowed from one side only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The client sends a request, without `readOnly` properties.
    Client,
    /// The node sends a response, without `writeOnly` properties.
    Node,
}

/// Keywords that do not restrict values.
const ANNOTATIONS: [&str; 9] = [
    "$comment",
    "title",
    "summary",
    "description",
    "deprecated",
    "example",
    "examples",
    "externalDocs",
    "default",
];

/// A format that only OpenAPI has, or that OpenAPI defines for texts.
const BYTE: Format = Format { name: "byte", holds: |text| STANDARD.decode(text).is_ok() };

impl Dialect {
    /// Returns the reference of a schema that consists of it alone. Up to 3.0 the keywords next to `$ref` are ignored.
    pub(super) fn reference_alone(self, schema: &Value) -> Option<&str> {
        let map = schema.as_object()?;
        let reference = map.get("$ref")?.as_str()?;
        let is_alone = || map.keys().all(|name| name == "$ref" || ANNOTATIONS.contains(&name.as_str()));
        match self {
            Dialect::OpenApi { is_3_1: true, .. } if !is_alone() => None,
            _ => Some(reference),
        }
    }

    pub(super) fn format(self, name: Option<&str>) -> Option<Format> {
        match (self, name?) {
            (Dialect::OpenApi { .. }, "byte") => Some(BYTE),
            // Other schemas do not have the formats of Sigma's own schemas.
            (Dialect::OpenApi { .. }, name) => Format::of_standard(name),
            (Dialect::Draft7, name) => Format::parse(name),
        }
    }
}

/// The named schemas of a document: `$anchor` and `$dynamicAnchor`. A document is one resource, so both have the same
/// effect.
#[derive(Debug)]
pub(super) struct Anchors(HashMap<String, Option<String>>);

impl Anchors {
    pub(super) fn of(document: &Value) -> Anchors {
        let mut found = HashMap::new();
        let mut left = vec![(String::new(), document)];
        while let Some((pointer, value)) = left.pop() {
            let part = |name: &str| format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            match value {
                Value::Object(members) => {
                    for name in ["$anchor", "$dynamicAnchor"] {
                        let Some(Value::String(anchor)) = members.get(name) else { continue };
                        let is_new = !found.contains_key(anchor);
                        found.insert(anchor.clone(), is_new.then(|| pointer.clone()));
                    }
                    left.extend(members.iter().map(|(name, value)| (part(name), value)));
                }
                Value::Array(items) => {
                    left.extend(items.iter().enumerate().map(|(at, value)| (part(&at.to_string()), value)));
                }
                _ => {}
            }
        }
        Anchors(found)
    }

    /// Returns the pointer of a name, or why it cannot be resolved.
    pub(super) fn find(&self, name: &str) -> Result<&str, &'static str> {
        match self.0.get(name) {
            Some(Some(pointer)) => Ok(pointer),
            Some(None) => Err("occurs several times"),
            None => Err("leads nowhere"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::super::Reading;
    use super::*;

    const V3_0: Dialect = Dialect::OpenApi { is_3_1: false, sender: Sender::Client };
    const V3_1: Dialect = Dialect::OpenApi { is_3_1: true, sender: Sender::Client };

    /// Checks a value against the schema at `/s` of a document. Returns the failure; empty if it matches.
    fn outcome(document: &Value, dialect: Dialect, value: &Value) -> String {
        let mut reading = Reading::new(document, dialect);
        let read = reading.schema("/s").and_then(|id| Ok((id, reading.finish()?)));
        match read {
            Ok((id, schemas)) => schemas.check_of_stranger(id, value, 10_000).err().unwrap_or_default(),
            Err(error) => error,
        }
    }

    #[track_caller]
    fn check(document: &Value, dialect: Dialect, value: Value, expected: &str) {
        assert_eq!(outcome(document, dialect, &value), expected, "{document} {value}");
    }

    #[test]
    fn keywords_of_open_api_3_0() {
        let nullable = json!({"s": {"type": "string", "nullable": true}});
        check(&nullable, V3_0, json!(null), "");
        check(&nullable, V3_0, json!(1), "wrong type: expected one of string, null, got number");
        check(&nullable, V3_1, json!(null), "wrong type: expected string, got userdata");
        let above = json!({"s": {"minimum": 1, "exclusiveMinimum": true}});
        check(&above, V3_0, json!(1), "expected 1 to be greater than 1");
        check(&above, V3_0, json!(2), "");
        // The keywords next to a reference are ignored up to 3.0 and apply from 3.1 on.
        let beside = json!({"s": {"$ref": "#/t", "maxLength": 1}, "t": {"type": "string"}});
        check(&beside, V3_0, json!("ab"), "");
        check(&beside, V3_1, json!("ab"), "string too long, expected at most 1, got 2");
        check(&beside, V3_1, json!(1), "allOf 1 failed: wrong type: expected string, got number");
        let described = json!({"s": {"$ref": "#/t", "description": "x"}, "t": {"type": "string"}});
        check(&described, V3_1, json!(1), "wrong type: expected string, got number");
    }

    #[test]
    fn keywords_of_draft_2020_12() {
        let of = |schema: Value| json!({ "s": schema });
        let tuple = of(json!({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}));
        check(&tuple, V3_1, json!(["a", 1, 2]), "");
        check(
            &tuple,
            V3_1,
            json!(["a", "b"]),
            "failed to validate item 2: wrong type: expected integer, got string",
        );
        let closed = of(json!({"prefixItems": [{}], "items": false}));
        check(&closed, V3_1, json!([1, 2]), "expect array to have at most 1 items");
        let needs =
            of(json!({"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}}));
        check(&needs, V3_1, json!({"a": 1}), "property \"b\" is required when \"a\" is set");
        check(
            &needs,
            V3_1,
            json!({"c": 1}),
            "failed to validate dependent schema for \"c\": property \"d\" is required",
        );
        check(&needs, V3_1, json!({"a": 1, "b": 1, "c": 1, "d": 1}), "");
        let some = of(json!({"contains": {"type": "integer"}, "minContains": 2, "maxContains": 3}));
        check(&some, V3_1, json!([1, "a"]), "expect array to contain at least 2 items that match the schema");
        check(&some, V3_1, json!([1, "a", 2]), "");
        check(
            &some,
            V3_1,
            json!([1, 2, 3, 4]),
            "expect array to contain at most 3 items that match the schema",
        );
        check(&of(json!({"contains": false, "minContains": 0})), V3_1, json!([]), "");
        check(
            &of(json!({"type": ["string", "null"], "const": null})),
            V3_1,
            json!("a"),
            "failed to check const value",
        );
    }

    #[test]
    fn unevaluated_members_are_refused() {
        let schema = json!({"s": {
            "allOf": [{"$ref": "#/base"}],
            "properties": {"b": {}},
            "patternProperties": {"^x-": {}},
            "if": {"required": ["c"]}, "then": {"properties": {"c": {}}},
            "anyOf": [{"properties": {"d": {"type": "integer"}}, "required": ["d"]}, {}],
            "dependentSchemas": {"b": {"properties": {"e": {}}}},
            "unevaluatedProperties": false,
        }, "base": {"properties": {"a": {}}}});
        for fits in [json!({"a": 1, "b": 1, "x-y": 1, "c": 1, "d": 1, "e": 1}), json!({}), json!([1])] {
            check(&schema, V3_1, fits, "");
        }
        for (value, found) in [(json!({"z": 1}), "z"), (json!({"d": "x"}), "d"), (json!({"e": 1}), "e")] {
            let expected = format!("unevaluated properties forbidden, found {found}");
            check(&schema, V3_1, value, &expected);
        }
        let items = json!({"s": {
            "allOf": [{"prefixItems": [{}]}], "contains": {"const": 7}, "unevaluatedItems": {"type": "string"},
        }});
        check(&items, V3_1, json!([1, 7, "a"]), "");
        check(
            &items,
            V3_1,
            json!([1, 7, 8]),
            "failed to validate unevaluated item 3: wrong type: expected string, got number",
        );
        // An inner schema that closes itself has evaluated all members.
        let within = json!({"s": {"allOf": [{"unevaluatedProperties": {}}], "unevaluatedProperties": false}});
        check(&within, V3_1, json!({"a": 1}), "");
    }

    #[test]
    fn properties_of_one_side() {
        let schema = json!({
            "s": {"required": ["id", "name"], "properties": {"id": {"$ref": "#/id"}, "name": {}, "pin": {"writeOnly": true}}},
            "id": {"type": "integer", "readOnly": true},
        });
        check(&schema, V3_0, json!({"name": 1, "pin": 1}), "");
        check(&schema, V3_0, json!({"name": 1, "id": 1}), "property \"id\" is read-only");
        let answers = Dialect::OpenApi { is_3_1: false, sender: Sender::Node };
        check(&schema, answers, json!({"name": 1, "id": 1}), "");
        check(&schema, answers, json!({"name": 1}), "property \"id\" is required");
        check(&schema, answers, json!({"name": 1, "id": 1, "pin": 1}), "property \"pin\" is write-only");
    }

    #[test]
    fn discriminators_choose() {
        let cat = json!({"type": "object", "required": ["kind", "lives"], "properties": {"lives": {"type": "integer"}}});
        let document = |keyword: &str| {
            json!({
                "s": {
                    keyword: [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}],
                    "discriminator": {"propertyName": "kind", "mapping": {"feline": "Cat", "canine": "#/components/schemas/Dog"}},
                },
                "components": {"schemas": {"Cat": cat, "Dog": {"type": "object"}}},
            })
        };
        for document in [document("oneOf"), document("anyOf")] {
            check(&document, V3_0, json!({"kind": "Cat", "lives": 9}), "");
            check(&document, V3_0, json!({"kind": "Dog", "lives": 9}), "");
            let lives = "property \"lives\" is required";
            check(&document, V3_0, json!({"kind": "Cat"}), lives);
            check(&document, V3_0, json!({"kind": "feline"}), lives);
            check(&document, V3_0, json!({"kind": "canine"}), "");
            check(&document, V3_0, json!({"kind": "Cow"}), "property \"kind\" names none of the schemas");
            check(&document, V3_0, json!({"kind": 1}), "property \"kind\" names none of the schemas");
            check(&document, V3_0, json!({"lives": 9}), "property \"kind\" is required");
            check(&document, V3_0, json!(7), "wrong type: expected object, got number");
        }
    }

    #[test]
    fn formats() {
        let of = |format: &str| json!({"s": {"format": format}});
        check(&of("int32"), V3_0, json!(3_000_000_000_u32), "expected 3000000000 to be at most 2147483647");
        check(
            &of("int64"),
            V3_0,
            json!(u64::MAX),
            "expected 1.844674407371e+19 to be at most 9.2233720368548e+18",
        );
        check(&of("byte"), V3_0, json!("a?"), "expect valid byte format but got: a?");
        check(&of("byte"), V3_0, json!("AAA="), "");
        check(&of("date"), V3_1, json!("2024-13-01"), "expect valid date format but got: 2024-13-01");
        check(&of("password"), V3_0, json!("a b"), "");
    }

    #[test]
    fn documents_that_are_refused() {
        let refused = |schema: Value, expected: &str| {
            let document = json!({"s": schema, "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"},
                "loop": {"allOf": [{"$ref": "#/loop"}]},
                "one": {"$anchor": "twice"}, "two": {"$dynamicAnchor": "twice"}, "three": {"$anchor": "once", "type": "string"}});
            check(&document, V3_1, json!(1), expected);
        };
        let outside = "is outside this schema, copy it to `definitions`";
        for reference in ["file:///etc/passwd", "http://127.0.0.1/x", "other.yaml#/a", "/a"] {
            refused(json!({"$ref": reference}), &format!("schema at `/s/$ref`: `{reference}` {outside}"));
        }
        refused(json!({"$ref": "#/none"}), "schema at `/s/$ref`: `#/none` leads nowhere");
        refused(json!({"$ref": "#/a"}), "schema at `/s/$ref`: `#/a` refers to itself");
        refused(json!({"$ref": "#/loop"}), "a `$ref` in the schema refers to itself");
        refused(json!({"$ref": "#twice"}), "schema at `/s/$ref`: `#twice` occurs several times");
        refused(json!({"$dynamicRef": "#once"}), "allOf 1 failed: wrong type: expected string, got number");
        refused(json!({"$id": "x"}), "schema at `/s/$id` changes what `$ref` means, remove it");
        refused(
            json!({"pattern": "(a)\\1"}),
            "schema at `/s/pattern`: pattern `(a)\\1` has a back reference, which needs backtracking; rewrite it without",
        );
    }

    /// Compiling a long chain of references needs no deep stack, and a check of it ends.
    #[test]
    fn long_chains_of_references() {
        let mut schemas = Map::new();
        for number in 0..20_000 {
            let next = json!({"properties": {"n": {"$ref": format!("#/c/{}", number + 1)}}});
            schemas.insert(number.to_string(), next);
        }
        schemas.insert("20000".to_owned(), json!({"type": "string"}));
        let document = json!({"s": {"$ref": "#/c/0"}, "c": schemas});
        check(&document, V3_1, json!({"n": {"n": {"n": 1}}}), "");
        let cyclic = json!({"s": {"type": "object", "properties": {"n": {"$ref": "#/s"}}}});
        let deep = (0..10).fold(json!(7), |inner, _| json!({ "n": inner }));
        assert!(outcome(&cyclic, V3_1, &deep).ends_with("expected object, got number"));
    }
}
