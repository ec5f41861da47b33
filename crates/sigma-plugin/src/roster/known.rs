//! Plugins with their schemas, and their normalized configurations.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use sigma_schema::conform::conform;
use sigma_schema::described::{restore, take_confidential, take_own_defaults};
use sigma_schema::plugins::PluginScope;
use sigma_schema::validation::Schema;

use super::take_meta;
use crate::Kind;

/// A schema in its published form and its compiled form.
pub(super) struct Checked {
    pub(super) value: Value,
    pub(super) compiled: Schema,
    /// The paths of the fields that are encrypted at rest.
    pub(super) secret: Vec<String>,
    /// The paths of the fields with a default that APISIX does not have.
    own_defaults: Vec<String>,
}

impl Checked {
    /// Returns a configuration as the plugin reads it: with defaults, and with numbers in the form of its types (Lua
    /// has only one form, such as 5.0 for 5).
    pub(super) fn filled(&self, conf: Value) -> Value {
        let conformed = match conform(&conf, &self.value) {
            Cow::Owned(conformed) => Some(conformed),
            Cow::Borrowed(_) => None,
        };
        let mut filled = conformed.unwrap_or(conf);
        self.compiled.fill_defaults(&mut filled);
        countable(&mut filled);
        filled
    }

    /// Adds the defaults that APISIX has too.
    pub(super) fn show_defaults(&self, conf: &mut Value) {
        let meta = take_meta(conf);
        let written = conf.clone();
        self.compiled.fill_defaults(conf);
        self.own_defaults.iter().for_each(|path| restore(path, &written, conf));
        if let (Some(meta), Some(conf)) = (meta, conf.as_object_mut()) {
            conf.insert("_meta".to_owned(), meta);
        }
    }
}

/// Replaces whole numbers beyond 64 bits, which Lua accepts, with the nearest possible number. The type must not
/// reject a value that the schema accepts.
fn countable(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_i64().is_none() => {
            if let Some(whole) = number.as_f64().filter(|float| float.fract() == 0.0) {
                // The conversion saturates.
                *value = Value::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(countable),
        Value::Object(members) => members.values_mut().for_each(countable),
        _ => {}
    }
}

impl Checked {
    fn new(kind: &dyn Kind, scope: PluginScope) -> Option<Checked> {
        let mut value = kind.schema(scope)?;
        let secret = take_confidential(&mut value);
        let own_defaults = take_own_defaults(&mut value);
        if let Some(schema) = value.as_object_mut().filter(|_| !secret.is_empty()) {
            // APISIX lists them there.
            schema.insert("encrypt_fields".to_owned(), secret.clone().into());
        }
        // Only the build affects it; the test of each list of plugins compiles them all.
        let compiled = Schema::of_program(&value).expect("the schema of a plugin is one");
        Some(Checked { value, compiled, secret, own_defaults })
    }
}

/// A kind of plugin, with its schemas once they are needed: a gateway uses few of its plugins.
pub(super) struct RosterEntry {
    pub(super) kind: Arc<dyn Kind>,
    route: OnceLock<Option<Checked>>,
    consumer: OnceLock<Option<Checked>>,
    metadata: OnceLock<Option<Checked>>,
    stream: OnceLock<Option<Checked>>,
}

impl RosterEntry {
    pub(super) fn new(kind: Arc<dyn Kind>) -> RosterEntry {
        let (route, consumer, metadata, stream) = Default::default();
        RosterEntry { kind, route, consumer, metadata, stream }
    }

    /// Returns the schema for a configuration of this scope. A consumer may have any plugin: one that does not
    /// authenticate there is configured as on a route.
    pub(super) fn checked(&self, scope: PluginScope) -> Option<&Checked> {
        let made = match scope {
            PluginScope::Http => &self.route,
            PluginScope::Consumer => &self.consumer,
            PluginScope::Metadata => &self.metadata,
            PluginScope::Stream => &self.stream,
        };
        let checked = made.get_or_init(|| Checked::new(&*self.kind, scope)).as_ref();
        match scope {
            PluginScope::Consumer => checked.or_else(|| self.checked(PluginScope::Http)),
            _ => checked,
        }
    }
}
