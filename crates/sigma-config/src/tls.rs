//! TLS and the PROXY protocol at the edge: what a listener is told, and what the process is.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::TlsVersion;
use sigma_schema::cidr::CidrSet;
use sigma_schema::forms::CidrText;

/// A protocol that clients may agree on above TLS (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AlpnProtocol {
    /// HTTP/2.
    #[serde(rename = "h2")]
    H2,
    /// HTTP/1.1.
    #[serde(rename = "http/1.1")]
    Http11,
}

impl AlpnProtocol {
    /// Its registered name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AlpnProtocol::H2 => "h2",
            AlpnProtocol::Http11 => "http/1.1",
        }
    }
}

/// Files with a certificate and its key, read at the start and at every reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// The certificate and its chain, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM, without a passphrase.
    pub key: PathBuf,
    /// A stapled OCSP response in DER, sent along with the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ocsp: Option<PathBuf>,
}

/// TLS on a listener; `true` stands for all defaults. Certificates come from `ssls`, by server name. `auto` is
/// `true`, and orders a certificate for each host of a route that no ssl has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListenerTls {
    /// The certificates for clients that name no server, or one that no ssl has. The name that a client asks for
    /// decides, then its kinds of keys, such as RSA and ECDSA. A name that none of them has gets the first.
    pub certificates: Vec<CertificateFiles>,
    /// The gateway orders certificates for the hosts of routes by itself, as `acme` says, where `ssls` have
    /// none. For routes that stand in a file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
    /// Versions of TLS. Older ones are not offered, whatever stands here (RFC 8996).
    pub protocols: Vec<TlsVersion>,
    /// Ciphers, the preferred first: their names in OpenSSL, joined by `:`. A version of TLS of which none is
    /// named keeps all of its own; unset: all that are on offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ciphers: Option<String>,
    /// Groups for the key exchange, the preferred first: their names in OpenSSL, joined by `:`, of
    /// `X25519MLKEM768`, `SecP256r1MLKEM768`, `X25519`, `P-256` and `P-384`; unset: all but the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curves: Option<String>,
    /// Protocols to agree on, the preferred first.
    pub alpn: Vec<AlpnProtocol>,
    /// Milliseconds for the whole handshake; then the connection is closed.
    #[schemars(range(min = 1))]
    pub handshake_timeout_ms: u32,
    /// Largest first message of a client; those of browsers have about 2 KiB.
    #[schemars(range(min = 512))]
    pub hello_bytes: u32,
}

impl Default for ListenerTls {
    fn default() -> Self {
        ListenerTls {
            certificates: Vec::new(),
            auto: false,
            protocols: vec![TlsVersion::V1_2, TlsVersion::V1_3],
            ciphers: None,
            curves: None,
            alpn: vec![AlpnProtocol::H2, AlpnProtocol::Http11],
            handshake_timeout_ms: 10_000,
            hello_bytes: 16 * 1024,
        }
    }
}

/// The PROXY protocol (versions 1 and 2) on a listener: a load balancer says whose connection it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerProxyProtocol {
    /// Peers (IP or CIDR) that begin with a header, all of them; Unix sockets always do. From any
    /// other peer a header is not accepted.
    #[schemars(with = "Vec<CidrText>")]
    pub trusted: CidrSet,
    /// Largest header of version 2 in bytes; its fields may hold certificate names.
    #[serde(default = "default_header_bytes")]
    #[schemars(range(min = 232))]
    pub header_bytes: u32,
    /// Milliseconds until the header is complete; then the connection is closed.
    #[serde(default = "default_header_ms")]
    #[schemars(range(min = 1))]
    pub timeout_ms: u32,
}

fn default_header_bytes() -> u32 {
    4096
}

fn default_header_ms() -> u32 {
    5_000
}

/// How a client saves a handshake when it comes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionResumption {
    /// Clients keep their session, encrypted under keys that change.
    #[default]
    Tickets,
    /// The gateway keeps sessions in memory.
    Cache,
    /// Every connection shakes hands in full.
    Off,
}

/// Where the keys of session tickets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TicketPlace {
    /// In the memory of the process: a restart makes all clients shake hands in full.
    #[default]
    Process,
    /// In a file in `tls.storage` as well, sealed: they outlive the process.
    File,
    /// In the store of kind `etcd`, sealed: all gateways on it have the same.
    Store,
}

/// Answers of authorities (OCSP) that the gateway fetches and staples to certificates.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stapling {
    /// For all certificates that clients are shown and that name a responder, unless their ssl says otherwise
    /// (`ocsp_stapling`).
    pub enabled: bool,
    /// Milliseconds for one answer.
    #[schemars(range(min = 100, max = 60_000))]
    pub timeout_ms: u32,
    /// Largest answer in bytes; those of public authorities have about 2 KiB.
    #[schemars(range(min = 1_024, max = 1_048_576))]
    pub max_bytes: u32,
    /// Seconds after which a responder is asked again that did not give a good answer; twice as many after each
    /// further failure.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_s: u32,
    /// The most seconds between two such attempts.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_max_s: u32,
}

impl Default for Stapling {
    fn default() -> Self {
        Stapling { enabled: false, timeout_ms: 10_000, max_bytes: 64 << 10, retry_s: 30, retry_max_s: 3_600 }
    }
}

/// TLS of the whole process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The name that a client which gives none is taken to ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_sni: Option<String>,
    /// How sessions are resumed.
    pub resumption: SessionResumption,
    /// Seconds until tickets are encrypted under a new key; they are good for up to twice as long.
    /// With a stolen key, connections of that time that were recorded under TLS 1.2 can be read.
    #[schemars(range(min = 1))]
    pub ticket_rotation_s: u32,
    /// Where the keys of tickets are. In a file or a store they are sealed under `data_encryption.keyring`, which must
    /// be one of your own. Read once, at the start.
    pub ticket_keys: TicketPlace,
    /// Sessions in memory, of about 1 KiB each, with `resumption: cache`.
    #[schemars(range(min = 1))]
    pub cached_sessions: u32,
    /// Handshakes that a worker is in the middle of, counted from a client's complete first message;
    /// others wait, and a client that then keeps its handshake waiting for half a second loses its place
    /// to them. Each takes some 30 KiB.
    #[schemars(range(min = 1))]
    pub handshakes_per_worker: u32,
    /// Days before a certificate in force expires: at each of them the error log has one warning, and an
    /// error when it is over. Without any there are only errors.
    #[schemars(length(max = 16), inner(range(min = 1, max = 3_650)))]
    pub expiry_warning_days: Vec<u32>,
    /// Answers of authorities that are fetched and stapled to certificates.
    pub ocsp_stapling: Stapling,
    /// The folder in which stapled answers, and lists of revoked certificates that were fetched, last over a restart;
    /// or `off`. Made when there is something to keep. Read once, at the start.
    pub storage: PathBuf,
    /// File of authorities (PEM) that may vouch for upstreams; unset: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trusted_certificates: Option<PathBuf>,
}

impl Default for Tls {
    fn default() -> Self {
        Tls {
            fallback_sni: None,
            resumption: SessionResumption::default(),
            ticket_rotation_s: 3_600,
            ticket_keys: TicketPlace::default(),
            cached_sessions: 20_000,
            handshakes_per_worker: 1_024,
            expiry_warning_days: vec![30, 14, 7, 1],
            ocsp_stapling: Stapling::default(),
            storage: "./data/tls".into(),
            trusted_certificates: None,
        }
    }
}

impl Tls {
    /// The folder in which what was fetched lasts, unless that is switched off.
    #[must_use]
    pub fn folder(&self) -> Option<&PathBuf> {
        (self.storage.as_os_str() != "off").then_some(&self.storage)
    }
}
