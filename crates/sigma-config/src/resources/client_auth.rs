//! What a client has to show, and how it is found out whether that still counts.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::optional::Optional;

/// The certificate that a client must show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SslClient {
    /// The authorities that may have issued it, in PEM.
    #[schemars(with = "String", length(min = 128, max = 65536))]
    pub ca: Box<str>,
    /// Longest chain up to an authority.
    #[serde(default = "default_depth")]
    pub depth: u32,
    /// Paths that are served without a certificate.
    #[serde(default, skip_serializing_if = "Optional::is_unset")]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub skip_mtls_uri_regex: Optional<Vec<String>>,
    /// Requests for these names that come without TLS, on any listener.
    #[serde(default, skip_serializing_if = "Cleartext::is_refuse")]
    pub cleartext: Cleartext,
    /// Lists of the certificates that their authorities have revoked; unset: nobody looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<Box<SslCrl>>,
    /// Responders that are asked whether a client's own certificate was revoked; unset: nobody is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ocsp: Option<Box<SslOcsp>>,
}

fn default_depth() -> u32 {
    1
}

/// Requests without TLS for a name that demands client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cleartext {
    /// They are answered 421, but for paths that need no certificate.
    #[default]
    Refuse,
    /// They are served: for listeners that only a proxy reaches which ends TLS itself.
    Allow,
}

impl Cleartext {
    fn is_refuse(&self) -> bool {
        *self == Cleartext::Refuse
    }
}

/// Which certificates of a chain are looked for in the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CrlVerify {
    /// All but the authority's own: each of their issuers has to have a list.
    #[default]
    Chain,
    /// The client's own.
    Leaf,
}

/// What counts where nothing is said of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WithoutAnswer {
    /// The client is refused.
    #[default]
    Refuse,
    /// The client is let in, as if it was not revoked.
    Allow,
}

/// Lists of revoked certificates (CRL, RFC 5280), in PEM or DER, from files and from URLs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SslCrl {
    /// Files, which are read again when they change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub files: Vec<PathBuf>,
    /// Where to fetch lists: `http://` (a list is signed) or `https://`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(regex(pattern = "^https?://.")))]
    pub urls: Vec<String>,
    /// Seconds after which a URL is asked again; earlier where its list is about to run out.
    #[serde(default = "default_interval")]
    #[schemars(range(min = 1, max = 604_800))]
    pub interval: u32,
    /// Largest list in bytes; a larger one is not taken over.
    #[serde(default = "default_max_bytes")]
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub max_bytes: u32,
    /// Which certificates of a chain are looked for.
    #[serde(default)]
    pub verify: CrlVerify,
    /// What counts for a certificate whose issuer has no list here: it is away, was not understood, or there
    /// never was one.
    #[serde(default)]
    pub when_missing: WithoutAnswer,
    /// What counts where the list of an issuer is past its next update.
    #[serde(default)]
    pub when_stale: WithoutAnswer,
}

/// Responders (OCSP, RFC 6960) that say whether a client's own certificate was revoked. They are asked while the
/// first connection of the client waits, and then beside the traffic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SslOcsp {
    /// Where to ask: `http://` (answers are signed) or `https://`; unset: where each certificate says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^https?://."))]
    pub responder: Option<String>,
    /// What counts for a certificate of which nobody says anything that can be used: the responder is away, or there
    /// is none. One that a responder does not know is refused in any case.
    pub when_missing: WithoutAnswer,
    /// Seconds after which a responder is asked anew about a certificate that is in use; earlier where its answer
    /// is about to run out.
    #[schemars(range(min = 1, max = 604_800))]
    pub cache_ttl: u32,
    /// Milliseconds that a connection waits for the first answer, within the time of its handshake.
    #[schemars(range(min = 1, max = 60_000))]
    pub wait_ms: u32,
    /// Milliseconds for one answer.
    #[schemars(range(min = 100, max = 60_000))]
    pub timeout_ms: u32,
    /// Largest answer in bytes.
    #[schemars(range(min = 1_024, max = 1_048_576))]
    pub max_bytes: u32,
    /// Seconds after which a responder is asked again that gave no good answer; twice as many after each further
    /// failure, up to five minutes.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_s: u32,
    /// Most certificates of which something is known at a time, about 1 KiB each. Of others nothing is said.
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
