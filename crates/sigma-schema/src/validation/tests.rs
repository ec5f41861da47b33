//! Tests of all failure texts, of defaults, and of invalid schemas.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// Turns the text of a file into the words of the Admin API, which has Lua's type names.
pub(super) fn of_lua(text: &str) -> String {
    [("got null", "got userdata"), ("got array", "got table"), ("got object", "got table")]
        .into_iter()
        .fold(text.to_owned(), |text, (json, lua)| text.replace(json, lua))
}

/// `expected` is the text of the failure; empty for success.
#[track_caller]
fn check(schema: &Value, value: &Value, expected: &str) {
    let schema_of_it = compiled(schema);
    let outcome = schema_of_it.check(value).err().unwrap_or_default();
    assert_eq!(outcome, expected, "{value} against {schema}");
    // The first problem is also the end of the check's text.
    let problems = schema_of_it.problems(value);
    let first = problems.first().map(|problem| problem.message.as_str());
    assert_eq!(first.is_none(), expected.is_empty(), "{value} against {schema}: {problems:?}");
    assert!(first.is_none_or(|text| expected.ends_with(&of_lua(text))), "{expected}: {problems:?}");
}

/// Each row is a problem: place, text and remedy.
#[test]
fn all_problems_have_a_place_and_most_a_remedy() {
    let id = json!({"anyOf": [
        {"type": "string", "pattern": "^[a-zA-Z0-9-_.]+$"},
        {"type": "integer", "minimum": 1},
    ]});
    let schema = json!({
        "type": "object",
        "properties": {
            "id": id,
            "kind": {"type": "string", "enum": ["plain", "other"], "default": "plain"},
            "port": {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2},
            "list": {"type": "array", "items": {"properties": {"a b": {"type": "boolean"}}}, "uniqueItems": true},
            "one": {}, "other": {}, "never": {},
        },
        "required": ["port", "name"],
        "additionalProperties": false,
        "oneOf": [{"required": ["one"]}, {"required": ["other"]}],
        "not": {"anyOf": [{"required": ["never"]}]},
        "dependencies": {"one": ["list"], "never": {"required": ["id"]}},
        "if": {"properties": {"kind": {"enum": ["plain"]}}},
        "then": {"properties": {"port": {"maximum": 3}}},
    });
    let all = |value: Value| -> Vec<String> {
        compiled(&schema).problems(&value).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        all(json!({"port": 2, "name": 1, "one": 1, "list": []})),
        [
            "name: additional properties forbidden, found name (known fields are id, kind, port, list, one, other, never)"
        ]
    );
    let nothing = [
        "property \"port\" is required (add `port`)",
        "property \"name\" is required (add `name`)",
        "value should match only one schema, but matches none (add `one` or `other`)",
    ];
    assert_eq!(all(json!({})), nothing);
    let wrong = json!({"id": "a b", "kind": "plian", "port": 11, "prot": null, "never": 1, "one": 1, "other": 1,
        "list": [{"a b": 1}, {"a b": null}, {"a b": 1}]});
    let expected_of_wrong = [
        "id: object matches none of the required (1 to 64 letters, digits, `-`, `_` or `.`, or an integer from 1)",
        "kind: matches none of the enum values (did you mean `plain`?)",
        "port: expected 11 to be at most 9",
        "list[0][\"a b\"]: wrong type: expected boolean, got number",
        "list[1][\"a b\"]: wrong type: expected boolean, got null (the key has no value: write a value, or remove the key)",
        "list[2][\"a b\"]: wrong type: expected boolean, got number",
        "list: expected unique items but items 1 and 3 are equal (remove one)",
        "property \"name\" is required (add `name`)",
        "prot: additional properties forbidden, found prot (did you mean `port`?)",
        "other: value should match only one schema, but matches both schemas 1 and 2 (keep one of `one` and `other`)",
        "value wasn't supposed to match schema (remove `never`)",
    ];
    assert_eq!(all(wrong), expected_of_wrong);
    let then = json!({"port": 4, "name": 1, "id": [], "other": 1});
    let expected_of_then = [
        "id: object matches none of the required (expected string or integer)",
        "name: additional properties forbidden, found name (known fields are id, kind, port, list, one, other, never)",
        "port: then clause did not match (expected 4 to be at most 3)",
    ];
    assert_eq!(all(then), expected_of_then);
}

/// Each row: a schema, an invalid value, its text in the Admin API, and a valid value.
#[test]
fn the_table_of_texts() {
    let long = json!({"minLength": 2, "maxLength": 3});
    let rows = [
        (json!({"type": "string"}), json!(1), "wrong type: expected string, got number", json!("a")),
        (
            json!({"type": ["string", "table"]}),
            json!(true),
            "wrong type: expected one of string, table, got boolean",
            json!([1]),
        ),
        (
            json!({"type": "object"}),
            json!(null),
            "wrong type: expected object, got userdata",
            json!({"a": 1}),
        ),
        (json!({"type": "object"}), json!([1]), "wrong type: expected object, got table", json!([])),
        (json!({"type": "integer"}), json!(1.5), "wrong type: expected integer, got number", json!(2.0)),
        (
            json!({"properties": {"a": {"type": "boolean"}}}),
            json!({"a": "x"}),
            r#"property "a" validation failed: wrong type: expected boolean, got string"#,
            json!({"b": "x"}),
        ),
        (json!({"required": ["a"]}), json!({}), r#"property "a" is required"#, json!({"a": null})),
        (
            json!({"properties": {"a": {}, "b": {}}, "required": ["b", "a"]}),
            json!([]),
            r#"property "a" is required"#,
            json!({"a": 1, "b": 2}),
        ),
        (
            json!({"dependencies": {"a": ["b"]}}),
            json!({"a": 1}),
            r#"property "b" is required when "a" is set"#,
            json!({"b": 1}),
        ),
        (
            json!({"properties": {"a": {}}, "dependencies": {"a": {"required": ["b"]}}}),
            json!({"a": 1}),
            r#"failed to validate dependent schema for "a": property "b" is required"#,
            json!({"a": 1, "b": 1}),
        ),
        (
            json!({"patternProperties": {r"^\S+$": {"type": "string"}}}),
            json!({"a": 1}),
            r#"failed to validate a (matching "^\\S+$"): wrong type: expected string, got number"#,
            json!({"a b": 1}),
        ),
        (
            json!({"properties": {"a": {}}, "patternProperties": {"^x": {}}, "additionalProperties": false}),
            json!({"a": 1, "x1": 1, "b": 1}),
            "additional properties forbidden, found b",
            json!({"a": 1, "x1": 1}),
        ),
        (
            json!({"additionalProperties": {"minimum": 1}}),
            json!({"a": 0}),
            "failed to validate additional property a: expected 0 to be at least 1",
            json!({"a": 1}),
        ),
        (
            json!({"minProperties": 1}),
            json!({}),
            "expect object to have at least 1 properties",
            json!({"a": 1}),
        ),
        (
            json!({"maxProperties": 1}),
            json!({"a": 1, "b": 1}),
            "expect object to have at most 1 properties",
            json!({"a": 1}),
        ),
        (
            json!({"items": {"type": "string"}}),
            json!(["a", 2]),
            "failed to validate item 2: wrong type: expected string, got number",
            json!(["a"]),
        ),
        (json!({"minItems": 1}), json!({}), "expect array to have at least 1 items", json!([1])),
        (json!({"maxItems": 1}), json!([1, 2]), "expect array to have at most 1 items", json!([1])),
        (
            json!({"uniqueItems": true}),
            json!(["a", "b", "a"]),
            "expected unique items but items 1 and 3 are equal",
            json!([1, "1"]),
        ),
        (
            long.clone(),
            json!("\u{e9}"),
            "string too short, expected at least 2, got 1",
            json!("\u{e9}\u{e9}"),
        ),
        (long, json!("abcd"), "string too long, expected at most 3, got 4", json!("abc")),
        (
            json!({"pattern": r#"^\d+"$"#}),
            json!(r#"a\""#),
            r#"failed to match pattern "^\\d+\"$" with "a\\\"""#,
            json!(r#"1""#),
        ),
        (json!({"minimum": 1.5}), json!(-1), "expected -1 to be at least 1.5", json!(2)),
        (json!({"maximum": 254}), json!(255), "expected 255 to be at most 254", json!(254)),
        (json!({"exclusiveMinimum": 0}), json!(0.0), "expected 0 to be greater than 0", json!(0.1)),
        (json!({"exclusiveMaximum": 1}), json!(1), "expected 1 to be smaller than 1", json!(0)),
        (
            json!({"minimum": 0, "exclusiveMinimum": true}),
            json!(0),
            "expected 0 to be greater than 0",
            json!(1),
        ),
        (json!({"multipleOf": 2}), json!(3), "expected 3 to be a multiple of 2", json!(4)),
        (json!({"enum": ["a", 1]}), json!("b"), "matches none of the enum values", json!(1.0)),
        (json!({"const": {"a": []}}), json!({"a": 1}), "failed to check const value", json!({"a": {}})),
        (
            json!({"allOf": [{}, {"type": "string"}]}),
            json!(1),
            "allOf 2 failed: wrong type: expected string, got number",
            json!("a"),
        ),
        (
            json!({"anyOf": [{"required": ["a", "b"]}, {"required": ["c"]}]}),
            json!({"a": 1}),
            r#"object matches none of the required: ["a","b"] or ["c"]"#,
            json!({"c": 1}),
        ),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
            json!(true),
            "object matches none of the required",
            json!(1),
        ),
        (
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({}),
            "value should match only one schema, but matches none",
            json!({"a": 1}),
        ),
        (
            json!({"oneOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]}),
            json!([]),
            "value should match only one schema, but matches both schemas 2 and 3",
            json!("a"),
        ),
        (
            json!({"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}),
            json!({"a": 1}),
            "then clause did not match",
            json!({"a": 2}),
        ),
        (
            json!({"if": {"properties": {"a": {"const": 1}}}, "else": false}),
            json!({"a": 2}),
            "else clause did not match",
            json!({"a": 1}),
        ),
        (
            json!({"not": {"required": ["a"]}}),
            json!({"a": 1}),
            "value wasn't supposed to match schema",
            json!({"b": 1}),
        ),
        (
            json!({"format": "ipv4"}),
            json!("1.2.3"),
            "expect valid ipv4 format but got: 1.2.3",
            json!("1.2.3.4"),
        ),
        (
            json!({"properties": {"a": false}}),
            json!({"a": "$env://X"}),
            r#"property "a" validation failed: expect false always"#,
            json!({}),
        ),
    ];
    for (schema, refused, expected, accepted) in rows {
        check(&schema, &refused, expected);
        check(&schema, &accepted, "");
    }
}

#[test]
fn examples_of_the_admin_api() {
    let methods = json!({"type": "array", "items": {"enum": ["GET", "POST"]}, "uniqueItems": true});
    let successes = json!({"type": "integer", "minimum": 1, "maximum": 254, "default": 2});
    let object = |name: &str, inner: Value| json!({"type": "object", "properties": {name: inner}});
    let upstream = ["healthy", "active", "checks", "upstream"]
        .into_iter()
        .fold(object("successes", successes), |inner, name| object(name, inner));
    let label = json!({"type": "string", "pattern": r"^\S+$", "minLength": 1, "maxLength": 256});
    let labels = json!({"type": "object", "patternProperties": {".*": label}});
    let cases = [
        (
            object("methods", methods),
            json!({"methods": ["get"]}),
            r#"property "methods" validation failed: failed to validate item 1: matches none of the enum values"#,
        ),
        (
            upstream,
            json!({"upstream": {"checks": {"active": {"healthy": {"successes": 255}}}}}),
            concat!(
                r#"property "upstream" validation failed: property "checks" validation failed: "#,
                r#"property "active" validation failed: property "healthy" validation failed: "#,
                r#"property "successes" validation failed: expected 255 to be at most 254"#
            ),
        ),
        (
            object("labels", labels),
            json!({"labels": {"env": {}}}),
            concat!(
                r#"property "labels" validation failed: failed to validate env (matching ".*"): "#,
                "wrong type: expected string, got table"
            ),
        ),
        (
            json!({"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}),
            json!({}),
            r#"property "count" is required"#,
        ),
    ];
    for (schema, value, expected) in cases {
        check(&schema, &value, expected);
    }
}

/// Texts that the documentation of resources and plugins shows for their schemas.
#[test]
fn examples_of_resources() {
    let id = json!({"anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-zA-Z0-9-_.]+$"},
        {"type": "integer", "minimum": 1}
    ]});
    let with_id = json!({"properties": {"id": id}});
    check(
        &with_id,
        &json!({"id": "a b"}),
        r#"property "id" validation failed: object matches none of the required"#,
    );
    check(&with_id, &json!({"id": 1.0}), "");
    let route = json!({
        "allOf": [{"oneOf": [{"required": ["uri"]}, {"required": ["uris"]}]}],
        "anyOf": [{"required": ["plugins", "uri"]}, {"required": ["upstream", "uri"]}]
    });
    check(&route, &json!({}), "allOf 1 failed: value should match only one schema, but matches none");
    check(
        &route,
        &json!({"uri": "/"}),
        r#"object matches none of the required: ["plugins","uri"] or ["upstream","uri"]"#,
    );
    let tls = json!({"properties": {"client_cert": {}, "client_key": {}}, "dependencies": {
        "client_cert": {"required": ["client_key"]}, "client_key": {"required": ["client_cert"]}
    }});
    check(
        &tls,
        &json!({"client_cert": "x"}),
        r#"failed to validate dependent schema for "client_cert": property "client_key" is required"#,
    );
}

#[test]
fn the_first_failure_in_order_is_reported() {
    let schema = json!({
        "type": "object",
        "properties": {"b": {"type": "string"}, "a": {"type": "string"}},
        "required": ["z", "a"],
        "additionalProperties": false,
        "minProperties": 9,
        "enum": [1],
        "allOf": [false],
        "not": {},
        "const": 2
    });
    check(
        &schema,
        &json!({"a": 1, "b": 1}),
        r#"property "b" validation failed: wrong type: expected string, got number"#,
    );
    check(&schema, &json!({"b": "", "x": 1}), r#"property "a" is required"#);
    check(&schema, &json!({"a": "", "x": 1}), r#"property "z" is required"#);
    check(&schema, &json!({"a": "", "z": 1}), "additional properties forbidden, found z");
    let numbers = json!({"type": "number", "minimum": 5, "enum": [9], "allOf": [{"maximum": 3}], "const": 1});
    check(&numbers, &json!(4), "expected 4 to be at least 5");
    check(&numbers, &json!(6), "matches none of the enum values");
    check(&numbers, &json!(9), "allOf 1 failed: expected 9 to be at most 3");
}

#[test]
fn references_to_secrets_stand_for_any_text() {
    let schema = json!({
        "properties": {
            "text": {"type": "string", "minLength": 100},
            "any": {"enum": ["a"]},
            "number": {"type": "integer"},
            "list": {"type": "array", "items": {"type": "string", "maxLength": 1}},
            "either": {"type": ["string", "integer"], "maxLength": 1}
        },
        "additionalProperties": {"type": "string", "maxLength": 1}
    });
    let accepted = [
        json!({"text": "$secret://vault/1/a/b"}),
        json!({"text": "$env://A", "any": "$ENV://A/b", "list": ["$Env://A"], "more": "$env://A"}),
    ];
    for value in accepted {
        check(&schema, &value, "");
    }
    check(
        &schema,
        &json!({"number": "$env://A"}),
        r#"property "number" validation failed: wrong type: expected integer, got string"#,
    );
    check(
        &schema,
        &json!({"either": "$env://A"}),
        r#"property "either" validation failed: string too long, expected at most 1, got 8"#,
    );
    check(
        &schema,
        &json!({"text": "$SECRET://"}),
        r#"property "text" validation failed: string too short, expected at least 100, got 10"#,
    );
    for (text, expected) in [("$env://", true), ("$env:/", false), ("\u{20ac}nv://aa", false), ("", false)] {
        assert_eq!(is_secret_reference(text), expected, "{text}");
    }
}

#[track_caller]
fn fills(schema: &Value, mut value: Value, expected: &Value) {
    compiled(schema).fill_defaults(&mut value);
    assert_eq!(&value, expected, "{schema}");
}

#[test]
fn defaults() {
    let nested = json!({"properties": {
        "a": {"type": "integer", "default": 1},
        "b": {"type": "object", "properties": {"c": {"default": [2]}}},
        "d": {"type": "array", "items": {"properties": {"e": {"default": 3}}}},
        "f": {"default": {}, "properties": {"g": {"default": 4}}}
    }});
    let f = json!({"g": 4});
    fills(&nested, json!({}), &json!({"a": 1, "f": f}));
    fills(&nested, json!([]), &json!({"a": 1, "f": f}));
    fills(&nested, json!({"a": 5, "b": {}, "f": f}), &json!({"a": 5, "b": {"c": [2]}, "f": f}));
    fills(
        &nested,
        json!({"d": [{}, {"e": 0}], "b": []}),
        &json!({"a": 1, "b": {"c": [2]}, "d": [{"e": 3}, {"e": 0}], "f": f}),
    );
    // A refused value is not changed.
    fills(&nested, json!({"a": "x"}), &json!({"a": "x"}));
    fills(&nested, json!("x"), &json!("x"));
    let map = json!({"patternProperties": {"^x": {"properties": {"y": {"default": 1}}}},
        "additionalProperties": {"properties": {"z": {"default": 2}}}});
    fills(&map, json!({"x": {}, "a": {}}), &json!({"x": {"y": 1}, "a": {"z": 2}}));
}

#[test]
fn defaults_of_branches() {
    let branch = |kind: &str, name: &str| json!({"properties": {name: {"default": 1}, "kind": {"const": kind}}, "required": ["kind"]});
    for keyword in ["oneOf", "anyOf"] {
        let schema = json!({keyword: [branch("x", "of_x"), branch("y", "of_y")]});
        fills(&schema, json!({"kind": "x"}), &json!({"kind": "x", "of_x": 1}));
        fills(&schema, json!({"kind": "y"}), &json!({"kind": "y", "of_y": 1}));
        fills(&schema, json!({"kind": "z"}), &json!({"kind": "z"}));
    }
    let schema = json!({
        "properties": {"policy": {"default": "local"}},
        "if": {"properties": {"policy": {"const": "redis"}, "probe": {"default": 1}}},
        "then": {"properties": {"port": {"default": 6379}}, "required": ["host"]},
        "else": {"properties": {"size": {"default": 2}}},
        "not": {"properties": {"left": {"default": 1}}, "required": ["impossible"]}
    });
    // A default counts in a condition of the same object.
    fills(&schema, json!({}), &json!({"policy": "local", "size": 2}));
    fills(
        &schema,
        json!({"policy": "redis", "host": "h"}),
        &json!({"policy": "redis", "host": "h", "probe": 1, "port": 6379}),
    );
    check(&schema, &json!({"policy": "redis"}), "then clause did not match");
    check(&schema, &json!({"impossible": 1}), "value wasn't supposed to match schema");
    // Also for requirements and dependencies.
    let schema = json!({"properties": {"a": {"default": 1}, "b": {}}, "required": ["a"],
        "dependencies": {"b": ["a"]}});
    fills(&schema, json!({"b": 2}), &json!({"b": 2, "a": 1}));
}

#[test]
fn references_within_a_schema() {
    let tree = json!({
        "$ref": "#/definitions/tree",
        "definitions": {
            "tree": {"type": "object", "properties": {
                "left": {"$ref": "#"},
                "right": {"$ref": "#/definitions/tree"},
                "odd/~ name": {"$ref": "#/definitions/a~1b%25"}
            }, "additionalProperties": false},
            "a/b%": {"type": "integer", "default": 7}
        }
    });
    check(&tree, &json!({"left": {"right": {}}}), "");
    check(
        &tree,
        &json!({"left": {"right": {"x": 1}}}),
        concat!(
            r#"property "left" validation failed: property "right" validation failed: "#,
            "additional properties forbidden, found x"
        ),
    );
    fills(&tree, json!({}), &json!({"odd/~ name": 7}));
    let mut deep = json!({});
    for _ in 0..300 {
        deep = json!({"right": deep});
    }
    let error = compiled(&tree).check(&deep).unwrap_err();
    assert!(error.contains("more than 256 nested schemas"), "{error}");
}

#[test]
fn tuples_and_keywords_of_newer_drafts() {
    let tuple = json!({"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": false});
    check(&tuple, &json!(["a", 1]), "");
    check(&tuple, &json!(["a", "b"]), "failed to validate item 2: wrong type: expected integer, got string");
    check(&tuple, &json!(["a", 1, 2]), "expect array to have at most 2 items");
    check(
        &json!({"contains": {"const": 1}}),
        &json!([2]),
        "expect array to contain an item that matches the schema",
    );
    check(
        &json!({"propertyNames": {"maxLength": 1}}),
        &json!({"ab": 1}),
        "failed to validate property name ab: string too long, expected at most 1, got 2",
    );
    check(&json!({"format": "colour"}), &json!("x"), "");
    check(&json!(true), &json!(null), "");
    check(&json!([]), &json!(null), "");
}

#[test]
fn invalid_schemas_are_refused() {
    let cases = [
        (json!(1), "schema at `` must be an object or a boolean"),
        (json!({"type": "text"}), "`/type` must be the name of a JSON type"),
        (
            json!({"properties": {"a/b": {"minLength": -1}}}),
            "`/properties/a~1b/minLength` must be an integer",
        ),
        (json!({"required": "a"}), "`/required` must be a list of property names"),
        (json!({"enum": 1}), "`/enum` must be an array"),
        (json!({"properties": 1}), "`/properties` must be an object"),
        (json!({"uniqueItems": 1}), "`/uniqueItems` must be a boolean"),
        (json!({"multipleOf": 0}), "`/multipleOf` must be greater than 0"),
        (json!({"minimum": "1"}), "`/minimum` must be a number"),
        (json!({"pattern": "(a"}), "schema at `/pattern`: pattern `(a` is not a valid expression"),
        (json!({"patternProperties": {"a++": {}}}), "schema at `/patternProperties/a++`: pattern `a++` has"),
        (
            json!({"items": {"$ref": "other.json#/a"}}),
            "`/items/$ref`: `other.json#/a` is outside this schema",
        ),
        (json!({"$ref": "#/definitions/x"}), "leads nowhere"),
        (json!({"$ref": "#"}), "refers to itself"),
        (
            json!({"definitions": {"a": {"$ref": "#/b"}}, "b": {"$ref": "#/definitions/a"},
            "not": {"$ref": "#/b"}}),
            "refers to itself",
        ),
        (json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]}), "refers to itself"),
        (json!({"dependencies": {"a": {"allOf": [{"not": {"$ref": "#"}}]}}}), "refers to itself"),
    ];
    for (schema, expected) in cases {
        let error = Schema::compile(&schema).unwrap_err();
        assert!(error.contains(expected), "{schema}: {error}");
    }
    let deep = (0..200).fold(json!({}), |inner, _| json!({"not": inner}));
    assert!(Schema::compile(&deep).unwrap_err().contains("levels deep"));
}

#[test]
fn schemas_cross_threads() {
    fn sent<T: Send + Sync>() {}
    sent::<Schema>();
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ab$\\\\\"]{0,3}".prop_map(Value::from),
        Just(json!("$secret://vault/1/a")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[abc]", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        prop::sample::select(vec!["object", "array", "string", "integer", "number", "null", "table"])
            .prop_map(|name| json!({"type": name})),
        (0_u8..4, -2_i8..4).prop_map(|(count, bound)| json!({
            "minItems": count, "maxLength": count, "maxProperties": count, "minimum": bound, "uniqueItems": true,
            "multipleOf": f64::from(count) + 0.5, "pattern": "^[a-b]*$", "format": "uri"
        })),
        any_value().prop_map(|value| json!({"const": value.clone(), "default": value})),
        Just(json!({"$ref": "#"})),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..4);
        let map = prop::collection::hash_map("[abc]", inner.clone(), 0..4);
        let keyword = prop::sample::select(vec!["allOf", "anyOf", "oneOf", "items"]);
        let single = prop::sample::select(vec!["not", "items", "additionalProperties", "contains"]);
        prop_oneof![
            (keyword, list).prop_map(|(keyword, list)| json!({keyword: list})),
            (single, inner.clone()).prop_map(|(keyword, schema)| json!({keyword: schema})),
            (map, inner.clone()).prop_map(|(map, schema)| json!({
                "properties": map, "required": ["a"], "dependencies": {"a": ["b"], "b": schema}
            })),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|(test, then, other)| json!({"if": test, "then": then, "else": other})),
        ]
    })
}

proptest! {
    /// No schema and no value makes the check panic, and a value with added defaults still passes.
    #[test]
    fn check_never_panics(schema in any_schema(), value in any_value()) {
        let Ok(compiled) = Schema::compile(&schema) else { return Ok(()) };
        let outcome = compiled.check(&value);
        let mut filled = value.clone();
        compiled.fill_defaults(&mut filled);
        prop_assert!(outcome.is_ok() || filled == value);
    }
}
