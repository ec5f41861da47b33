//! Certificates that the gateway orders by itself (RFC 8555).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dns::NameServer;
use crate::resources::{AcmeChallenge, CertificateKey, Ssl};
use crate::rules::acme::{ORDER_TIMEOUT_S, PROPAGATION_TIMEOUT_S, RETRY_MAX_S, RETRY_S};
use crate::rules::hosts::is_dns_name;
use sigma_schema::Confidential;

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

/// How an update of a zone is signed (RFC 8945).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum TsigAlgorithm {
    /// HMAC with SHA-256.
    #[default]
    #[serde(rename = "hmac-sha256")]
    HmacSha256,
    /// HMAC with SHA-512.
    #[serde(rename = "hmac-sha512")]
    HmacSha512,
}

/// A name server that takes records by dynamic update (RFC 2136), signed with a key that it shares with the
/// gateway (TSIG, RFC 8945).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DnsUpdate {
    /// The primary name server of the zone: an IP address, with a port if it is not 53.
    #[schemars(with = "String")]
    pub server: NameServer,
    /// The zone that the records are in; unset: the server is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The name of the key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// How the key signs.
    #[serde(default)]
    pub algorithm: TsigAlgorithm,
    /// The key, in base64 as `tsig-keygen` prints it.
    #[schemars(length(min = 1, max = 1024))]
    pub secret: Confidential,
    /// Seconds that the record may be kept by who has asked for it.
    #[serde(default = "record_ttl")]
    #[schemars(range(min = 1, max = 86_400))]
    pub ttl: u32,
}

fn record_ttl() -> u32 {
    60
}

/// A program that places records and removes them. It is started without a shell, once for each record and
/// action, with these variables: `SIGMA_ACME_ACTION` (`present` or `cleanup`), `SIGMA_ACME_DOMAIN` (the name that
/// is proved, without `*.`), `SIGMA_ACME_RECORD` (where the record belongs, with a dot at its end) and
/// `SIGMA_ACME_VALUE`. A status other than 0 is a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DnsHook {
    /// The program with its arguments; it is named by its whole path.
    #[schemars(length(min = 1, max = 64))]
    pub command: Vec<String>,
    /// Seconds that it has; then it is killed with all that it has started.
    #[serde(default = "hook_timeout_s")]
    #[schemars(range(min = 1, max = 3_600))]
    pub timeout_s: u32,
}

fn hook_timeout_s() -> u32 {
    60
}

/// How records come into the DNS that prove names (`dns-01`): by `update` or by `hook`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcmeDns {
    /// By dynamic updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<DnsUpdate>,
    /// By a program of yours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<DnsHook>,
    /// Name servers that are asked where a record belongs and whether it is there, each an IP address, with a
    /// port if it is not 53. None: the name servers of the record's zone, which those of `dns.servers` or of
    /// `/etc/resolv.conf` tell.
    #[schemars(with = "Vec<String>", length(max = 16))]
    pub servers: Vec<NameServer>,
    /// Seconds within which a record has to be seen; then the order has failed.
    #[schemars(range(min = 1, max = 3_600))]
    pub propagation_timeout_s: u32,
}

impl Default for AcmeDns {
    fn default() -> Self {
        AcmeDns {
            update: None,
            hook: None,
            servers: Vec::new(),
            propagation_timeout_s: PROPAGATION_TIMEOUT_S,
        }
    }
}

/// The longest name that a certificate is ordered for in a handshake: a file has its name.
const ON_DEMAND_NAME_MAX: usize = 240;

/// Names whose certificate is ordered when the first client asks for it in a handshake, which waits meanwhile. A
/// name has to be in `names`, if that has any, and `ask` has to permit it, if that is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnDemand {
    /// Names, and wildcards such as `*.example.com` for the names one label below.
    #[schemars(length(max = 1_000))]
    pub names: Vec<String>,
    /// The address of a service of yours, asked as `GET ADDRESS?domain=NAME` before each order. The name is
    /// permitted if it answers 200, and refused by whatever else happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<String>,
    /// Milliseconds for a question to that service.
    #[schemars(range(min = 100, max = 60_000))]
    pub ask_timeout_ms: u32,
    /// Most names that have a certificate in this way.
    #[schemars(range(min = 1, max = 10_000))]
    pub certificates: u32,
    /// Most names in an hour that an order is begun for. Let's Encrypt allows 300 orders in three hours.
    #[schemars(range(min = 1, max = 10_000))]
    pub orders_per_hour: u32,
    /// Most handshakes that wait at a time; others are refused.
    #[schemars(range(min = 1, max = 10_000))]
    pub waiting: u32,
    /// Milliseconds that a handshake waits; then it is refused, and the order goes on.
    #[schemars(range(min = 100, max = 300_000))]
    pub wait_ms: u32,
}

impl Default for OnDemand {
    fn default() -> Self {
        OnDemand {
            names: Vec::new(),
            ask: None,
            ask_timeout_ms: 5_000,
            certificates: 1_000,
            orders_per_hour: 20,
            waiting: 100,
            wait_ms: 30_000,
        }
    }
}

impl OnDemand {
    /// Whether the list has a name, which is in lower case; without a list each name of a host with a dot in it.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        let below = name.split_once('.').map(|(_, rest)| rest);
        let has = |listed: &String| match listed.strip_prefix("*.") {
            Some(base) => below.is_some_and(|below| below.eq_ignore_ascii_case(base)),
            None => listed.eq_ignore_ascii_case(name),
        };
        below.is_some()
            && name.len() <= ON_DEMAND_NAME_MAX
            && is_dns_name(name)
            && (self.names.is_empty() || self.names.iter().any(has))
    }
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
    /// How records come into the DNS that prove names, for `dns-01`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<AcmeDns>,
    /// Names whose certificate is ordered when the first client asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<OnDemand>,
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
    /// With an etcd, of whose gateways one orders for all: seconds after which another one takes that over when it
    /// has died. It is no setting elsewhere.
    #[schemars(range(min = 3, max = 300))]
    pub lease_s: u32,
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
            dns: None,
            on_demand: None,
            storage: "./data/acme".into(),
            ca: None,
            call_timeout_ms: 30_000,
            order_timeout_s: ORDER_TIMEOUT_S,
            lease_s: 15,
            retry_s: RETRY_S,
            retry_max_s: RETRY_MAX_S,
        }
    }
}

impl Acme {
    /// Why no certificate can be ordered for an ssl of type acme that has passed its check; None if one can.
    #[must_use]
    pub fn refusal(&self, ssl: &Ssl) -> Option<String> {
        let challenge = ssl.acme.as_ref().and_then(|own| own.challenge).unwrap_or(self.challenge);
        if challenge == AcmeChallenge::Dns01 {
            return self.dns.is_none().then(|| {
                "its names are to be proved by `dns-01`, and `acme.dns` does not say how: set it, and start anew"
                    .to_owned()
            });
        }
        let wildcard = ssl.names().find(|name| name.starts_with("*."))?;
        Some(format!(
            "no certificate can be ordered for `{wildcard}` by `{}`: write `acme: {{challenge: dns-01}}`",
            challenge.as_str()
        ))
    }
}
