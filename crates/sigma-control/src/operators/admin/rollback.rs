//! Rollback: objects are restored to their state right after a version, all of them in one transaction or
//! none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::stored;
use sigma_schema::Problem;

use super::AdminState;
use super::call::Call;
use super::decoration;
use super::proposal::{self, Proposal};
use super::reply::{Outcome, Refusal, Reply};
use crate::operators::history::unavailable;
use crate::store::history::{Target, decorated_service};
use crate::store::{Condition, Contents, Record, StoreError, Transaction, Write};

/// How often it is tried again while the history does not know the newest changes, or another write comes between.
const ATTEMPTS: usize = 40;
/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Keys that a response names; it counts the others.
const KEYS_NAMED: usize = 1000;

/// `POST /history/{version}/rollback`.
pub(super) async fn to(state: &AdminState, call: &Call, version: u64) -> Outcome {
    let reader = state.history()?;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let _alone = state.writes.write().await;
        call.preconditions.check(Some(reader.newest().await?))?;
        reader.version(version).await?;
        let present = state.store.load().await?;
        let target = reader.history.target(version, &present).await.map_err(unavailable)?;
        let Some(target) = target else { continue };
        let mut plan = Plan::of(state, &present, &target)?;
        let proposal = Proposal::of(state, &plan.transaction.writes);
        plan.warnings.extend(proposal::warnings(state, proposal).await);
        let reply = rollback_reply(version, &plan, &target).warning(&plan.warnings);
        if call.is_dry() {
            return Ok(reply.with("sigma-dry-run", "true"));
        }
        if plan.transaction.writes.is_empty() {
            return Ok(reply);
        }
        match state.commit_back(call, plan.transaction, Some(version)).await {
            Ok(revision) => return Ok(reply.at(revision)),
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let message = "the resources keep changing, or the history lags behind them; repeat the call";
    Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message))
}

fn rollback_reply(version: u64, plan: &Plan, target: &Target) -> Reply {
    let named = |keys: &[String]| keys.iter().take(KEYS_NAMED).cloned().collect::<Vec<_>>();
    let body = json!({
        "rollback_to": version,
        "objects": plan.keys().count(),
        "keys": plan.keys().take(KEYS_NAMED).collect::<Vec<_>>(),
        "created": named(&plan.created),
        "changed": named(&plan.changed),
        "deleted": named(&plan.deleted),
        // Objects that a write of the store cannot restore, or should not.
        "left": {"settings": named(&target.settings), "expired": named(&target.expired)},
    });
    Reply::json(StatusCode::OK, body)
}

/// The checked writes.
#[derive(Default)]
struct Plan {
    /// Keys of objects that are not there now.
    created: Vec<String>,
    /// Keys of objects that are different now.
    changed: Vec<String>,
    /// Keys of objects that were not there then.
    deleted: Vec<String>,
    transaction: Transaction,
    warnings: Vec<Problem>,
}

impl Plan {
    fn of(state: &AdminState, present: &Contents, target: &Target) -> Result<Plan, Refusal> {
        let records: BTreeMap<&str, &Record> =
            present.records.iter().map(|record| (record.key.as_str(), record)).collect();
        let mut plan = Plan::default();
        for (key, value) in &target.objects {
            let record = records.get(key.as_str());
            plan.transaction.conditions.push(match record {
                Some(record) => Condition::ModifiedAt { key: key.clone(), revision: record.modified },
                None => Condition::Absent { key: key.clone() },
            });
            plan.transaction.writes.push(match value {
                Some(text) => {
                    plan.warnings.extend(check(state, key, text)?);
                    Write::Put { key: key.clone(), value: Bytes::copy_from_slice(text), ttl: None }
                }
                None => Write::Delete { key: key.clone() },
            });
            let list = match (record, value) {
                (_, None) => &mut plan.deleted,
                (None, Some(_)) => &mut plan.created,
                (Some(_), Some(_)) => &mut plan.changed,
            };
            list.push(key.clone());
        }
        check_references(&records, target)?;
        Ok(plan)
    }

    /// All keys.
    fn keys(&self) -> impl Iterator<Item = &String> {
        let mut all: Vec<&String> = self.created.iter().chain(&self.changed).chain(&self.deleted).collect();
        all.sort();
        all.into_iter()
    }
}

/// An object that is to come back is checked as if it were written now: by today's plugins, limits and settings.
fn check(state: &AdminState, key: &str, text: &[u8]) -> Result<Vec<Problem>, Refusal> {
    let refused = |reason: &dyn std::fmt::Display| {
        Refusal::bad(format_args!(
            "cannot restore {key}: {reason}; nothing was changed. Write this object yourself, or choose another version"
        ))
    };
    let mut value: Value = serde_json::from_slice(text).map_err(|error| refused(&error))?;
    let Some(resource) = ResourceKey::parse(key) else {
        decoration::check(&value).map_err(|reason| refused(&reason))?;
        return Ok(Vec::new());
    };
    let kind = resource.kind;
    if kind == Kind::StreamRoute && !(state.rules.has_streams)() {
        return Err(refused(&"stream mode is disabled, can not add stream routes"));
    }
    state.open(kind, &mut value);
    let name = (kind == Kind::PluginMetadata).then_some(resource.id.as_str());
    let warnings = state.check(kind, name, &value).map_err(|reason| refused(&reason))?;
    state.try_out(kind, &resource.id, &value).map_err(|reason| refused(&reason))?;
    Ok(warnings.into_iter().map(|problem| problem.within(key)).collect())
}

/// Checks that restored objects find their references, and that deleted objects have no users.
fn check_references(records: &BTreeMap<&str, &Record>, target: &Target) -> Result<(), Refusal> {
    let is_there = |key: &str| match target.objects.get(key) {
        Some(value) => value.is_some(),
        None => records.contains_key(key),
    };
    let goes = |key: &str| target.objects.get(key).is_some_and(Option::is_none);
    for (key, text) in target.objects.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
        for needed in needs(key, text) {
            if !is_there(&needed) {
                let text = format!("cannot restore {key}: it needs {needed}, which does not exist");
                return Err(Refusal::bad(text));
            }
        }
    }
    if !target.objects.values().any(Option::is_none) {
        return Ok(());
    }
    for (key, record) in records.iter().filter(|(key, _)| !target.objects.contains_key(**key)) {
        if let Some(needed) = needs(key, &record.value).into_iter().find(|needed| goes(needed)) {
            let text =
                format!("{needed} did not exist in that version, and {key} uses it now: delete {key} first");
            return Err(Refusal::bad(text));
        }
    }
    Ok(())
}

/// Returns the keys of an object's references.
fn needs(key: &str, text: &[u8]) -> BTreeSet<String> {
    if let Some(service) = decorated_service(key) {
        return BTreeSet::from([format!("services/{service}")]);
    }
    let (Some(resource), Ok(value)) = (ResourceKey::parse(key), serde_json::from_slice::<Value>(text)) else {
        return BTreeSet::new();
    };
    let references = stored::references(resource.kind, &value).into_iter();
    let mut keys: BTreeSet<String> =
        references.map(|reference| ResourceKey::new(reference.kind, reference.id).to_string()).collect();
    keys.extend(resource.id.split_once("/credentials/").map(|(name, _)| format!("consumers/{name}")));
    keys
}
