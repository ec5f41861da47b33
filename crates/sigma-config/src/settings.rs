//! Process settings: the configuration of a `sigma` process, as opposed to its resources (`resources`).
//!
//! Every field carries its default and unit; `docs/configuration.md` is generated from here.

pub mod acme;
pub mod audit_log;
pub mod cache;
mod client_address;
pub mod cloud_identity;
mod compat;
pub mod config_sources;
pub mod crypt;
pub mod discovery;
pub mod dns;
pub mod ext_plugin;
pub mod geoip;
pub mod health_events;
pub mod health_file;
pub mod health_sharing;
pub mod history;
mod http2;
mod http3;
pub mod io;
mod listener;
pub mod live;
pub mod lua;
pub mod members;
mod operators;
pub mod process;
pub mod profile;
pub(crate) mod public_keyring;
pub mod registration;
mod router;
mod shedding;
pub mod store;
pub mod tap;
mod timeouts;
pub mod tls;
mod tolerance;
mod untrusted;
pub mod variables;
mod via;
pub mod wasm;
mod workers;

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use sigma_schema::Problem;
use sigma_schema::expr::Expr;
use sigma_schema::forms::CidrText;

pub(crate) use client_address::breaches as client_address_breaches;
pub use client_address::{AddressField, ClientAddress};
pub use compat::{Compat, UnknownFields};
pub use http2::Http2;
pub use http3::{Http3, UpstreamHttp3};
pub use listener::{Listener, ListenerTcp, StreamListener, default_listeners, written_listener};
pub use operators::{
    Admin, AdminApiVersion, AdminKey, AdminRole, AdminTls, Control, NiubixAdmin, Operators, Status,
};
pub use router::{AmbiguousPaths, ForwardPath, Methods, Router, RouterKind};
pub use shedding::LoadShedding;
pub use sigma_schema::address::{InvalidListenAddress, ListenAddress, ListenPlace};
pub use timeouts::Timeouts;
pub use tolerance::Tolerate;
pub use untrusted::UntrustedFields;
pub use variables::{Variable, VariableCase, Variables};
pub use via::ViaName;
pub use workers::Workers;

/// Limits on input from peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum length of a request line in bytes; a longer one gets 414. Browsers and CDNs stay below 8 KiB.
    pub request_line_bytes: u32,
    /// Maximum size of a request head (line and headers) in bytes; a larger one gets 431.
    pub request_head_bytes: u32,
    /// Maximum number of header fields in a request; more get 431.
    pub request_headers: u16,
    /// Maximum size of a request body in bytes, 0 for no limit; a larger one gets 413, chunked bodies included.
    #[schemars(extend("maximum" = u64::MAX))]
    pub request_body_bytes: u64,
    /// Maximum size of an upstream's response head in bytes; a larger one causes 502.
    pub response_head_bytes: u32,
    /// Maximum number of header fields in an upstream's response.
    pub response_headers: u16,
    /// Maximum number of open downstream connections per worker; at the limit accepting pauses.
    pub connections_per_worker: u32,
    /// Maximum number of open downstream connections per client address, over all workers and listeners; further ones
    /// are closed at once. An IPv6 /64 network counts as one address. Not counted: Unix sockets, and peers in
    /// `trusted_addresses`, which forward connections of others. 0: no limit. Unset: 4,096, and loopback addresses and
    /// peers that send a PROXY header are not counted either. This default is 64 connections for each of 64 customers
    /// behind one provider address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<u32>,
    /// Whether loopback addresses count for `connections_per_address` and for the limits of UDP sessions by address and
    /// network. Only local proxies and health checks have such an address, never a peer on the network. Unset: they
    /// count for connections if `connections_per_address` is set, and always for UDP sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_loopback: Option<bool>,
    /// Maximum number of requests on one downstream connection; then it is closed.
    pub keepalive_requests: u32,
    /// Buffer size in bytes per exchange and direction.
    pub exchange_buffer_bytes: u32,
    /// Maximum size in bytes of a request body kept for a retry of an idempotent request; a request with a larger body
    /// is not retried once it was sent.
    pub retry_body_bytes: u32,
    /// Maximum size in bytes of a request body for route conditions on it (`post_arg.…`, `graphql_…`); a longer one
    /// gets 413. The body is buffered before routing only if such a condition decides.
    pub routing_body_bytes: u32,
    /// Maximum memory in bytes that a worker holds for clients: request heads, bodies that plugins read, responses that
    /// wait for their clients. Above half of it, the connections that hold the most lose their requests without
    /// progress. Bodies may take three quarters of it, requests all of it. Requests beyond that get 503
    /// `memory_limit_reached`, or REFUSED_STREAM in HTTP/2. Unset: a quarter of the memory of the cgroup or machine,
    /// divided by the workers, and at least 32 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_048_576))]
    pub held_bytes_per_worker: Option<u64>,
    /// Number of times that one request may come through this gateway, 0 for no limit; one more gets 508. The default
    /// is far above any real nesting of listeners. Counted by `CDN-Loop` (RFC 8586), which is sent to nodes on a port
    /// of this gateway, and by `Via`, if it is set.
    pub loop_passes: u16,
    /// Maximum number of bytes of a session that plugins of stream routes may read before a node gets them.
    #[schemars(range(min = 512))]
    pub stream_preread_bytes: u32,
    /// Maximum number of open UDP sessions per worker. Each holds a descriptor and a local port; towards one node there
    /// are 28,000 ports by default. All workers together use up to a quarter of the descriptors for clients. At the
    /// limit a session without a reply is replaced by a new one; without such a session the datagram is dropped.
    #[schemars(range(min = 1))]
    pub stream_udp_sessions_per_worker: u32,
    /// Maximum number of UDP sessions per source address and worker, 0 for no limit. The default, a fifth of a worker's
    /// sessions, is more than the clients behind one NAT address need. It is never more than three quarters of the
    /// worker's limit. Peers in `trusted_addresses` are not counted.
    pub stream_udp_sessions_per_address: u32,
    /// Maximum number of UDP sessions per source network (/24 of IPv4, /64 of IPv6) and worker, 0 for no limit. The
    /// default, two fifths of a worker's sessions, leaves room for other networks. It is never more than seven eighths
    /// of the worker's limit.
    pub stream_udp_sessions_per_network: u32,
    /// Maximum size in bytes of a datagram that UDP sessions forward; larger ones are dropped. The default is the
    /// maximum of UDP over IPv4 (RFC 768).
    #[schemars(range(min = 512, max = 65_507))]
    pub stream_udp_datagram_bytes: u32,
    /// Maximum number of datagrams that wait for one session: for plugins, a node, or a full socket. Further ones are
    /// dropped.
    #[schemars(range(min = 1))]
    pub stream_udp_waiting_datagrams: u32,
    /// Maximum number of bytes that wait for one session. One datagram may always wait.
    pub stream_udp_waiting_bytes: u32,
    /// Maximum number of bytes that wait for all sessions of a worker.
    pub stream_udp_waiting_bytes_per_worker: u32,
}

/// The default of `connections_per_address`.
pub const DEFAULT_CONNECTIONS_PER_ADDRESS: u32 = 4_096;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            request_line_bytes: 8 * 1024,
            request_head_bytes: 32 * 1024,
            request_headers: 100,
            request_body_bytes: 0,
            response_head_bytes: 64 * 1024,
            response_headers: 200,
            connections_per_worker: 65_536,
            connections_per_address: None,
            count_loopback: None,
            keepalive_requests: 100_000,
            exchange_buffer_bytes: 64 * 1024,
            retry_body_bytes: 64 * 1024,
            routing_body_bytes: 1024 * 1024,
            held_bytes_per_worker: None,
            loop_passes: 8,
            stream_preread_bytes: 16 * 1024,
            stream_udp_sessions_per_worker: 10_000,
            stream_udp_sessions_per_address: 2_000,
            stream_udp_sessions_per_network: 4_000,
            stream_udp_datagram_bytes: 65_507,
            stream_udp_waiting_datagrams: 64,
            stream_udp_waiting_bytes: 128 * 1024,
            stream_udp_waiting_bytes_per_worker: 16 * 1024 * 1024,
        }
    }
}

/// Destination and format of access log lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// `off`, `stdout`, or a file path.
    pub path: String,
    /// nginx-style text with `$variables`, or the word `json`.
    pub format: String,
    /// Format of lines for sessions of `stream_routes`, with variables of sessions; unset: they are not logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_format: Option<String>,
    /// Conditions on variables, as in `vars` of routes: only matching exchanges are logged.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<serde_json::Value>>")]
    pub condition: Option<Expr>,
    /// Conditions for sessions, with their variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<serde_json::Value>>")]
    pub stream_if: Option<Expr>,
    /// Log one in this number of exchanges or sessions, chosen at random.
    #[schemars(range(min = 1))]
    pub sample_one_in: u32,
    /// Whether exchanges with a fault, or with a status of 500 and above, are always logged.
    pub sample_errors: bool,
    /// Whether lines show credentials: `Authorization`, cookies, and credentials of the route's plugins, such as the
    /// argument `apikey`. Off: they are replaced by `***`.
    pub log_credentials: bool,
    /// Buffer size in bytes per worker; a full buffer is written.
    pub buffer_bytes: u32,
    /// Maximum time in milliseconds that a line stays in the buffer.
    pub flush_ms: u32,
}

/// The default access log line.
pub const DEFAULT_ACCESS_FORMAT: &str = "$remote_addr - $remote_user [$time_local] $http_host \"$request\" $status $body_bytes_sent $request_time \"$http_referer\" \"$http_user_agent\" $upstream_addr $upstream_status $upstream_response_time route=$route_id consumer=$consumer_name fault=$fault";

impl Default for AccessLog {
    fn default() -> Self {
        AccessLog {
            path: "off".into(),
            format: DEFAULT_ACCESS_FORMAT.into(),
            stream_format: None,
            condition: None,
            stream_if: None,
            sample_one_in: 1,
            sample_errors: true,
            log_credentials: false,
            buffer_bytes: 65_536,
            flush_ms: 3_000,
        }
    }
}

impl AccessLog {
    /// Returns whether an exchange is logged, by chance or as an error.
    pub fn samples(&self, is_error: bool, random: impl FnOnce() -> u64) -> bool {
        self.sample_one_in <= 1
            || (is_error && self.sample_errors)
            || random().is_multiple_of(u64::from(self.sample_one_in))
    }
}

/// The error log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ErrorLog {
    /// `stderr` or a file path.
    pub path: String,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a tracing filter such as `warn,sigma_upstream=debug`. `warn` also
    /// logs starts, reloads and stops.
    pub level: String,
}

impl Default for ErrorLog {
    fn default() -> Self {
        ErrorLog { path: "stderr".into(), level: "warn".into() }
    }
}

/// The levels of the error log.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Returns the first invalid part of a level: neither one of [`LEVELS`], nor one after a module name. An unknown word
/// would count as a module name, and silence all other modules.
pub(crate) fn wrong_directive(level: &str) -> Option<&str> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let is_part = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':' | b'-'))
    };
    let wrong = |directive: &&str| match directive.split_once('=') {
        Some((part, level)) => !is_part(part) || !is_level(level),
        None => !is_level(directive),
    };
    level.split(',').map(str::trim).find(wrong)
}

/// Encryption of secret fields in the store, as in APISIX. Plugins define their secret fields; private keys and
/// `session_affinity.secret` of upstreams are always among them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataEncryption {
    /// Encrypt fields when they are written. Private keys of certificates are always encrypted.
    pub enable: bool,
    /// Keys of 16 bytes (AES-128) or 32 (AES-256): the first key encrypts, all keys decrypt. The default keys are
    /// APISIX's and public: choose your own.
    pub keyring: Vec<String>,
}

impl Default for DataEncryption {
    fn default() -> Self {
        let keyring = crate::settings::crypt::DEFAULT_KEYRING.map(str::to_owned).into();
        DataEncryption { enable: true, keyring }
    }
}

/// The keys must not reach a log.
impl fmt::Debug for DataEncryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataEncryption").field("enable", &self.enable).finish_non_exhaustive()
    }
}

/// All process settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Further files, as patterns with `*` in the name of the file, relative to the folder of this file. Their resources
    /// come after the resources of this file, in the order of the patterns and then of the names. A setting may be in
    /// one file only, and an included file includes no other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub include: Vec<String>,
    /// A set of defaults for where this gateway runs; see `docs/edge-profile.md`. A change needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<crate::settings::profile::Profile>,
    /// Worker threads: a number or `auto`.
    #[schemars(with = "workers::WorkersForm")]
    pub workers: Workers,
    /// Bind worker i to the i-th CPU that this process may use.
    pub pin_workers: bool,
    /// The I/O interface of workers: `epoll`, `io_uring` or `auto`.
    pub io: crate::settings::io::Io,
    /// Sizes of io_uring, if it is used.
    pub io_uring: crate::settings::io::IoUring,
    /// Addresses for client connections; default `0.0.0.0:9080` and `[::]:9080`.
    pub listeners: Vec<Listener>,
    /// Limits on input from peers.
    pub limits: Limits,
    /// HTTP/2 to clients and upstreams.
    pub http2: Http2,
    /// HTTP/3 to upstreams; `http3` of a listener enables it for clients.
    pub http3: UpstreamHttp3,
    /// TLS settings of the process; `tls` of a listener enables TLS there.
    pub tls: crate::settings::tls::Tls,
    /// Automatic certificates (ACME); off unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acme: Option<crate::settings::acme::Acme>,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Router settings.
    pub router: Router,
    /// Variables that texts and conditions read as `$var_NAME`.
    #[serde(skip_serializing_if = "Variables::is_empty")]
    pub variables: Variables,
    /// Peers (IP or CIDR) whose X-Forwarded-* and Forwarded headers are trusted.
    #[schemars(with = "Vec<CidrText>")]
    pub trusted_addresses: sigma_schema::cidr::CidrSet,
    /// The header field with the client's address in requests of peers in `trusted_addresses`; unset: the peer is the
    /// client, unless the plugin real-ip is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// Refuses requests before resources run out.
    pub load_shedding: LoadShedding,
    /// Access log; the short form is only its path.
    pub access_log: AccessLog,
    /// Error log.
    pub error_log: ErrorLog,
    /// Limits and callers of listeners for operators.
    pub operators: Operators,
    /// Status listener; off unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The store for resources that change while the gateway runs. With the Admin API on, the default is an embedded
    /// store in `./data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<crate::settings::store::Store>,
    /// Sources of the resources outside of this machine: URLs and configuration centres.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_sources: Option<config_sources::ConfigSources>,
    /// The Admin API; off unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<Admin>,
    /// The Control API; off unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// NiubiX's admin calls; off unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub niubix_admin: Option<NiubixAdmin>,
    /// The enabled plugins, by name; unset: all plugins of this build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Vec<crate::resources::EnabledPlugin>>,
    /// The plugins enabled for stream routes, by name; unset: the plugins that `plugins` marks with `stream`, or all
    /// plugins of this build if that is unset too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_plugins: Option<Vec<String>>,
    /// Process-wide settings of plugins, by plugin name.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub plugin_attr: serde_json::Map<String, serde_json::Value>,
    /// The runner of plugins in other languages; unset: no runner.
    #[serde(rename = "ext-plugin", skip_serializing_if = "Option::is_none")]
    pub ext_plugin: Option<crate::settings::ext_plugin::ExtPlugin>,
    /// Plugins in Lua files.
    pub lua: crate::settings::lua::Lua,
    /// Plugins that are WebAssembly modules; unset: none besides the plugin `wasm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wasm: Option<crate::settings::wasm::Wasm>,
    /// Leniency for configurations that come from APISIX.
    pub compat: Compat,
    /// Encryption of secret fields in the store.
    pub data_encryption: DataEncryption,
    /// Registries in which upstreams with a `service_name` find their nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<crate::settings::discovery::Discovery>,
    /// The machine's identity at clouds, for requests of plugins and secret managers; unset: nothing uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_identity: Option<crate::settings::cloud_identity::CloudIdentity>,
    /// Registration of this gateway in registries; off unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registration: Option<registration::Registration>,
    /// Lookup of secrets.
    pub secret_lookup: crate::resources::reference::SecretLookup,
    /// The resolver for node names.
    pub dns: crate::settings::dns::Dns,
    /// Notifications when a node becomes unhealthy or healthy.
    pub health_events: crate::settings::health_events::HealthEvents,
    /// The file that keeps the state of nodes over a restart.
    pub health_file: crate::settings::health_file::HealthFile,
    /// Log of operators' changes, one line per call.
    pub audit_log: crate::settings::audit_log::AuditLog,
    /// The history of the configuration.
    pub history: crate::settings::history::History,
    /// Sharing of node health between gateways on one etcd; unset: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_sharing: Option<crate::settings::health_sharing::HealthSharing>,
    /// The id of this gateway, and its registration in the store.
    pub members: crate::settings::members::Members,
    /// The response cache.
    pub cache: crate::settings::cache::Cache,
    /// Limits of the dashboard's live traffic.
    pub live: crate::settings::live::Live,
    /// Taps, which show exchanges of a running gateway.
    pub tap: crate::settings::tap::Tap,
    /// GeoIP databases.
    pub geoip: crate::settings::geoip::GeoIp,
    /// The zone of this gateway, for upstreams with `zone_aware`; unset: zones are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The file with the process id. It is locked while the process runs: a second gateway with the same file does not
    /// start. Unset: a file in `$RUNTIME_DIRECTORY`, `/run/sigma` or `$XDG_RUNTIME_DIR/sigma`, if one of them exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// Settings of the process: supervision, upgrades and privileges.
    pub process: crate::settings::process::Process,
    /// Value of the `Server` header on the gateway's own responses, and on forwarded responses without one; empty for
    /// no header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_header: Option<String>,
    /// When responses have `X-APISIX-Upstream-Status` with the status of the nodes.
    pub upstream_status_header: UpstreamStatusHeader,
    /// Which clients see why a request failed: `reason` and `detail` of error bodies, the gRPC message, and
    /// `X-APISIX-Upstream-Status`. Logs always have the reason.
    pub show_reason: ShowReason,
    /// Forms that are accepted although the strict grammar refuses them.
    pub tolerate: Tolerate,
    /// The name of this gateway in `Via`, which is then added to requests and responses; unset, as in APISIX: no `Via`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<ViaName>,
    /// The name of this gateway in `Proxy-Status` (RFC 9209), which is then added to the gateway's own responses and
    /// names the error and where it occurred. Unset: no `Proxy-Status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_status: Option<ViaName>,
    /// Add `Server-Timing` to responses: milliseconds until the response head (`total`), and the part spent waiting for
    /// nodes (`upstream`). It reveals the structure of the gateway to clients.
    pub server_timing: bool,
    /// Request header fields with an underscore in their name. Fields that some servers confuse with one of the
    /// gateway's own (`X_Forwarded_For`) are always dropped.
    pub underscores_in_headers: Underscores,
    /// Request fields that are removed, in any spelling (`X_Forwarded_Prefix`), unless a peer in `trusted_addresses`
    /// sent them.
    pub untrusted_fields: UntrustedFields,
}

/// Returns the contradictions in settings that check themselves.
pub(crate) fn of_document(root: &Map<String, Value>) -> impl Iterator<Item = Problem> {
    let checks = [health_events::of_document, config_sources::of_document, registration::of_document];
    checks.into_iter().flat_map(|check| check(root))
}

/// The treatment of header fields with an underscore in their name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Underscores {
    /// They are forwarded (APISIX's setting of nginx's `underscores_in_headers`).
    #[default]
    Keep,
    /// They are dropped.
    Drop,
}

/// When a response has the status of the upstream's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamStatusHeader {
    /// If the last node failed: 5xx, or no response.
    #[default]
    Errors,
    /// Whenever a node responded (APISIX: `show_upstream_status_in_response_header`).
    Always,
    /// Never.
    Never,
}

/// Which clients see why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShowReason {
    /// All clients.
    #[default]
    Always,
    /// No client.
    Never,
    /// Clients with a loopback, private or link-local address, and Unix sockets. Add a load balancer in front to
    /// `trusted_addresses`; otherwise its address counts for all of its clients.
    Internal,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            include: Vec::new(),
            profile: None,
            workers: Workers::default(),
            pin_workers: false,
            io: crate::settings::io::Io::default(),
            io_uring: crate::settings::io::IoUring::default(),
            listeners: default_listeners(),
            limits: Limits::default(),
            http2: Http2::default(),
            http3: UpstreamHttp3::default(),
            tls: crate::settings::tls::Tls::default(),
            acme: None,
            timeouts: Timeouts::default(),
            load_shedding: LoadShedding::default(),
            router: Router::default(),
            variables: Variables::default(),
            trusted_addresses: sigma_schema::cidr::CidrSet::default(),
            client_address: None,
            access_log: AccessLog::default(),
            error_log: ErrorLog::default(),
            operators: Operators::default(),
            status: None,
            store: None,
            config_sources: None,
            admin: None,
            control: None,
            niubix_admin: None,
            plugins: None,
            stream_plugins: None,
            plugin_attr: serde_json::Map::new(),
            ext_plugin: None,
            lua: crate::settings::lua::Lua::default(),
            wasm: None,
            compat: Compat::default(),
            data_encryption: DataEncryption::default(),
            discovery: None,
            cloud_identity: None,
            registration: None,
            secret_lookup: crate::resources::reference::SecretLookup::default(),
            dns: crate::settings::dns::Dns::default(),
            health_events: crate::settings::health_events::HealthEvents::default(),
            health_file: crate::settings::health_file::HealthFile::default(),
            audit_log: crate::settings::audit_log::AuditLog::default(),
            history: crate::settings::history::History::default(),
            health_sharing: None,
            members: crate::settings::members::Members::default(),
            cache: crate::settings::cache::Cache::default(),
            live: crate::settings::live::Live::default(),
            tap: crate::settings::tap::Tap::default(),
            geoip: crate::settings::geoip::GeoIp::default(),
            zone: None,
            pid_file: None,
            process: crate::settings::process::Process::default(),
            server_header: None,
            upstream_status_header: UpstreamStatusHeader::Errors,
            show_reason: ShowReason::Always,
            tolerate: Tolerate::default(),
            via: None,
            proxy_status: None,
            server_timing: false,
            underscores_in_headers: Underscores::Keep,
            untrusted_fields: UntrustedFields::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn workers_are_a_number_or_auto() {
        let check = |json: &str, expected: Option<Workers>| {
            assert_eq!(serde_json::from_str(json).ok(), expected, "{json}");
        };
        check("\"auto\"", Some(Workers::Auto));
        check("2", NonZeroU16::new(2).map(Workers::Count));
        for bad in ["0", "-1", "\"all\"", "65536", "null"] {
            check(bad, None);
        }
    }
}
