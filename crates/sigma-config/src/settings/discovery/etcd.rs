//! Settings of etcd as a service registry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{RegistryAddress, RegistryTimeout};
use sigma_schema::Confidential;

/// Services that register in etcd. A node is a key `<prefix>/<service>/<any name>` with the value
/// `{"host": "10.0.0.1", "port": 80, "weight": 1, "priority": 0, "metadata": {}}`. With a lease on the key, a node
/// disappears when it stops renewing the lease. etcd must be 3.4 or newer; changes arrive at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EtcdDiscovery {
    /// Members of one cluster, `http://host:port`. The gateway uses the first one that responds, until it fails.
    #[schemars(length(min = 1, max = 64))]
    pub host: Vec<RegistryAddress>,
    /// The prefix of all keys.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 256))]
    pub prefix: String,
    /// The etcd user; needs `password`.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub user: String,
    /// Password of `user`.
    #[serde(default)]
    pub password: Confidential,
    /// Weight of nodes without a weight.
    #[serde(default = "weight")]
    #[schemars(range(min = 1))]
    pub weight: u32,
    /// Timeouts.
    #[serde(default)]
    pub timeout: RegistryTimeout,
}

fn prefix() -> String {
    "/services".to_owned()
}

fn weight() -> u32 {
    1
}

pub(super) fn breaches(discovery: &Map<String, Value>) -> Vec<(String, &'static str, &'static str)> {
    let Some(etcd) = discovery.get("etcd").and_then(Value::as_object) else { return Vec::new() };
    let mut found = Vec::new();
    if etcd.contains_key("user") != etcd.contains_key("password") {
        found.push((
            "etcd.user".to_owned(),
            "`user` and `password` belong together",
            "name both, or neither",
        ));
    }
    let prefix = etcd.get("prefix").and_then(Value::as_str);
    if prefix.is_some_and(|prefix| !prefix.starts_with('/') || prefix.ends_with('/')) {
        let message = "the prefix of keys begins with a slash and does not end with one";
        found.push(("etcd.prefix".to_owned(), message, "for example /services"));
    }
    found
}
