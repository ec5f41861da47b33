//! Reading resources.

use axum::http::StatusCode;
use serde_json::Value;
use sigma_config::kind::Kind;
use sigma_config::settings::{AdminApiVersion, AdminRole};
use sigma_schema::id::Id;

use super::call::Call;
use super::collection::{Class, Collection, ResourcePath};
use super::filter::Filter;
use super::reply::{self, Outcome, Refusal, Reply, ResourceEntry};
use super::{AdminState, secrecy};
use crate::store::Record;

/// `GET` of one resource or of a collection.
pub(crate) async fn get(state: &AdminState, place: &ResourcePath, call: &Call) -> Outcome {
    match &place.id {
        Some(id) if place.sub_path.is_empty() => one(state, place, id, call).await,
        Some(id) if place.collection.is(Kind::Proto) && place.sub_path == ["openapi"] => {
            described(state, place, id, call).await
        }
        Some(_) => Err(Refusal::new(StatusCode::NOT_FOUND, "not found")),
        None => list(state, place, call).await,
    }
}

async fn one(state: &AdminState, place: &ResourcePath, id: &str, call: &Call) -> Outcome {
    let record = state.store.get(&place.key(id)).await?.ok_or_else(Refusal::missing)?;
    let modified = record.modified;
    if call.preconditions.is_current(modified) {
        return Ok(Reply::empty(StatusCode::NOT_MODIFIED).at(modified));
    }
    call.preconditions.check(Some(modified))?;
    let entry = show(state, place.collection, record, call.role)?;
    Ok(Reply::json(StatusCode::OK, reply::one(state.settings.api_version, entry)).at(modified))
}

/// The document of OpenAPI that a definition is for clients of HTTP.
async fn described(state: &AdminState, place: &ResourcePath, id: &str, call: &Call) -> Outcome {
    let record = state.store.get(&place.key(id)).await?.ok_or_else(Refusal::missing)?;
    if call.preconditions.is_current(record.modified) {
        return Ok(Reply::empty(StatusCode::NOT_MODIFIED).at(record.modified));
    }
    call.preconditions.check(Some(record.modified))?;
    let value = value_of(&record)?;
    let content = value.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = id.parse::<Id>().map_err(Refusal::bad)?;
    // A large definition takes a while, and others wait for this thread.
    let made = tokio::task::spawn_blocking(move || sigma_convert::openapi::openapi(&name, &content)).await;
    let made = made.unwrap_or_else(|_| Err("cannot read it".to_owned()));
    let document = made.map_err(|reason| {
        Refusal::bad(format_args!("cannot convert proto [{id}] to an OpenAPI document: {reason}"))
    })?;
    Ok(Reply::json(StatusCode::OK, document).at(record.modified))
}

async fn list(state: &AdminState, place: &ResourcePath, call: &Call) -> Outcome {
    let version = state.settings.api_version;
    let filter = match version {
        AdminApiVersion::V3 => Filter::parse(&call.arguments, place.collection)?,
        AdminApiVersion::V2 => Filter::default(),
    };
    let records = state.store.list(&place.prefix()).await?;
    let own = records.into_iter().filter(|record| place.collection.owns(&record.key));
    // One value that cannot be read must not hide the others.
    let mut items: Vec<ResourceEntry> =
        own.filter_map(|record| show(state, place.collection, record, call.role).ok()).collect();
    // These two have no placeholder in APISIX's store: without items there is no collection.
    let is_below = place.collection.is(Kind::Credential) || place.collection.class == Class::Decoration;
    if items.is_empty() && is_below {
        return Err(Refusal::missing());
    }
    let total = filter.apply(&mut items);
    let directory = state.shown_key(&place.directory());
    Ok(Reply::json(StatusCode::OK, reply::list(version, &directory, items, total)))
}

/// A record as a reader may see it.
pub(crate) fn show(
    state: &AdminState,
    collection: &Collection,
    record: Record,
    reader: AdminRole,
) -> Result<ResourceEntry, Refusal> {
    let mut value = value_of(&record)?;
    if let Some(kind) = collection.kind() {
        secrecy::show(&state.keyring, kind, &mut value, &*state.plugins, reader);
    }
    Ok(ResourceEntry {
        key: state.shown_key(&record.key),
        value,
        created: record.created,
        modified: record.modified,
    })
}

/// Returns the JSON of a record; values of other programs may be invalid.
pub(crate) fn value_of(record: &Record) -> Result<Value, Refusal> {
    let object = serde_json::from_slice(&record.value).map(Value::Object);
    object.map_err(|error| {
        let message = format!(
            "the stored value of {} is not a JSON object: {error}; delete it or write it again",
            record.key
        );
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })
}
