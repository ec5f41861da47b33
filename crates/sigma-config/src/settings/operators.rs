//! Settings of the listeners for operators: the Admin API and its keys, the Control API, the status.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use sigma_schema::forms::{CidrText, SocketText};

/// Limits and callers of all listeners for operators: status, Admin API, Control API, NiubiX's admin
/// calls and the pages of plugins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Operators {
    /// Open connections of one listener. Beyond them the one that has been without a request longest
    /// is closed; where there is none, a new one waits. More than a fleet of scrapers and dashboards
    /// needs, and a quarter of the 1,024 descriptors that a shell grants.
    #[schemars(range(min = 1))]
    pub connections: u16,
    /// From the begin of a connection, or from the end of an answer, to the end of the next head; then
    /// it is closed. So it is also how long an idle connection is kept.
    #[schemars(range(min = 1))]
    pub head_timeout_ms: u32,
    /// Largest request head in bytes; larger is answered 431.
    #[schemars(range(min = 8192))]
    pub head_bytes: u32,
    /// From a head to the end of its body; then 408. Enough for `admin.configs_bytes` at 20 Mbit/s.
    #[schemars(range(min = 1))]
    pub body_timeout_ms: u32,
    /// A client that reads nothing of its answer is left after this.
    #[schemars(range(min = 1))]
    pub stall_timeout_ms: u32,
    /// Bytes of a refused body that are read on, so that a client that still writes can read why.
    pub linger_bytes: u32,
    /// Names by which calls without a key are taken, besides IP addresses, `localhost` and names below it.
    /// Other names may be those of a web page that makes them resolve to this address.
    pub hosts: Vec<String>,
    /// Web pages that may call without a key, by origin: `https://dashboard.example.com`.
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

/// The admin calls of NiubiX (`/set_backend_down`, `/set_backend_weight`, `/reload`, `/shutdown`,
/// `/conf_version`), for configurations translated from its format. They ask for no key: calls by
/// foreign names and for web pages are refused (see `operators.hosts`), and so is a GET of a browser
/// that does not say which page it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NiubixAdmin {
    /// `ip:port`.
    #[schemars(with = "SocketText")]
    pub address: SocketAddr,
    /// Peers that may call; empty for all.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub allow: Vec<std::net::IpAddr>,
    /// The label that `/conf_version` answers.
    #[serde(default)]
    pub version: String,
}

/// The calls that a key of the Admin API allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdminRole {
    /// Everything.
    #[default]
    Admin,
    /// Reading.
    Viewer,
}

/// A key of the Admin API.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminKey {
    /// For whom it is; a note to the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The text that callers send in `X-API-KEY`; at least one character.
    #[schemars(length(min = 1))]
    pub key: String,
    /// The calls that it allows.
    #[serde(default)]
    pub role: AdminRole,
}

/// The key itself must not reach a log.
impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminKey").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

/// The shape of the Admin API's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdminApiVersion {
    /// `{"list": […], "total": 1}`, with paging and filters.
    #[default]
    V3,
    /// `{"action": "get", "node": {…}}`, as APISIX 2 answers.
    V2,
}

/// TLS of the Admin API (`https_admin` and `admin_api_mtls` in APISIX). The files are read again when they change;
/// those before stay in force if they cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminTls {
    /// File of the certificate and its chain, in PEM.
    pub cert: PathBuf,
    /// File of its private key, in PEM, without a passphrase.
    pub key: PathBuf,
    /// File of authorities, in PEM: callers have to show a certificate of one of them, whatever else they show.
    /// Unset: no certificate is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
    /// Intermediate certificates allowed between a caller's own and an authority.
    #[serde(default = "default_client_depth")]
    #[schemars(range(max = 16))]
    pub client_depth: u32,
}

fn default_client_depth() -> u32 {
    1
}

/// The Admin API: resources are read and changed while the gateway runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// `ip:port`.
    #[schemars(with = "SocketText")]
    pub address: SocketAddr,
    /// Keys of callers. Without any, one is made at the first start and kept in `admin.key` beside
    /// the store.
    pub keys: Vec<AdminKey>,
    /// Peers (IP or CIDR) that may call; others are answered 403.
    #[schemars(with = "Vec<CidrText>")]
    pub allow: sigma_schema::cidr::CidrSet,
    /// Callers must show a key. Without it, whoever reaches the address may change everything; web
    /// pages may not, see `operators.hosts` and `operators.origins`.
    pub key_required: bool,
    /// Largest request body in bytes; 1.5 MiB is the limit of APISIX and of an etcd value.
    pub body_bytes: u32,
    /// Largest body in bytes of a whole configuration (`/apisix/admin/configs`).
    pub configs_bytes: u32,
    /// Let scripts of all web pages call who show a key. Without `key_required`, only those of
    /// `operators.origins` may.
    pub cors: bool,
    /// The shape of answers.
    pub api_version: AdminApiVersion,
    /// Calls over TLS only. Peers that `allow` does not name are left before the handshake then. Unset: in
    /// cleartext.
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

/// The Control API (`/v1/…`): what this process serves right now. It asks for no key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// `ip:port`.
    #[schemars(with = "SocketText")]
    pub address: SocketAddr,
}
