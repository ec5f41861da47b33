//! Schemas generated from types, in the shape of APISIX's: one description for each field.
//!
//! A configuration type describes itself: the names of its fields, their values and their meaning. The schema is
//! generated from the type. The Admin API shows it, it checks a value before the value is parsed, and the reference
//! prints it:
//!
//! | in the type | in the schema |
//! |---|---|
//! | a doc comment | `description` |
//! | `Option<T>`, `#[serde(default)]` | not `required` |
//! | `#[serde(default = "…")]`, `#[schemars(extend("default" = 5))]` | `default`, and not `required` |
//! | `#[schemars(range(min = 1), length(max = 9), regex(pattern = "…"))]` | the keyword |
//! | `#[schemars(extend("uniqueItems" = true))]` | the keyword |
//! | an enum of texts | `enum` |
//! | `u16` | its bounds |
//! | `Confidential` | `"confidential": true`, see [`take_confidential`] |
//! | `#[schemars(extend("own_default" = true))]` | the mark of a default that APISIX does not have, see
//! [`take_own_defaults`] |
//!
//! A default in the schema alone is enough where the schema fills values before they are parsed, as for
//! plugins ([`crate::validation::Schema::filled`]).

use std::borrow::Cow;
use std::convert::Infallible;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::cidr::Cidr;
use crate::expr::{Expr, VarName};
use crate::template::Template;
use crate::validation::pcre::Pattern;

/// The mark of a field whose text must not appear in a log, a store or a view.
pub const CONFIDENTIAL: &str = "confidential";

/// The mark of a field whose default, or a default inside it, APISIX does not have. Such defaults apply, but views do
/// not add them to a configuration.
pub const OWN_DEFAULT: &str = "own_default";

/// Gives a type the schema of the type that it is parsed from.
macro_rules! shown_as {
    ($($type:ty => $written:ty;)*) => {$(
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                <$written>::schema_name()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> schemars::Schema {
                <$written>::json_schema(generator)
            }
        }
    )*};
}

shown_as! {
    Cidr => String;
    Expr => Vec<Value>;
    Pattern => String;
    Template => String;
    VarName => String;
}

/// Parses a type from its text. The error is a sentence.
macro_rules! parsed_from_text {
    ($($type:ty: $parse:expr;)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                $parse(&text).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

parsed_from_text! {
    Pattern: Pattern::compile;
    Template: |text: &str| Ok::<_, Infallible>(Template::parse(text));
    VarName: |text: &str| Ok::<_, Infallible>(VarName::parse(text));
}

/// Returns the schema of a type: draft 7 as APISIX writes it, without references, type names and null. Properties have
/// the order of the fields; flattened structs come last.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(members) = schema.as_object_mut()
        && members.get("title").is_some_and(|title| *title == *T::schema_name())
    {
        // The name of the type. A title written in the type itself stays.
        members.shift_remove("title");
    }
    shape(&mut schema);
    schema
}

/// Removes the marks of confidential fields from a schema and returns the paths of those fields, such as
/// `auth.password`. A path skips list levels.
pub fn take_confidential(schema: &mut Value) -> Vec<String> {
    take_marked(CONFIDENTIAL, schema)
}

/// Does the same as [`take_confidential`] for fields with a default that APISIX does not have.
pub fn take_own_defaults(schema: &mut Value) -> Vec<String> {
    take_marked(OWN_DEFAULT, schema)
}

fn take_marked(mark: &str, schema: &mut Value) -> Vec<String> {
    fn collect(mark: &str, path: &str, schema: &mut Value, found: &mut Vec<String>) {
        let Some(members) = schema.as_object_mut() else { return };
        if members.shift_remove(mark).is_some() && !found.iter().any(|known| known == path) {
            found.push(path.to_owned());
        }
        for (keyword, value) in members {
            match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    for (name, property) in properties {
                        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                        collect(mark, &path, property, found);
                    }
                }
                ("items" | "if" | "then" | "else", applied) => collect(mark, path, applied, found),
                ("allOf" | "anyOf" | "oneOf", Value::Array(branches)) => {
                    branches.iter_mut().for_each(|branch| collect(mark, path, branch, found));
                }
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    collect(mark, "", schema, &mut found);
    found
}

/// Resets the field at `path` in `filled` (the value with defaults) to its state in `written` (the same value without
/// defaults). A path skips list levels.
pub fn restore(path: &str, written: &Value, filled: &mut Value) {
    match filled {
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                restore(path, written.get(at).unwrap_or(&Value::Null), item);
            }
        }
        Value::Object(members) => match path.split_once('.') {
            Some((first, rest)) => {
                if let Some(member) = members.get_mut(first) {
                    restore(rest, written.get(first).unwrap_or(&Value::Null), member);
                }
            }
            None => match written.get(path) {
                Some(value) => drop(members.insert(path.to_owned(), value.clone())),
                None => drop(members.shift_remove(path)),
            },
        },
        _ => {}
    }
}

/// Removes descriptions from a schema.
pub fn take_descriptions(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(take_descriptions),
        Value::Object(members) => {
            // A property with this name would be an object.
            if members.get("description").is_some_and(Value::is_string) {
                members.shift_remove("description");
            }
            members.values_mut().for_each(take_descriptions);
        }
        _ => {}
    }
}

/// Removes the defaults of fields from a schema, because the type has them when the field is absent. `names` are
/// separated by spaces.
pub fn without_defaults(names: &str) -> impl Fn(&mut schemars::Schema) {
    move |schema| {
        for name in names.split(' ') {
            let field = schema.pointer_mut(&format!("/properties/{name}"));
            field.and_then(Value::as_object_mut).and_then(|field| field.shift_remove("default"));
        }
    }
}

/// Removes output of the generator that is not part of APISIX's dialect from a schema and its inner schemas.
fn shape(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(shape),
        Value::Object(members) => {
            for (keyword, value) in members.iter_mut() {
                match keyword.as_str() {
                    // The operator's names and values, not schemas.
                    "properties" | "patternProperties" | "dependencies" => {
                        value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(shape);
                    }
                    "default" | "enum" | "const" | "examples" | "required" => {}
                    _ => shape(value),
                }
            }
            shape_own(members);
        }
        _ => {}
    }
}

fn shape_own(schema: &mut Map<String, Value>) {
    if schema.get("default") == Some(&Value::Null) {
        schema.shift_remove("default");
    }
    // A list or an object with values of any type.
    for keyword in ["items", "additionalProperties"] {
        if schema.get(keyword) == Some(&Value::Bool(true)) {
            schema.shift_remove(keyword);
        }
    }
    without_null(schema);
    texts_as_enum(schema);
    bound(schema);
    whole_default(schema);
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = unwrapped(description);
    }
    let Some(required) = schema.get("required").and_then(Value::as_array).cloned() else { return };
    let has_default = |name: &Value| {
        let property = name.as_str().and_then(|name| schema.get("properties")?.get(name));
        property.is_some_and(|property| property.get("default").is_some())
    };
    let needed: Vec<Value> = required.iter().filter(|name| !has_default(name)).cloned().collect();
    if needed.is_empty() && !required.is_empty() {
        schema.shift_remove("required");
    } else {
        schema.insert("required".to_owned(), Value::Array(needed));
    }
}

/// Removes null from the types: an optional field is absent, not null.
fn without_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = &types[..] {
            let one = one.clone();
            schema.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(branches)) = schema.get_mut("anyOf") {
        branches.retain(|branch| *branch != json!({"type": "null"}));
        if let [Value::Object(only)] = &branches[..] {
            let only = only.clone();
            schema.shift_remove("anyOf");
            for (keyword, value) in only {
                // The field's own keywords have precedence over its type's.
                schema.entry(keyword).or_insert(value);
            }
        }
    }
}

/// Turns an enum whose variants have doc comments into `enum` with a list of constants.
fn texts_as_enum(schema: &mut Map<String, Value>) {
    if let Some(text) = schema.get("const").filter(|text| text.is_string()).cloned() {
        schema.shift_remove("const");
        schema.insert("enum".to_owned(), json!([text]));
    }
    let Some(branches) = schema.get("oneOf").and_then(Value::as_array) else { return };
    let is_text = |branch: &Value| branch.get("type").is_some_and(|name| name == "string");
    let texts: Option<Vec<Value>> = branches
        .iter()
        .map(|branch| branch.get("enum").filter(|_| is_text(branch))?.as_array().cloned())
        .collect::<Option<Vec<_>>>()
        .map(|texts| texts.concat());
    if let Some(texts) = texts {
        schema.shift_remove("oneOf");
        schema.insert("type".to_owned(), "string".into());
        schema.insert("enum".to_owned(), Value::Array(texts));
    }
}

/// Shows a float default without fraction as an integer.
fn whole_default(schema: &mut Map<String, Value>) {
    let float = schema.get("default").filter(|default| default.is_f64()).and_then(Value::as_f64);
    if let Some(float) = float.filter(|float| float.fract() == 0.0 && float.abs() < 1e15) {
        schema.insert("default".to_owned(), json!(float as i64));
    }
}

/// Replaces the name of a Rust number type by its bounds.
fn bound(schema: &mut Map<String, Value>) {
    let (low, high) = match schema.get("format").and_then(Value::as_str) {
        Some("int8") => (Some(i64::from(i8::MIN)), Some(i64::from(i8::MAX))),
        Some("int16") => (Some(i64::from(i16::MIN)), Some(i64::from(i16::MAX))),
        Some("int32") => (Some(i64::from(i32::MIN)), Some(i64::from(i32::MAX))),
        Some("uint8") => (Some(0), Some(i64::from(u8::MAX))),
        Some("uint16") => (Some(0), Some(i64::from(u16::MAX))),
        Some("uint32") => (Some(0), Some(i64::from(u32::MAX))),
        // A number outside 64 bits is clamped before it is parsed.
        Some("uint64" | "uint") => (Some(0), None),
        Some("int64" | "int" | "float" | "double") => (None, None),
        _ => return,
    };
    schema.shift_remove("format");
    if schema.contains_key("exclusiveMinimum") {
        // The bound of the type is weaker.
        schema.shift_remove("minimum");
    }
    for (keyword, exclusive, limit) in
        [("minimum", "exclusiveMinimum", low), ("maximum", "exclusiveMaximum", high)]
    {
        if let Some(limit) = limit.filter(|_| !schema.contains_key(exclusive)) {
            schema.entry(keyword).or_insert(limit.into());
        }
    }
}

/// Joins the lines of a paragraph. Lists, tables, headings and code stay as they are.
fn unwrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let (mut in_code, mut may_go_on) = (false, false);
    for line in text.trim().lines() {
        let fence = line.trim_start().starts_with("```");
        let is_item = line.starts_with("* ") || line.starts_with(['-', '|', ' ', '#', '>']);
        let own = in_code || fence || line.is_empty() || is_item;
        match lines.last_mut().filter(|_| may_go_on && !own) {
            Some(paragraph) => *paragraph = format!("{paragraph} {line}"),
            None => lines.push(line.to_owned()),
        }
        in_code ^= fence;
        may_go_on = !own;
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;

    use super::*;
    use crate::Confidential;

    /// Where it goes.
    #[derive(JsonSchema)]
    #[schemars(rename_all = "snake_case")]
    #[allow(dead_code, reason = "only its schema is used")]
    enum Target {
        /// Here.
        Here,
        /// Over there.
        OverThere,
    }

    /// What it does.
    ///
    /// In two lines
    /// of one paragraph.
    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is used")]
    struct Sample {
        /// A port.
        #[schemars(range(min = 1))]
        port: u16,
        /// How many.
        #[schemars(extend("default" = 5))]
        count: i64,
        /// A limit.
        #[schemars(extend("exclusiveMinimum" = 0))]
        most: u64,
        /// Where.
        target: Option<Target>,
        inner: Option<Inner>,
        #[serde(flatten)]
        more: More,
    }

    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its schema is used")]
    struct Inner {
        list: Vec<More>,
    }

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is used")]
    struct More {
        /// A share.
        share: f64,
        password: Option<Confidential>,
    }

    #[test]
    fn types_are_shown_as_apisix_shows_schemas() {
        let more = json!({
            "share": {"type": "number", "description": "A share."},
            "password": {"type": "string", "confidential": true}
        });
        let list = json!({"type": "array", "items":
            {"type": "object", "properties": more, "required": ["share"]}});
        let mut expected = json!({
            "description": "What it does.\n\nIn two lines of one paragraph.",
            "type": "object",
            "properties": {
                "port": {"type": "integer", "minimum": 1, "maximum": 65535, "description": "A port."},
                "count": {"type": "integer", "default": 5, "description": "How many."},
                "most": {"type": "integer", "exclusiveMinimum": 0, "description": "A limit."},
                "target": {"type": "string", "enum": ["here", "over_there"], "description": "Where."},
                "inner": {"type": "object", "properties": {"list": list}, "required": ["list"],
                    "additionalProperties": false}
            },
            "required": ["port", "most", "share"]
        });
        let flattened = more.as_object().cloned().unwrap_or_default();
        expected["properties"].as_object_mut().unwrap().extend(flattened);
        let mut schema = schema_of::<Sample>();
        assert_eq!(schema, expected, "{schema:#}");
        let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["port", "count", "most", "target", "inner", "share", "password"]);
        assert_eq!(take_confidential(&mut schema), ["inner.list.password", "password"]);
        assert!(!schema.to_string().contains(CONFIDENTIAL));
    }

    #[test]
    fn own_defaults_are_as_they_were_written() {
        let own = json!({"type": "integer", "default": 1, "own_default": true});
        let object = json!({"type": "object", "properties": {"own": own, "field": {"default": 2}}});
        let mut schema = json!({
            "properties": {
                "own": own,
                "part": {"own_default": true, "type": "object", "properties": {"inner": {"default": 3}}},
                "list": {"type": "array", "items": object},
            },
            "then": {"properties": {"deep": object}},
        });
        let paths = take_own_defaults(&mut schema);
        assert_eq!(paths, ["own", "part", "list.own", "deep.own"]);
        assert!(!schema.to_string().contains(OWN_DEFAULT));
        let check = |written: Value, filled: Value, expected: Value| {
            let mut shown = filled;
            paths.iter().for_each(|path| restore(path, &written, &mut shown));
            assert_eq!(shown, expected, "{written}");
        };
        check(json!({}), json!({"own": 1, "deep": 5}), json!({"deep": 5}));
        check(json!({"own": 1}), json!({"own": 1}), json!({"own": 1}));
        check(json!({"part": {}}), json!({"own": 1, "part": {"inner": 3}}), json!({"part": {}}));
        check(
            json!({"list": [{"own": 4}, {}], "deep": {}}),
            json!({"list": [{"own": 4, "field": 2}, {"own": 1, "field": 2}], "deep": {"own": 1, "field": 2}}),
            json!({"list": [{"own": 4, "field": 2}, {"field": 2}], "deep": {"field": 2}}),
        );
    }

    #[test]
    fn descriptions_keep_what_lines_mean() {
        for (text, expected) in [
            ("a\nb\n\nc\nd", "a b\n\nc d"),
            ("a\n\n- b\n- c\n\nd\ne", "a\n\n- b\n- c\n\nd e"),
            ("a\n```\nb\nc\n```\nd", "a\n```\nb\nc\n```\nd"),
            ("**a\nb** c\n* d\n* e", "**a b** c\n* d\n* e"),
        ] {
            assert_eq!(unwrapped(text), expected);
        }
    }
}
