//! Certificates that the gateway orders by itself (RFC 8555).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::{AcmeChallenge, CertificateKey, Confidential};
use crate::rules::acme::{RETRY_MAX_S, RETRY_S};

/// An account elsewhere that the one at the authority is bound to (RFC 8555 §7.3.4); the authority
/// tells both values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalAccount {
    /// The identifier of the key.
    #[schemars(length(min = 1, max = 1024))]
    pub key_id: String,
    /// The key, in base64url as the authority shows it.
    #[schemars(length(min = 1, max = 1024))]
    pub hmac_key: Confidential,
}

/// The authority that certificates are ordered from, and how. It serves ssls of `type: acme` and listeners with
/// `tls: auto`; see docs/certificates.md. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Acme {
    /// The address of the authority's directory; the default is Let's Encrypt.
    pub directory: String,
    /// That you agree to the authority's terms of service: nothing is ordered before it is true.
    pub terms_agreed: bool,
    /// Where the authority writes to when something is wrong with the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// An account elsewhere, for authorities that ask for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_account: Option<ExternalAccount>,
    /// The kind of the keys of certificates.
    pub key_type: CertificateKey,
    /// How names are proved.
    pub challenge: AcmeChallenge,
    /// The folder that keeps the account, certificates, their keys, and what failed when. Made if it is
    /// not there; nobody else may read what is in it.
    pub storage: PathBuf,
    /// File of authorities (PEM) that may vouch for the directory's own TLS; unset: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Milliseconds for one call of the authority.
    #[schemars(range(min = 100, max = 300_000))]
    pub call_timeout_ms: u32,
    /// Seconds for a whole order; then it has failed.
    #[schemars(range(min = 5, max = 3_600))]
    pub order_timeout_s: u32,
    /// Seconds after which an order that failed is repeated; twice as many after each further failure. The
    /// default stays below the five failures that Let's Encrypt allows in an hour.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_s: u32,
    /// The most seconds between two attempts, but for what the authority itself asks for.
    #[schemars(range(min = 1, max = 604_800))]
    pub retry_max_s: u32,
}

impl Default for Acme {
    fn default() -> Self {
        Acme {
            directory: "https://acme-v02.api.letsencrypt.org/directory".into(),
            terms_agreed: false,
            email: None,
            external_account: None,
            key_type: CertificateKey::default(),
            challenge: AcmeChallenge::default(),
            storage: "./data/acme".into(),
            ca: None,
            call_timeout_ms: 30_000,
            order_timeout_s: 180,
            retry_s: RETRY_S,
            retry_max_s: RETRY_MAX_S,
        }
    }
}
