//! Settings of listeners for operators: the Admin API and its keys, the Control API, the status.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::forms::{CidrText, SocketText};

/// Limits and callers of all listeners for operators: status, Admin API, Control API, NiubiX's admin calls and plugin
/// pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Operators {
    /// Maximum number of open connections per listener. Beyond it the connection that has been idle longest is closed;
    /// without an idle one, a new connection waits. The default is more than a fleet of scrapers and dashboards needs,
    /// and a quarter of a shell's 1,024 descriptors.
    #[schemars(range(min = 1))]
    pub connections: u16,
    /// Milliseconds from the begin of a connection, or the end of a response, to the end of the next request head; then
    /// the connection is closed. So this is also the idle timeout.
    #[schemars(range(min = 1))]
    pub head_timeout_ms: u32,
    /// Maximum size of a request head in bytes; a larger one gets 431.
    #[schemars(range(min = 8192))]
    pub head_bytes: u32,
    /// Milliseconds from a request head to the end of its body; then 408. The default allows `admin.configs_bytes` at
    /// 20 Mbit/s.
    #[schemars(range(min = 1))]
    pub body_timeout_ms: u32,
    /// Milliseconds after which a client that does not read its response is disconnected.
    #[schemars(range(min = 1))]
    pub stall_timeout_ms: u32,
    /// Bytes of a refused body that are still read, so that a client that is still writing can read the error.
    pub linger_bytes: u32,
    /// Host names that calls without a key may use, besides IP addresses, `localhost` and names below it. Other names
    /// could belong to a web page that resolves them to this address.
    pub hosts: Vec<String>,
    /// Origins of web pages that may call without a key: `https://dashboard.example.com`.
    pub origins: Vec<String>,
}

impl Default for Operators {
    fn default() -> Self {
        Operators {
            connections: 256,
            head_timeout_ms: 10_000,
            head_bytes: 32 * 1024,
            body_timeout_ms: 60_000,
            stall_timeout_ms: 30_000,
            linger_bytes: 16 * 1024 * 1024,
            hosts: Vec::new(),
            origins: Vec::new(),
        }
    }
}

/// The status listener (`/status`, `/status/ready`, `/status/counters`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// `host:port`.
    #[schemars(with = "SocketText")]
    pub address: SocketAddr,
}

/// The admin calls of NiubiX (`/set_backend_down`, `/set_backend_weight`, `/reload`, `/shutdown`, `/conf_version`), for
/// configurations translated from its format. They need no key. Calls with other host names or from web pages are
/// refused (see `operators.hosts`), and so is a browser's GET without its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NiubixAdmin {
    /// `ip:port`.
    #[schemars(with = "SocketText")]
    pub address: SocketAddr,
    /// Peers that may call; empty for all peers.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<std::net::IpAddr>,
    /// The label in the response of `/conf_version`.
    #[serde(default)]
    pub version: String,
}

/// The calls that a key of the Admin API permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdminRole {
    /// All calls.
    #[default]
    Admin,
    /// Reading only.
    Viewer,
}

/// A key of the Admin API.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminKey {
    /// The owner of the key, for readers of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The text that callers send in `X-API-KEY`; at least one character.
    #[schemars(length(min = 1))]
    pub key: String,
    /// The calls that the key permits.
    #[serde(default)]
    pub role: AdminRole,
}

/// The key must not appear in a log.
impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminKey").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

/// The format of responses of the Admin API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdminApiVersion {
    /// `{"list": […], "total": 1}`, with paging and filters.
    #[default]
    V3,
    /// `{"action": "get", "node": {…}}`, as in APISIX 2.
    V2,
}

/// TLS of the Admin API (`https_admin` and `admin_api_mtls` in APISIX). The files are read again when they change. If
/// new files are invalid, the old ones stay in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminTls {
    /// File of the certificate and its chain, in PEM.
    pub cert: PathBuf,
    /// File of its private key, in PEM, without a passphrase.
    pub key: PathBuf,
    /// PEM file with CA certificates: callers must present a certificate of one of these CAs, in addition to a key.
    /// Unset: no client certificate is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Maximum number of intermediate certificates between a caller's certificate and a CA.
    #[serde(default = "default_client_depth")]
    #[schemars(range(max = 16))]
    pub client_depth: u32,
}

fn default_client_depth() -> u32 {
    1
}

/// The Admin API: reads and changes resources while the gateway runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// `ip:port`.
    #[schemars(with = "SocketText")]
    pub address: SocketAddr,
    /// Keys of callers. If empty, a key is generated at the first start and kept in `admin.key` next to the store.
    pub keys: Vec<AdminKey>,
    /// Peers (IP or CIDR) that may call; others get 403.
    #[schemars(with = "Vec<CidrText>")]
    pub allow: sigma_schema::cidr::CidrSet,
    /// Callers must send a key. Off: every client that reaches the address may change everything. Web pages still need
    /// `operators.hosts` and `operators.origins`.
    pub key_required: bool,
    /// Maximum size of a request body in bytes; 1.5 MiB is the limit of APISIX and of an etcd value.
    pub body_bytes: u32,
    /// Maximum size of a whole configuration (`/apisix/admin/configs`) in bytes.
    pub configs_bytes: u32,
    /// Let scripts of any web page call with a key. Without `key_required`, only pages in `operators.origins` may call.
    pub cors: bool,
    /// The format of responses.
    pub api_version: AdminApiVersion,
    /// TLS for all calls. Peers that are not in `allow` are then disconnected before the handshake. Unset: cleartext.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<AdminTls>,
    /// Serve the dashboard below `/ui`, to the peers of `allow`.
    pub ui: bool,
}

impl Default for Admin {
    fn default() -> Self {
        let near = sigma_schema::cidr::Cidr::from_str("127.0.0.0/24");
        Admin {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 9180)),
            keys: Vec::new(),
            allow: near.into_iter().collect(),
            key_required: true,
            body_bytes: 1_572_864,
            configs_bytes: 128 * 1024 * 1024,
            cors: true,
            api_version: AdminApiVersion::default(),
            tls: None,
            ui: true,
        }
    }
}

/// The Control API (`/v1/…`): the running configuration of this process. It needs no key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// `ip:port`.
    #[schemars(with = "SocketText")]
    pub address: SocketAddr,
}
