//! Resources of any kind, read into their types.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::warnings::refuse_unknown;
use super::{Subject, conform, invalid, provider_of, table};
use crate::bundled;
use crate::kind::{Kind, ResourceKey};
use crate::nodes::bracketed;
use crate::plugins::{is_disabled, scope_of};
use crate::resources::{
    Consumer, ConsumerGroup, Credential, GlobalRule, PluginConfig, PluginMetadata, Proto, Resources, Route,
    Secret, Service, Ssl, StreamRoute, Upstream,
};
use crate::settings::UnknownFields;
use crate::table::{Order, Resource, Table};
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
            /// Its kind.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self {
                    $(AnyResource::$kind(_) => Kind::$kind,)*
                }
            }

            /// Its kind and identity.
            #[must_use]
            pub fn key(&self) -> ResourceKey {
                match self {
                    $(AnyResource::$kind(resource) => ResourceKey::new(Kind::$kind, resource.id()),)*
                }
            }
        }

        impl Resources {
            /// Puts a resource in, in place of the one with its key, which may have been closed;
            /// returns that one. Of resources of a kind the one with the smaller order comes first;
            /// see [`Table`].
            pub fn put(&mut self, resource: AnyResource, created: u64) -> Option<AnyResource> {
                self.reopen(&resource.key());
                match resource {
                    $(AnyResource::$kind(resource) => {
                        self.$table.put(created, resource).map(AnyResource::$kind)
                    })*
                }
            }

            /// Takes a resource out.
            pub fn remove(&mut self, key: &ResourceKey) -> Option<AnyResource> {
                self.reopen(key);
                match key.kind {
                    $(Kind::$kind => self.$table.remove(&key.id).map(AnyResource::$kind),)*
                }
            }

            /// The resource with this key.
            pub fn get(&self, key: &ResourceKey) -> Option<AnyResource> {
                match key.kind {
                    $(Kind::$kind => self.$table.get(&key.id).cloned().map(AnyResource::$kind),)*
                }
            }

            /// The order of the resource with this key.
            pub fn order(&self, key: &ResourceKey) -> Option<Order> {
                match key.kind {
                    $(Kind::$kind => self.$table.order(&key.id),)*
                }
            }

            /// The keys of all resources, kind by kind, in order within a kind.
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

        /// Reads `value`, which the schema and the rules of its kind accept, into its type, with the
        /// identity `id`.
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

/// The form in which identities are kept.
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

/// The identity from the key counts, whatever the value says.
fn identity<I: Identity>(id: &str, written: I) -> I {
    I::of(id).unwrap_or(written)
}

fn of_value<T: DeserializeOwned>(kind: Kind, id: &str, value: &Value) -> Result<T, String> {
    let schema = match kind {
        Kind::Secret => bundled::of_secret(provider_of(id)?),
        kind => bundled::of_kind(kind),
    };
    // The schema and the rules have accepted it; what the types refuse all the same, such as a
    // number that no machine can count to, is refused like by a schema.
    let mut conformed = conform(value, schema);
    if empty_lists(&conformed).next().is_some() {
        let names: Vec<String> = empty_lists(&conformed).cloned().collect();
        for name in names {
            conformed.to_mut()["plugins"][name] = Value::Object(serde_json::Map::new());
        }
    }
    T::deserialize(&*conformed).map_err(|error| error.to_string())
}

/// The plugins whose configuration is the empty list, which is the empty object to Lua.
fn empty_lists(value: &Value) -> impl Iterator<Item = &String> {
    let plugins = value.get("plugins").and_then(Value::as_object).into_iter().flatten();
    plugins.filter(|(_, conf)| conf.as_array().is_some_and(Vec::is_empty)).map(|(name, _)| name)
}

/// Reads one item of a store. The identity is that of the key. Plugins that are not known or not
/// enabled are refused, but for those of [`skipped_plugins`], which are left out. Private keys are
/// decrypted. `unknown` says what becomes of fields that do not exist.
///
/// # Errors
/// Returns the reason for which the item is invalid, in APISIX's words.
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
        // Their schemas require it, though the key says it.
        Kind::ConsumerGroup | Kind::GlobalRule | Kind::PluginConfig if lacks("id") => {
            let value = held.get_or_insert_with(|| value.clone());
            value["id"] = key.id.as_str().into();
        }
        _ => {}
    }
    let value = held.as_ref().unwrap_or(value);
    let subject = Subject { kind: key.kind, id: Some(&key.id), value, plugins, is_of_file: false };
    match key.kind {
        // It may belong to a plugin that is not there, which APISIX does not mind.
        Kind::PluginMetadata if !subject.metadata_of_nobody().is_empty() => {}
        _ => subject.verify()?,
    }
    if unknown == UnknownFields::Refuse {
        refuse_unknown(&subject)?;
    }
    typed(key.kind, &key.id, value).map_err(invalid)
}

/// Names of the plugins of an item that [`read`] leaves out although it does not know them: those
/// that the operator allows to be left out, and those that the item itself disables. For a warning.
pub fn skipped_plugins(kind: Kind, value: &Value, plugins: &dyn PluginSchemas) -> Vec<String> {
    let confs = value.get("plugins").and_then(Value::as_object).into_iter().flatten();
    let skipped = confs.filter(|(name, conf)| {
        (is_disabled(conf) || plugins.is_ignored(name))
            && plugins.schema(name, scope_of(kind, name, plugins)).is_none()
    });
    skipped.map(|(name, _)| name.clone()).collect()
}
