//! Settings of followed documents: resources that come from a URL or a configuration centre.

mod centres;
mod url;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sigma_schema::Problem;
use sigma_schema::problem::element;

pub use centres::{ApolloDocuments, ConsulDocuments, NacosDocument, NacosDocuments, ZookeeperDocuments};
pub use url::{DocumentUrl, SourceUrl, public_key};

/// Documents outside of this machine that have the resources of the gateway, in the form of a configuration file. The
/// gateway follows them and puts a change into force as a whole, or not at all. They contain resources only; the
/// settings stay in the file. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigSources {
    /// Documents at URLs, polled at intervals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub urls: Vec<DocumentUrl>,
    /// Keys in Consul.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulDocuments>,
    /// Configurations in Nacos.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nacos: Option<NacosDocuments>,
    /// Namespaces in Apollo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apollo: Option<ApolloDocuments>,
    /// Nodes in ZooKeeper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zookeeper: Option<ZookeeperDocuments>,
    /// The file with the last documents that were in force. A start uses them while a source is unreachable or its
    /// documents are invalid. Unset: such a start fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_file: Option<PathBuf>,
    /// Number of further attempts to reach a source at the start, before `kept_file` is used.
    #[schemars(range(max = 1000))]
    pub startup_retry: u16,
    /// Maximum size of one document in bytes.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub document_bytes: u32,
}

impl Default for ConfigSources {
    fn default() -> Self {
        ConfigSources {
            urls: Vec::new(),
            consul: None,
            nacos: None,
            apollo: None,
            zookeeper: None,
            kept_file: None,
            startup_retry: 2,
            document_bytes: 8 << 20,
        }
    }
}

/// Returns the contradictions in `config_sources`, and with other settings.
pub(crate) fn of_document(root: &Map<String, Value>) -> Vec<Problem> {
    let Some(sources) = root.get("config_sources").and_then(Value::as_object) else { return Vec::new() };
    let mut found = Vec::new();
    let is_set = |name: &&str| root.get(*name).is_some_and(|value| !value.is_null());
    if let Some(other) = ["store", "admin"].iter().find(|name| is_set(name)) {
        let message = format!("resources come from `config_sources` or from the store, and `{other}` is set");
        let hint = format!("remove `config_sources` or `{other}`");
        found.push(Problem::new("config_sources", "conflict", message).hint(hint));
    }
    let urls = sources.get("urls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let has_centre = ["consul", "nacos", "apollo", "zookeeper"]
        .iter()
        .any(|name| sources.get(*name).is_some_and(|value| !value.is_null()));
    if urls.is_empty() && !has_centre {
        let message = "`config_sources` names no source";
        let hint = "write `urls`, `consul`, `nacos`, `apollo` or `zookeeper` into it, or remove it";
        found.push(Problem::new("config_sources", "missing", message).hint(hint));
    }
    for (index, url) in urls.iter().enumerate() {
        let place = element("config_sources.urls", index);
        let problems = url.as_object().map(url::breaches).unwrap_or_default();
        found.extend(problems.into_iter().map(|problem| problem.within(&place)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn contradictory_settings_are_reported() {
        let check = |document: Value, expected: &[(&str, &str)]| {
            let found = of_document(document.as_object().expect("an object"));
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, (pointer, fragment)) in found.iter().zip(expected) {
                assert_eq!(found.pointer, *pointer, "{document}");
                assert!(found.to_string().contains(fragment), "{found}");
            }
        };
        let url = json!({"url": "https://h/c.yaml"});
        check(json!({}), &[]);
        check(json!({"config_sources": {"urls": [url]}}), &[]);
        check(json!({"config_sources": {"consul": {}}}), &[]);
        check(json!({"config_sources": {}}), &[("config_sources", "names no source")]);
        check(
            json!({"config_sources": {"urls": [url]}, "admin": {}}),
            &[("config_sources", "remove `config_sources` or `admin`")],
        );
        check(
            json!({"config_sources": {"urls": [url, {"url": "http://h/c.yaml"}]}}),
            &[("config_sources.urls[1].url", "is neither encrypted nor verified")],
        );
    }

    #[test]
    fn secrets_are_not_shown() {
        let value = json!({
            "urls": [{"url": "https://u:hush@h/c.yaml", "token": "hush"}],
            "consul": {"servers": ["http://127.0.0.1:8500"], "token": "hush", "keys": ["a"]},
            "nacos": {"host": ["http://u:hush@h:1"], "secret_key": "hush", "documents": [{"data_id": "a"}]},
            "apollo": {"servers": ["http://h:1"], "app_id": "a", "secret": "hush", "namespaces": ["a.yaml"]},
            "zookeeper": {"servers": ["h:2181"], "paths": ["/a"], "digest": "u:hush"},
        });
        let read: ConfigSources = serde_json::from_value(value).expect("settings");
        let shown = format!("{read:?}");
        assert!(!shown.contains("hush"), "{shown}");
    }
}
