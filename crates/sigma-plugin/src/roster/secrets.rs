//! References to secrets in configurations, and the secrets that they stand for.

use serde_json::Value;
use sigma_config::wording::is_secret_reference;

/// The place of the first text that still refers to a secret. Whoever knew the text of the reference
/// could pass as the consumer if it counted as the secret.
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
    format!("the secret that `{field}` refers to is not known")
}

/// A secret that is empty is known to everybody.
pub(super) fn empty_secret(fields: &[String], conf: &Value) -> Option<String> {
    let is_empty = |field: &&String| {
        let place = field.split('.').try_fold(conf, |value, key| value.get(key));
        place.and_then(Value::as_str) == Some("")
    };
    fields.iter().find(is_empty).map(|field| format!("`{field}` is empty: give it a secret"))
}

/// The references in a configuration and what they stand for.
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

/// A reason that shows references in the place of secrets: it reaches logs.
pub(super) fn hidden(reason: String, secrets: &[(&str, String)]) -> String {
    secrets.iter().fold(reason, |reason, (reference, secret)| match secret.is_empty() {
        true => reason,
        false => reason.replace(secret.as_str(), reference),
    })
}
