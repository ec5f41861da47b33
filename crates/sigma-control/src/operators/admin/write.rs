//! Changing resources: one at a time, each in one transaction.

use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Map, Value};
use sigma_config::kind::Kind;
use sigma_schema::Problem;

use super::AdminState;
use super::call::Call;
use super::collection::{Class, ResourcePath};
use super::proposal::{self, Proposal};
use super::read::value_of;
use super::reply::{self, Outcome, Refusal, Reply};
use super::rules::{self, id_text};
use super::{decoration, now, patch as patching, secrecy};
use crate::store::{Condition, Record, StoreError, Transaction, Write};

/// How often a write is tried again after another one came between.
const ATTEMPTS: usize = 8;
/// Fields that only the server sets.
const TIMES: [&str; 2] = ["create_time", "update_time"];

/// A resource that is ready to be checked against the others.
struct Draft {
    key: String,
    value: Map<String, Value>,
    ttl: Option<Duration>,
    /// Warnings for its writer.
    warnings: Vec<Problem>,
}

/// `PUT`: the body replaces the resource.
pub(crate) async fn put(state: &AdminState, place: &ResourcePath, call: &Call) -> Outcome {
    no_sub_path(place)?;
    let mut value = object(call)?;
    let id = identify(place, &mut value)?;
    forbid_times(&value)?;
    let draft = checked(state, place, &id, value, call)?;
    for _ in 0..ATTEMPTS {
        let _turn = turn(state, rules::looks_around(place.collection.class)).await;
        let previous = state.store.get(&draft.key).await?;
        call.preconditions.check(previous.as_ref().map(|record| record.modified))?;
        let mut value = draft.value.clone();
        let created = previous.as_ref().and_then(|record| value_of(record).ok()?.get("create_time").cloned());
        stamp(place, &mut value, created);
        let status = if previous.is_some() { StatusCode::OK } else { StatusCode::CREATED };
        let action = if previous.is_some() { "set" } else { "create" };
        match store(state, place, call, &draft, value, previous.as_ref()).await? {
            Some(stored) => return Ok(write_reply(state, status, action, &draft, &stored)),
            None => continue,
        }
    }
    Err(StoreError::Conflict.into())
}

/// `POST`: a new resource, with an id that the store makes.
pub(crate) async fn post(state: &AdminState, place: &ResourcePath, call: &Call) -> Outcome {
    let mut value = object(call)?;
    if place.id.is_some() || value.contains_key("id") {
        return Err(Refusal::bad(format_args!("wrong {} id, do not need it", place.collection.word)));
    }
    forbid_times(&value)?;
    own_service(place, &mut value)?;
    let ttl = call.ttl()?;
    for _ in 0..ATTEMPTS {
        let _turn = turn(state, rules::looks_around(place.collection.class)).await;
        // A dry run takes no number from the store.
        let number =
            if call.is_dry() { state.store.status().revision + 1 } else { state.store.next_id().await? };
        let id = format!("{number:020}");
        let key = place.key(&id);
        let mut value = value.clone();
        value.insert("id".into(), id.clone().into());
        let (value, warnings) = check(state, place, value)?;
        let draft = Draft { key, value, ttl, warnings };
        let mut value = draft.value.clone();
        stamp(place, &mut value, None);
        call.preconditions.check(None)?;
        match store(state, place, call, &draft, value, None).await? {
            Some(stored) => return Ok(write_reply(state, StatusCode::CREATED, "create", &draft, &stored)),
            None => continue,
        }
    }
    Err(StoreError::Conflict.into())
}

/// `PATCH`: the body replaces a part of the resource.
pub(crate) async fn patch(state: &AdminState, place: &ResourcePath, call: &Call) -> Outcome {
    let id = existing_id(place)?;
    let given = call.body.as_ref().ok_or_else(|| Refusal::bad("missing new configuration"))?;
    let is_object = given.is_object() || given.as_array().is_some_and(Vec::is_empty);
    if place.sub_path.is_empty() && !is_object {
        return Err(Refusal::bad("invalid configuration"));
    }
    let key = place.key(id);
    for _ in 0..ATTEMPTS {
        let _turn = turn(state, rules::looks_around(place.collection.class)).await;
        let record = state.store.get(&key).await?.ok_or_else(Refusal::missing)?;
        call.preconditions.check(Some(record.modified))?;
        let value = patched(state, place, &record, given)?;
        let draft = checked(state, place, id, value, call)?;
        let value = draft.value.clone();
        match store(state, place, call, &draft, value, Some(&record)).await? {
            Some(stored) => {
                return Ok(write_reply(state, StatusCode::OK, "compareAndSwap", &draft, &stored));
            }
            // The base of the patch is gone; the client has to read again. A change of a referenced resource
            // does not matter.
            None if state.store.get(&key).await?.is_none_or(|now| now.modified != record.modified) => {
                return Err(StoreError::Conflict.into());
            }
            None => continue,
        }
    }
    Err(StoreError::Conflict.into())
}

fn patched(
    state: &AdminState,
    place: &ResourcePath,
    record: &Record,
    given: &Value,
) -> Result<Map<String, Value>, Refusal> {
    let mut present = value_of(record)?;
    if let Some(kind) = place.collection.kind() {
        state.open(kind, &mut present);
    }
    let Value::Object(mut value) = present else { return Err(Refusal::bad("invalid configuration")) };
    let is_decoration = place.collection.class == Class::Decoration;
    let mut keeps_update_time = false;
    if place.sub_path.is_empty() {
        let given = match given {
            Value::Object(given) => given.clone(),
            // Seen to before: an empty list, which is an empty object to APISIX.
            _ => Map::new(),
        };
        if is_decoration && given.contains_key("service_id") {
            return Err(Refusal::bad("service_id can not be patched"));
        }
        keeps_update_time = given.contains_key("update_time");
        patching::merge(&mut value, given);
    } else if is_decoration {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not found"));
    } else {
        patching::replace(&mut value, &place.sub_path, given.clone())?;
    }
    if !value.contains_key("create_time") {
        value.insert("create_time".into(), now().into());
    }
    if !keeps_update_time || !value.contains_key("update_time") {
        value.insert("update_time".into(), now().into());
    }
    let id = identity(place, place.id.as_deref().unwrap_or_default());
    same_id(place, &id, &value)?;
    // As the path has it: an earlier body may have had a number.
    value.insert("id".into(), id.into());
    Ok(value)
}

/// `DELETE`, with all that is below the resource.
pub(crate) async fn delete(state: &AdminState, place: &ResourcePath, call: &Call) -> Outcome {
    no_sub_path(place)?;
    let id = existing_id(place)?;
    let key = place.key(id);
    for _ in 0..ATTEMPTS {
        let _turn = turn(state, true).await;
        if !call.arguments.is_true("force") {
            rules::on_delete(state, place, id).await?;
        }
        let Some(record) = state.store.get(&key).await? else {
            call.preconditions.check(None)?;
            return Err(Refusal::missing());
        };
        call.preconditions.check(Some(record.modified))?;
        let mut gone = rules::dependents(state, place, id).await?;
        gone.push(key.clone());
        let transaction = Transaction {
            conditions: vec![Condition::ModifiedAt { key: key.clone(), revision: record.modified }],
            writes: gone.into_iter().map(|key| Write::Delete { key }).collect(),
        };
        let warnings = proposal::warnings(state, Proposal::of(state, &transaction.writes)).await;
        if !call.is_dry() {
            match state.commit(call, transaction).await {
                Err(StoreError::Conflict) => continue,
                done => done?,
            };
        }
        let body = reply::deleted(state.settings.api_version, &state.shown_key(&key));
        return Ok(Reply::json(StatusCode::OK, body).warning(&warnings));
    }
    Err(StoreError::Conflict.into())
}

/// Held while a write looks at the other resources and until it is stored.
enum Turn<'a> {
    Shared(#[expect(dead_code, reason = "held")] tokio::sync::RwLockReadGuard<'a, ()>),
    Alone(#[expect(dead_code, reason = "held")] tokio::sync::RwLockWriteGuard<'a, ()>),
}

async fn turn(state: &AdminState, alone: bool) -> Turn<'_> {
    if alone { Turn::Alone(state.writes.write().await) } else { Turn::Shared(state.writes.read().await) }
}

/// A write that is done.
struct Stored {
    revision: u64,
    value: Value,
    /// Warnings that come from resources together.
    warnings: Vec<Problem>,
}

/// Checks against the other resources and commits. Returns None if something changed meanwhile.
async fn store(
    state: &AdminState,
    place: &ResourcePath,
    call: &Call,
    draft: &Draft,
    value: Map<String, Value>,
    previous: Option<&Record>,
) -> Result<Option<Stored>, Refusal> {
    let mut value = Value::Object(value);
    let mut conditions = rules::on_write(state, place, &draft.key, &value).await?;
    let key = draft.key.clone();
    conditions.push(match previous {
        Some(record) => Condition::ModifiedAt { key, revision: record.modified },
        None => Condition::Absent { key },
    });
    if let Some(kind) = place.collection.kind() {
        secrecy::seal(&state.keyring, kind, &mut value, &*state.plugins);
    }
    let text = Bytes::from(value.to_string());
    if let Some(kind) = place.collection.kind() {
        secrecy::acknowledge(kind, &mut value);
    }
    let writes = vec![Write::Put { key: draft.key.clone(), value: text, ttl: draft.ttl }];
    let warnings = proposal::warnings(state, Proposal::of(state, &writes)).await;
    if call.is_dry() {
        let revision = previous.map_or(0, |record| record.modified);
        return Ok(Some(Stored { revision, value, warnings }));
    }
    match state.commit(call, Transaction { conditions, writes }).await {
        Ok(revision) => Ok(Some(Stored { revision, value, warnings })),
        Err(StoreError::Conflict) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn write_reply(
    state: &AdminState,
    status: StatusCode,
    action: &str,
    draft: &Draft,
    stored: &Stored,
) -> Reply {
    let key = state.shown_key(&draft.key);
    let body = reply::written(state.settings.api_version, action, &key, &stored.value);
    let mut warnings = draft.warnings.clone();
    let together = stored.warnings.iter().cloned();
    warnings.extend(together.map(|problem| proposal::within(problem, &draft.key)));
    Reply::json(status, body).at(stored.revision).warning(&warnings)
}

/// The body as an object; `[]` is an empty one to APISIX.
fn object(call: &Call) -> Result<Map<String, Value>, Refusal> {
    let found = match &call.body {
        None => return Err(Refusal::bad("missing configurations")),
        Some(Value::Object(object)) => return Ok(object.clone()),
        Some(Value::Array(list)) if list.is_empty() => return Ok(Map::new()),
        Some(Value::Array(_)) => "table",
        Some(Value::String(_)) => "string",
        Some(Value::Number(_)) => "number",
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Null) => "userdata",
    };
    Err(Refusal::bad(format_args!("invalid configuration: wrong type: expected object, got {found}")))
}

fn no_sub_path(place: &ResourcePath) -> Result<(), Refusal> {
    if place.sub_path.is_empty() {
        return Ok(());
    }
    // APISIX would replace or delete the whole resource.
    Err(Refusal::new(StatusCode::NOT_FOUND, "not found"))
}

/// The id of a resource that should exist.
fn existing_id(place: &ResourcePath) -> Result<&str, Refusal> {
    let missing = || match place.collection.class {
        Class::Resource(Kind::Secret) => Refusal::bad("no secret id"),
        _ => Refusal::bad(format_args!("missing {} id", place.collection.word)),
    };
    place.id.as_deref().ok_or_else(missing)
}

/// The id as the resource itself carries it.
fn identity(place: &ResourcePath, id: &str) -> String {
    match (place.collection.class, &place.parent) {
        (Class::Resource(Kind::Secret), Some(manager)) => format!("{manager}/{id}"),
        _ => id.to_owned(),
    }
}

fn same_id(place: &ResourcePath, id: &str, value: &Map<String, Value>) -> Result<(), Refusal> {
    let wrong = || Refusal::bad(format_args!("wrong {} id", place.collection.word));
    match value.get("id") {
        Some(given) if id_text(given).is_some_and(|given| given != id) => Err(wrong()),
        _ => Ok(()),
    }
}

/// Finds the id in path and body, and puts it into the value. Returns the last part of the key.
fn identify(place: &ResourcePath, value: &mut Map<String, Value>) -> Result<String, Refusal> {
    match place.collection.class {
        Class::Resource(Kind::Consumer) => {
            let username = value.get("username").and_then(Value::as_str);
            if let (Some(named), Some(username)) = (&place.id, username)
                && named != username
            {
                return Err(Refusal::bad("wrong username"));
            }
            // Without a name the check of the resource refuses it.
            Ok(username.unwrap_or_default().to_owned())
        }
        Class::Resource(Kind::PluginMetadata) => {
            let name = place.id.clone().ok_or_else(|| Refusal::bad("missing plugin name"))?;
            same_id(place, &name, value)?;
            Ok(name)
        }
        _ => {
            own_service(place, value)?;
            // The name of a secret manager is in the path only.
            let given = value.get("id").and_then(id_text).filter(|_| !place.collection.is(Kind::Secret));
            let id = match (&place.id, given) {
                (Some(id), _) => id.clone(),
                (None, Some(given)) => return Ok(given),
                (None, None) => {
                    return Err(Refusal::bad(format_args!("missing {} id", place.collection.word)));
                }
            };
            let identity = identity(place, &id);
            same_id(place, &identity, value)?;
            value.insert("id".into(), identity.into());
            Ok(id)
        }
    }
}

/// A decoration belongs to the service of its path.
fn own_service(place: &ResourcePath, value: &mut Map<String, Value>) -> Result<(), Refusal> {
    if place.collection.class != Class::Decoration {
        return Ok(());
    }
    let parent = place.parent.as_deref().unwrap_or_default();
    if value.get("service_id").is_some_and(|given| id_text(given).as_deref() != Some(parent)) {
        return Err(Refusal::bad("wrong service_id, it is taken from the path"));
    }
    value.insert("service_id".into(), parent.into());
    Ok(())
}

fn forbid_times(value: &Map<String, Value>) -> Result<(), Refusal> {
    let mut found = String::new();
    let inner = |name: &str| value.get(name).and_then(Value::as_object);
    for (prefix, object) in
        [("", Some(value)), ("upstream.", inner("upstream")), ("plugins.", inner("plugins"))]
    {
        let Some(object) = object else { continue };
        for name in TIMES {
            if object.contains_key(name) {
                found.push_str(&format!(" {prefix}{name}"));
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(Refusal::bad(format_args!("the property is forbidden: {found}")))
}

/// Adds the server's fields to a resource that is written as a whole.
fn stamp(place: &ResourcePath, value: &mut Map<String, Value>, created: Option<Value>) {
    if place.collection.is(Kind::PluginMetadata) {
        if let Some(name) = &place.id {
            value.insert("id".into(), name.as_str().into());
        }
        return;
    }
    let now = Value::from(now());
    value.insert("create_time".into(), created.unwrap_or_else(|| now.clone()));
    value.insert("update_time".into(), now);
}

fn checked(
    state: &AdminState,
    place: &ResourcePath,
    id: &str,
    value: Map<String, Value>,
    call: &Call,
) -> Result<Draft, Refusal> {
    let key = place.key(id);
    let (value, warnings) = check(state, place, value)?;
    // The long form of a credential's id passes its schema, and would be another key.
    if !place.collection.owns(&key) {
        return Err(Refusal::bad(format_args!("wrong {} id", place.collection.word)));
    }
    Ok(Draft { key, value, ttl: call.ttl()?, warnings })
}

/// The identity that a draft is tried under.
fn id_of(place: &ResourcePath, value: &Value) -> String {
    let own = value.get("id").or_else(|| value.get("username")).and_then(id_text);
    match &place.parent {
        Some(consumer) if place.collection.is(Kind::Credential) => {
            format!("{consumer}/credentials/{}", own.unwrap_or_default())
        }
        _ => own.unwrap_or_default(),
    }
}

/// Checks a resource by itself; returns it with what its writer should know.
fn check(
    state: &AdminState,
    place: &ResourcePath,
    value: Map<String, Value>,
) -> Result<(Map<String, Value>, Vec<Problem>), Refusal> {
    let mut value = Value::Object(value);
    let warnings = if let Class::Resource(kind) = place.collection.class {
        secrecy::open_private_keys(&state.keyring, kind, &mut value);
        secrecy::refuse_masks(kind, &mut value, &*state.plugins).map_err(Refusal::bad)?;
        // All other resources carry their identity.
        let name = place.id.as_deref().filter(|_| kind == Kind::PluginMetadata);
        let warnings = state.check(kind, name, &value).map_err(Refusal::bad)?;
        let id = id_of(place, &value);
        state.try_out(kind, &id, &value).map_err(Refusal::bad)?;
        warnings
    } else {
        decoration::check(&value).map_err(Refusal::bad)?;
        Vec::new()
    };
    match value {
        Value::Object(value) => Ok((value, warnings)),
        // It was made from one a few lines above.
        _ => Ok((Map::new(), warnings)),
    }
}
