//! Schemas and plugins: what may be written.

use std::cmp::Reverse;

use axum::http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use sigma_config::kind::Kind;
use sigma_config::plugins::meta_schema;
use sigma_config::stored;
use sigma_schema::plugins::{PluginSchemas, PluginScope};
use sigma_schema::validation;

use super::AdminState;
use super::call::{Arguments, Call};
use super::collection::{COLLECTIONS, Class, Collection};
use super::decoration;
use super::reply::{Content, Outcome, Refusal, Reply};

/// Returns the schema of a collection's items.
pub(crate) fn schema_of(class: Class) -> &'static Value {
    match class {
        Class::Resource(kind) => stored::schema(kind),
        Class::Decoration => decoration::schema(),
    }
}

pub(crate) fn only_get(call: &Call) -> Result<(), Refusal> {
    if call.method == Method::GET {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::NOT_FOUND, "not found"))
}

/// `GET /schema/{name}`.
pub(crate) fn schema(state: &AdminState, name: &str, call: &Call) -> Outcome {
    only_get(call)?;
    if name == "plugins" {
        return Ok(Reply::json(StatusCode::OK, plugins_schema(&*state.plugins)));
    }
    let known = COLLECTIONS.iter().find(|collection| collection.schema == name);
    match known.filter(|collection| is_served(collection)) {
        Some(collection) => Ok(Reply::json(StatusCode::OK, schema_of(collection.class).clone())),
        None => Err(Refusal::bad(format_args!("not found schema: {name}"))),
    }
}

/// The schemas of all collections that are served by name.
pub(crate) fn resource_schemas(plugins: &dyn PluginSchemas) -> Map<String, Value> {
    let mut all = Map::new();
    for collection in COLLECTIONS.iter().filter(|collection| is_served(collection)) {
        all.insert(collection.schema.to_owned(), schema_of(collection.class).clone());
    }
    all.insert("plugins".to_owned(), plugins_schema(plugins));
    all
}

/// Secrets and metadata have a schema for each manager and plugin, none of their own.
fn is_served(collection: &Collection) -> bool {
    !collection.is(Kind::Secret) && !collection.is(Kind::PluginMetadata)
}

/// The schema of an object of plugins.
fn plugins_schema(plugins: &dyn PluginSchemas) -> Value {
    let named = |name: &str| Some((name.to_owned(), plugin_schema(plugins, name, PluginScope::Http)?));
    let properties: Map<String, Value> = plugins.names().into_iter().filter_map(named).collect();
    json!({"type": "object", "properties": properties})
}

/// How APISIX marks the schemas that it has added `_meta` to.
const MARK: &str = "this is a mark for our injected plugin schema";

/// A plugin's schema with the member that all plugins have.
fn plugin_schema(plugins: &dyn PluginSchemas, name: &str, scope: PluginScope) -> Option<Value> {
    let mut schema = plugins.schema(name, scope)?.clone();
    let object = schema.as_object_mut()?;
    object.insert("$comment".into(), MARK.into());
    let properties = object.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        properties.insert("_meta".into(), meta_schema());
    }
    Some(schema)
}

fn scope_of(arguments: &Arguments) -> Result<(PluginScope, &str), Refusal> {
    match arguments.get("subsystem") {
        None => Ok((PluginScope::Http, "http")),
        Some("http") => Ok((PluginScope::Http, "http")),
        Some("stream") => Ok((PluginScope::Stream, "stream")),
        Some(other) => Err(Refusal::bad(format_args!("unsupported subsystem: {other}"))),
    }
}

/// `GET /plugins/{name}` and `GET /schema/plugins/{name}`.
pub(crate) fn plugin(state: &AdminState, name: &str, call: &Call) -> Outcome {
    only_get(call)?;
    let (scope, subsystem) = scope_of(&call.arguments)?;
    let plugins = &*state.plugins;
    let Some(schema) = plugin_schema(plugins, name, scope) else {
        let message = format!("plugin not found in subsystem {subsystem}");
        return Err(Refusal::new(StatusCode::NOT_FOUND, message));
    };
    let schema = match call.arguments.get("schema_type") {
        Some("consumer") => plugins
            .schema(name, PluginScope::Consumer)
            .cloned()
            .ok_or_else(|| Refusal::bad("not found schema"))?,
        Some("metadata") => plugins
            .schema(name, PluginScope::Metadata)
            .cloned()
            .ok_or_else(|| Refusal::bad("not found schema"))?,
        _ => schema,
    };
    Ok(Reply::json(StatusCode::OK, schema))
}

/// `GET /plugins/{name}/documentation`: its page of the reference, in Markdown.
pub(crate) fn documentation(state: &AdminState, name: &str, call: &Call) -> Outcome {
    only_get(call)?;
    match (state.documentation)(name) {
        Some(page) => {
            let content = Content::Typed("text/markdown; charset=utf-8", page);
            Ok(Reply { content, ..Reply::empty(StatusCode::OK) })
        }
        None => Err(Refusal::new(StatusCode::NOT_FOUND, format_args!("there is no plugin {name}"))),
    }
}

/// `GET /plugins/summaries`: a short description of each plugin.
pub(crate) fn summaries(state: &AdminState, call: &Call) -> Outcome {
    only_get(call)?;
    Ok(Reply::json(StatusCode::OK, (state.summaries)()))
}

/// `GET /plugins?all=true`.
pub(crate) fn plugins(state: &AdminState, call: &Call) -> Outcome {
    only_get(call)?;
    let (scope, subsystem) = scope_of(&call.arguments)?;
    if !call.arguments.is_true("all") {
        let message = format!("plugin not found in subsystem {subsystem}");
        return Err(Refusal::new(StatusCode::NOT_FOUND, message));
    }
    Ok(Reply::json(StatusCode::OK, Value::Object(attributes(&*state.plugins, scope))))
}

/// Returns the attributes of every plugin of a subsystem.
pub(crate) fn attributes(plugins: &dyn PluginSchemas, scope: PluginScope) -> Map<String, Value> {
    let mut all = Map::new();
    for name in plugins.names() {
        let Some(schema) = plugin_schema(plugins, name, scope) else { continue };
        let mut about = Map::from_iter([("schema".to_owned(), schema)]);
        if let Some(standing) = plugins.standing(name) {
            about.insert("version".to_owned(), standing.version.into());
            about.insert("priority".to_owned(), standing.priority.into());
        }
        let others = [("metadata_schema", PluginScope::Metadata), ("consumer_schema", PluginScope::Consumer)];
        for (attribute, scope) in others {
            if let Some(schema) = plugins.schema(name, scope) {
                about.insert(attribute.to_owned(), schema.clone());
            }
        }
        if plugins.is_auth(name) {
            about.insert("type".to_owned(), "auth".into());
        }
        all.insert(name.to_owned(), Value::Object(about));
    }
    all
}

/// `GET /plugins/list`: in the order in which they run.
pub(crate) fn names(state: &AdminState, call: &Call) -> Outcome {
    only_get(call)?;
    let scope = match call.arguments.get("subsystem") {
        None | Some("http") => PluginScope::Http,
        Some("stream") => PluginScope::Stream,
        Some(_) => {
            let reply = Reply::text(StatusCode::BAD_REQUEST, "invalid subsystem passed");
            return Err(Refusal(Box::new(reply)));
        }
    };
    let mut names = state.plugins.names();
    names.retain(|name| state.plugins.schema(name, scope).is_some());
    // Stable: of equal ones, and of those without a place, the names decide.
    names.sort_by_key(|name| Reverse(state.plugins.standing(name).map(|standing| standing.priority)));
    Ok(Reply::json(StatusCode::OK, json!(names)))
}

/// `PUT /plugins/reload`: the configuration file and the files of plugins are read again. On a mistake everything stays
/// as it is.
pub(crate) async fn reload(state: &AdminState, call: &Call) -> Outcome {
    if call.method == Method::PUT {
        if let Some(reload) = &state.gateway.reload {
            let outcome = reload().await;
            outcome.map_err(|reason| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, reason))?;
        }
        return Ok(Reply::text(StatusCode::OK, "done"));
    }
    let message =
        format!("please use PUT method to reload the plugins, {} method is not allowed.", call.method);
    Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message))
}

/// `POST /schema/validate/{collection}`: the schema alone.
pub(crate) fn validate(segment: &str, call: &Call) -> Outcome {
    if call.method != Method::POST {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not found"));
    }
    let Some(collection) = Collection::of_segment(segment) else {
        let message = format!("Unsupported resource type: {segment}");
        return Err(Refusal::new(StatusCode::NOT_FOUND, message));
    };
    let body = call.body.as_ref().ok_or_else(|| Refusal::bad("missing configurations"))?;
    let compiled = validation::Schema::compile(schema_of(collection.class));
    let compiled = compiled.map_err(|text| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text))?;
    compiled.check(body).map_err(Refusal::bad)?;
    Ok(Reply::empty(StatusCode::OK))
}
