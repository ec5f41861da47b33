//! Resources of any kind, read into their types.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::warnings::refuse_unknown;
use super::{Subject, conform, invalid, provider_of, table};
use crate::bundled;
use crate::plugins::{is_disabled, scope_of};
use crate::resources::kind::{Kind, ResourceKey};
use crate::resources::nodes::bracketed;
use crate::resources::table::{Order, Resource, Table};
use crate::resources::{
    Consumer, ConsumerGroup, Credential, GlobalRule, PluginConfig, PluginMetadata, Proto, Resources, Route,
    Secret, Service, Ssl, StreamRoute, Upstream,
};
use crate::settings::UnknownFields;
use sigma_schema::id::Id;
use sigma_schema::plugins::PluginSchemas;

macro_rules! any_resource {
    ($($kind:ident: $table:ident, $id:ident;)*) => {
        /// A resource of any kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum AnyResource {
            $(#[doc = concat!("Of the table `", stringify!($table), "`.")] $kind(Arc<$kind>),)*
        }

        impl AnyResource {
            /// Returns its kind.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self {
                    $(AnyResource::$kind(_) => Kind::$kind,)*
                }
            }

            /// Returns its kind and id.
            #[must_use]
            pub fn key(&self) -> ResourceKey {
                match self {
                    $(AnyResource::$kind(resource) => ResourceKey::new(Kind::$kind, resource.id()),)*
                }
            }
        }

        impl Resources {
            /// Puts a resource in and returns the one with the same key, which may have been closed. Within a kind the
            /// smaller order comes first; see [`Table`].
            pub fn put(&mut self, resource: AnyResource, created: u64) -> Option<AnyResource> {
                self.reopen(&resource.key());
                match resource {
                    $(AnyResource::$kind(resource) => {
                        self.$table.put(created, resource).map(AnyResource::$kind)
                    })*
                }
            }

            /// Removes a resource.
            pub fn remove(&mut self, key: &ResourceKey) -> Option<AnyResource> {
                self.reopen(key);
                match key.kind {
                    $(Kind::$kind => self.$table.remove(&key.id).map(AnyResource::$kind),)*
                }
            }

            /// Returns the resource with this key.
            pub fn get(&self, key: &ResourceKey) -> Option<AnyResource> {
                match key.kind {
                    $(Kind::$kind => self.$table.get(&key.id).cloned().map(AnyResource::$kind),)*
                }
            }

            /// Returns the order of the resource with this key.
            pub fn order(&self, key: &ResourceKey) -> Option<Order> {
                match key.kind {
                    $(Kind::$kind => self.$table.order(&key.id),)*
                }
            }

            /// Returns the keys of all resources, kind by kind, in order within a kind.
            #[must_use]
            pub fn keys(&self) -> Vec<ResourceKey> {
                fn of<T: Resource>(kind: Kind, table: &Table<T>) -> impl Iterator<Item = ResourceKey> {
                    table.iter().map(move |item| ResourceKey::new(kind, item.id()))
                }
                let mut keys = Vec::new();
                $(keys.extend(of(Kind::$kind, &self.$table));)*
                keys
            }
        }

        /// Converts `value`, which schema and rules of its kind accept, to its type, with the id `id`.
        pub(crate) fn typed(kind: Kind, id: &str, value: &Value) -> Result<AnyResource, String> {
            Ok(match kind {
                $(Kind::$kind => {
                    let mut resource: $kind = of_value(kind, id, value)?;
                    resource.$id = identity(id, resource.$id);
                    AnyResource::$kind(Arc::new(resource))
                })*
            })
        }
    };
}

any_resource! {
    Route: routes, id;
    Service: services, id;
    Upstream: upstreams, id;
    Consumer: consumers, username;
    Credential: credentials, id;
    ConsumerGroup: consumer_groups, id;
    Ssl: ssls, id;
    GlobalRule: global_rules, id;
    PluginConfig: plugin_configs, id;
    PluginMetadata: plugin_metadata, id;
    Proto: protos, id;
    StreamRoute: stream_routes, id;
    Secret: secrets, id;
}

/// Returns the resource of a value that was checked before; None if it is invalid all the same.
pub fn of_checked(key: &ResourceKey, value: &Value) -> Option<AnyResource> {
    typed(key.kind, &key.id, value).ok()
}

/// The type of an id.
trait Identity {
    fn of(id: &str) -> Option<Self>
    where
        Self: Sized;
}

impl Identity for Id {
    fn of(id: &str) -> Option<Id> {
        id.parse().ok()
    }
}

impl Identity for Box<str> {
    fn of(id: &str) -> Option<Box<str>> {
        (!id.is_empty()).then(|| id.into())
    }
}

/// Returns the id from the key; the id in the value is ignored.
fn identity<I: Identity>(id: &str, written: I) -> I {
    I::of(id).unwrap_or(written)
}

fn of_value<T: DeserializeOwned>(kind: Kind, id: &str, value: &Value) -> Result<T, String> {
    let schema = match kind {
        Kind::Secret => bundled::of_secret(provider_of(id)?),
        kind => bundled::of_kind(kind),
    };
    // Schema and rules have accepted the value. If the types still refuse it, for example a number beyond 64 bits, that
    // is an error like the schema's.
    let mut conformed = conform(value, schema);
    if empty_lists(&conformed).next().is_some() {
        let names: Vec<String> = empty_lists(&conformed).cloned().collect();
        for name in names {
            conformed.to_mut()["plugins"][name] = Value::Object(serde_json::Map::new());
        }
    }
    T::deserialize(&*conformed).map_err(|error| error.to_string())
}

/// Returns the plugins whose configuration is the empty list, which equals the empty object in Lua.
fn empty_lists(value: &Value) -> impl Iterator<Item = &String> {
    let plugins = value.get("plugins").and_then(Value::as_object).into_iter().flatten();
    plugins.filter(|(_, conf)| conf.as_array().is_some_and(Vec::is_empty)).map(|(name, _)| name)
}

/// Reads one item of a store. Its id is taken from the key. Unknown and disabled plugins are refused, except
/// [`skipped_plugins`], which are ignored. Private keys are decrypted. `unknown` decides the treatment of unknown
/// fields.
///
/// # Errors
/// Returns why the item is invalid, in APISIX's words.
pub fn read(
    key: &ResourceKey,
    value: &Value,
    plugins: &dyn PluginSchemas,
    unknown: UnknownFields,
) -> Result<AnyResource, String> {
    let value = table(value);
    if !value.is_object() {
        return Err(format!("invalid item data of [{key}], val: {value}, it should be an object"));
    }
    let mut held = None;
    for name in skipped_plugins(key.kind, value, plugins) {
        let value = held.get_or_insert_with(|| value.clone());
        if let Some(plugins) = value.get_mut("plugins").and_then(Value::as_object_mut) {
            plugins.shift_remove(&name);
        }
    }
    let upstream = match key.kind {
        Kind::Upstream => &["nodes"] as &[&str],
        _ => &["upstream", "nodes"],
    };
    let nodes = upstream.iter().try_fold(value, |value, key| value.get(key));
    if let Some(nodes) = nodes.and_then(bracketed) {
        let value = held.get_or_insert_with(|| value.clone());
        match key.kind {
            Kind::Upstream => value["nodes"] = nodes,
            _ => value["upstream"]["nodes"] = nodes,
        }
    }
    let lacks = |field: &str| value.get(field).is_none();
    match key.kind {
        // Their schemas require the id, although the key has it.
        Kind::ConsumerGroup | Kind::GlobalRule | Kind::PluginConfig if lacks("id") => {
            let value = held.get_or_insert_with(|| value.clone());
            value["id"] = key.id.as_str().into();
        }
        _ => {}
    }
    let value = held.as_ref().unwrap_or(value);
    let subject = Subject { kind: key.kind, id: Some(&key.id), value, plugins, is_of_file: false };
    match key.kind {
        // It may belong to a missing plugin, which APISIX accepts.
        Kind::PluginMetadata if !subject.metadata_of_nobody().is_empty() => {}
        _ => subject.verify()?,
    }
    if unknown == UnknownFields::Refuse {
        refuse_unknown(&subject)?;
    }
    typed(key.kind, &key.id, value).map_err(invalid)
}

/// Returns the unknown plugins of an item that [`read`] ignores: plugins that the operator allows to be ignored, and
/// plugins that the item disables. Used for a warning.
pub fn skipped_plugins(kind: Kind, value: &Value, plugins: &dyn PluginSchemas) -> Vec<String> {
    let confs = value.get("plugins").and_then(Value::as_object).into_iter().flatten();
    let skipped = confs.filter(|(name, conf)| {
        (is_disabled(conf) || plugins.is_ignored(name))
            && plugins.schema(name, scope_of(kind, name, plugins)).is_none()
    });
    skipped.map(|(name, _)| name.clone()).collect()
}
