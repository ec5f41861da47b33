//! The API described by itself: an OpenAPI 3.1 document, made from the roster of collections and
//! the schemas that writes are checked against.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use sigma_config::kind::Kind;

use super::catalogue::schema_of;
use super::collection::{COLLECTIONS, Class, Collection, DECORATIONS, ProcessQuery, ROOT};
use super::reply::{Outcome, Reply};

/// `GET /openapi.json`.
pub(crate) fn serve() -> Outcome {
    Ok(Reply::json(StatusCode::OK, document()))
}

/// The whole document.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    let mut schemas = fixed_schemas();
    for collection in &COLLECTIONS {
        schemas.insert(collection.schema.to_owned(), written_schema(collection));
        let (directory, parameters) = directory(collection);
        let listed = if collection.is(Kind::Secret) {
            // They are listed for all managers together, and written below one.
            (format!("{ROOT}/secrets"), json!({"get": list(collection, &[])}))
        } else {
            (directory.clone(), collection_item(collection, &parameters))
        };
        paths.extend([listed]);
        paths.insert(format!("{directory}/{{id}}"), resource_item(collection, &parameters));
    }
    paths.extend(others());
    paths.extend(history());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sigma Admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Resources of the gateway, in the form of Apache APISIX's Admin API.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"}},
            "schemas": schemas,
            "responses": {
                "refused": refused(),
                "missing": answer("There is no such resource.", Some("missing")),
            },
        },
    })
}

fn fixed_schemas() -> Map<String, Value> {
    let entry = json!({
        "type": "object",
        "properties": {
            "key": {"type": "string"},
            "value": {"type": "object"},
            "createdIndex": {"type": "integer"},
            "modifiedIndex": {"type": "integer"},
        },
        "required": ["key", "value"],
    });
    let list = json!({
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"$ref": "#/components/schemas/entry"}},
            "total": {"type": "integer"},
        },
        "required": ["list", "total"],
    });
    let deleted = json!({
        "type": "object",
        "properties": {"deleted": {"const": "1"}, "key": {"type": "string"}},
        "required": ["deleted", "key"],
    });
    let error = json!({
        "type": "object",
        "properties": {
            "error_msg": {"type": "string"},
            "description": {"type": "string"},
            "req_body": {"type": "string"},
            "errors": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["error_msg"],
    });
    let missing = json!({
        "type": "object",
        "properties": {"message": {"type": "string"}, "error_msg": {"type": "string"}},
    });
    let configs = json!({"type": "object"});
    [
        ("entry", entry),
        ("list", list),
        ("deleted", deleted),
        ("error", error),
        ("missing", missing),
        ("configs", configs),
    ]
    .into_iter()
    .map(|(name, schema)| (name.to_owned(), schema))
    .collect()
}

/// Returns the schema for writing: the schema of the resource without the fields that only the server sets.
fn written_schema(collection: &Collection) -> Value {
    let mut schema = schema_of(collection.class).clone();
    for pointer in ["/properties", "/properties/upstream/properties"] {
        let Some(properties) = schema.pointer_mut(pointer).and_then(Value::as_object_mut) else { continue };
        properties.shift_remove("create_time");
        properties.shift_remove("update_time");
        // The id is in the path.
        properties.shift_remove("id");
    }
    let required = schema.get_mut("required").and_then(Value::as_array_mut);
    required.into_iter().for_each(|names| names.retain(|name| name != "id"));
    schema
}

fn path_parameter(name: &str) -> Value {
    // A `/` would be another path, and `.` and `..` are resolved by clients.
    json!({
        "name": name, "in": "path", "required": true,
        "schema": {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$", "minLength": 1, "maxLength": 64},
    })
}

fn query(name: &str, schema: Value, description: &str) -> Value {
    json!({"name": name, "in": "query", "schema": schema, "description": description})
}

/// The path of a collection, and the parameters in it.
fn directory(collection: &Collection) -> (String, Vec<Value>) {
    match collection.class {
        Class::Resource(Kind::Credential) => {
            (format!("{ROOT}/consumers/{{username}}/credentials"), vec![path_parameter("username")])
        }
        Class::Decoration => {
            (format!("{ROOT}/services/{{service_id}}/{DECORATIONS}"), vec![path_parameter("service_id")])
        }
        Class::Resource(Kind::Secret) => {
            let mut manager = path_parameter("manager");
            manager["schema"] = json!({"enum": ["vault", "aws", "gcp"]});
            (format!("{ROOT}/secrets/{{manager}}"), vec![manager])
        }
        _ => (format!("{ROOT}/{}", collection.segment), Vec::new()),
    }
}

fn answer(description: &str, schema: Option<&str>) -> Value {
    match schema {
        Some(schema) => json!({
            "description": description,
            "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}},
        }),
        None => json!({"description": description}),
    }
}

/// Returns the common error responses of all operations; a page of an impossible size is refused with a bare text.
fn refused() -> Value {
    let mut refused = answer("Refused; the text says why.", Some("error"));
    refused["content"]["text/plain"] = json!({"schema": {"type": "string"}});
    refused
}

/// An operation whose successes are given; every one can be refused.
fn operation(summary: String, parameters: &[Value], successes: &[(&str, Value)]) -> Value {
    let mut responses: Map<String, Value> =
        successes.iter().map(|(status, answer)| ((*status).to_owned(), answer.clone())).collect();
    for status in ["400", "401", "403", "412", "503"] {
        responses.insert(status.to_owned(), json!({"$ref": "#/components/responses/refused"}));
    }
    responses.insert("404".to_owned(), json!({"$ref": "#/components/responses/missing"}));
    json!({"summary": summary, "parameters": parameters, "responses": responses})
}

fn with_body(mut operation: Value, schema: &str) -> Value {
    operation["requestBody"] = json!({
        "required": true,
        "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}},
    });
    operation
}

fn write_parameters() -> [Value; 2] {
    [
        query(
            "ttl",
            json!({"type": "integer", "minimum": 1, "maximum": 1_000_000}),
            "Seconds until it disappears.",
        ),
        query(
            "dry_run",
            json!({"enum": ["true", "false"]}),
            "Check and respond as if it were done, and store nothing.",
        ),
    ]
}

fn list(collection: &Collection, parameters: &[Value]) -> Value {
    let text = || json!({"type": "string"});
    let mut parameters = parameters.to_vec();
    parameters.extend([
        // Both count only together, and only as numbers.
        query("page", text(), "Number of the page, from 1."),
        query("page_size", text(), "Resources on each page, from 10 to 500."),
        query("name", text(), "Regular expression that the name matches."),
        query("uri", text(), "Regular expression that one of the paths matches."),
        query("label", text(), "The name of a label."),
    ]);
    if collection.is(Kind::Route) || collection.is(Kind::StreamRoute) {
        parameters.push(query("filter", text(), "Such as service_id=1&upstream_id=2."));
    }
    operation(
        format!("List of each {}", collection.word),
        &parameters,
        &[("200", answer("All.", Some("list")))],
    )
}

fn collection_item(collection: &Collection, parameters: &[Value]) -> Value {
    let mut item = Map::new();
    item.insert("get".to_owned(), list(collection, parameters));
    let mut parameters = parameters.to_vec();
    parameters.extend(write_parameters());
    let created = ("201", answer("Created.", Some("entry")));
    if !collection.refused.contains(&"POST") {
        let operation =
            operation(format!("Create a {}", collection.word), &parameters, std::slice::from_ref(&created));
        item.insert("post".to_owned(), with_body(operation, collection.schema));
    }
    // A consumer is named by its body.
    if collection.is(Kind::Consumer) {
        let successes = [created, ("200", answer("Replaced.", Some("entry")))];
        let operation = operation("Write a consumer".to_owned(), &parameters, &successes);
        item.insert("put".to_owned(), with_body(operation, collection.schema));
    }
    Value::Object(item)
}

fn resource_item(collection: &Collection, parameters: &[Value]) -> Value {
    let word = collection.word;
    let mut parameters = parameters.to_vec();
    parameters.push(path_parameter("id"));
    let mut item = Map::new();
    let shown = [("200", answer("The resource.", Some("entry"))), ("304", answer("Not modified.", None))];
    item.insert("get".to_owned(), operation(format!("Read a {word}"), &parameters, &shown));
    let dry_run = write_parameters()[1].clone();
    let force = query("force", json!({"enum": ["true", "false"]}), "Also if another resource uses it.");
    let deletes: Vec<Value> = parameters.iter().cloned().chain([force, dry_run]).collect();
    let deleted = [("200", answer("Deleted.", Some("deleted")))];
    item.insert("delete".to_owned(), operation(format!("Delete a {word}"), &deletes, &deleted));
    parameters.extend(write_parameters());
    let written = [("201", answer("Created.", Some("entry"))), ("200", answer("Replaced.", Some("entry")))];
    let put = operation(format!("Write a {word}"), &parameters, &written);
    item.insert("put".to_owned(), with_body(put, collection.schema));
    if !collection.refused.contains(&"PATCH") {
        let patched = [("200", answer("Changed.", Some("entry")))];
        let patch = operation(format!("Change a part of a {word}"), &parameters, &patched);
        // Any member may be left out, or null to remove it.
        item.insert("patch".to_owned(), with_body(patch, "configs"));
    }
    Value::Object(item)
}

/// Returns the paths that are not collections.
fn others() -> Vec<(String, Value)> {
    let any = |description: &str| json!({"description": description, "content": {"application/json": {"schema": {}}}});
    let empty = answer("Valid.", None);
    let name = path_parameter("name");
    let mut digest = json!({"name": "X-Digest", "in": "header", "required": true});
    digest["schema"] = json!({"type": "string", "pattern": "^[a-f0-9]{8,64}$"});
    let get = |summary: &str, parameters: &[Value]| {
        operation(summary.to_owned(), parameters, &[("200", any("The requested document."))])
    };
    let page =
        json!({"description": "Markdown.", "content": {"text/markdown": {"schema": {"type": "string"}}}});
    let documentation =
        operation("Documentation of a plugin".to_owned(), std::slice::from_ref(&name), &[("200", page)]);
    let replaced = [
        ("202", answer("Replaced.", None)),
        ("204", answer("This configuration is already in force.", None)),
    ];
    let dry_run = write_parameters()[1].clone();
    let put = operation("Replace the whole configuration".to_owned(), &[digest, dry_run], &replaced);
    let validate = operation("Check a resource".to_owned(), std::slice::from_ref(&name), &[("200", empty)]);
    let check =
        operation("Check a configuration".to_owned(), &[], &[("200", any("The configuration is valid."))]);
    let text = || json!({"type": "string"});
    let tap = [
        query("route", text(), "Only exchanges of this route."),
        query("service", text(), "Only exchanges of this service."),
        query("consumer", text(), "Only exchanges of this consumer."),
        query("client", text(), "Only exchanges of clients in this network; may be given several times."),
        query("status", text(), "Only responses with this status, such as 404 or 5xx."),
        query("sample", json!({"type": "integer", "minimum": 1}), "Share of exchanges: one in this number."),
    ];
    let asked =
        ProcessQuery::ALL.map(|(segment, question)| (segment, json!({"get": get(summary(question), &[])})));
    [
        ("caller", json!({"get": get("The permissions of the caller", &[])})),
        ("tap", json!({"get": get("Exchanges as they end, one line of JSON each", &tap)})),
        ("members", json!({"get": get("The gateways of the store, and the revision that each serves", &[])})),
        ("cache/purge", json!({"post": purge()})),
        ("nodes/{type}/{id}/{node}", json!({"put": node_state()})),
        ("acme/{id}/order", json!({"post": order()})),
        ("stress", json!({"get": get("Reports of the stress tests of this gateway", &[])})),
        ("stress/{type}/{id}", stress()),
        ("plugins/list", json!({"get": get("Names of the plugins", &[])})),
        ("plugins/summaries", json!({"get": get("Description, group and phases of each plugin", &[])})),
        ("plugins/{name}", json!({"get": get("Schema of a plugin", std::slice::from_ref(&name))})),
        ("plugins/{name}/documentation", json!({"get": documentation})),
        (
            "protos/{id}/openapi",
            json!({"get": get("A proto definition as an OpenAPI document", &[path_parameter("id")])}),
        ),
        ("schema/{name}", json!({"get": get("Schema of a resource", &[name])})),
        ("schema/validate/{name}", json!({"post": with_body(validate, "configs")})),
        (
            "configs",
            json!({
                "get": get("The whole configuration", &[]),
                "put": with_body(put, "configs"),
            }),
        ),
        ("configs/validate", json!({"post": with_body(check, "configs")})),
        ("convert/{format}", json!({"post": convert()})),
    ]
    .into_iter()
    .chain(asked)
    .map(|(path, item)| (format!("{ROOT}/{path}"), item))
    .collect()
}

/// Returns the operation that converts files of other gateways.
fn convert() -> Value {
    let text = || json!({"type": "string"});
    let file = json!({"type": "object", "required": ["name", "text"], "properties": {"name": text(), "text": text()}});
    let order = json!({"type": "object", "required": ["files"], "properties": {
        "files": {"type": "array", "items": file, "minItems": 1, "maxItems": 256},
    }});
    let object = || json!({"type": "object"});
    let done = json!({"type": "object", "required": ["resources", "settings", "report"], "properties": {
        "resources": object(), "settings": object(), "report": object(), "has_closed_routes": {"type": "boolean"},
    }});
    let done = json!({"description": "Converted; nothing is stored.", "content": {"application/json": {"schema": done}}});
    let format = path_parameter("format");
    let summary = "Convert another gateway's configuration or an OpenAPI document to resources".to_owned();
    let mut convert = operation(summary, &[format], &[("200", done)]);
    convert["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": order}}});
    convert
}

/// Returns the operation that sets the state of a node.
fn node_state() -> Value {
    let state = json!({"enum": ["ready", "drain", "maintenance"]});
    let order = json!({"type": "object", "required": ["state"], "properties": {"state": state}});
    let text = || json!({"type": "string"});
    let done = json!({"type": "object", "required": ["node", "state"], "properties": {
        "node": text(), "state": state, "note": text(),
    }});
    let done =
        json!({"description": "The state of the node.", "content": {"application/json": {"schema": done}}});
    let path = ["type", "id", "node"].map(path_parameter);
    let mut set = operation("Set the state of a node of this gateway".to_owned(), &path, &[("200", done)]);
    set["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": order}}});
    set
}

/// Returns the operations on the stress test of an upstream.
fn stress() -> Value {
    let path = ["type", "id"].map(path_parameter);
    let report = || json!({"description": "The report of the test.", "content": {"application/json": {"schema": {"type": "object"}}}});
    let whole = |least: u32, most: u32| json!({"type": "integer", "minimum": least, "maximum": most});
    let milliseconds = || json!({"type": "number", "exclusiveMinimum": 0});
    let order = json!({"type": "object", "required": ["nodes"], "additionalProperties": false, "properties": {
        "nodes": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 16},
        "start_percent": whole(1, 100), "step_percent": whole(1, 100), "max_percent": whole(1, 100),
        "interval": whole(5, 3_600), "duration": whole(1, 3_600),
        "p99_ms": milliseconds(), "mean_ms": milliseconds(),
        "error_percent": {"type": "number", "minimum": 0, "maximum": 100},
        "min_requests": {"type": "integer", "minimum": 1},
    }});
    let mut start = operation("Start a stress test on this gateway".to_owned(), &path, &[("202", report())]);
    start["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": order}}});
    json!({
        "post": start,
        "get": operation("Show the last stress test of an upstream".to_owned(), &path, &[("200", report())]),
        "delete": operation("Stop the stress test of an upstream".to_owned(), &path, &[("200", report())]),
    })
}

/// Returns the operation that orders a certificate.
fn order() -> Value {
    let done = json!({"description": "The gateway orders the certificate.", "content": {"application/json": {"schema": {
        "type": "object", "required": ["ssl", "state"], "properties": {"ssl": {"type": "string"}, "state": {"const": "ordering"}},
    }}}});
    operation("Order the certificate of an ssl now".to_owned(), &[path_parameter("id")], &[("202", done)])
}

/// Returns the operation that purges caches.
fn purge() -> Value {
    let list = |item: Value| json!({"type": "array", "items": item, "maxItems": 1000});
    let text = || json!({"type": "string"});
    let order = json!({"type": "object", "additionalProperties": false, "properties": {
        "zone": text(), "all": {"type": "boolean"}, "urls": list(text()), "prefixes": list(text()), "tags": list(text()),
        "keys": list(json!({"type": "array", "items": text(), "minItems": 1})),
    }});
    let done = json!({"type": "object", "required": ["forgotten", "gateways"], "properties": {
        "forgotten": {"type": "integer", "description": "Number of stored responses that this gateway removed."},
        "gateways": {"enum": ["all", "this"], "description": "Whether the other gateways of the store were notified."},
    }});
    let done = json!({"description": "Forgotten.", "content": {"application/json": {"schema": done}}});
    let summary = "Purge stored responses from the caches of all gateways of the store".to_owned();
    let mut purge = operation(summary, &[], &[("200", done)]);
    purge["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": order}}});
    purge
}

/// Returns the operations of the history and of `explain`.
fn history() -> Vec<(String, Value)> {
    let any = |description: &str| json!({"description": description, "content": {"application/json": {"schema": {}}}});
    let number = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "integer", "minimum": 0, "maximum": 9_000_000}});
    let key = query("key", json!({"type": "string"}), "Only this object, such as routes/1.");
    let listed = [
        query("limit", json!({"type": "integer", "minimum": 1, "maximum": 500}), "Default: 50 versions."),
        query("before", json!({"type": "integer", "minimum": 0}), "Only versions before this one."),
        key.clone(),
    ];
    let get = |summary: &str, parameters: &[Value]| {
        operation(summary.to_owned(), parameters, &[("200", any("The requested document."))])
    };
    let rolled = [("200", any("The keys of the objects that were created, changed and deleted."))];
    let parameters = [number("version"), write_parameters()[1].clone()];
    let rollback = operation("Roll back to a version".to_owned(), &parameters, &rolled);
    let text = || json!({"type": "string"});
    let asked = [
        query("method", text(), "Method of the request; GET by default."),
        json!({"name": "url", "in": "query", "required": true, "schema": text(), "description": "URL of the request, such as https://example.com/a?b=c."}),
        query("header", text(), "`Name: value`; may be given several times."),
        query("client", text(), "The client's address."),
        query("listener", text(), "The name of the listener."),
        query("consumer", text(), "Name of the consumer that sends the request."),
    ];
    let between = [number("from"), number("to"), key.clone()];
    [
        ("explain", json!({"get": get("The result of a request, without sending it", &asked)})),
        ("history", json!({"get": get("Versions of the configuration, the newest first", &listed)})),
        ("history/{version}", json!({"get": get("The changes of a version", &[number("version"), key])})),
        ("history/{from}/diff/{to}", json!({"get": get("The differences between two versions", &between)})),
        ("history/{version}/rollback", json!({"post": rollback})),
    ]
    .into_iter()
    .map(|(path, item)| (format!("{ROOT}/{path}"), item))
    .collect()
}

fn summary(question: ProcessQuery) -> &'static str {
    match question {
        ProcessQuery::Live => "Current rates and times of requests",
        ProcessQuery::Nodes => "The nodes of each upstream, with their health",
        ProcessQuery::Certificates => "The certificates that clients get, with their expiry",
        ProcessQuery::Revision => "The served revision, and the resources that are not served",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_of_every_collection_is_described() {
        let document = document();
        for collection in &COLLECTIONS {
            let (directory, _) = directory(collection);
            let item = &document["paths"][format!("{directory}/{{id}}")];
            assert_eq!(item.get("patch").is_none(), collection.refused.contains(&"PATCH"), "{directory}");
            let post = document["paths"][directory.as_str()].get("post");
            assert_eq!(post.is_none(), collection.refused.contains(&"POST"), "{directory}");
            let schema = &document["components"]["schemas"][collection.schema];
            assert!(schema.is_object() && schema["properties"].get("create_time").is_none(), "{directory}");
        }
    }
}
