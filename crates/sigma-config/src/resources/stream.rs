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
    /// A stream route: conditions that select connections, and their upstream.
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
        /// The server name (SNI) in the client's handshake.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<HostPattern>")]
        pub sni: Option<Box<str>>,
        /// Protocols of which the client must offer one by ALPN (RFC 7301), such as `h2`; only for listeners with
        /// `stream: tls`.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(min = 1), inner(length(min = 1, max = 255)))]
        pub alpn: Optional<Vec<String>>,
        /// Where the client's TLS ends, on listeners with `stream: tls`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("default" = "terminate"))]
        pub tls: Option<StreamTls>,
        /// When a UDP session ends before its idle timeout, on listeners with `stream: udp`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub udp: Option<StreamUdp>,
        /// Inline upstream.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream: Option<Arc<Upstream>>,
        /// Reference to an upstream; has precedence over `upstream`.
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

/// Where the client's TLS ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamTls {
    /// At the gateway: the client gets the certificate of the `ssl` with its name.
    #[default]
    Terminate,
    /// At the node: bytes are forwarded unchanged, including the client's first message.
    Passthrough,
}

/// When a UDP session ends before its idle timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamUdp {
    /// Number of responses of a node to each datagram of a client. The session ends after the last one; a node that has
    /// not sent all of them when the session is idle has failed. 0: the session ends after the datagram was sent.
    /// Unset: responses are not counted (nginx's `proxy_responses`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responses: Option<u32>,
    /// Number of datagrams of a client after which the next one begins a new session, perhaps on another node. Unset:
    /// no limit (nginx's `proxy_requests`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u32>,
}

/// A protocol on a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Protocol {
    /// The name of the protocol.
    pub name: String,
    /// The parent stream route of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superior_id: Option<Id>,
    /// The settings of the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf: Option<Map<String, Value>>,
    /// The loggers of its calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logger: Vec<ProtocolLogger>,
}

/// A logger of the calls of a protocol.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("dependencies" = { "name": ["conf"] }))]
pub struct ProtocolLogger {
    /// Name of a logging plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Conditions: only matching calls are logged.
    #[serde(skip_serializing_if = "Optional::is_unset")]
    pub filter: Optional<Expr>,
    /// The configuration of the plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<Map<String, Value>>,
}
