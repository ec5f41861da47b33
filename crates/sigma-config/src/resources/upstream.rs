//! Upstreams.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::rare::Rare;
use super::shared::{
    Confidential, HOST_PATTERN, Labels, Timeout, UnixTime, host_schema, id_schema, name_schema,
    resource_schema, timeout_schema, with,
};
use crate::forms::{HostPattern, METHODS};
use crate::id::Id;
use crate::tls::AlpnProtocol;

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
    /// None: the client of a Kafka bridge names the broker.
    None,
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
#[schemars(deny_unknown_fields)]
pub struct Node {
    /// IP address, host name, `[v6]`, or `unix:/path`.
    pub host: Box<str>,
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
    pub metadata: Option<Box<Map<String, Value>>>,
}

/// Idle connections kept per node and worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
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

/// TLS towards the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct UpstreamTls {
    /// The certificate that the gateway shows, in PEM; with `client_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 128, max = 65536))]
    pub client_cert: Option<Box<str>>,
    /// Its private key, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 64, max = 65536))]
    pub client_key: Option<Confidential>,
    /// Reference to an ssl of type `client` instead of the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert_id: Option<Id>,
    /// Whether the certificate of a node must be valid, for the name that it is asked for.
    pub verify: bool,
    /// The authorities that may have issued it, in PEM; unset: those of `tls.trusted_certificates`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 128, max = 65536))]
    pub ca: Option<Box<str>>,
    /// Protocols offered with `scheme: https`, the preferred first; unset: HTTP/1.1. With
    /// `scheme: grpcs` it is always HTTP/2.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(length(min = 1, max = 2), extend("uniqueItems" = true))]
    pub alpn: Rare<Vec<AlpnProtocol>>,
}

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocolVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Nodes that a registry knows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DiscoveryArgs {
    /// Namespace in the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub namespace_id: Option<Box<str>>,
    /// Group in the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub group_name: Option<Box<str>>,
    /// Further settings of the registry.
    #[serde(flatten)]
    pub further: Map<String, Value>,
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
    #[schemars(with = "Option<String>", length(min = 1, max = 256))]
    pub name: Option<Box<str>>,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 256))]
    pub desc: Option<Box<str>>,
    /// Labels.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub labels: Labels,
    /// When it was created, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<UnixTime>,
    /// When it was changed last, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<UnixTime>,
    /// Nodes: `{"host:port": weight}` or a list of objects.
    #[schemars(with = "crate::nodes::NodesForm")]
    #[serde(with = "crate::nodes")]
    pub nodes: Box<[Node]>,
    /// The service in a registry whose nodes are used; instead of `nodes`. In DNS, `host` or `host:port`.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(length(min = 1, max = 256))]
    pub service_name: Rare<String>,
    /// The registry: `dns`.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub discovery_type: Rare<String>,
    /// The settings of the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery_args: Option<Box<DiscoveryArgs>>,
    /// How a node is chosen.
    #[serde(rename = "type")]
    pub balance: Balance,
    /// Where the hash key comes from.
    pub hash_on: HashOn,
    /// The hash key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub key: Option<Box<str>>,
    /// Health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Box<crate::checks::Checks>>,
    /// Further attempts after the first; unset: nodes − 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seconds after which no retry starts; 0 for no limit.
    #[schemars(range(min = 0))]
    pub retry_timeout: f64,
    /// Timeouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Box<Timeout>>,
    /// Idle connection pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive_pool: Option<Box<KeepalivePool>>,
    /// Protocol towards the nodes.
    pub scheme: Scheme,
    /// Host header sent to a node.
    pub pass_host: PassHost,
    /// The Host header with `pass_host: rewrite`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPattern>")]
    pub upstream_host: Option<Box<str>>,
    /// TLS towards the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Box<UpstreamTls>>,
    /// The PROXY protocol towards the nodes: each connection begins with the address of the client
    /// that it is for, and serves that client's connection only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocolVersion>,
}

/// APISIX's schema of an upstream, on its own or inline.
pub(super) fn schema() -> Value {
    let properties = json!({
        "nodes": nodes_schema(),
        "service_name": name_schema(),
        "discovery_type": { "type": "string" },
        "discovery_args": {
            "type": "object",
            "properties": { "namespace_id": { "type": "string" }, "group_name": { "type": "string" } },
        },
        "type": {
            "type": "string",
            "enum": ["roundrobin", "chash", "ewma", "least_conn", "random", "none"],
            "default": "roundrobin",
        },
        "hash_on": {
            "type": "string",
            "enum": ["vars", "header", "cookie", "consumer", "vars_combinations"],
            "default": "vars",
        },
        "key": { "type": "string" },
        "checks": checks_schema(),
        "retries": { "type": "integer", "minimum": 0 },
        "retry_timeout": { "type": "number", "minimum": 0 },
        "timeout": timeout_schema(),
        "keepalive_pool": {
            "type": "object",
            "properties": {
                "size": { "type": "integer", "minimum": 1, "default": 320 },
                "idle_timeout": { "type": "number", "minimum": 0, "default": 60 },
                "requests": { "type": "integer", "minimum": 1, "default": 1000 },
            },
        },
        "scheme": {
            "type": "string",
            "enum": ["grpc", "grpcs", "http", "https", "tcp", "tls", "udp", "kafka"],
            "default": "http",
        },
        "pass_host": { "type": "string", "enum": ["pass", "node", "rewrite"], "default": "pass" },
        "upstream_host": host_schema(),
        "tls": tls_schema(),
        // Sigma's own.
        "proxy_protocol": { "type": "string", "enum": ["v1", "v2"] },
    });
    let rules = json!({
        "oneOf": [{ "required": ["nodes"] }, { "required": ["service_name", "discovery_type"] }],
    });
    with(resource_schema(properties), rules)
}

fn nodes_schema() -> Value {
    let weight = json!({ "type": "integer", "minimum": 0 });
    let node = json!({
        "type": "object",
        "properties": {
            // Sockets of this machine are Sigma's own.
            "host": { "type": "string", "pattern": format!("{HOST_PATTERN}|^unix:/.+$") },
            "port": { "type": "integer", "minimum": 1, "maximum": 65535 },
            "weight": weight,
            "priority": { "type": "integer", "default": 0 },
            "metadata": { "type": "object" },
        },
        "required": ["host", "weight"],
    });
    json!({ "anyOf": [
        { "type": "object", "patternProperties": { ".*": weight } },
        { "type": "array", "items": node },
    ] })
}

fn tls_schema() -> Value {
    let requires = |other: &str| json!({ "required": [other], "not": { "required": ["client_cert_id"] } });
    json!({
        "type": "object",
        "properties": {
            "client_cert": { "type": "string", "minLength": 128, "maxLength": 65536 },
            "client_key": { "type": "string", "minLength": 64, "maxLength": 65536 },
            "client_cert_id": id_schema(),
            "verify": { "type": "boolean", "default": false },
            // Sigma's own.
            "ca": { "type": "string", "minLength": 128, "maxLength": 65536 },
            "alpn": {
                "type": "array",
                "items": { "type": "string", "enum": ["h2", "http/1.1"] },
                "minItems": 1,
                "maxItems": 2,
                "uniqueItems": true,
            },
        },
        "dependencies": {
            "client_cert": requires("client_key"),
            "client_key": requires("client_cert"),
        },
    })
}

fn checks_schema() -> Value {
    let kind = json!({ "type": "string", "enum": ["http", "https", "tcp"], "default": "http" });
    let statuses = |default: &[u16]| {
        json!({
            "type": "array",
            "minItems": 1,
            "items": { "type": "integer", "minimum": 200, "maximum": 599 },
            "uniqueItems": true,
            "default": default,
        })
    };
    let count = |lowest: u8, default: u8| json!({ "type": "integer", "minimum": lowest, "maximum": 254, "default": default });
    let interval = json!({ "type": "integer", "minimum": 1, "default": 1 });
    let passive_successes: Vec<u16> = (200..=208).chain([226]).chain(300..=308).collect();
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    let active = object(json!({
        "type": kind,
        "timeout": { "type": "number", "exclusiveMinimum": 0, "default": 1 },
        "concurrency": { "type": "integer", "minimum": 1, "default": 10 },
        "host": host_schema(),
        "port": { "type": "integer", "minimum": 1, "maximum": 65535 },
        "http_method": { "type": "string", "enum": METHODS, "default": "GET" },
        "http_path": { "type": "string", "default": "/" },
        "http_req_body": { "type": "string", "default": "" },
        "https_verify_certificate": { "type": "boolean", "default": true },
        "req_headers": { "type": "array", "minItems": 1, "items": { "type": "string" } },
        "healthy": object(json!({
            "interval": interval,
            "http_statuses": statuses(&[200, 302]),
            "successes": count(1, 2),
        })),
        "unhealthy": object(json!({
            "interval": interval,
            "http_statuses": statuses(&[429, 404, 500, 501, 502, 503, 504, 505]),
            "http_failures": count(1, 5),
            "tcp_failures": count(1, 2),
            "timeouts": count(1, 3),
        })),
    }));
    let passive = object(json!({
        "type": kind,
        "healthy": object(json!({
            "http_statuses": statuses(&passive_successes),
            "successes": count(0, 5),
        })),
        "unhealthy": object(json!({
            "http_statuses": statuses(&[429, 500, 503]),
            "tcp_failures": count(0, 2),
            "timeouts": count(0, 7),
            "http_failures": count(0, 5),
        })),
    }));
    json!({
        "type": "object",
        "properties": { "active": active, "passive": passive },
        "anyOf": [{ "required": ["active"] }, { "required": ["active", "passive"] }],
        "additionalProperties": false,
    })
}
