//! The whole configuration at once: read, replaced in one transaction, or only checked.
//!
//! APISIX has these calls in its standalone mode alone, here they work over every store. The sent items are
//! compared with the stored ones, and only differences are written, so that an unchanged resource keeps its
//! revision and its state. A record next to the resources keeps the client's digest and versions, with a
//! fingerprint of the resources: once a single resource was written in another way, the digest does not match
//! the configuration any more.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use axum::http::{HeaderMap, Method, StatusCode, header};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::settings::AdminRole;
use sigma_config::stored;
use sigma_schema::Problem;
use sigma_schema::document::{Document, MAX_DEPTH};

use super::call::{self, Call};
use super::proposal::{self, Proposal};
use super::read::value_of;
use super::reply::{Content, Outcome, Refusal, Reply};
use super::rules::id_text;
use super::{AdminState, decode, now, secrecy};
use crate::store::history::{decorated_service, is_resource};
use crate::store::{Condition, Contents, Record, StoreError, Transaction, Write};

/// Where digest and versions are kept; no resource has such a key.
const NOTE_KEY: &str = "sigma/configs";
/// How often a replacement is tried again after another write came between.
const ATTEMPTS: usize = 4;
const YAML: &str = "application/yaml";

/// The sections of a body, but `plugins`.
const SECTIONS: [Kind; 12] = [
    Kind::Route,
    Kind::Service,
    Kind::Upstream,
    Kind::Consumer,
    Kind::Ssl,
    Kind::GlobalRule,
    Kind::Proto,
    Kind::PluginConfig,
    Kind::ConsumerGroup,
    Kind::PluginMetadata,
    Kind::StreamRoute,
    Kind::Secret,
];
/// The list of enabled plugins: kept for its writer, and without effect here.
const PLUGINS: &str = "plugins";

/// The record of the last replacement.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Note {
    digest: String,
    /// Unix seconds.
    last_modified: u64,
    versions: BTreeMap<String, f64>,
    plugins: Value,
    fingerprint: String,
}

/// Everything that there is, with the note that belongs to it.
struct Present {
    contents: Contents,
    record: Option<Record>,
    note: Note,
    is_current: bool,
}

impl Present {
    async fn load(state: &AdminState) -> Result<Present, Refusal> {
        let mut contents = state.store.load().await?;
        let at = contents.records.iter().position(|record| record.key == NOTE_KEY);
        let record = at.map(|at| contents.records.remove(at));
        // A note that cannot be read counts as missing: the next replacement writes it again.
        let note = record.as_ref().and_then(|record| serde_json::from_slice::<Note>(&record.value).ok());
        let fingerprint = fingerprint(contents.records.iter().map(|r| (r.key.as_str(), &r.value)));
        let is_current = note.as_ref().is_some_and(|note| note.fingerprint == fingerprint);
        Ok(Present { contents, record, note: note.unwrap_or_default(), is_current })
    }

    fn version(&self, section: &str) -> f64 {
        self.note.versions.get(section).copied().unwrap_or(0.0)
    }
}

/// Changes with any resource; records come in the order of their keys.
fn fingerprint<'a>(records: impl Iterator<Item = (&'a str, &'a Arc<[u8]>)>) -> String {
    let mut context = Context::new(&SHA256);
    for (key, value) in records.filter(|(key, _)| is_resource(key)) {
        for part in [key.as_bytes(), value] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `GET`, `HEAD` and `PUT` of `/configs`.
pub(crate) async fn whole(
    state: &AdminState,
    call: &Call,
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Outcome {
    match call.method {
        Method::GET => read(state, headers, call.role).await,
        Method::PUT => {
            let digest = headers.get("x-digest").and_then(|value| value.to_str().ok());
            let digest = digest.ok_or_else(|| Refusal::bad("missing digest header"))?;
            let text = call::read(state, headers, body, state.settings.configs_bytes as usize).await?;
            let sent = parsed(headers, &text)?;
            replace(state, call, digest, &sent).await
        }
        _ => Err(Refusal::new(StatusCode::NOT_FOUND, "not found")),
    }
}

/// `POST /configs/validate`.
pub(crate) async fn validate(
    state: &AdminState,
    call: &Call,
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Outcome {
    if call.method != Method::POST {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not found"));
    }
    let text = call::read(state, headers, body, state.settings.body_bytes as usize).await?;
    let sent = parsed(headers, &text)?;
    let (sections, wrong) = drafts(state, &sent, Ids::Optional);
    if wrong.is_empty() {
        let present = Present::load(state).await?;
        let mut plan = Plan::new(&present);
        for section in sections.iter().filter(|section| section.name != PLUGINS) {
            plan.replace(&present, section);
        }
        let found = warnings(state, &sections, &plan.transaction.writes).await;
        return Ok(Reply::json(StatusCode::OK, json!({})).warning(&found));
    }
    let errors: Vec<Value> = wrong.into_iter().map(Wrong::into_value).collect();
    let body = json!({"error_msg": "Configuration validation failed", "errors": errors});
    Err(Refusal(Box::new(Reply::json(StatusCode::BAD_REQUEST, body))))
}

fn is_yaml(headers: &HeaderMap, name: header::HeaderName) -> bool {
    headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.starts_with(YAML))
}

fn parsed(headers: &HeaderMap, text: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if text.is_empty() {
        return Err(Refusal::bad("invalid request body: empty request body"));
    }
    let value = if is_yaml(headers, header::CONTENT_TYPE) {
        let invalid = |reason: &dyn std::fmt::Display| {
            Refusal::bad(format_args!("invalid request body: invalid yaml request body: {reason}"))
        };
        let text = std::str::from_utf8(text).map_err(|error| invalid(&error))?;
        let document = Document::parse(text, text.len());
        document
            .map_err(|problems| match problems.first() {
                Some(problem) => invalid(problem),
                None => invalid(&"it cannot be read"),
            })?
            .value
    } else {
        decode::json(text, MAX_DEPTH)
            .map_err(|text| Refusal::bad(format_args!("invalid request body: {text}")))?
    };
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(Refusal::bad("invalid request body: it must be an object")),
    }
}

async fn read(state: &AdminState, headers: &HeaderMap, reader: AdminRole) -> Outcome {
    let present = Present::load(state).await?;
    let mut body = Map::new();
    for kind in SECTIONS {
        let records = present.contents.records.iter();
        let items: Vec<Value> = records.filter_map(|record| item(state, kind, record, reader)).collect();
        if !items.is_empty() {
            body.insert(kind.section().to_owned(), items.into());
        }
        body.insert(version_name(kind.section()), number(present.version(kind.section())));
    }
    if present.note.plugins.is_array() {
        body.insert(PLUGINS.to_owned(), present.note.plugins.clone());
    }
    body.insert(version_name(PLUGINS), number(present.version(PLUGINS)));
    let note = &present.note;
    if present.is_current {
        body.insert("X-Last-Modified".to_owned(), note.last_modified.into());
        body.insert("X-Digest".to_owned(), note.digest.as_str().into());
    }
    let body = Value::Object(body);
    let mut reply = Reply::json(StatusCode::OK, body);
    if is_yaml(headers, header::ACCEPT)
        && let Content::Json(body) = &reply.content
    {
        let text = serde_norway::to_string(body);
        let text = text.map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        reply.content = Content::Typed(YAML, text);
    }
    Ok(if present.is_current { stamped(reply, note) } else { reply })
}

fn stamped(reply: Reply, note: &Note) -> Reply {
    reply.with("x-last-modified", &note.last_modified.to_string()).with("x-digest", &note.digest)
}

fn version_name(section: &str) -> String {
    format!("{section}_conf_version")
}

/// Whole numbers without a point.
fn number(version: f64) -> Value {
    if version.fract() == 0.0 && version.abs() < 9e15 { json!(version as i64) } else { json!(version) }
}

/// A record as an item of a section; None if it belongs to another.
fn item(state: &AdminState, kind: Kind, record: &Record, reader: AdminRole) -> Option<Value> {
    let key = ResourceKey::parse(&record.key)?;
    if section_of(key.kind) != kind {
        return None;
    }
    let mut value = value_of(record).ok()?;
    secrecy::dump(&state.keyring, key.kind, &mut value, &*state.plugins, reader);
    if let (Some(object), true) = (value.as_object_mut(), key.kind != Kind::Consumer) {
        object.insert("id".to_owned(), key.id.into());
    }
    Some(value)
}

/// Credentials stand among the consumers.
fn section_of(kind: Kind) -> Kind {
    if kind == Kind::Credential { Kind::Consumer } else { kind }
}

/// An item that passed its check, ready to be stored.
struct Item {
    key: ResourceKey,
    value: Map<String, Value>,
    /// Warnings for the client.
    warnings: Vec<Problem>,
}

/// A section of the body; None for its items if it is not sent.
struct Section {
    name: &'static str,
    version: Option<f64>,
    items: Vec<Item>,
}

/// An item that did not pass.
struct Wrong {
    section: &'static str,
    /// Identity and place; None where the whole section is wrong.
    item: Option<(String, usize)>,
    error: String,
}

impl Wrong {
    fn into_value(self) -> Value {
        match self.item {
            Some((id, index)) => json!({
                "resource_type": self.section, "resource_id": id, "index": index, "error": self.error,
            }),
            None => json!({"resource_type": self.section, "error": self.error}),
        }
    }
}

/// Returns the warnings about all items, with their keys, and those that come from all resources together.
async fn warnings(state: &AdminState, sections: &[Section], writes: &[Write]) -> Vec<Problem> {
    let of_item = |item: &Item| {
        let key = item.key.to_string();
        item.warnings.iter().map(move |problem| problem.clone().within(&key)).collect::<Vec<_>>()
    };
    let mut found: Vec<Problem> =
        sections.iter().flat_map(|section| &section.items).flat_map(of_item).collect();
    found.extend(proposal::warnings(state, Proposal::of(state, writes).whole()).await);
    found
}

/// Whether every item must say which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// It is going to be stored.
    Required,
    /// It is only looked at, as APISIX does.
    Optional,
}

/// Checks every item by itself. With [`Ids::Optional`], items without an id are omitted from the sections.
fn drafts(state: &AdminState, sent: &Map<String, Value>, ids: Ids) -> (Vec<Section>, Vec<Wrong>) {
    let mut sections = Vec::new();
    let mut wrong = Vec::new();
    let names = SECTIONS.into_iter().map(|kind| (kind.section(), Some(kind)));
    for (name, kind) in names.chain([(PLUGINS, None)]) {
        let whole = |error: String| Wrong { section: name, item: None, error };
        let version = sent.get(&version_name(name)).filter(|version| !version.is_null());
        if let Some(version) = version.filter(|version| !version.is_number()) {
            let found = lua_type(version);
            wrong.push(whole(format!("{} must be a number, got {found}", version_name(name))));
        }
        let mut items = Vec::new();
        let mut seen = HashSet::new();
        let empty = Vec::new();
        let list = match sent.get(name) {
            None | Some(Value::Null) => &empty,
            Some(Value::Array(list)) => list,
            // An empty object is an empty list to APISIX.
            Some(Value::Object(object)) if object.is_empty() => &empty,
            Some(_) => {
                wrong.push(whole(format!("{name} must be an array")));
                &empty
            }
        };
        let Some(kind) = kind else { continue };
        for (index, value) in list.iter().enumerate() {
            match drafted(state, kind, value, ids, &mut seen) {
                Ok(item) => items.extend(item),
                Err(error) => {
                    let id = value.get("id").or_else(|| value.get("username")).and_then(id_text);
                    wrong.push(Wrong { section: name, item: Some((id.unwrap_or_default(), index)), error });
                }
            }
        }
        sections.push(Section { name, version: version.and_then(Value::as_f64), items });
    }
    let version = sent.get(&version_name(PLUGINS)).and_then(Value::as_f64);
    sections.push(Section { name: PLUGINS, version, items: Vec::new() });
    (sections, wrong)
}

fn lua_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "userdata",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) | Value::Object(_) => "table",
    }
}

fn drafted(
    state: &AdminState,
    section: Kind,
    value: &Value,
    ids: Ids,
    seen: &mut HashSet<ResourceKey>,
) -> Result<Option<Item>, String> {
    let object = value.as_object().ok_or("an item must be an object")?;
    let mut object = object.clone();
    // A number of the client's own; unchanged items are found by comparison.
    object.shift_remove("modifiedIndex");
    let id = object.get("id").and_then(id_text);
    let credential = id.as_deref().and_then(|id| id.split_once("/credentials/"));
    let (kind, id) = match (section, id.as_deref(), credential) {
        (Kind::Consumer, Some(id), Some((_, own))) => {
            object.insert("id".to_owned(), own.into());
            (Kind::Credential, id.to_owned())
        }
        (Kind::Consumer, ..) => {
            let username = object.get("username").and_then(Value::as_str);
            (Kind::Consumer, username.unwrap_or_default().to_owned())
        }
        (Kind::Secret, id, _) => match id.filter(|id| id.split('/').count() == 2) {
            Some(id) => (Kind::Secret, id.to_owned()),
            None => return Err(format!("invalid secret id: {}", id.unwrap_or("nil"))),
        },
        (kind, Some(id), _) => (kind, id.to_owned()),
        (kind, None, _) if ids == Ids::Optional => {
            let mut value = Value::Object(object);
            secrecy::open_private_keys(&state.keyring, kind, &mut value);
            return state.check(kind, None, &value).map(|_| None);
        }
        (kind, None, _) => return Err(format!("missing {} id", kind.word())),
    };
    let mut value = Value::Object(object);
    secrecy::open_private_keys(&state.keyring, kind, &mut value);
    secrecy::refuse_masks(kind, &mut value, &*state.plugins)?;
    let name = (kind == Kind::PluginMetadata).then_some(id.as_str());
    let warnings = state.check(kind, name, &value)?;
    state.try_out(kind, &id, &value)?;
    let key = ResourceKey::new(kind, id);
    if ResourceKey::parse(&key.to_string()).as_ref() != Some(&key) {
        return Err(format!("wrong {} id", kind.word()));
    }
    if !seen.insert(key.clone()) {
        return Err(match kind {
            Kind::Consumer => format!("found duplicate username {} in consumers", key.id),
            Kind::Credential => format!("found duplicate credential id {} in consumers", key.id),
            kind => format!("found duplicate id {} in {}", key.id, kind.section()),
        });
    }
    secrecy::seal(&state.keyring, kind, &mut value, &*state.plugins);
    match value {
        Value::Object(value) => Ok(Some(Item { key, value, warnings })),
        _ => Err("an item must be an object".to_owned()),
    }
}

async fn replace(state: &AdminState, call: &Call, digest: &str, sent: &Map<String, Value>) -> Outcome {
    let (sections, wrong) = drafts(state, sent, Ids::Required);
    for _ in 0..ATTEMPTS {
        let _alone = state.writes.write().await;
        let present = Present::load(state).await?;
        if present.is_current && present.note.digest == digest {
            return Ok(Reply::empty(StatusCode::NO_CONTENT));
        }
        if let Some(first) = wrong.first() {
            let text = first.error.split(", got ").next().filter(|_| first.item.is_none());
            return Err(Refusal::bad(text.unwrap_or(&first.error)));
        }
        let mut plan = Plan::new(&present);
        for section in &sections {
            plan.section(&present, section)?;
        }
        if call.arguments.is_true("check_references") || call.is_dry() {
            plan.check_references()?;
        }
        let plugins = sent.get(PLUGINS).cloned().unwrap_or_default();
        let (transaction, note) = plan.finish(&present, digest, plugins);
        let found = warnings(state, &sections, &transaction.writes).await;
        let reply = stamped(Reply::empty(StatusCode::ACCEPTED), &note).warning(&found);
        if call.is_dry() {
            return Ok(reply.with("sigma-dry-run", "true"));
        }
        match state.commit(call, transaction).await {
            Ok(revision) => return Ok(reply.at(revision)),
            Err(StoreError::Conflict) => continue,
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Conflict.into())
}

/// The future items, and the writes for them.
struct Plan {
    /// All resources afterwards.
    after: BTreeMap<String, Arc<[u8]>>,
    versions: BTreeMap<String, f64>,
    transaction: Transaction,
}

impl Plan {
    fn new(present: &Present) -> Plan {
        let records = present.contents.records.iter().filter(|record| is_resource(&record.key));
        Plan {
            after: records.map(|record| (record.key.clone(), record.value.clone())).collect(),
            versions: present.note.versions.clone(),
            transaction: Transaction::default(),
        }
    }

    /// Replaces a section, unless its version says that nothing has changed.
    fn section(&mut self, present: &Present, section: &Section) -> Result<(), Refusal> {
        let current = present.version(section.name);
        match section.version {
            Some(version) if version < current => {
                return Err(Refusal::bad(format_args!(
                    "{} must be greater than or equal to ({})",
                    version_name(section.name),
                    number(current)
                )));
            }
            Some(version) if version == current => return Ok(()),
            version => {
                self.versions.insert(section.name.to_owned(), version.unwrap_or(current + 1.0));
            }
        }
        self.replace(present, section);
        Ok(())
    }

    /// Replaces a section, whatever its version is.
    fn replace(&mut self, present: &Present, section: &Section) {
        let wanted: HashSet<String> = section.items.iter().map(|item| item.key.to_string()).collect();
        let mut present_items: BTreeMap<&str, &Record> = BTreeMap::new();
        for record in &present.contents.records {
            let Some(key) = ResourceKey::parse(&record.key) else {
                let lost = decorated_service(&record.key)
                    .is_some_and(|service| !wanted.contains(&format!("services/{service}")));
                if section.name == Kind::Service.section() && lost {
                    self.delete(record);
                }
                continue;
            };
            if section_of(key.kind).section() != section.name {
                continue;
            }
            match wanted.contains(&record.key) {
                true => drop(present_items.insert(&record.key, record)),
                false => self.delete(record),
            }
        }
        for item in &section.items {
            self.put(item, present_items.get(item.key.to_string().as_str()).copied());
        }
    }

    fn delete(&mut self, record: &Record) {
        self.after.remove(&record.key);
        self.transaction.conditions.push(unchanged(record));
        self.transaction.writes.push(Write::Delete { key: record.key.clone() });
    }

    fn put(&mut self, item: &Item, present: Option<&Record>) {
        let key = item.key.to_string();
        let before = present.and_then(|record| value_of(record).ok());
        let mut value = item.value.clone();
        let times = item.key.kind != Kind::PluginMetadata;
        let had_update_time = value.contains_key("update_time");
        if let (true, Some(before)) = (times, &before) {
            for name in ["create_time", "update_time"] {
                if let (false, Some(time)) = (value.contains_key(name), before.get(name)) {
                    value.insert(name.to_owned(), time.clone());
                }
            }
        }
        let mut value = Value::Object(value);
        if before.as_ref() == Some(&value) {
            return;
        }
        if let (true, Some(object)) = (times, value.as_object_mut()) {
            object.entry("create_time").or_insert_with(|| now().into());
            if !had_update_time {
                object.insert("update_time".to_owned(), now().into());
            }
        }
        let value = Bytes::from(value.to_string());
        self.after.insert(key.clone(), Arc::from(&*value));
        self.transaction.conditions.push(match present {
            Some(record) => unchanged(record),
            None => Condition::Absent { key: key.clone() },
        });
        self.transaction.writes.push(Write::Put { key, value, ttl: None });
    }

    /// Whether everything that is referred to is going to be there.
    fn check_references(&self) -> Result<(), Refusal> {
        for (key, text) in &self.after {
            let Some(key) = ResourceKey::parse(key) else { continue };
            let Ok(value) = serde_json::from_slice::<Value>(text) else { continue };
            for reference in stored::references(key.kind, &value) {
                let target = ResourceKey::new(reference.kind, reference.id).to_string();
                if !self.after.contains_key(&target) {
                    let prefix = reference.message_prefix;
                    return Err(Refusal::bad(format_args!("{key}: {prefix}, response code: 404")));
                }
            }
            let parent = key.id.split_once("/credentials/").map(|(name, _)| format!("consumers/{name}"));
            if parent.is_some_and(|parent| !self.after.contains_key(&parent)) {
                return Err(Refusal::bad(format_args!("{key}: consumer not found")));
            }
        }
        Ok(())
    }

    fn finish(mut self, present: &Present, digest: &str, plugins: Value) -> (Transaction, Note) {
        let note = Note {
            digest: digest.to_owned(),
            last_modified: now(),
            versions: self.versions,
            plugins,
            fingerprint: fingerprint(self.after.iter().map(|(key, value)| (key.as_str(), value))),
        };
        self.transaction.conditions.push(match &present.record {
            Some(record) => unchanged(record),
            None => Condition::Absent { key: NOTE_KEY.to_owned() },
        });
        // Its keys are texts, and none of its parts can fail.
        let value = Bytes::from(serde_json::to_vec(&note).unwrap_or_default());
        self.transaction.writes.push(Write::Put { key: NOTE_KEY.to_owned(), value, ttl: None });
        (self.transaction, note)
    }
}

fn unchanged(record: &Record) -> Condition {
    Condition::ModifiedAt { key: record.key.clone(), revision: record.modified }
}
