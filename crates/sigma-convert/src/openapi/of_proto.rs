//! Makes an OpenAPI document of a Protocol Buffers definition with `google.api.http` annotations.
//!
//! The document describes the requests and responses of the plugin `grpc-transcode` with the defaults of its
//! `pb_option`.

use std::collections::{BTreeMap, HashSet};

use protox::prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use sigma_schema::id::Id;
use sigma_schema::proto::http_rule::{self, Body, HttpRule, Part};

/// Maximum number of operations in a document; Google's largest service has a few thousand.
const MOST_OPERATIONS: usize = 10_000;

/// Maximum number of parameters in a document: a short annotation may refer to a message with many fields.
const MOST_PARAMETERS: usize = 50_000;

/// Maximum nesting of messages whose fields become parameters.
const MOST_LEVELS: usize = 5;

/// The HTTP methods of an OpenAPI document.
const VERBS: [&str; 8] = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"];

/// Returns the OpenAPI 3.0 document of a definition: the annotated methods of all its services. If two annotations
/// have the same request, the first one counts. Features without an OpenAPI equivalent are omitted: annotations for
/// any method, and query fields that are lists of messages or maps.
///
/// # Errors
/// Returns a sentence if the definition cannot be read or the document would be too large.
pub fn openapi(id: &Id, content: &str) -> Result<Value, String> {
    let pool = sigma_schema::proto::pool(content)?;
    let mut document = Document::default();
    for service in pool.services() {
        for rule in http_rule::of_service(&service)? {
            document.add(&rule)?;
        }
    }
    document.finish(id, &pool)
}

/// A document under construction.
#[derive(Default)]
struct Document {
    paths: Map<String, Value>,
    /// The path of each shape, and the names of its parameters. Two paths must differ in more than these names.
    shapes: BTreeMap<String, (String, Vec<String>)>,
    /// The number of annotations of each method.
    bindings: BTreeMap<String, usize>,
    operations: usize,
    parameters: usize,
    types: Types,
}

/// The referenced schemas.
#[derive(Default)]
struct Types {
    known: BTreeMap<String, Option<Value>>,
    left: Vec<MessageDescriptor>,
}

/// A parameter of a path.
struct Variable {
    name: String,
    /// The field, if the parameter is exactly one field.
    field: Option<String>,
    has_rest: bool,
}

impl Document {
    fn add(&mut self, rule: &HttpRule) -> Result<(), String> {
        if !VERBS.contains(&&*rule.verb) {
            return Ok(());
        }
        let (path, variables) = path(rule);
        let shape = shape(&path);
        let names = || variables.iter().map(|variable| variable.name.clone()).collect();
        let (path, names) = self.shapes.entry(shape).or_insert_with(|| (path, names())).clone();
        let verb = rule.verb.to_ascii_lowercase();
        if self.paths.get(&path).is_some_and(|item| item.get(&verb).is_some()) {
            return Ok(());
        }
        self.operations += 1;
        if self.operations > MOST_OPERATIONS {
            return Err(format!("the definition has more than {MOST_OPERATIONS} annotations"));
        }
        let operation = self.operation(rule, &variables, &names)?;
        let item = self.paths.entry(path).or_insert_with(|| json!({}));
        item[verb] = operation;
        Ok(())
    }

    fn operation(
        &mut self,
        rule: &HttpRule,
        variables: &[Variable],
        names: &[String],
    ) -> Result<Value, String> {
        let (method, input) = (&rule.method, rule.method.input());
        let mut parameters = Vec::new();
        for (variable, name) in variables.iter().zip(names) {
            let field = variable.field.as_deref().and_then(|path| field_of(&input, path));
            let schema =
                field.filter(is_one_text).map_or(json!({"type": "string"}), |field| self.types.field(&field));
            let mut parameter = json!({"name": name, "in": "path", "required": true, "schema": schema});
            if variable.has_rest {
                parameter["description"] = json!("It may have several segments, with `/` between them.");
            }
            parameters.push(parameter);
        }
        if !matches!(rule.body, Body::Message) {
            let mut bound: HashSet<String> =
                rule.template.variables.iter().map(|(name, _)| name.to_string()).collect();
            if let Body::Field(field) = &rule.body {
                bound.insert(field.to_string());
            }
            self.query(&input, "", &bound, &mut Vec::new(), &mut parameters);
        }
        self.parameters += parameters.len();
        if self.parameters > MOST_PARAMETERS {
            return Err(format!("the document would have more than {MOST_PARAMETERS} parameters"));
        }
        let count = self.bindings.entry(method.full_name().to_owned()).or_default();
        *count += 1;
        let operation_id = match *count {
            1 => method.full_name().to_owned(),
            count => format!("{}_{count}", method.full_name()),
        };
        let mut operation = json!({
            "operationId": operation_id,
            "tags": [method.parent_service().full_name()],
            "responses": {
                "200": self.answer(rule),
                "default": {"description": "The call failed, or was not made."},
            },
        });
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(body) = self.body(rule, &input) {
            operation["requestBody"] = body;
        }
        Ok(operation)
    }

    /// Adds query parameters for the fields of a message.
    fn query(
        &mut self,
        message: &MessageDescriptor,
        prefix: &str,
        bound: &HashSet<String>,
        within: &mut Vec<String>,
        found: &mut Vec<Value>,
    ) {
        within.push(message.full_name().to_owned());
        for field in message.fields() {
            let name = format!("{prefix}{}", field.name());
            if bound.contains(&name) || field.is_map() || found.len() > MOST_PARAMETERS {
                continue;
            }
            match field.kind() {
                Kind::Message(inner) if !is_text(&inner) => {
                    let is_new = !within.iter().any(|outer| outer == inner.full_name());
                    let is_plain = well_known(&inner).is_none() && !field.is_list();
                    if is_new && is_plain && within.len() < MOST_LEVELS {
                        self.query(&inner, &format!("{name}."), bound, within, found);
                    }
                }
                _ => found.push(json!({"name": name, "in": "query", "schema": self.types.field(&field)})),
            }
        }
        within.pop();
    }

    fn body(&mut self, rule: &HttpRule, input: &MessageDescriptor) -> Option<Value> {
        let schema = match &rule.body {
            Body::Nowhere => return None,
            Body::Message => self.types.message(input),
            Body::Field(name) => self.types.field(&input.get_field_by_name(name)?),
        };
        let content = match rule.method.is_client_streaming() {
            false => json!({"application/json": {"schema": schema}}),
            true => json!({
                "application/json": {"schema": {"type": "array", "items": schema}},
                "application/x-ndjson": {"schema": schema},
            }),
        };
        Some(json!({"content": content}))
    }

    fn answer(&mut self, rule: &HttpRule) -> Value {
        let output = rule.method.output();
        let field = rule.answer.as_ref().and_then(|name| output.get_field_by_name(name));
        let schema = match field {
            Some(field) => self.types.field(&field),
            None => self.types.message(&output),
        };
        let is_stream = rule.method.is_server_streaming();
        let media_type = if is_stream { "application/x-ndjson" } else { "application/json" };
        let description = if is_stream { "Messages, one per line." } else { "The message." };
        json!({"description": description, "content": {media_type: {"schema": schema}}})
    }

    fn finish(mut self, id: &Id, pool: &DescriptorPool) -> Result<Value, String> {
        while let Some(message) = self.types.left.pop() {
            let mut properties = Map::new();
            for field in message.fields() {
                let schema = self.types.field(&field);
                properties.insert(field.name().to_owned(), schema);
            }
            let schema = json!({"type": "object", "properties": properties});
            self.types.known.insert(message.full_name().to_owned(), Some(schema));
        }
        let schemas: Map<String, Value> =
            self.types.known.into_iter().filter_map(|(name, schema)| Some((name, schema?))).collect();
        let services: Vec<Value> =
            pool.services().map(|service| json!({"name": service.full_name()})).collect();
        Ok(json!({
            "openapi": "3.0.3",
            "info": {"title": id.as_str(), "version": "1"},
            "tags": services,
            "paths": self.paths,
            "components": {"schemas": schemas},
        }))
    }
}

impl Types {
    /// Returns the schema of a field in its JSON form.
    fn field(&mut self, field: &FieldDescriptor) -> Value {
        let kind = field.kind();
        match kind.as_message() {
            Some(entry) if field.is_map() => {
                json!({"type": "object", "additionalProperties": self.kind(&entry.map_entry_value_field().kind())})
            }
            _ if field.is_list() => json!({"type": "array", "items": self.kind(&kind)}),
            _ => self.kind(&kind),
        }
    }

    fn kind(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Double => float("double"),
            Kind::Float => float("float"),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({"type": "integer", "format": "int32"}),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({"type": "integer", "format": "int64"}),
            Kind::Uint32 | Kind::Fixed32 => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
            Kind::Uint64 | Kind::Fixed64 => json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
            Kind::Bool => json!({"type": "boolean"}),
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => json!({"type": "string", "format": "byte"}),
            Kind::Enum(desc) => self.enumeration(desc),
            Kind::Message(desc) => self.message(desc),
        }
    }

    fn enumeration(&mut self, desc: &EnumDescriptor) -> Value {
        let name = desc.full_name();
        if !self.known.contains_key(name) {
            let names: Vec<Value> = desc.values().map(|value| json!(value.name())).collect();
            // A number is accepted as well, and used where the value has no name.
            let schema =
                json!({"anyOf": [{"type": "string", "enum": names}, {"type": "integer", "format": "int32"}]});
            self.known.insert(name.to_owned(), Some(schema));
        }
        reference(name)
    }

    fn message(&mut self, desc: &MessageDescriptor) -> Value {
        if let Some(schema) = well_known(desc) {
            return schema;
        }
        let name = desc.full_name();
        if !self.known.contains_key(name) {
            self.known.insert(name.to_owned(), None);
            self.left.push(desc.clone());
        }
        reference(name)
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Returns the schema of a float, which in JSON is a number or a text such as `NaN`.
fn float(format: &str) -> Value {
    let odd = json!({"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]});
    json!({"anyOf": [{"type": "number", "format": format}, odd]})
}

/// Returns the schema of a message with a special JSON form.
fn well_known(desc: &MessageDescriptor) -> Option<Value> {
    Some(match desc.full_name().strip_prefix("google.protobuf.")? {
        "Timestamp" => json!({"type": "string", "format": "date-time"}),
        "Duration" => json!({"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"}),
        "FieldMask" | "StringValue" => json!({"type": "string"}),
        "BytesValue" => json!({"type": "string", "format": "byte"}),
        "BoolValue" => json!({"type": "boolean"}),
        "Int32Value" => json!({"type": "integer", "format": "int32"}),
        "UInt32Value" => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
        // 64-bit numbers are texts in JSON.
        "Int64Value" | "UInt64Value" => json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        "DoubleValue" => float("double"),
        "FloatValue" => float("float"),
        "Struct" => json!({"type": "object"}),
        "ListValue" => json!({"type": "array", "items": {}}),
        "Value" => json!({}),
        "Any" => json!({"type": "object", "properties": {"@type": {"type": "string"}}}),
        _ => return None,
    })
}

/// Returns whether a message is one text or number in JSON.
fn is_text(desc: &MessageDescriptor) -> bool {
    let has_parts = ["Struct", "ListValue", "Value", "Any"];
    let name = desc.full_name().strip_prefix("google.protobuf.");
    well_known(desc).is_some() && !name.is_some_and(|name| has_parts.contains(&name))
}

/// Returns whether a field is one text in a path.
fn is_one_text(field: &FieldDescriptor) -> bool {
    let is_part = field.kind().as_message().is_some_and(|desc| !is_text(desc));
    !is_part && !field.is_list() && !field.is_map()
}

/// Returns the field at a path of names.
fn field_of(message: &MessageDescriptor, path: &str) -> Option<FieldDescriptor> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let field = message.get_field_by_name(first)?;
    match rest {
        "" => Some(field),
        rest => field_of(field.kind().as_message()?, rest),
    }
}

/// Returns the path of an annotation and its parameters.
fn path(rule: &HttpRule) -> (String, Vec<Variable>) {
    let template = &rule.template;
    let (mut path, mut variables) = (String::new(), Vec::<Variable>::new());
    for (at, part) in template.parts.iter().enumerate() {
        path.push('/');
        if let Part::Literal(text) = part {
            path.push_str(&encoded(text));
            continue;
        }
        let owner = template.variables.iter().find(|(_, parts)| parts.contains(&at));
        let base = owner.map(|(name, _)| &**name).filter(|name| !name.is_empty());
        let base = base.unwrap_or("segment").replace(['{', '}', '/'], "_");
        let mut name = base.clone();
        for number in 2.. {
            if variables.iter().all(|known| known.name != name) {
                break;
            }
            name = format!("{base}_{number}");
        }
        let is_alone = |(_, parts): &&(Box<str>, std::ops::Range<usize>)| parts.len() == 1;
        let field = owner.filter(is_alone).filter(|_| *part == Part::One).map(|(name, _)| name.to_string());
        path.push_str(&format!("{{{name}}}"));
        variables.push(Variable { name, field, has_rest: *part == Part::Rest });
    }
    if let Some(verb) = &template.verb {
        path.push(':');
        path.push_str(&encoded(verb));
    }
    (path, variables)
}

/// Returns a path without the names of its parameters.
fn shape(path: &str) -> String {
    let mut shape = String::new();
    let mut is_name = false;
    for letter in path.chars() {
        is_name &= letter != '}';
        if !is_name {
            shape.push(letter);
        }
        is_name |= letter == '{';
    }
    shape
}

/// Encodes the special characters of a path text.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for letter in text.chars() {
        match letter {
            '%' | '?' | '#' | '{' | '}' => encoded.push_str(&format!("%{:02X}", u32::from(letter))),
            letter => encoded.push(letter),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use sigma_schema::openapi::OpenApi;
    use sigma_schema::validation::{Reading, Sender};

    use super::*;
    use crate::openapi::import::{ImportOptions, configuration};

    const HEAD: &str = "syntax = \"proto3\"; package p; import \"google/api/annotations.proto\"; \
        import \"google/protobuf/timestamp.proto\"; ";

    fn made(definition: &str) -> Value {
        let id = "shop".parse::<Id>().unwrap();
        openapi(&id, &format!("{HEAD}{definition}")).unwrap()
    }

    /// Returns the document of one service with these methods, whose message refers to itself.
    fn of_methods(methods: &str) -> Value {
        made(&format!(
            "service S {{ {methods} }}
            enum Color {{ RED = 0; BLUE = 2; }}
            message M {{ string name = 1; int64 id = 2; M inner = 3; repeated Color colors = 4; map<string, M> all = 5;
                google.protobuf.Timestamp at = 6; repeated M list = 7; Leaf leaf = 8; }}
            message Leaf {{ bool on = 1; bytes raw = 2; }}"
        ))
    }

    /// Returns method, path and parameters of each operation, as readers of a document see them.
    fn operations(document: &Value) -> Vec<String> {
        let document = OpenApi::of(document.clone()).unwrap();
        let shown = document.operations().unwrap().into_iter().map(|operation| {
            let parameters = operation.parameters.iter();
            let parameters: Vec<String> = parameters
                .map(|part| format!("{}:{}", part.text("in").unwrap(), part.text("name").unwrap()))
                .collect();
            format!("{} {} {}", operation.method, operation.path, parameters.join(" "))
        });
        shown.map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn annotations_become_operations() {
        let check = |rules: &str, expected: &[&str]| {
            let document =
                of_methods(&format!("rpc A(M) returns (M) {{ option (google.api.http) = {{ {rules} }}; }}"));
            assert_eq!(operations(&document), expected, "{rules}");
        };
        let query = "query:id query:colors query:at query:leaf.on query:leaf.raw";
        check("get: \"/v1/{name}\"", &[&format!("GET /v1/{{name}} path:name {query}")]);
        check(
            "post: \"/v1/{name=shelves/*/books/*}:move\" body: \"*\"",
            &["POST /v1/shelves/{name}/books/{name_2}:move path:name path:name_2"],
        );
        check(
            "put: \"/v1/*/{leaf.on=**}\" body: \"inner\"",
            &[
                "PUT /v1/{segment}/{leaf.on} path:segment path:leaf.on query:name query:id query:colors query:at query:leaf.raw",
            ],
        );
        check("custom: { kind: \"HEAD\" path: \"/a%b\" } body: \"*\"", &["HEAD /a%25b"]);
        check("custom: { kind: \"*\" path: \"/a\" }", &[]);
        check("custom: { kind: \"LIST\" path: \"/a\" }", &[]);
        let names = "additional_bindings { patch: \"/v1/{leaf.on}\" body: \"*\" } \
            additional_bindings { delete: \"/v1/{id}\" body: \"*\" }";
        check(
            &format!("delete: \"/v1/{{name}}\" body: \"*\" {names}"),
            &["DELETE /v1/{name} path:name", "PATCH /v1/{name} path:name"],
        );
    }

    #[test]
    fn a_document_as_a_whole() {
        let document = of_methods(
            "rpc A(stream M) returns (stream M) { option (google.api.http) = { post: \"/a\" body: \"*\" }; }
            rpc B(Leaf) returns (M) { option (google.api.http) = { post: \"/b\" body: \"raw\" response_body: \"colors\" }; }
            rpc C(M) returns (M);",
        );
        let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let color = json!({"anyOf": [{"type": "string", "enum": ["RED", "BLUE"]}, {"type": "integer", "format": "int32"}]});
        let failed = json!({"description": "The call failed, or was not made."});
        let lines = json!({"description": "Messages, one per line.",
            "content": {"application/x-ndjson": {"schema": of("p.M")}}});
        assert_eq!(
            document,
            json!({
                "openapi": "3.0.3",
                "info": {"title": "shop", "version": "1"},
                "tags": [{"name": "p.S"}],
                "paths": {
                    "/a": {"post": {
                        "operationId": "p.S.A", "tags": ["p.S"], "responses": {"200": lines, "default": failed},
                        "requestBody": {"content": {
                            "application/json": {"schema": {"type": "array", "items": of("p.M")}},
                            "application/x-ndjson": {"schema": of("p.M")},
                        }},
                    }},
                    "/b": {"post": {
                        "operationId": "p.S.B", "tags": ["p.S"],
                        "parameters": [{"name": "on", "in": "query", "schema": {"type": "boolean"}}],
                        "responses": {
                            "200": {"description": "The message.", "content": {"application/json": {
                                "schema": {"type": "array", "items": of("p.Color")}}}},
                            "default": failed,
                        },
                        "requestBody": {"content": {"application/json": {"schema": {"type": "string", "format": "byte"}}}},
                    }},
                },
                "components": {"schemas": {
                    "p.Color": color,
                    "p.Leaf": {"type": "object", "properties": {
                        "on": {"type": "boolean"}, "raw": {"type": "string", "format": "byte"}}},
                    "p.M": {"type": "object", "properties": {
                        "name": {"type": "string"},
                        "id": {"type": "integer", "format": "int64"},
                        "inner": of("p.M"),
                        "colors": {"type": "array", "items": of("p.Color")},
                        "all": {"type": "object", "additionalProperties": of("p.M")},
                        "at": {"type": "string", "format": "date-time"},
                        "list": {"type": "array", "items": of("p.M")},
                        "leaf": of("p.Leaf"),
                    }},
                }},
            })
        );
    }

    /// The import accepts the document.
    #[test]
    fn documents_are_imported() {
        let rules = "get: \"/v1/{name=shelves/*/books/*}:read\" additional_bindings { post: \"/v1/{leaf.on}\" body: \"*\" }";
        let document =
            of_methods(&format!("rpc A(M) returns (M) {{ option (google.api.http) = {{ {rules} }}; }}"));
        let text = document.to_string();
        let wish = ImportOptions { upstream: Some("http://127.0.0.1:50051"), validate: Some(&text) };
        let imported = configuration(&OpenApi::of(document).unwrap(), wish).unwrap();
        let routes = imported.configuration["routes"].as_array().unwrap();
        let uris: Vec<&Value> = routes.iter().map(|route| &route["uris"][0]).collect();
        assert_eq!(uris.len(), 2, "{uris:?}");
    }

    /// Every schema compiles, for requests and for responses.
    #[test]
    fn schemas_are_understood() {
        let kinds = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes";
        let fields: Vec<String> =
            kinds.split(' ').enumerate().map(|(at, kind)| format!("{kind} a{at} = {};", at + 1)).collect();
        let document = made(&format!(
            "service S {{ rpc A(M) returns (M) {{ option (google.api.http) = {{ get: \"/a/{{a3}}\" }}; }} }}
            message M {{ {} google.protobuf.Timestamp at = 99; }}",
            fields.join(" ")
        ));
        let document = OpenApi::of(document).unwrap();
        for sender in [Sender::Client, Sender::Node] {
            let mut reading = Reading::new(document.root().value, document.dialect(sender));
            let id = reading.schema("/components/schemas/p.M").unwrap();
            let schemas = reading.finish().unwrap();
            let check = |value: Value, fits: bool| {
                let outcome = schemas.check_of_stranger(id, &value, 1000);
                assert_eq!(outcome.is_ok(), fits, "{value} {outcome:?}");
            };
            check(
                json!({"a0": 1.5, "a1": "NaN", "a2": -1, "a5": u64::MAX, "a12": true, "a13": "", "a14": "AA=="}),
                true,
            );
            check(json!({"a0": "one"}), false);
            check(json!({"a2": 3_000_000_000_u32}), false);
            check(json!({"a5": -1}), false);
            check(json!({"at": "2026-11-27T01:00:00Z"}), true);
            check(json!({"at": "now"}), false);
        }
    }

    #[test]
    fn definitions_that_are_refused() {
        let check = |definition: &str, expected: &str| {
            let id = "shop".parse::<Id>().unwrap();
            assert_eq!(openapi(&id, &format!("{HEAD}{definition}")).unwrap_err(), expected);
        };
        check(
            "message M {} service S { rpc A(M) returns (M) { option (google.api.http) = { get: \"a\" }; } }",
            "the annotation of p.S.A: `a` does not begin with `/`",
        );
        let fields: Vec<String> = (1..=600).map(|at| format!("string a{at} = {at};")).collect();
        let rules: Vec<String> =
            (0..100).map(|at| format!("additional_bindings {{ get: \"/{at}\" }}")).collect();
        let many = format!(
            "message M {{ {} }} service S {{ rpc A(M) returns (M) {{ option (google.api.http) = {{ get: \"/\" {} }}; }} }}",
            fields.join(" "),
            rules.join(" ")
        );
        check(&many, "the document would have more than 50000 parameters");
    }
}
