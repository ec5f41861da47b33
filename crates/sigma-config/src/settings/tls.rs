//! TLS and the PROXY protocol of listeners, and TLS of the process.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::TlsVersion;
use sigma_schema::Confidential;
use sigma_schema::cidr::CidrSet;
use sigma_schema::forms::CidrText;

/// A protocol that clients may negotiate by ALPN (RFC 7301).
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
    /// Returns its registered name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AlpnProtocol::H2 => "h2",
            AlpnProtocol::Http11 => "http/1.1",
        }
    }
}

/// A protocol that nodes are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeProtocol {
    /// HTTP/3, over QUIC.
    #[serde(rename = "h3")]
    H3,
    /// HTTP/2.
    #[serde(rename = "h2")]
    H2,
    /// HTTP/1.1.
    #[serde(rename = "http/1.1")]
    Http11,
}

impl NodeProtocol {
    /// Returns its registered name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NodeProtocol::H3 => "h3",
            NodeProtocol::H2 => "h2",
            NodeProtocol::Http11 => "http/1.1",
        }
    }
}

/// Files with a certificate and its key, read at the start and at every reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// The certificate and its chain, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM. A passphrase is one of `tls.key_passphrase_files` or `tls.key_passphrases`.
    pub key: PathBuf,
    /// A file with an OCSP response in DER to staple to the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ocsp: Option<PathBuf>,
}

/// TLS of a listener; `true` means all defaults. Certificates are selected from `ssls` by server name. `auto` means
/// `true`, and orders a certificate for each host of a route without an ssl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListenerTls {
    /// Certificates for clients without a server name, or with one that no ssl has. The server name selects the
    /// certificate, then the supported types of keys, such as RSA and ECDSA. An unknown name gets the first one.
    pub certificates: Vec<CertificateFiles>,
    /// Order certificates for hosts of routes, as set in `acme`, if no ssl has them. Only for routes in a file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
    /// TLS versions. Older versions than TLS 1.2 are never offered (RFC 8996).
    pub protocols: Vec<TlsVersion>,
    /// Ciphers in order of preference: OpenSSL names joined by `:`. A TLS version without a named cipher keeps all of
    /// its ciphers; unset: all supported ciphers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ciphers: Option<String>,
    /// Groups for the key exchange in order of preference: OpenSSL names joined by `:`, of `X25519MLKEM768`,
    /// `SecP256r1MLKEM768`, `X25519`, `P-256` and `P-384`; unset: all but the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curves: Option<String>,
    /// Protocols to negotiate, in order of preference.
    pub alpn: Vec<AlpnProtocol>,
    /// Timeout of the whole handshake in milliseconds; then the connection is closed.
    #[schemars(range(min = 1))]
    pub handshake_timeout_ms: u32,
    /// Maximum number of bytes that a returning client over TCP may send before the end of its handshake (0-RTT); 0
    /// accepts none, over HTTP/3 either. An attacker can replay such bytes, so only safe requests are
    /// served before the end of the handshake.
    #[schemars(range(max = 32_768))]
    pub early_data_bytes: u32,
    /// Maximum size of a client's first message in bytes; a browser's has about 2 KiB.
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
            early_data_bytes: 0,
            hello_bytes: 16 * 1024,
        }
    }
}

/// The PROXY protocol (versions 1 and 2) of a listener: a load balancer sends the address of the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerProxyProtocol {
    /// Peers (IP or CIDR) whose connections all begin with a header; Unix sockets always do. A header from any other
    /// peer is refused.
    #[schemars(with = "Vec<CidrText>")]
    pub trusted: CidrSet,
    /// Maximum size of a version 2 header in bytes; it may contain certificate names.
    #[serde(default = "default_header_bytes")]
    #[schemars(range(min = 232))]
    pub header_bytes: u32,
    /// Timeout in milliseconds for the header; then the connection is closed.
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

/// How a returning client resumes its TLS session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionResumption {
    /// Clients keep their session, encrypted with rotating keys.
    #[default]
    Tickets,
    /// The gateway keeps sessions in memory.
    Cache,
    /// Every connection makes a full handshake.
    Off,
}

/// Where the keys of session tickets are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TicketPlace {
    /// In the memory of the process: after a restart all clients make a full handshake.
    #[default]
    Process,
    /// Also in an encrypted file in `tls.storage`: they survive a restart.
    File,
    /// In the store of kind `etcd`, encrypted: all gateways on it share them.
    Store,
}

/// OCSP stapling: the gateway fetches OCSP responses and staples them to certificates.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stapling {
    /// Staple to all certificates for clients that name a responder, unless their ssl says otherwise (`ocsp_stapling`).
    pub enabled: bool,
    /// Timeout of one response in milliseconds.
    #[schemars(range(min = 100, max = 60_000))]
    pub timeout_ms: u32,
    /// Maximum size of a response in bytes; responses of public authorities have about 2 KiB.
    #[schemars(range(min = 1_024, max = 1_048_576))]
    pub max_bytes: u32,
    /// Seconds until a failed responder is queried again; the pause doubles with each further failure.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_s: u32,
    /// Maximum pause in seconds between two such attempts.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_max_s: u32,
}

impl Default for Stapling {
    fn default() -> Self {
        Stapling { enabled: false, timeout_ms: 10_000, max_bytes: 64 << 10, retry_s: 30, retry_max_s: 3_600 }
    }
}

/// TLS settings of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The server name assumed for a client that sends none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_sni: Option<String>,
    /// How sessions are resumed.
    pub resumption: SessionResumption,
    /// Seconds until tickets use a new key; they are valid for up to twice as long. With a stolen key, an attacker can
    /// decrypt connections of that time that were recorded under TLS 1.2.
    #[schemars(range(min = 1))]
    pub ticket_rotation_s: u32,
    /// Where the keys of tickets are stored. In a file or a store they are encrypted with `data_encryption.keyring`,
    /// which must be your own. Read once, at the start.
    pub ticket_keys: TicketPlace,
    /// Maximum number of sessions in memory, about 1 KiB each, with `resumption: cache`.
    #[schemars(range(min = 1))]
    pub cached_sessions: u32,
    /// Maximum number of handshakes in progress per worker, counted from a client's complete first message. Others
    /// wait; a client that then pauses its handshake for half a second loses its slot to them. Each takes about 30 KiB.
    #[schemars(range(min = 1))]
    pub handshakes_per_worker: u32,
    /// Days before a certificate in use expires: on each of these days the error log has one warning, and an error
    /// after it has expired. Empty: errors only.
    #[schemars(length(max = 16), inner(range(min = 1, max = 3_650)))]
    pub expiry_warning_days: Vec<u32>,
    /// OCSP stapling.
    pub ocsp_stapling: Stapling,
    /// The folder that keeps fetched OCSP responses and revocation lists over a restart; or `off`. Created when needed.
    /// Read once, at the start.
    pub storage: PathBuf,
    /// Files with passphrases of encrypted private keys, one in a line. They are tried in turn for each encrypted key of
    /// an ssl, a listener or an upstream, and read again each time. Keys are PKCS #8 with PBKDF2 and AES, as OpenSSL
    /// writes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub key_passphrase_files: Vec<PathBuf>,
    /// Passphrases besides those in files, for example `${{KEY_PASSPHRASE}}` from the environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub key_passphrases: Vec<Confidential>,
    /// PEM file with CA certificates for upstreams; unset: the system's.
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
            key_passphrase_files: Vec::new(),
            key_passphrases: Vec::new(),
            trusted_certificates: None,
        }
    }
}

impl Tls {
    /// Returns the folder for fetched data, unless it is off.
    #[must_use]
    pub fn folder(&self) -> Option<&PathBuf> {
        (self.storage.as_os_str() != "off").then_some(&self.storage)
    }
}
