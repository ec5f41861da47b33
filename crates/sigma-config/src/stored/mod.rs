//! Single resources, as they come from a store or through the Admin API: values without lines.
//!
//! [`check`] words every refusal as APISIX's Admin API does, [`read`] makes the types. What a
//! resource refers to is told by [`references`]; whether that exists only a store knows.

mod any;
mod conform;
mod outline;
mod references;
#[cfg(test)]
pub(crate) mod tests;
mod warnings;

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::Value;

pub use any::{AnyResource, read, skipped_plugins};
pub use conform::conform;
pub use outline::{has_place, may_stand_in, outline};
pub use references::{Reference, references, wrong_ssl_type};
pub use warnings::warnings;

use crate::kind::Kind;
use crate::plugins::{PluginRefusal, PluginSchemas, PluginScope, check_plugin, scope_of};
use crate::resources::{SecretProvider, apisix_schema, apisix_secret_schema};
use crate::rules::{self, Object, Violation};
use crate::settings::UnknownFields;
use crate::wording;

/// APISIX's schema of a kind, with Sigma's own fields. That of a secret is the choice between
/// those of the managers.
pub fn schema(kind: Kind) -> &'static Value {
    static SCHEMAS: OnceLock<HashMap<Kind, Value>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| Kind::ALL.map(|kind| (kind, apisix_schema(kind))).into());
    // The map was made from all kinds.
    &schemas[&kind]
}

/// APISIX's schema of an access to one secret manager.
pub fn secret_schema(manager: SecretProvider) -> &'static Value {
    static SCHEMAS: OnceLock<[Value; 3]> = OnceLock::new();
    let [vault, aws, gcp] = SCHEMAS.get_or_init(|| SecretProvider::ALL.map(apisix_secret_schema));
    match manager {
        SecretProvider::Vault => vault,
        SecretProvider::Aws => aws,
        SecretProvider::Gcp => gcp,
    }
}

/// The checker of [`schema`], or of [`secret_schema`].
fn checker(kind: Kind, manager: Option<SecretProvider>) -> &'static wording::Schema {
    static CHECKERS: OnceLock<HashMap<Kind, wording::Schema>> = OnceLock::new();
    static SECRETS: OnceLock<[wording::Schema; 3]> = OnceLock::new();
    if let Some(manager) = manager {
        let secrets = || SecretProvider::ALL.map(|manager| compiled(secret_schema(manager)));
        let [vault, aws, gcp] = SECRETS.get_or_init(secrets);
        return match manager {
            SecretProvider::Vault => vault,
            SecretProvider::Aws => aws,
            SecretProvider::Gcp => gcp,
        };
    }
    let checkers = || Kind::ALL.map(|kind| (kind, compiled(schema(kind)))).into();
    // The map was made from all kinds.
    &CHECKERS.get_or_init(checkers)[&kind]
}

fn compiled(schema: &Value) -> wording::Schema {
    // All schemas stand in this crate, and the tests compile each.
    wording::Schema::compile(schema).expect("the schema of a resource is valid")
}

/// Checks a resource as the Admin API does on a write, references to other resources apart.
/// `id` is the identity from the path, if there is one: that of a credential is the plain one,
/// that of a secret `<manager>/<id>`, that of plugin metadata the plugin's name. Private keys
/// are not encrypted. `unknown` says what becomes of fields that do not exist.
///
/// # Errors
/// Returns the whole text of the refusal.
pub fn check(
    kind: Kind,
    id: Option<&str>,
    value: &Value,
    plugins: &dyn PluginSchemas,
    unknown: UnknownFields,
) -> Result<(), String> {
    let held;
    let value = match (id, table(value)) {
        // A consumer is known by its name alone, and metadata is what the plugin makes of it.
        (Some(id), Value::Object(object)) if !matches!(kind, Kind::Consumer | Kind::PluginMetadata) => {
            let mut object = object.clone();
            object.insert("id".to_owned(), id.into());
            held = Value::Object(object);
            &held
        }
        (_, value) => value,
    };
    verify(kind, id, value, plugins)?;
    if unknown == UnknownFields::Refuse {
        warnings::refuse_unknown(kind, id, value, plugins)?;
    }
    let id = id.or_else(|| value.get("id")?.as_str());
    any::typed(kind, id.unwrap_or_default(), value).map(drop)
}

/// `value`; the empty object if it is the empty list, which is the same to Lua.
fn table(value: &Value) -> &Value {
    static EMPTY: OnceLock<Value> = OnceLock::new();
    match value {
        Value::Array(items) if items.is_empty() => EMPTY.get_or_init(|| Value::Object(Object::new())),
        value => value,
    }
}

fn first(violations: impl IntoIterator<Item = Violation>) -> Result<(), String> {
    violations.into_iter().next().map_or(Ok(()), |violation| Err(violation.message))
}

/// Everything that is checked of a value before it is read into its type.
fn verify(kind: Kind, id: Option<&str>, value: &Value, plugins: &dyn PluginSchemas) -> Result<(), String> {
    let empty = Object::new();
    // The schema refuses what is no object; rules see nothing of it.
    let object = value.as_object().unwrap_or(&empty);
    let shape = |manager| checker(kind, manager).check(value).map_err(invalid);
    match kind {
        Kind::Route => {
            first(rules::route_before_schema(object))?;
            shape(None)?;
            first(rules::inline_upstream(object))?;
            plugins_of(object, plugins)?;
            first(rules::route_conditions(object))
        }
        Kind::Service => {
            shape(None)?;
            first(rules::inline_upstream(object))?;
            plugins_of(object, plugins)?;
            first(rules::lua(object, "script"))
        }
        Kind::Upstream => {
            shape(None)?;
            first(rules::upstream(object))
        }
        Kind::Consumer => {
            shape(None)?;
            consumer_plugins(object, plugins)
        }
        Kind::Credential => {
            shape(None)?;
            consumer_plugins(object, plugins)?;
            let mut names = named_plugins(object).map(|(name, _)| name);
            match names.all(|name| plugins.is_auth(name)) {
                true => Ok(()),
                false => Err("only supports auth type plugins in consumer credential".to_owned()),
            }
        }
        Kind::ConsumerGroup | Kind::GlobalRule | Kind::PluginConfig => {
            shape(None)?;
            plugins_of(object, plugins)
        }
        Kind::PluginMetadata => metadata(id, value, plugins),
        Kind::Ssl => {
            shape(None)?;
            first(rules::ssl(object))
        }
        Kind::Proto => {
            shape(None)?;
            first(rules::proto(object))
        }
        Kind::StreamRoute => {
            shape(None)?;
            for (name, conf) in named_plugins(object) {
                check_plugin(name, conf, PluginScope::Stream, plugins).map_err(|refused| refused.message)?;
            }
            first(rules::stream_route(object, id))
        }
        Kind::Secret => {
            let manager = provider_of(id.or_else(|| object.get("id")?.as_str()).unwrap_or_default())?;
            shape(Some(manager))
        }
    }
}

fn invalid(text: String) -> String {
    format!("invalid configuration: {text}")
}

fn provider_of(id: &str) -> Result<SecretProvider, String> {
    let name = id.split('/').next().unwrap_or_default();
    SecretProvider::of_name(name).ok_or_else(|| format!("invalid secret manager: {name}"))
}

/// Checks an access to a secret manager by its schema.
pub(crate) fn check_secret(manager: SecretProvider, value: &Value) -> Result<(), String> {
    checker(Kind::Secret, Some(manager)).check(value)
}

fn named_plugins(object: &Object) -> impl Iterator<Item = (&str, &Value)> {
    let plugins = object.get("plugins").and_then(Value::as_object);
    plugins.into_iter().flatten().map(|(name, conf)| (name.as_str(), conf))
}

fn plugins_of(object: &Object, plugins: &dyn PluginSchemas) -> Result<(), String> {
    for (name, conf) in named_plugins(object) {
        check_plugin(name, conf, PluginScope::Http, plugins).map_err(|refused| refused.message)?;
    }
    Ok(())
}

fn consumer_plugins(object: &Object, plugins: &dyn PluginSchemas) -> Result<(), String> {
    for (name, conf) in named_plugins(object) {
        let scope = scope_of(Kind::Consumer, name, plugins);
        check_plugin(name, conf, scope, plugins)
            .map_err(|refused| format!("invalid plugins configuration: {}", refused.message))?;
    }
    Ok(())
}

fn metadata(id: Option<&str>, value: &Value, plugins: &dyn PluginSchemas) -> Result<(), String> {
    let name = id.or_else(|| value.get("id")?.as_str()).filter(|name| !name.is_empty());
    let name = name.ok_or("missing plugin name")?;
    let refused = plugins.check(name, PluginScope::Metadata, value).err();
    if refused == Some(PluginRefusal::Unknown) {
        return Err("invalid plugin name".to_owned());
    }
    checker(Kind::PluginMetadata, None).check(value).map_err(invalid)?;
    match refused {
        Some(PluginRefusal::Invalid(text)) => Err(invalid(text)),
        _ => Ok(()),
    }
}

/// The text for a plugin that stands in another global rule already.
#[must_use]
pub fn duplicate_global_plugin(plugin: &str, rule: &str) -> String {
    format!("plugin '{plugin}' already exists in global rule with id '{rule}'")
}
