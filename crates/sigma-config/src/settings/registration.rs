//! Registration of the gateway in registries of services.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sigma_schema::Problem;
use sigma_schema::problem::element;

/// Registration of this gateway as a service, so that others find it. The gateway registers when it serves, sends
/// heartbeats, and deregisters when it stops. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The registries. `discovery` has their servers, credentials and timeouts.
    #[schemars(length(min = 1, max = 3))]
    pub registries: Vec<RegistrationTarget>,
    /// The name of the service. Eureka gets it in upper case.
    #[schemars(regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"))]
    pub name: String,
    /// The address for clients: an IP address, or a host name for Consul.
    #[schemars(regex(pattern = "^[0-9A-Za-z.:_-]{1,253}$"))]
    pub address: String,
    /// The port for clients.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Whether `port` is for TLS.
    #[serde(default)]
    pub secure: bool,
    /// The id of this instance, unique in the registry; unset: `<address>:<name>:<port>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[A-Za-z0-9:._-]{1,256}$"))]
    pub id: Option<String>,
    /// Metadata of this instance.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub metadata: BTreeMap<String, String>,
    /// Tags in Consul.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub tags: Vec<String>,
    /// URL that responds with 200 while the gateway is healthy, such as `/status/ready` of the status listener. Consul
    /// requests it, instead of waiting for heartbeats; Eureka shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^https?://[^/]"), length(max = 2048))]
    pub health_url: Option<String>,
    /// Seconds between heartbeats; unset: 30 for Eureka, 10 for Consul, 5 for Nacos. The registration expires after
    /// three times as long without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 300))]
    pub heartbeat_s: Option<u32>,
    /// Namespace, group, cluster and weight in Nacos.
    #[serde(default)]
    pub nacos: NacosMembership,
}

impl Registration {
    /// Returns the id of this instance.
    #[must_use]
    pub fn instance(&self) -> String {
        self.id.clone().unwrap_or_else(|| format!("{}:{}:{}", self.address, self.name, self.port))
    }
}

/// A registry in which the gateway registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RegistrationTarget {
    /// The agent of `discovery.consul`.
    Consul,
    /// The servers of `discovery.eureka`.
    Eureka,
    /// The servers of `discovery.nacos`, by HTTP.
    Nacos,
}

/// Namespace, group, cluster and weight of an instance in Nacos.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NacosMembership {
    /// The id of the namespace.
    #[schemars(length(min = 1, max = 128))]
    pub namespace: String,
    /// The group.
    #[schemars(length(min = 1, max = 128))]
    pub group: String,
    /// The cluster.
    #[schemars(length(min = 1, max = 128))]
    pub cluster: String,
    /// The weight.
    #[schemars(range(min = 1, max = 10_000))]
    pub weight: u32,
}

impl Default for NacosMembership {
    fn default() -> Self {
        NacosMembership {
            namespace: "public".to_owned(),
            group: "DEFAULT_GROUP".to_owned(),
            cluster: "DEFAULT".to_owned(),
            weight: 1,
        }
    }
}

/// Returns the registries without settings in `discovery`, and those that are named twice.
pub(crate) fn of_document(root: &Map<String, Value>) -> Vec<Problem> {
    let registries = root.get("registration").and_then(|found| found.get("registries")?.as_array());
    let names: Vec<&str> = registries.into_iter().flatten().filter_map(Value::as_str).collect();
    let mut found = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let place = element("registration.registries", index);
        if names[..index].contains(name) {
            let message = format!("`{name}` is named twice");
            found.push(Problem::new(place, "duplicate", message).hint("remove one"));
        } else if root.get("discovery").and_then(|discovery| discovery.get(*name)).is_none() {
            let message = format!("the servers of `{name}` are not known: `discovery.{name}` is not set");
            let hint = format!("set `discovery.{name}`");
            found.push(Problem::new(place, "missing", message).hint(hint));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn registries_need_their_servers() {
        let check = |registries: Value, expected: &[&str]| {
            let document = json!({
                "registration": {"registries": registries},
                "discovery": {"consul": {}, "eureka": {}},
            });
            let found = of_document(document.as_object().expect("an object"));
            let found: Vec<&str> = found.iter().map(|problem| &*problem.pointer).collect();
            assert_eq!(found, expected, "{document}");
        };
        check(json!([]), &[]);
        check(json!(["consul", "eureka"]), &[]);
        check(json!(["nacos"]), &["registration.registries[0]"]);
        check(json!(["consul", "consul"]), &["registration.registries[1]"]);
        assert!(of_document(&Map::new()).is_empty());
    }

    #[test]
    fn an_instance_has_an_id() {
        let value = json!({"registries": ["consul"], "name": "g", "address": "10.0.0.1", "port": 80});
        let mut read: Registration = serde_json::from_value(value).expect("settings");
        assert_eq!(read.instance(), "10.0.0.1:g:80");
        read.id = Some("one".to_owned());
        assert_eq!(read.instance(), "one");
    }
}
