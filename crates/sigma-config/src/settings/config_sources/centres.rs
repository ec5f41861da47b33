//! Settings of configuration centres.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sigma_schema::Confidential;

use crate::settings::discovery::{ConsulTimeout, RegistryAddress, RegistryTimeout};

/// Documents in Consul keys, watched by blocking queries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsulDocuments {
    /// Agents of one cluster, `http://host:port`. The gateway uses the first one that responds, until it fails.
    #[schemars(length(min = 1, max = 64))]
    pub servers: Vec<RegistryAddress>,
    /// The ACL token.
    #[serde(default)]
    pub token: Confidential,
    /// The keys, each with one document.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 512)))]
    pub keys: Vec<String>,
    /// The datacenter; unset: the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub datacenter: Option<String>,
    /// Timeouts.
    #[serde(default)]
    pub timeout: ConsulTimeout,
}

/// Documents in Nacos 1 and 2, watched by long polling. With a user in `host` the gateway logs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NacosDocuments {
    /// Servers, `http://host:port` or `http://user:password@host:port`. They are tried in random order until one
    /// responds.
    #[schemars(length(min = 1, max = 64))]
    pub host: Vec<RegistryAddress>,
    /// Path before `cs/configs`.
    #[serde(default = "prefix")]
    #[schemars(length(min = 1, max = 100))]
    pub prefix: String,
    /// The id of the namespace; empty: `public`.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub namespace: String,
    /// The documents.
    #[schemars(length(min = 1, max = 16))]
    pub documents: Vec<NacosDocument>,
    /// Seconds that a request waits at Nacos for a change.
    #[serde(default = "wait")]
    #[schemars(range(min = 1, max = 300))]
    pub wait: u32,
    /// Timeouts, in addition to `wait`.
    #[serde(default)]
    pub timeout: RegistryTimeout,
    /// The id of the key that signs requests (HMAC-SHA1); with `secret_key`.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub access_key: String,
    /// The key that signs requests.
    #[serde(default)]
    pub secret_key: Confidential,
}

/// One configuration of Nacos.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NacosDocument {
    /// Its data id.
    #[schemars(length(min = 1, max = 256))]
    pub data_id: String,
    /// Its group.
    #[serde(default = "group")]
    #[schemars(length(min = 1, max = 128))]
    pub group: String,
}

/// Documents in namespaces of Apollo, watched by its notifications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApolloDocuments {
    /// Config services, `http://host:port`. The gateway uses the first one that responds, until it fails.
    #[schemars(length(min = 1, max = 64))]
    pub servers: Vec<RegistryAddress>,
    /// The id of the application.
    #[schemars(length(min = 1, max = 256))]
    pub app_id: String,
    /// The cluster.
    #[serde(default = "cluster")]
    #[schemars(length(min = 1, max = 256))]
    pub cluster: String,
    /// The namespaces, each with one document, such as `gateway.yaml`.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 256)))]
    pub namespaces: Vec<String>,
    /// The item of a namespace with the document. Namespaces in YAML, JSON and text have `content`.
    #[serde(default = "key")]
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// The access key of the application, which signs requests; unset: they are not signed.
    #[serde(default)]
    pub secret: Confidential,
    /// Timeouts. Notifications may take 70 seconds more.
    #[serde(default)]
    pub timeout: RegistryTimeout,
}

/// Documents in nodes of ZooKeeper, each with a watch. The connection is not encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZookeeperDocuments {
    /// Servers, `host:port`. They are tried in random order until one responds.
    #[schemars(
        length(min = 1, max = 64),
        inner(regex(pattern = r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):[0-9]{1,5}$"))
    )]
    pub servers: Vec<String>,
    /// The nodes, each with one document.
    #[schemars(length(min = 1, max = 16), inner(regex(pattern = "^/.*[^/]$"), length(max = 512)))]
    pub paths: Vec<String>,
    /// `user:password` of the scheme `digest`; unset: no authentication.
    #[serde(default)]
    pub digest: Confidential,
    /// Timeout of the session in milliseconds. A server that is silent for two thirds of it is replaced.
    #[serde(default = "session_timeout_ms")]
    #[schemars(range(min = 1000, max = 600_000))]
    pub session_timeout_ms: u32,
}

fn prefix() -> String {
    "/nacos/v1/".to_owned()
}

fn wait() -> u32 {
    30
}

fn group() -> String {
    "DEFAULT_GROUP".to_owned()
}

fn cluster() -> String {
    "default".to_owned()
}

fn key() -> String {
    "content".to_owned()
}

fn session_timeout_ms() -> u32 {
    10_000
}
