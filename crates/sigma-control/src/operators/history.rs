//! The history for operators: secrets are masked for all readers.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use sigma_config::crypt::{Keyring, mask_resource};
use sigma_config::kind::ResourceKey;
use sigma_observe::Clock;
use sigma_schema::plugins::PluginSchemas;
use std::sync::Arc;

use crate::operators::refused_call::RefusedCall;
use crate::store::StoreError;
use crate::store::history::{Difference, DifferenceLimits, History, SETTINGS, Version};

/// Versions in a list by default.
const LISTED: usize = 50;
/// Versions that a list has at most.
const LISTED_MAX: usize = 500;
/// Objects that differences have at most.
const OBJECTS_MAX: usize = 1000;
/// Bytes of their values; further objects are counted.
const BYTES_MAX: usize = 8 << 20;
/// Members that are named of one object.
const FIELDS_MAX: usize = 100;

/// Reads the history for operators.
pub(crate) struct HistoryReader {
    /// The history.
    pub(crate) history: Arc<History>,
    keyring: Keyring,
    plugins: Arc<dyn PluginSchemas>,
}

/// The arguments of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct VersionFilter {
    pub(crate) limit: Option<String>,
    pub(crate) before: Option<String>,
    pub(crate) key: Option<String>,
}

impl HistoryReader {
    /// A reader of a history whose secrets this keyring has encrypted.
    pub(crate) fn new(
        history: Arc<History>,
        keyring: Keyring,
        plugins: Arc<dyn PluginSchemas>,
    ) -> HistoryReader {
        HistoryReader { history, keyring, plugins }
    }

    /// Versions, the newest first.
    ///
    /// # Errors
    /// Returns an error if an argument is invalid, or the history cannot be read.
    pub(crate) async fn list(&self, wanted: VersionFilter) -> Result<Value, RefusedCall> {
        let limit = number("limit", wanted.limit.as_deref())?.map_or(LISTED, |limit| limit as usize);
        if !(1..=LISTED_MAX).contains(&limit) {
            return Err(bad(format_args!("invalid argument limit: should be between 1 and {LISTED_MAX}")));
        }
        let before = number("before", wanted.before.as_deref())?;
        // One more reports whether there are further ones.
        let mut found = self.history.list(limit + 1, before, wanted.key).await.map_err(unavailable)?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more).map(|last| last.version);
        let list: Vec<Value> = found.iter().map(version_json).collect();
        Ok(json!({"list": list, "next_before": next}))
    }

    /// Returns the number of the newest version; 0 without any.
    ///
    /// # Errors
    /// Returns an error if the history cannot be read.
    pub(crate) async fn newest(&self) -> Result<u64, RefusedCall> {
        let found = self.history.list(1, None, None).await.map_err(unavailable)?;
        Ok(found.first().map_or(0, |version| version.version))
    }

    /// A version that has to be there.
    ///
    /// # Errors
    /// Returns an error if it is not, or the history cannot be read.
    pub(crate) async fn version(&self, number: u64) -> Result<Version, RefusedCall> {
        let found = self.history.version(number).await.map_err(unavailable)?;
        found.ok_or_else(|| {
            let text = format!(
                "version {number} does not exist or was removed; the list of versions (`sigma ctl history`) has the \
                 stored ones, and `history.keep`, `history.days` and `history.bytes` limit them"
            );
            RefusedCall::new(StatusCode::NOT_FOUND, text)
        })
    }

    /// Returns one version with its changes; of one key, if one is named.
    ///
    /// # Errors
    /// Returns an error if there is no such version, or the history cannot be read.
    pub(crate) async fn one(&self, number: u64, key: Option<String>) -> Result<Value, RefusedCall> {
        let version = self.version(number).await?;
        let mut shown = version_json(&version);
        let changes = match version.without_values {
            true => json!({"changes": [], "total": version.summary.objects(), "truncated": true}),
            false => self.between(number.saturating_sub(1), number, key).await?,
        };
        if let (Value::Object(shown), Value::Object(changes)) = (&mut shown, changes) {
            shown.extend(changes);
        }
        Ok(shown)
    }

    /// Returns the differences between the states after two versions.
    ///
    /// # Errors
    /// Returns an error if there is no such version, or the history cannot be read.
    pub(crate) async fn difference(
        &self,
        from: u64,
        to: u64,
        key: Option<String>,
    ) -> Result<Value, RefusedCall> {
        for number in [from, to] {
            self.version(number).await?;
        }
        let mut shown = json!({"from": from, "to": to});
        if let (Value::Object(shown), Value::Object(changes)) =
            (&mut shown, self.between(from, to, key).await?)
        {
            shown.extend(changes);
        }
        Ok(shown)
    }

    async fn between(&self, from: u64, to: u64, key: Option<String>) -> Result<Value, RefusedCall> {
        let limits = DifferenceLimits { objects: OBJECTS_MAX, bytes: BYTES_MAX };
        let (found, total) = self.history.between(from, to, key, limits).await.map_err(unavailable)?;
        let truncated = found.len() < total;
        let changes: Vec<Value> = found.iter().map(|one| self.shown(one)).collect();
        Ok(json!({"changes": changes, "total": total, "truncated": truncated}))
    }

    /// An object before and after, without its secrets; and which of its members are different, secrets included.
    fn shown(&self, difference: &Difference) -> Value {
        let Difference { key, before, after } = difference;
        let operation = match (before, after) {
            (None, _) => "created",
            (_, None) => "deleted",
            _ => "changed",
        };
        let mut shown = Map::new();
        shown.insert("key".into(), key.as_str().into());
        shown.insert("operation".into(), operation.into());
        // Of settings only their hashes are kept.
        if key.starts_with(SETTINGS) {
            return Value::Object(shown);
        }
        let [before, after] = [before, after].map(|text| text.as_deref().map(|text| self.opened(key, text)));
        if let (Some(before), Some(after)) = (&before, &after) {
            let mut fields = Vec::new();
            compare("", before, after, &mut fields);
            shown.insert("fields".into(), fields.into());
        }
        for (name, value) in [("before", before), ("after", after)] {
            shown.insert(name.into(), value.map_or(Value::Null, |value| self.masked(key, value)));
        }
        Value::Object(shown)
    }

    fn opened(&self, key: &str, text: &[u8]) -> Value {
        let Ok(mut value) = serde_json::from_slice::<Value>(text) else {
            return json!({"unreadable": true, "bytes": text.len()});
        };
        if let Some(key) = ResourceKey::parse(key) {
            self.keyring.decrypt_resource(key.kind, &mut value, &*self.plugins);
        }
        value
    }

    fn masked(&self, key: &str, mut value: Value) -> Value {
        if let Some(key) = ResourceKey::parse(key) {
            mask_resource(key.kind, &mut value, &*self.plugins);
        }
        value
    }
}

/// A version as in responses.
fn version_json(version: &Version) -> Value {
    // None of its parts can fail.
    let mut shown = serde_json::to_value(version).unwrap_or_default();
    if let Some(shown) = shown.as_object_mut() {
        shown.shift_remove("bytes");
        let clock = Clock::new(version.time_ms);
        shown.insert("time".into(), String::from_utf8_lossy(clock.time_iso8601()).into());
    }
    shown
}

/// The paths of the members that are different.
fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    if before == after || found.len() >= FIELDS_MAX {
        return;
    }
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let added = after.keys().filter(|name| !before.contains_key(*name));
            for name in before.keys().chain(added) {
                match (before.get(name), after.get(name)) {
                    (Some(before), Some(after)) => compare(&below(name), before, after, found),
                    _ => found.push(below(name)),
                }
            }
            found.truncate(FIELDS_MAX);
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                compare(&format!("{path}[{index}]"), before, after, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

fn number(name: &str, given: Option<&str>) -> Result<Option<u64>, RefusedCall> {
    let Some(given) = given else { return Ok(None) };
    let number =
        given.parse().map_err(|_| bad(format_args!("invalid argument {name}: should be a number")))?;
    Ok(Some(number))
}

fn bad(message: impl std::fmt::Display) -> RefusedCall {
    RefusedCall::bad(message.to_string())
}

/// The response where the history cannot be read.
pub(crate) fn unavailable(error: StoreError) -> RefusedCall {
    RefusedCall::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_differ_are_named() {
        let check = |before: Value, after: Value, expected: &[&str]| {
            let mut found = Vec::new();
            compare("", &before, &after, &mut found);
            assert_eq!(found, expected, "{before} {after}");
        };
        check(json!({"uri": "/a"}), json!({"uri": "/a"}), &[]);
        check(json!({"uri": "/a"}), json!({"uri": "/b", "name": 1}), &["uri", "name"]);
        check(json!({"uri": "/a", "x": 1}), json!({"uri": "/a"}), &["x"]);
        check(
            json!({"plugins": {"key-auth": {"key": "a"}}}),
            json!({"plugins": {"key-auth": {"key": "b"}}}),
            &["plugins.key-auth.key"],
        );
        check(json!({"n": [{"w": 1}, {"w": 2}]}), json!({"n": [{"w": 1}, {"w": 3}]}), &["n[1].w"]);
        check(json!({"n": [1]}), json!({"n": [1, 2]}), &["n"]);
    }
}
