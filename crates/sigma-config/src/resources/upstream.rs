//! Upstreams.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::balancing::{SessionAffinity, SlowStart, StickTable, Subsets, UpstreamMember, ZoneAware};
use super::fastcgi::FastCgi;
use super::node_states::NodeState;
use super::optional::Optional;
use super::overload::{AdaptiveConcurrency, AdmissionControl, CircuitBreaker, RequestLimits};
use super::retry::{ExchangeDeadline, RetryPolicy};
use super::shared::{Labels, Timeout, UnixTime};
use crate::settings::tls::NodeProtocol;
use sigma_schema::Confidential;
use sigma_schema::described::without_defaults;
use sigma_schema::forms::{HostPattern, NODE_PATTERN};
use sigma_schema::id::Id;

/// The load balancing method.
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
    /// Consistent hashing with a lookup table, which spreads load more evenly (Maglev).
    Maglev,
    /// Least active requests relative to the weight.
    LeastConn,
    /// Two nodes are drawn by weight; the one with fewer active requests relative to its weight is used.
    LeastRequest,
    /// Two nodes are drawn by weight; the one with the lower product of latency and pending requests is used.
    PeakEwma,
    /// A weighted random node (NiubiX's `random`).
    Random,
    /// Consistent hashing without a table (rendezvous hashing): exact shares for any weights, for up to some hundred
    /// nodes.
    Rendezvous,
    /// No balancing: the client of a Kafka bridge names the broker.
    None,
}

/// The source of the key for consistent hashing.
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

/// The protocol of connections to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// gRPC over cleartext HTTP/2.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
    /// HTTP/1.1, cleartext.
    #[default]
    Http,
    /// HTTP/1.1 or HTTP/2 over TLS.
    Https,
    /// Stream route over TCP.
    Tcp,
    /// Stream route over TLS.
    Tls,
    /// Stream route over UDP.
    Udp,
    /// Kafka bridge.
    Kafka,
    /// FastCGI.
    Fcgi,
}

impl Scheme {
    /// Error for a stream route whose upstream has another scheme.
    pub const NO_SESSIONS: &str = "stream routes support the schemes tcp, tls and udp";

    /// Returns whether a stream route may have an upstream of this scheme. HTTP schemes mean TCP there.
    #[must_use]
    pub fn carries_sessions(self) -> bool {
        match self {
            Scheme::Tcp | Scheme::Tls | Scheme::Udp => true,
            Scheme::Http | Scheme::Https | Scheme::Grpc | Scheme::Grpcs => true,
            Scheme::Kafka | Scheme::Fcgi => false,
        }
    }
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
pub struct Node {
    /// IP address, host name, `[v6]`, or `unix:/path`.
    #[schemars(extend("pattern" = NODE_PATTERN))]
    pub host: Box<str>,
    /// Port; unset: the scheme's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Share of requests, relative to other nodes.
    pub weight: u32,
    /// Priority level; nodes of a higher level are used first.
    #[serde(default)]
    pub priority: i32,
    /// Custom data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<Map<String, Value>>>,
}

/// Pool of idle connections per node and worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KeepalivePool {
    /// Maximum number of idle connections.
    #[schemars(range(min = 1))]
    pub size: u32,
    /// Seconds until an idle connection is closed.
    #[schemars(range(min = 0))]
    pub idle_timeout: f64,
    /// Maximum number of requests on one connection.
    #[schemars(range(min = 1))]
    pub requests: u32,
}

impl Default for KeepalivePool {
    fn default() -> Self {
        KeepalivePool { size: 320, idle_timeout: 60.0, requests: 1000 }
    }
}

/// TLS of connections to nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("dependencies" = {
    "client_cert": { "required": ["client_key"], "not": { "required": ["client_cert_id"] } },
    "client_key": { "required": ["client_cert"], "not": { "required": ["client_cert_id"] } },
}))]
pub struct UpstreamTls {
    /// The client certificate of the gateway, in PEM; with `client_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 128, max = 65536))]
    pub client_cert: Option<Box<str>>,
    /// Its private key, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 64, max = 65536))]
    pub client_key: Option<Confidential>,
    /// Reference to an ssl of type `client`, instead of `client_cert` and `client_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert_id: Option<Id>,
    /// Whether the certificate of a node must be valid for its name. With `profile: edge` the default is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool", extend("default" = false))]
    pub verify: Option<bool>,
    /// The CA certificates for nodes, in PEM; unset: `tls.trusted_certificates`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 128, max = 65536))]
    pub ca: Option<Box<str>>,
    /// Protocols offered with `scheme: https`, in order of preference; unset: HTTP/1.1. `h3` comes first: it is tried
    /// before TCP, and alone if it is the only one. With `scheme: grpcs` it is HTTP/2, after `h3` if that is named.
    #[serde(skip_serializing_if = "Optional::is_unset")]
    #[schemars(length(min = 1, max = 3), extend("uniqueItems" = true))]
    pub alpn: Optional<Vec<NodeProtocol>>,
    /// Use HTTP/3 for nodes that announce it by `Alt-Svc`, on any UDP port of the same address. Needs `verify: true`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alt_svc: bool,
    /// Use HTTP/3 for nodes whose names announce it by HTTPS records (RFC 9460) in DNS, on any UDP port of their
    /// addresses. Needs `verify: true`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub https_records: bool,
    /// The protocol in which a session of a stream route requests TLS from a node, with `scheme: tls`. Unset: the
    /// session begins with TLS. A node that declines gets no session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starttls: Option<StartTls>,
}

/// A protocol that begins in cleartext and switches to TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartTls {
    /// PostgreSQL, with its SSLRequest.
    Postgres,
}

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocolVersion {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// Arguments of a service lookup in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DiscoveryArgs {
    /// Namespace in Nacos or Nomad; unset: `public` in Nacos, `namespace` of the settings in Nomad.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub namespace_id: Option<Box<str>>,
    /// Group in Nacos; unset: `DEFAULT_GROUP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub group_name: Option<Box<str>>,
    /// Metadata that a node must have; for every registry but dns.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<Box<str>, Box<str>>,
    /// Datacenter in Consul or Nomad; unset: the agent's in Consul, any in Nomad.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub datacenter: Option<Box<str>>,
    /// The tags that a node must have in Consul or Nomad.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub tags: Vec<Box<str>>,
    /// Further settings of the registry.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

resource! {
    /// A set of nodes that serve the same thing.
    #[schemars(
        transform = without_defaults("nodes retry_timeout"),
        extend("oneOf" = [
            { "required": ["nodes"] },
            { "required": ["service_name", "discovery_type"] },
            { "required": ["members"] },
            { "required": ["original_destination"] }
        ])
    )]
    pub struct Upstream [id name about times] {
        /// Nodes: `{"host:port": weight}` or a list of objects.
        #[schemars(with = "crate::resources::nodes::NodesForm")]
        #[serde(with = "crate::resources::nodes")]
        pub nodes: Box<[Node]>,
        /// Other upstreams that this upstream consists of, instead of `nodes`. Each member uses its own fields.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        #[schemars(length(min = 1, max = 16))]
        pub members: Box<[UpstreamMember]>,
        /// The node is the destination that the client has connected to, instead of `nodes`: for listeners with
        /// `original_destination`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub original_destination: Option<Box<super::destination::OriginalDestination>>,
        /// The service in a registry whose nodes are used, instead of `nodes`. In DNS `host` or `host:port`, in
        /// Kubernetes `namespace/service:port`, otherwise the name in the registry.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(min = 1, max = 256))]
        pub service_name: Optional<String>,
        /// The registry: `dns`, `consul`, `consul_kv`, `nacos`, `eureka`, `kubernetes`, `etcd`, `docker` or `nomad`. Its
        /// settings are in `discovery` under this name.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub discovery_type: Optional<String>,
        /// Arguments of the lookup in the registry.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub discovery_args: Option<Box<DiscoveryArgs>>,
        /// The load balancing method.
        #[serde(rename = "type")]
        pub balance: Balance,
        /// The source of the hash key.
        pub hash_on: HashOn,
        /// The hash key.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        pub key: Option<Box<str>>,
        /// With `type: chash`, `maglev` or `rendezvous`: the maximum load of a node, in percent of the mean by weight;
        /// further requests go to another node.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 100, max = 10000))]
        pub bounded_load: Option<u16>,
        /// Requests of a session stay on one node; the gateway sets a cookie.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub session_affinity: Option<Box<SessionAffinity>>,
        /// Requests of a session stay on one node; nodes set the session id. Not together with `session_affinity`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stick_table: Option<Box<StickTable>>,
        /// The share of a node that is new, or usable again, grows over a window. Needs `type` `roundrobin`, `random`,
        /// `least_request` or `peak_ewma`. Unset: the full share at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub slow_start: Option<Box<SlowStart>>,
        /// Requests stay in the zone of the gateway (`zone` in the settings), as far as its nodes have capacity. Not
        /// with `chash`, `maglev` and `rendezvous`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub zone_aware: Option<Box<ZoneAware>>,
        /// Nodes are selected by their metadata. Not with `maglev`, nor with `bounded_load`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub subsets: Option<Box<Subsets>>,
        /// Percentage: a level of `priority` whose share of usable nodes times this is below 100 % passes the rest of
        /// its load to lower levels. Unset: a level serves as long as it has a usable node.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 100, max = 10000))]
        pub overprovisioning_factor: Option<u16>,
        /// Percentage of usable nodes below which all nodes of a level of `priority` are used, if all levels together
        /// lack capacity; 0: never. Unset: all nodes are used when no node is usable.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(max = 100))]
        pub panic_threshold: Option<u8>,
        /// Respond 503 below `panic_threshold` instead.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub fail_traffic_on_panic: bool,
        /// Health checks.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub checks: Option<Box<crate::resources::checks::Checks>>,
        /// States of nodes that operators set, independent of health: by the name of a node or by one of its addresses,
        /// such as `10.0.0.1:80`. The default is `ready`.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(with = "BTreeMap<String, NodeState>", extend("maxProperties" = 10_000))]
        pub node_states: BTreeMap<Box<str>, NodeState>,
        /// Outlier detection: nodes are judged by real requests and compared with each other; unset: off.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub outlier_detection: Option<Box<super::outliers::OutlierDetection>>,
        /// The treatment of open requests, responses and tunnels when their node becomes unhealthy, is ejected, or
        /// enters maintenance; unset: `keep`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub on_unhealthy: Option<super::outliers::OnUnhealthy>,
        /// Number of retries after the first attempt; unset: nodes − 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub retries: Option<u32>,
        /// Seconds after which no retry starts; 0 for no limit.
        #[schemars(range(min = 0))]
        pub retry_timeout: f64,
        /// The attempts that are followed by another one, and the pause before it; unset: attempts without a response,
        /// at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub retry_policy: Option<Box<RetryPolicy>>,
        /// The deadline of a whole exchange.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub deadline: Option<Box<ExchangeDeadline>>,
        /// Limits on concurrent requests.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub limits: Option<Box<RequestLimits>>,
        /// Circuit breaker: stops requests while too many fail.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub circuit_breaker: Option<Box<CircuitBreaker>>,
        /// Refuses some requests while too few succeed.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub admission_control: Option<Box<AdmissionControl>>,
        /// Limits concurrent requests to the number that is served without delay.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub adaptive_concurrency: Option<Box<AdaptiveConcurrency>>,
        /// Timeouts.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeout: Option<Box<Timeout>>,
        /// Pool of idle connections.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub keepalive_pool: Option<Box<KeepalivePool>>,
        /// The protocol of connections to nodes.
        pub scheme: Scheme,
        /// FastCGI parameters, with `scheme: fcgi`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub fastcgi: Option<Box<FastCgi>>,
        /// Host header sent to a node.
        pub pass_host: PassHost,
        /// The Host header with `pass_host: rewrite`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<HostPattern>")]
        pub upstream_host: Option<Box<str>>,
        /// TLS of connections to nodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tls: Option<Box<UpstreamTls>>,
        /// Send the PROXY protocol to nodes: each connection begins with the address of its client, and serves only
        /// that client's connection.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub proxy_protocol: Option<ProxyProtocolVersion>,
    }
}
