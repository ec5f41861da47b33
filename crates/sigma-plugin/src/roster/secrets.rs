//! References to secrets in configurations, and their values.

use serde_json::Value;
use sigma_schema::validation::is_secret_reference;

/// Returns the position of the first unresolved reference to a secret. If the reference counted as the secret, a
/// client that knows its text could pass as the consumer.
pub fn unresolved(conf: &Value) -> Option<String> {
    match conf {
        Value::String(text) => is_secret_reference(text).then(String::new),
        Value::Array(items) => {
            let mut found = items.iter().enumerate();
            found.find_map(|(index, item)| Some(format!("{index}/{}", unresolved(item)?)))
        }
        Value::Object(members) => {
            let mut found = members.iter();
            found.find_map(|(name, member)| Some(format!("{name}/{}", unresolved(member)?)))
        }
        _ => None,
    }
    .map(|place| place.trim_end_matches('/').to_owned())
}

pub(super) fn unknown_secret(field: &str) -> String {
    format!("cannot resolve the secret of `{field}`")
}

/// Returns the first secret field with an empty value, which an attacker could guess.
pub(super) fn empty_secret(fields: &[String], conf: &Value) -> Option<String> {
    let is_empty = |field: &&String| {
        let place = field.split('.').try_fold(conf, |value, key| value.get(key));
        place.and_then(Value::as_str) == Some("")
    };
    fields.iter().find(is_empty).map(|field| format!("`{field}` is empty: set a secret"))
}

/// Returns the references in a configuration with their values.
pub(super) fn secrets_of<'c>(conf: &'c Value, resolved: &Value) -> Vec<(&'c str, String)> {
    match (conf, resolved) {
        (Value::String(reference), Value::String(secret)) if reference != secret => {
            vec![(reference, secret.clone())]
        }
        (Value::Array(conf), Value::Array(resolved)) => {
            conf.iter().zip(resolved).flat_map(|(conf, resolved)| secrets_of(conf, resolved)).collect()
        }
        (Value::Object(conf), Value::Object(resolved)) => {
            let members = conf.iter().filter_map(|(name, conf)| Some((conf, resolved.get(name)?)));
            members.flat_map(|(conf, resolved)| secrets_of(conf, resolved)).collect()
        }
        _ => Vec::new(),
    }
}

/// Replaces secrets in a message with their references, as the message goes to logs.
pub(super) fn hidden(reason: String, secrets: &[(&str, String)]) -> String {
    secrets.iter().fold(reason, |reason, (reference, secret)| match secret.is_empty() {
        true => reason,
        false => reason.replace(secret.as_str(), reference),
    })
}
