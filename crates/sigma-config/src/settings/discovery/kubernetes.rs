//! Settings of Kubernetes as a service registry.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::RegistryTimeout;
use sigma_schema::Confidential;

/// One cluster, or several.
#[derive(Debug, Clone, PartialEq, Eq, Default, JsonSchema)]
#[schemars(with = "ClustersForm")]
pub struct Clusters(pub Vec<Cluster>);

/// The two forms of [`Clusters`] in text.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum ClustersForm {
    One(Box<Cluster>),
    Several(#[schemars(length(min = 1, max = 64))] Vec<Cluster>),
}

impl Serialize for Clusters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] if one.id.is_empty() => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Clusters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match ClustersForm::deserialize(deserializer)? {
            ClustersForm::One(one) => Clusters(vec![*one]),
            ClustersForm::Several(several) => Clusters(several),
        })
    }
}

/// A Kubernetes cluster. The gateway lists the objects of its API server once and then watches changes. The
/// `service_name` of an upstream is `<namespace>/<service>:<port name>`, or with several clusters
/// `<id>/<namespace>/<service>:<port name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// The id of the cluster in service names; required in a list of clusters.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("pattern" = "^[a-z0-9]{0,64}$"))]
    pub id: String,
    /// The API server.
    pub service: ClusterService,
    /// The credentials of the gateway.
    pub client: ClusterClient,
    /// The namespaces to watch; unset: all.
    pub namespace_selector: NamespaceSelector,
    /// The labels that an object must have, in the syntax of `kubectl --selector`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub label_selector: String,
    /// Timeouts of list requests. A watch lasts four minutes and is then renewed.
    pub timeout: RegistryTimeout,
    /// Weight of every node.
    #[schemars(range(min = 0))]
    pub default_weight: u32,
    /// Accepted for APISIX, without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_size: Option<String>,
    /// Use EndpointSlices instead of Endpoints, which Kubernetes 1.33 deprecates. If a service has no ready endpoint,
    /// endpoints that still serve while they terminate are used.
    pub watch_endpoint_slices: bool,
}

impl Default for Cluster {
    fn default() -> Self {
        Cluster {
            id: String::new(),
            service: ClusterService::default(),
            client: ClusterClient::default(),
            namespace_selector: NamespaceSelector::default(),
            label_selector: String::new(),
            timeout: RegistryTimeout::default(),
            default_weight: 50,
            shared_size: None,
            watch_endpoint_slices: false,
        }
    }
}

/// An API server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterService {
    /// `https` or `http`.
    pub schema: KubernetesSchema,
    /// Host of the server; `${NAME}` is replaced by the environment variable.
    #[schemars(length(min = 1, max = 256))]
    pub host: String,
    /// Port of the server; `${NAME}` is replaced by the environment variable.
    #[schemars(length(min = 1, max = 128))]
    pub port: String,
    /// Whether the server's certificate must be valid. Without this check, an attacker who takes over its address can
    /// read the token and redirect requests.
    pub ssl_verify: bool,
    /// PEM file with the CA certificates of the server, such as `/var/run/secrets/kubernetes.io/serviceaccount/ca.crt`;
    /// with `ssl_verify`. Unset: the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl Default for ClusterService {
    fn default() -> Self {
        ClusterService {
            schema: KubernetesSchema::Https,
            host: "${KUBERNETES_SERVICE_HOST}".to_owned(),
            port: "${KUBERNETES_SERVICE_PORT}".to_owned(),
            ssl_verify: false,
            ca: None,
        }
    }
}

/// The protocol of an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KubernetesSchema {
    /// Cleartext.
    Http,
    /// TLS.
    #[default]
    Https,
}

/// The credentials of the gateway at an API server: one of the two, or none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterClient {
    /// A bearer token; `${NAME}` is replaced by the environment variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Confidential>,
    /// A file with the token; `${NAME}` is replaced by the environment variable. It is read for each request, because
    /// Kubernetes renews it. If neither field is set: `/var/run/secrets/kubernetes.io/serviceaccount/token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500))]
    pub token_file: Option<String>,
}

/// The namespaces to watch; one of the four fields.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceSelector {
    /// Only this namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equal: Option<String>,
    /// All namespaces but this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_equal: Option<String>,
    /// Namespaces whose whole name matches one of these expressions.
    #[serde(rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub matching: Vec<LabelPattern>,
    /// Namespaces whose whole name matches none of these expressions.
    #[serde(rename = "not_match", skip_serializing_if = "Vec::is_empty")]
    pub not_matching: Vec<LabelPattern>,
}

/// A regular expression that must match a whole name.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(transparent)]
pub struct LabelPattern(#[schemars(with = "String")] regex::Regex);

impl LabelPattern {
    /// Returns whether the expression matches all of `name`.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// Returns the expression as written.
    fn text(&self) -> &str {
        let anchored = self.0.as_str();
        anchored.strip_prefix("^(?:").and_then(|text| text.strip_suffix(")$")).unwrap_or(anchored)
    }
}

impl PartialEq for LabelPattern {
    fn eq(&self, other: &LabelPattern) -> bool {
        self.text() == other.text()
    }
}

impl Eq for LabelPattern {}

impl Serialize for LabelPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LabelPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let compiled = regex::Regex::new(&text).and_then(|_| regex::Regex::new(&format!("^(?:{text})$")));
        compiled.map(LabelPattern).map_err(|_| {
            serde::de::Error::custom(format!("`{text}` is not a regular expression for namespaces"))
        })
    }
}

pub(super) fn breaches(discovery: &Map<String, Value>) -> Vec<(String, &'static str, &'static str)> {
    let mut found = Vec::new();
    match discovery.get("kubernetes") {
        Some(Value::Object(cluster)) => of_cluster("kubernetes", cluster, &mut found),
        Some(Value::Array(clusters)) => {
            let mut taken: Vec<&str> = Vec::new();
            for (at, cluster) in clusters.iter().enumerate() {
                let Some(cluster) = cluster.as_object() else { continue };
                let place = format!("kubernetes[{at}]");
                let id = cluster.get("id").and_then(Value::as_str).unwrap_or_default();
                if id.is_empty() {
                    found.push((place.clone(), "a cluster of a list needs an `id`", "add id: first"));
                } else if taken.contains(&id) {
                    found.push((
                        format!("{place}.id"),
                        "this `id` is already used by another cluster",
                        "choose another",
                    ));
                }
                taken.push(id);
                of_cluster(&place, cluster, &mut found);
            }
        }
        _ => {}
    }
    found
}

fn of_cluster(
    place: &str,
    cluster: &Map<String, Value>,
    found: &mut Vec<(String, &'static str, &'static str)>,
) {
    let part = |name: &str| cluster.get(name).and_then(Value::as_object);
    if part("client").is_some_and(|client| client.contains_key("token") && client.contains_key("token_file"))
    {
        let message = "only one of `token` and `token_file` can be";
        found.push((format!("{place}.client"), message, "keep one of the two"));
    }
    if part("namespace_selector").is_some_and(|selector| selector.len() > 1) {
        let message = "only one of `equal`, `not_equal`, `match` and `not_match` can be";
        found.push((format!("{place}.namespace_selector"), message, "keep one of them"));
    }
    let verifies = |service: &Map<String, Value>| service.get("ssl_verify") == Some(&Value::Bool(true));
    if part("service").is_some_and(|service| service.contains_key("ca") && !verifies(service)) {
        let message = "`ca` has no effect without `ssl_verify`";
        found.push((format!("{place}.service.ca"), message, "write ssl_verify: true"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_across_fields() {
        let check = |kubernetes: Value, want: &[&str]| {
            let discovery = json!({ "kubernetes": kubernetes });
            let found = breaches(discovery.as_object().expect("an object"));
            let places: Vec<&str> = found.iter().map(|found| &*found.0).collect();
            assert_eq!(places, want, "{discovery}");
        };
        check(json!({}), &[]);
        check(json!([{ "id": "a" }, { "id": "b" }]), &[]);
        check(json!([{ "id": "a" }, { "id": "a" }, {}]), &["kubernetes[1].id", "kubernetes[2]"]);
        check(json!({ "client": { "token": "t", "token_file": "/t" } }), &["kubernetes.client"]);
        check(
            json!({ "namespace_selector": { "equal": "a", "match": ["b"] } }),
            &["kubernetes.namespace_selector"],
        );
        check(json!({ "service": { "ca": "/ca.crt" } }), &["kubernetes.service.ca"]);
        check(json!({ "service": { "ca": "/ca.crt", "ssl_verify": true } }), &[]);
    }

    #[test]
    fn one_cluster_or_several() {
        let read = |value: &Value| serde_json::from_value::<Clusters>(value.clone());
        let one =
            json!({ "service": { "host": "h", "port": "1" }, "namespace_selector": { "match": ["a|b"] } });
        let clusters = read(&one).expect("one");
        let pattern = &clusters.0[0].namespace_selector.matching[0];
        assert!(pattern.covers("a") && pattern.covers("b") && !pattern.covers("ab"));
        let written = serde_json::to_value(&clusters).expect("text");
        assert_eq!(written["namespace_selector"]["match"], json!(["a|b"]));
        assert_eq!(read(&written).expect("again"), clusters);
        assert_eq!(read(&json!([{ "id": "a" }, { "id": "b" }])).expect("several").0.len(), 2);
        assert!(read(&json!({ "namespace_selector": { "match": ["("] } })).is_err());
        assert!(read(&json!({ "namespace_selector": { "match": [")|("] } })).is_err());
        assert!(read(&json!({ "hots": "h" })).is_err());
    }
}
