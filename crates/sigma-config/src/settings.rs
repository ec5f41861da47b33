//! Process settings: what one `sigma` process is, as opposed to what it serves (`resources`).
//!
//! Every field carries its default and unit; `docs/configuration.md` is generated from here.

mod client_address;
mod compat;
mod http2;
mod listener;
mod operators;
mod router;
mod shedding;
mod timeouts;
mod tolerance;
mod untrusted;
mod via;

use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use sigma_schema::expr::Expr;
use sigma_schema::forms::CidrText;

pub(crate) use client_address::breaches as client_address_breaches;
pub use client_address::{AddressField, ClientAddress};
pub use compat::{Compat, UnknownFields};
pub use http2::Http2;
pub use listener::{Listener, StreamListener, default_listeners, written_listener};
pub use operators::{
    Admin, AdminApiVersion, AdminKey, AdminRole, AdminTls, Control, NiubixAdmin, Operators, Status,
};
pub use router::{AmbiguousPaths, ForwardPath, Methods, Router};
pub use shedding::LoadShedding;
pub use sigma_schema::address::{InvalidListenAddress, ListenAddress, ListenPlace};
pub use timeouts::Timeouts;
pub use tolerance::Tolerate;
pub use untrusted::UntrustedFields;
pub use via::ViaName;

/// Number of worker threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Workers {
    /// A fixed number, at least 1.
    Count(NonZeroU16),
    /// `auto`: one per CPU.
    #[default]
    Auto,
}

/// The two forms of [`Workers`] in text.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum WorkersForm {
    Count(NonZeroU16),
    Word(AutoWord),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum AutoWord {
    /// One per CPU.
    Auto,
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Workers::Count(count) => WorkersForm::Count(*count),
            Workers::Auto => WorkersForm::Word(AutoWord::Auto),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match WorkersForm::deserialize(deserializer)? {
            WorkersForm::Count(count) => Workers::Count(count),
            WorkersForm::Word(AutoWord::Auto) => Workers::Auto,
        })
    }
}

/// A limit on everything that a peer can make grow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Longest request line in bytes; longer is answered 414. 8 KiB is what browsers and CDNs keep to.
    pub request_line_bytes: u32,
    /// Largest request head (line and headers) in bytes; larger is answered 431.
    pub request_head_bytes: u32,
    /// Most header fields in a request; more is answered 431.
    pub request_headers: u16,
    /// Largest request body in bytes, 0 for no limit; larger is answered 413, chunked bodies included.
    #[schemars(extend("maximum" = u64::MAX))]
    pub request_body_bytes: u64,
    /// Largest response head of an upstream in bytes; larger is answered 502.
    pub response_head_bytes: u32,
    /// Most header fields in an upstream's response.
    pub response_headers: u16,
    /// Open downstream connections per worker; at the limit accepting pauses.
    pub connections_per_worker: u32,
    /// Open downstream connections of one address, over all workers and listeners; more are closed at once. A network of
    /// IPv6 (/64) is one address. Peers in `trusted_addresses`, which bring the connections of others, are not counted,
    /// nor are those over Unix sockets. 0: no limit. Unset: 4,096, where neither loopback addresses nor
    /// peers that send a PROXY header are counted. That is 64 connections for each of the 64 customers that share an
    /// address of a provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<u32>,
    /// Whether loopback addresses count for `connections_per_address` and for the limits of sessions over UDP by address
    /// and network. A proxy or a health check of this machine has such an address, and no peer on the network. Unset:
    /// for connections they count where `connections_per_address` is set, for sessions over UDP always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_loopback: Option<bool>,
    /// Requests on one downstream connection before it is closed.
    pub keepalive_requests: u32,
    /// Bytes held per exchange and direction between the two sides.
    pub exchange_buffer_bytes: u32,
    /// Largest request body kept for a retry of an idempotent request; larger bodies are not retried once sent.
    pub retry_body_bytes: u32,
    /// Most bytes of a request body that conditions of routes look at (`post_arg.…`, `graphql_…`); a longer one is answered
    /// 413. A body is read before there is a route only where such a condition decides, and is held in memory.
    pub routing_body_bytes: u32,
    /// Bytes that a worker may hold for clients at a time: heads, bodies that plugins read, responses that wait for their
    /// clients. Above half of it the connections that hold most lose the requests that make no progress. Bodies have three
    /// quarters of it, and requests all of it; what comes beyond that is refused, with a 503 `memory_limit_reached` or, in
    /// HTTP/2, with REFUSED_STREAM. Unset: a quarter of the memory that the process may have (of its cgroup or of the
    /// machine), divided by the workers, and at least 32 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_048_576))]
    pub held_bytes_per_worker: Option<u64>,
    /// Times that one request may come through this gateway, 0 for no limit; one more is answered 508.
    /// Nobody nests listeners as deep as the default. Counted by `CDN-Loop` (RFC 8586), which nodes on
    /// a port that this gateway listens on are sent, and by `Via`, if it is set.
    pub loop_passes: u16,
    /// Most bytes of a session that plugins of stream routes may look at before a node has them.
    #[schemars(range(min = 512))]
    pub stream_preread_bytes: u32,
    /// Open sessions over UDP per worker. Each holds a descriptor and a port of this machine, of which there are
    /// 28,000 towards one node by default. All workers together have a quarter of the descriptors that clients may
    /// have. At the limit a session without a reply gives way to a new one; without such a session the datagram is
    /// dropped.
    #[schemars(range(min = 1))]
    pub stream_udp_sessions_per_worker: u32,
    /// The same for one source address, 0 for no limit: a fifth of a worker's sessions, which is more than the clients
    /// behind one address translator have. It is never more than three quarters of what the worker may have. Peers in
    /// `trusted_addresses` are not counted.
    pub stream_udp_sessions_per_address: u32,
    /// The same for one source network (/24 of IPv4, /64 of IPv6), 0 for no limit: two fifths of a worker's sessions,
    /// so that one network leaves room for others. It is never more than seven eighths of what the worker may have.
    pub stream_udp_sessions_per_network: u32,
    /// Largest datagram in bytes that sessions over UDP pass on; larger ones are dropped. The default is the
    /// largest that there is (RFC 768, over IPv4).
    #[schemars(range(min = 512, max = 65_507))]
    pub stream_udp_datagram_bytes: u32,
    /// Datagrams of a client that may wait for its session: for plugins, for a node, for room on the way to
    /// it. Further ones are dropped.
    #[schemars(range(min = 1))]
    pub stream_udp_waiting_datagrams: u32,
    /// Bytes that may wait so for one session. One datagram always may.
    pub stream_udp_waiting_bytes: u32,
    /// Bytes that may wait so for all sessions of a worker.
    pub stream_udp_waiting_bytes_per_worker: u32,
}

/// `connections_per_address` where it is unset.
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

/// Where access lines go and how they look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// `off`, `stdout`, or a file path.
    pub path: String,
    /// nginx-style text with `$variables`, or the word `json`.
    pub format: String,
    /// The same for sessions of `stream_routes`, text with variables of sessions; unset: they are not logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_format: Option<String>,
    /// Conditions on variables, as `vars` of routes has them: only exchanges for which they hold have a line.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<serde_json::Value>>")]
    pub condition: Option<Expr>,
    /// The same for sessions, with their variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<serde_json::Value>>")]
    pub stream_if: Option<Expr>,
    /// Of so many exchanges or sessions that could have a line one has it, chosen at random.
    #[schemars(range(min = 1))]
    pub sample_one_in: u32,
    /// Whether all that end with a fault, or with a status from 500 on, have one nevertheless.
    pub sample_errors: bool,
    /// Whether lines show credentials: `Authorization`, cookies, and what the plugins of a route read as one, such as
    /// the argument `apikey`. Unset: `***` takes their place.
    pub log_credentials: bool,
    /// Bytes buffered per worker before a line is handed to the writer.
    pub buffer_bytes: u32,
    /// Longest time that a line stays in the buffer.
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
    /// Whether what ended is in the sample, by chance or as an error.
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
    /// `error`, `warn`, `info`, `debug`, `trace`, or a tracing filter such as `warn,sigma_upstream=debug`.
    /// `warn` also tells of starts, reloads and stops.
    pub level: String,
}

impl Default for ErrorLog {
    fn default() -> Self {
        ErrorLog { path: "stderr".into(), level: "warn".into() }
    }
}

/// The words for how much the error log tells.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The first part of a level that is none: not one of [`LEVELS`], nor one after the name of a part of
/// the program. A word that is no level would count as such a name, and silence all the others.
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

/// How routes are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouterKind {
    /// Host tree first, then a path tree per host pattern.
    #[default]
    RadixtreeHostUri,
    /// One path tree; the host is a condition.
    RadixtreeUri,
    /// As `radixtree_uri`, with `:name` and `*name` parameters.
    RadixtreeUriWithParameter,
}

/// Encryption of secret fields in the store, as APISIX does it: plugins name those fields; private keys and
/// `session_affinity.secret` of upstreams are among them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataEncryption {
    /// Encrypt what is written. Private keys of certificates are encrypted in any case.
    pub enable: bool,
    /// Keys of 16 bytes (AES-128) or 32 (AES-256): the first one encrypts, all decrypt. The default
    /// ones are those of APISIX, which everyone knows: choose your own.
    pub keyring: Vec<String>,
}

impl Default for DataEncryption {
    fn default() -> Self {
        let keyring = crate::crypt::DEFAULT_KEYRING.map(str::to_owned).into();
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
    /// Defaults for the place of this gateway; see `docs/edge-profile.md`. A change needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<crate::profile::Profile>,
    /// Worker threads: a number or `auto`.
    #[schemars(with = "WorkersForm")]
    pub workers: Workers,
    /// Pin worker i to the i-th CPU that this process may use.
    pub pin_workers: bool,
    /// What moves bytes between workers and their connections: `epoll`, `io_uring` or `auto`.
    pub io: crate::io::Io,
    /// Sizes of io_uring, if that moves them.
    pub io_uring: crate::io::IoUring,
    /// Where downstream connections are accepted; default `0.0.0.0:9080` and `[::]:9080`.
    pub listeners: Vec<Listener>,
    /// Limits on what peers may send.
    pub limits: Limits,
    /// HTTP/2, towards clients and upstreams.
    pub http2: Http2,
    /// TLS of the whole process; whether a listener has it, its own `tls` says.
    pub tls: crate::tls::Tls,
    /// Certificates that the gateway orders by itself; off unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acme: Option<crate::acme::Acme>,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Router settings.
    pub router: Router,
    /// Peers (IP or CIDR) whose X-Forwarded-* and Forwarded headers are believed.
    #[schemars(with = "Vec<CidrText>")]
    pub trusted_addresses: sigma_schema::cidr::CidrSet,
    /// Where peers in `trusted_addresses` tell the client's address; unset: nowhere, the peer is the client unless the
    /// plugin real-ip says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// What is refused while resources run out.
    pub load_shedding: LoadShedding,
    /// Access log; the short form is just its path.
    pub access_log: AccessLog,
    /// Error log.
    pub error_log: ErrorLog,
    /// Limits and callers of the listeners for operators.
    pub operators: Operators,
    /// Status listener; off unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Where resources are kept that change while the gateway runs. With the Admin API on, the
    /// default is an embedded store in `./data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<crate::store::Store>,
    /// The Admin API; off unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<Admin>,
    /// The Control API; off unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// NiubiX's admin calls; off unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub niubix_admin: Option<NiubixAdmin>,
    /// The plugins that may be used, by name; unset: all of this build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Vec<crate::resources::EnabledPlugin>>,
    /// The plugins that stream routes may use, by name; unset: those that `plugins` marks with `stream`, or all of
    /// this build if that is unset too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_plugins: Option<Vec<String>>,
    /// Settings of plugins that hold for the whole process, by plugin name.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub plugin_attr: serde_json::Map<String, serde_json::Value>,
    /// Leniency for configurations that come from APISIX.
    pub compat: Compat,
    /// Encryption of secret fields in the store.
    pub data_encryption: DataEncryption,
    /// Where upstreams with a `service_name` find their nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<crate::discovery::Discovery>,
    /// How secrets are looked up.
    pub secret_lookup: crate::reference::SecretLookup,
    /// How names of nodes are resolved.
    pub dns: crate::dns::Dns,
    /// Who is told when a node goes out or comes back.
    pub health_events: crate::health_events::HealthEvents,
    /// Where what is known of nodes lasts over a restart.
    pub health_file: crate::health_file::HealthFile,
    /// Calls of operators that change something, one line each.
    pub audit_log: crate::audit_log::AuditLog,
    /// What is kept of changes of the configuration.
    pub history: crate::history::History,
    /// What gateways on one etcd tell each other of nodes; unset: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_sharing: Option<crate::health_sharing::HealthSharing>,
    /// What this gateway is called, and what it tells the others of its store.
    pub members: crate::members::Members,
    /// The memory of kept answers.
    pub cache: crate::cache::Cache,
    /// How much of the live traffic the dashboard is told.
    pub live: crate::live::Live,
    /// Who may look at exchanges while they run, and at how many.
    pub tap: crate::tap::Tap,
    /// Databases that tell where a client is.
    pub geoip: crate::geoip::GeoIp,
    /// The zone that this gateway is in, for upstreams with `zone_aware`; unset: they are served without
    /// regard to zones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// File that the process id is written to. It is locked while the process runs: a second gateway with the same file
    /// does not start. Unset: a file in `$RUNTIME_DIRECTORY`, `/run/sigma` or `$XDG_RUNTIME_DIR/sigma`, if there is one
    /// of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// How the process itself runs, and how another one takes its place.
    pub process: crate::process::Process,
    /// Value of the `Server` header on answers that the gateway makes itself and on forwarded ones without one; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_header: Option<String>,
    /// When `X-APISIX-Upstream-Status` tells the client what the nodes answered.
    pub upstream_status_header: UpstreamStatusHeader,
    /// Which clients see why a request failed: `reason` and `detail` of error bodies, the message of gRPC, and
    /// `X-APISIX-Upstream-Status`. Logs have the reason in any case.
    pub show_reason: ShowReason,
    /// Forms that are taken although the strict grammar refuses them.
    pub tolerate: Tolerate,
    /// The name that this gateway gives itself in `Via`, which requests and answers get then; unset, as
    /// in APISIX: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<ViaName>,
    /// The name that this gateway gives itself in `Proxy-Status` (RFC 9209), which the answers that it makes itself get
    /// then: it says what went wrong where. Unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_status: Option<ViaName>,
    /// Tells clients in `Server-Timing` how many milliseconds passed until the head of the answer (`total`), and for how
    /// many of them nodes were waited for (`upstream`). Clients learn from it how the gateway is built.
    pub server_timing: bool,
    /// Header fields of requests with an underscore in their name. Those that some servers take for
    /// a field which the gateway sets (`X_Forwarded_For`) are dropped in any case.
    pub underscores_in_headers: Underscores,
    /// Request fields that are removed, in any spelling (`X_Forwarded_Prefix`), unless a peer in `trusted_addresses`
    /// sends them.
    pub untrusted_fields: UntrustedFields,
}

/// The treatment of header fields with an underscore in their name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Underscores {
    /// They pass (APISIX's setting of nginx's `underscores_in_headers`).
    #[default]
    Keep,
    /// They are dropped.
    Drop,
}

/// When an answer tells what the nodes of the upstream answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamStatusHeader {
    /// When the last of them failed: 5xx, or no answer.
    #[default]
    Errors,
    /// Whenever there was one (APISIX: `show_upstream_status_in_response_header`).
    Always,
    /// Never.
    Never,
}

/// Which clients see why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShowReason {
    /// All.
    #[default]
    Always,
    /// None.
    Never,
    /// Those with a loopback, private or link-local address, and those of Unix sockets. A load balancer in front belongs
    /// into `trusted_addresses`, or else its address counts for all of its clients.
    Internal,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            profile: None,
            workers: Workers::default(),
            pin_workers: false,
            io: crate::io::Io::default(),
            io_uring: crate::io::IoUring::default(),
            listeners: default_listeners(),
            limits: Limits::default(),
            http2: Http2::default(),
            tls: crate::tls::Tls::default(),
            acme: None,
            timeouts: Timeouts::default(),
            load_shedding: LoadShedding::default(),
            router: Router::default(),
            trusted_addresses: sigma_schema::cidr::CidrSet::default(),
            client_address: None,
            access_log: AccessLog::default(),
            error_log: ErrorLog::default(),
            operators: Operators::default(),
            status: None,
            store: None,
            admin: None,
            control: None,
            niubix_admin: None,
            plugins: None,
            stream_plugins: None,
            plugin_attr: serde_json::Map::new(),
            compat: Compat::default(),
            data_encryption: DataEncryption::default(),
            discovery: None,
            secret_lookup: crate::reference::SecretLookup::default(),
            dns: crate::dns::Dns::default(),
            health_events: crate::health_events::HealthEvents::default(),
            health_file: crate::health_file::HealthFile::default(),
            audit_log: crate::audit_log::AuditLog::default(),
            history: crate::history::History::default(),
            health_sharing: None,
            members: crate::members::Members::default(),
            cache: crate::cache::Cache::default(),
            live: crate::live::Live::default(),
            tap: crate::tap::Tap::default(),
            geoip: crate::geoip::GeoIp::default(),
            zone: None,
            pid_file: None,
            process: crate::process::Process::default(),
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
