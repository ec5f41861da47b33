//! The schemas for checks of files and stores, bundled with this program.
//!
//! The folder with this file's name has the schemas, generated from the types without descriptions, see
//! [`sigma_schema::described`]. Generating them at every start would take longer than the rest of the start, while
//! clients may wait for a restarted gateway. A test compares them with the types; `SIGMA_BLESS=1` rewrites them after a
//! review of the difference. Clients build forms and checks from these schemas, so they are a promise.
//!
//! [`crate::stored::schema`] returns a schema with its descriptions.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::resources::SecretProvider;
use crate::resources::kind::Kind;

/// Returns the schema of files, without the items of sections.
pub(crate) fn of_settings() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| read(include_str!("bundled/settings.json")))
}

/// Returns the schema of a kind of resource.
pub(crate) fn of_kind(kind: Kind) -> &'static Value {
    static SCHEMAS: OfKinds<Value> = OfKinds::new();
    SCHEMAS.get_or_init(kind, || match kind {
        Kind::Route => with_upstream(include_str!("bundled/route.json")),
        Kind::Service => with_upstream(include_str!("bundled/service.json")),
        Kind::Upstream => read(include_str!("bundled/upstream.json")),
        Kind::Consumer => read(include_str!("bundled/consumer.json")),
        Kind::Credential => read(include_str!("bundled/credential.json")),
        Kind::ConsumerGroup => read(include_str!("bundled/consumer_group.json")),
        Kind::Ssl => read(include_str!("bundled/ssl.json")),
        Kind::GlobalRule => read(include_str!("bundled/global_rule.json")),
        Kind::PluginConfig => read(include_str!("bundled/plugin_config.json")),
        Kind::PluginMetadata => read(include_str!("bundled/plugin_metadata.json")),
        Kind::Proto => read(include_str!("bundled/proto.json")),
        Kind::StreamRoute => with_upstream(include_str!("bundled/stream_route.json")),
        Kind::Secret => json!({ "type": "object", "oneOf": SecretProvider::ALL.map(of_secret) }),
    })
}

/// Returns the schema of a secret manager's configuration.
pub(crate) fn of_secret(manager: SecretProvider) -> &'static Value {
    static SCHEMAS: [OnceLock<Value>; 3] = [const { OnceLock::new() }; 3];
    let [vault, aws, gcp] = &SCHEMAS;
    match manager {
        SecretProvider::Vault => vault.get_or_init(|| read(include_str!("bundled/secret_vault.json"))),
        SecretProvider::Aws => aws.get_or_init(|| read(include_str!("bundled/secret_aws.json"))),
        SecretProvider::Gcp => gcp.get_or_init(|| read(include_str!("bundled/secret_gcp.json"))),
    }
}

fn read(text: &str) -> Value {
    // They are part of the program, and a test parses each one.
    serde_json::from_str(text).expect("the schema is JSON")
}

/// Adds the schema of upstreams, which has its own file, to another resource.
fn with_upstream(text: &str) -> Value {
    let mut schema = read(text);
    schema["properties"]["upstream"] = of_kind(Kind::Upstream).clone();
    schema
}

/// A value of each kind, created on first use: a start does not wait for unused kinds.
pub(crate) struct OfKinds<T>([OnceLock<T>; Kind::ALL.len()]);

impl<T> OfKinds<T> {
    pub(crate) const fn new() -> OfKinds<T> {
        OfKinds([const { OnceLock::new() }; Kind::ALL.len()])
    }

    pub(crate) fn get_or_init(&self, kind: Kind, make: impl FnOnce() -> T) -> &T {
        // Kinds are numbered from 0, and the array has as many entries.
        self.0[kind as usize].get_or_init(make)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::resources::{SECTIONS, apisix_schema, apisix_secret_schema};
    use crate::settings::Settings;
    use sigma_schema::described::schema_of;
    use sigma_schema::validation::INERT;

    /// Removes descriptions, except reasons for fields without effect, which warnings show.
    fn without_explanations(schema: &mut Value) {
        match schema {
            Value::Array(schemas) => schemas.iter_mut().for_each(without_explanations),
            Value::Object(members) => {
                let explains = |text: &Value| text.as_str().is_some_and(|text| !text.starts_with(INERT));
                if members.get("description").is_some_and(explains) {
                    members.shift_remove("description");
                }
                members.values_mut().for_each(without_explanations);
            }
            _ => {}
        }
    }

    /// Compares the schema of the types with the bundled one.
    #[track_caller]
    fn check(name: &str, mut made: Value, bundled: &Value) {
        without_explanations(&mut made);
        let has_upstream = made.pointer("/properties/upstream/properties/nodes").is_some();
        if std::env::var_os("SIGMA_BLESS").is_some() {
            let mut shown = made.clone();
            if has_upstream {
                shown["properties"]["upstream"] = Value::Null;
            }
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/bundled/{name}.json"));
            std::fs::write(path, format!("{shown:#}\n")).unwrap();
            return;
        }
        // Compared as texts, because the order of properties decides the order of messages.
        let (made, bundled) = (format!("{made:#}"), format!("{bundled:#}"));
        let differs = made.lines().zip(bundled.lines()).find(|(made, bundled)| made != bundled);
        assert!(made == bundled, "{name}: {differs:?}; see bundled.rs");
    }

    #[test]
    fn bundled_schemas_match_the_types() {
        let mut settings = schema_of::<Settings>();
        for section in SECTIONS {
            settings["properties"][section] = json!({ "type": "array" });
        }
        check("settings", settings, of_settings());
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Secret) {
            check(&kind.word().replace(' ', "_"), apisix_schema(kind), of_kind(kind));
        }
        for manager in SecretProvider::ALL {
            check(&format!("secret_{}", manager.name()), apisix_secret_schema(manager), of_secret(manager));
        }
        let mut choice = apisix_schema(Kind::Secret);
        without_explanations(&mut choice);
        assert_eq!(choice, *of_kind(Kind::Secret));
    }
}
