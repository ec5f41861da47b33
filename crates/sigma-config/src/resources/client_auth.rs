//! Client certificates and their revocation.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::optional::Optional;

/// The certificate that a client must present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SslClient {
    /// The CA certificates that may have issued it, in PEM.
    #[schemars(with = "String", length(min = 128, max = 65536))]
    pub ca: Box<str>,
    /// Maximum length of the chain to a CA.
    #[serde(default = "default_depth")]
    pub depth: u32,
    /// Paths that are served without a certificate.
    #[serde(default, skip_serializing_if = "Optional::is_unset")]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub skip_mtls_uri_regex: Optional<Vec<String>>,
    /// Requests for these names without TLS, on any listener.
    #[serde(default, skip_serializing_if = "Cleartext::is_refuse")]
    pub cleartext: Cleartext,
    /// Certificate revocation lists of the CAs; unset: no check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<Box<SslCrl>>,
    /// OCSP responders that check client certificates for revocation; unset: no check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ocsp: Option<Box<SslOcsp>>,
}

fn default_depth() -> u32 {
    1
}

/// Requests without TLS for a name that requires client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cleartext {
    /// They get 421, except for paths that need no certificate.
    #[default]
    Refuse,
    /// They are served: for listeners that only a TLS-terminating proxy can reach.
    Allow,
}

impl Cleartext {
    fn is_refuse(&self) -> bool {
        *self == Cleartext::Refuse
    }
}

/// The certificates of a chain that are looked up in the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CrlVerify {
    /// All but the CA's own: each of their issuers must have a list.
    #[default]
    Chain,
    /// Only the client's own.
    Leaf,
}

/// The result without information about a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WithoutAnswer {
    /// The client is refused.
    #[default]
    Refuse,
    /// The client is accepted, as if the certificate were not revoked.
    Allow,
}

/// Certificate revocation lists (CRL, RFC 5280), in PEM or DER, from files and from URLs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SslCrl {
    /// Files, which are read again when they change. In a configuration file only; a store or the Admin API cannot
    /// name files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub files: Vec<PathBuf>,
    /// URLs of lists: `http://` (lists are signed) or `https://`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(regex(pattern = "^https?://.")))]
    pub urls: Vec<String>,
    /// Seconds until a URL is fetched again; earlier if its list expires soon.
    #[serde(default = "default_interval")]
    #[schemars(range(min = 1, max = 604_800))]
    pub interval: u32,
    /// Maximum size of a list in bytes; a larger one is ignored.
    #[serde(default = "default_max_bytes")]
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub max_bytes: u32,
    /// The certificates of a chain that are looked up.
    #[serde(default)]
    pub verify: CrlVerify,
    /// The result for a certificate whose issuer has no list here: it is unavailable, invalid, or does not exist.
    #[serde(default)]
    pub when_missing: WithoutAnswer,
    /// The result if an issuer's list is past its next update.
    #[serde(default)]
    pub when_stale: WithoutAnswer,
}

/// OCSP responders (RFC 6960) that say whether a client certificate is revoked. The first connection of a client waits
/// for the response; later updates run in the background.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SslOcsp {
    /// URL of the responder: `http://` (responses are signed) or `https://`; unset: the URL in each certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^https?://."))]
    pub responder: Option<String>,
    /// The result for a certificate without a usable response, for example because the responder is unavailable. A
    /// certificate unknown to its responder is always refused.
    pub when_missing: WithoutAnswer,
    /// Seconds until a certificate in use is checked again; earlier if its response expires soon.
    #[schemars(range(min = 1, max = 604_800))]
    pub cache_ttl: u32,
    /// Maximum wait of a connection for the first response in milliseconds, within its handshake timeout.
    #[schemars(range(min = 1, max = 60_000))]
    pub wait_ms: u32,
    /// Timeout of one response in milliseconds.
    #[schemars(range(min = 100, max = 60_000))]
    pub timeout_ms: u32,
    /// Maximum size of a response in bytes.
    #[schemars(range(min = 1_024, max = 1_048_576))]
    pub max_bytes: u32,
    /// Seconds until a failed responder is queried again; the pause doubles with each further failure, up to five
    /// minutes.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_s: u32,
    /// Maximum number of certificates with a stored state, about 1 KiB each. Others count as without a response.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_certificates: u32,
}

impl Default for SslOcsp {
    fn default() -> Self {
        SslOcsp {
            responder: None,
            when_missing: WithoutAnswer::Refuse,
            cache_ttl: 3_600,
            wait_ms: 3_000,
            timeout_ms: 5_000,
            max_bytes: 64 << 10,
            retry_s: 5,
            max_certificates: 10_000,
        }
    }
}

fn default_interval() -> u32 {
    3_600
}

fn default_max_bytes() -> u32 {
    10 << 20
}
