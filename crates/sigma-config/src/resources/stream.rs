//! Routes for TCP and UDP.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::optional::Optional;
use super::shared::{Labels, Plugins, UnixTime};
use super::upstream::Upstream;
use sigma_schema::cidr::Cidr;
use sigma_schema::expr::Expr;
use sigma_schema::forms::{CidrText, HostPattern};
use sigma_schema::id::Id;

resource! {
    /// Selects connections, and says where they go.
    pub struct StreamRoute [id name about times] {
        /// The client's address or network.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<CidrText>")]
        pub remote_addr: Option<Cidr>,
        /// The address or network that the client connected to.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<CidrText>")]
        pub server_addr: Option<Cidr>,
        /// The port that the client connected to.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1))]
        pub server_port: Option<u16>,
        /// The server name that the client asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<HostPattern>")]
        pub sni: Option<Box<str>>,
        /// The protocols above TLS of which the client offers one (RFC 7301), such as `h2`; for listeners with
        /// `stream: tls`.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(min = 1), inner(length(min = 1, max = 255)))]
        pub alpn: Optional<Vec<String>>,
        /// Where the TLS of a client ends, on listeners with `stream: tls`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("default" = "terminate"))]
        pub tls: Option<StreamTls>,
        /// When a session over UDP ends before it idles, on listeners with `stream: udp`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub udp: Option<StreamUdp>,
        /// Inline upstream.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream: Option<Arc<Upstream>>,
        /// Reference to an upstream; wins over `upstream`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream_id: Option<Id>,
        /// Reference to a service.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub service_id: Option<Id>,
        /// Stream plugins by name.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub plugins: Plugins,
        /// The protocol on the connection.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub protocol: Option<Box<Protocol>>,
    }
}

/// Where the TLS of a client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamTls {
    /// Here: the client is shown the certificate of the `ssl` with its name.
    #[default]
    Terminate,
    /// At the node: bytes pass as they are, the client's first message among them.
    Passthrough,
}

/// The ends of a session over UDP that the protocol on it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamUdp {
    /// Answers that a node gives to each datagram of a client. Once all are there the session ends; a node that
    /// owes some when the session idles has failed. 0 expects none: the session ends with what was sent.
    /// Unset: nobody counts (nginx's `proxy_responses`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responses: Option<u32>,
    /// Datagrams of a client after which the next one begins another session, perhaps on another node. Unset:
    /// no number of them (nginx's `proxy_requests`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u32>,
}

/// A protocol on a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Protocol {
    /// Its name.
    pub name: String,
    /// The stream route that this one is a branch of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superior_id: Option<Id>,
    /// The settings of the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf: Option<Map<String, Value>>,
    /// Where its calls are logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logger: Vec<ProtocolLogger>,
}

/// Where the calls of a protocol are logged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("dependencies" = { "name": ["conf"] }))]
pub struct ProtocolLogger {
    /// Name of a logging plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which calls are logged.
    #[serde(skip_serializing_if = "Optional::is_unset")]
    pub filter: Optional<Expr>,
    /// The configuration of the plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<Map<String, Value>>,
}
