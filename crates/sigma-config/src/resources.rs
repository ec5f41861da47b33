//! The resources that an operator writes: routes, services, upstreams (reference: resources.md).
//!
//! The same types serve the file, the schemas and the documentation. Fields that are accepted
//! in APISIX's format keep its names, defaults and ranges.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::cidr::{Cidr, CidrSet};
use crate::expr::Expr;
use crate::forms::{CidrText, HostPattern, MethodName, UriPattern};
use crate::id::Id;

/// Labels: free key-value pairs.
pub type Labels = BTreeMap<String, String>;

/// Plugin configurations by plugin name.
pub type Plugins = BTreeMap<String, serde_json::Value>;

/// Timeouts towards an upstream, in seconds (fractions allowed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    /// To establish a connection.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub connect: f64,
    /// Between two writes.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub send: f64,
    /// Between two reads.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub read: f64,
}

impl Default for Timeout {
    fn default() -> Self {
        Timeout { connect: 60.0, send: 60.0, read: 60.0 }
    }
}

/// What a request must be like to be served by this route, and where it goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Route {
    /// Identity; unset in a file: the position (`arr_1`, …).
    #[serde(skip_serializing_if = "Id::is_empty")]
    pub id: Id,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desc: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// One path pattern; exactly one of `uri` and `uris`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<UriPattern>", length(max = 4096))]
    pub uri: Option<String>,
    /// Several path patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<UriPattern>", length(min = 1), extend("uniqueItems" = true))]
    pub uris: Vec<String>,
    /// Order among routes with the same path key; higher first.
    pub priority: i64,
    /// Methods; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<MethodName>", extend("uniqueItems" = true))]
    pub methods: Vec<String>,
    /// One host pattern: exact, `*.example.com` or `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPattern>")]
    pub host: Option<String>,
    /// Several host patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<HostPattern>", length(min = 1), extend("uniqueItems" = true))]
    pub hosts: Vec<String>,
    /// One client address or network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<CidrText>")]
    pub remote_addr: Option<Cidr>,
    /// Several client addresses or networks.
    #[serde(skip_serializing_if = "CidrSet::is_empty")]
    #[schemars(with = "Vec<CidrText>", length(min = 1), extend("uniqueItems" = true))]
    pub remote_addrs: CidrSet,
    /// Upstream timeouts of this route; replaces the upstream's as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
    /// Conditions on variables.
    #[serde(skip_serializing_if = "Expr::is_empty")]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub vars: Expr,
    /// Media types a request body must have one of; another is answered 415.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consumes: Vec<String>,
    /// Media types this route answers with; a request that accepts none of them is answered 406.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub produces: Vec<String>,
    /// Answer 405 with `Allow` rather than 404 when only the method does not fit.
    pub method_not_allowed: bool,
    /// Names of the listeners that this route serves; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<String>,
    /// Changes the path on the way to the upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<PathRewrite>,
    /// Plugins by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub plugins: Plugins,
    /// Inline upstream: an object, or the short form `http://host:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Upstream>,
    /// Reference to an upstream; wins over `upstream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<Id>,
    /// Reference to a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_id: Option<Id>,
    /// Allow `Upgrade` (WebSocket); unset: the service's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_websocket: Option<bool>,
    /// 1 enabled, 0 disabled.
    #[schemars(range(min = 0, max = 1))]
    pub status: u8,
}

impl Default for Route {
    /// An empty route, enabled.
    fn default() -> Self {
        Route {
            id: Default::default(),
            name: Default::default(),
            desc: Default::default(),
            labels: Default::default(),
            uri: Default::default(),
            uris: Default::default(),
            priority: Default::default(),
            methods: Default::default(),
            host: Default::default(),
            hosts: Default::default(),
            remote_addr: Default::default(),
            remote_addrs: Default::default(),
            timeout: Default::default(),
            vars: Default::default(),
            consumes: Default::default(),
            produces: Default::default(),
            method_not_allowed: Default::default(),
            listeners: Default::default(),
            rewrite: Default::default(),
            plugins: Default::default(),
            upstream: Default::default(),
            upstream_id: Default::default(),
            service_id: Default::default(),
            enable_websocket: Default::default(),
            status: 1,
        }
    }
}

/// Replaces every match of `regex` in the path that is sent to the upstream; the query string stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathRewrite {
    /// A regular expression in the syntax of the Rust crate `regex`.
    #[serde(deserialize_with = "compiling_regex")]
    pub regex: String,
    /// What stands in for a match: `$1` or `${name}` for a group, `$$` for a dollar sign.
    pub replacement: String,
}

fn compiling_regex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let source = String::deserialize(deserializer)?;
    regex::Regex::new(&source).map_err(serde::de::Error::custom)?;
    Ok(source)
}

/// What several routes have in common.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Service {
    /// Identity.
    #[serde(skip_serializing_if = "Id::is_empty")]
    pub id: Id,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desc: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Plugins by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub plugins: Plugins,
    /// Inline upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Upstream>,
    /// Reference to an upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<Id>,
    /// Allow `Upgrade` (WebSocket).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_websocket: Option<bool>,
    /// Host patterns of routes that have none of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<HostPattern>", length(min = 1), extend("uniqueItems" = true))]
    pub hosts: Vec<String>,
}

/// How a node is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Weighted round robin.
    #[default]
    Roundrobin,
    /// Consistent hashing.
    Chash,
    /// Peak EWMA of latency, power of two choices.
    Ewma,
    /// Fewest active requests for the weight.
    LeastConn,
    /// A weighted random node (NiubiX's `random`).
    Random,
}

/// Where the key of consistent hashing comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HashOn {
    /// The variable `key`.
    #[default]
    Vars,
    /// The request header `key`.
    Header,
    /// The cookie `key`.
    Cookie,
    /// The consumer's name.
    Consumer,
    /// The template `key`.
    VarsCombinations,
}

/// Protocol towards the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// HTTP/1.1, cleartext.
    #[default]
    Http,
    /// HTTP/1.1 or HTTP/2 over TLS.
    Https,
    /// gRPC over cleartext HTTP/2.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
    /// Stream route over TCP.
    Tcp,
    /// Stream route over TLS.
    Tls,
    /// Stream route over UDP.
    Udp,
    /// Kafka bridge.
    Kafka,
}

/// The Host header sent to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PassHost {
    /// The client's.
    #[default]
    Pass,
    /// The node's.
    Node,
    /// `upstream_host`.
    Rewrite,
}

/// One node of an upstream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// IP address, host name, `[v6]`, or `unix:/path`.
    pub host: String,
    /// Port; unset: the scheme's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Share of requests.
    pub weight: u32,
    /// Group; higher groups are used first.
    #[serde(default)]
    pub priority: i32,
    /// Free data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Idle connections kept per node and worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeepalivePool {
    /// Most idle connections.
    #[schemars(range(min = 1))]
    pub size: u32,
    /// Seconds until an idle connection is closed.
    #[schemars(range(min = 0))]
    pub idle_timeout: f64,
    /// Requests on one connection.
    #[schemars(range(min = 1))]
    pub requests: u32,
}

impl Default for KeepalivePool {
    fn default() -> Self {
        KeepalivePool { size: 320, idle_timeout: 60.0, requests: 1000 }
    }
}

/// A set of nodes that serve the same thing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Upstream {
    /// Identity.
    #[serde(skip_serializing_if = "Id::is_empty")]
    pub id: Id,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desc: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Nodes: `{"host:port": weight}` or a list of objects.
    #[schemars(with = "crate::nodes::NodesForm")]
    #[serde(with = "crate::nodes")]
    pub nodes: Vec<Node>,
    /// How a node is chosen.
    #[serde(rename = "type")]
    pub balance: Balance,
    /// Where the hash key comes from.
    pub hash_on: HashOn,
    /// The hash key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<crate::checks::Checks>,
    /// Further attempts after the first; unset: nodes − 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seconds after which no retry starts; 0 for no limit.
    #[schemars(range(min = 0))]
    pub retry_timeout: f64,
    /// Timeouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
    /// Idle connection pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive_pool: Option<KeepalivePool>,
    /// Protocol towards the nodes.
    pub scheme: Scheme,
    /// Host header sent to a node.
    pub pass_host: PassHost,
    /// The Host header with `pass_host: rewrite`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPattern>")]
    pub upstream_host: Option<String>,
}

/// All resources of one configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// Routes.
    pub routes: Vec<Route>,
    /// Services.
    pub services: Vec<Service>,
    /// Upstreams.
    pub upstreams: Vec<Upstream>,
}
