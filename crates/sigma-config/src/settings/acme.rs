//! Certificates that the gateway orders from an ACME authority (RFC 8555).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::{AcmeChallenge, CertificateKey, Ssl};
use crate::rules::acme::{ORDER_TIMEOUT_S, PROPAGATION_TIMEOUT_S, RETRY_MAX_S, RETRY_S};
use crate::rules::hosts::is_dns_name;
use crate::settings::dns::NameServer;
use sigma_schema::Confidential;

/// An external account that the ACME account is bound to (RFC 8555 §7.3.4). The authority provides both values.
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

/// The algorithm that signs dynamic updates of a zone (RFC 8945).
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

/// A name server that accepts dynamic updates (RFC 2136), signed with a shared key (TSIG, RFC 8945).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DnsUpdate {
    /// The primary name server of the zone: an IP address, with a port if it is not 53.
    #[schemars(with = "String")]
    pub server: NameServer,
    /// The zone of the records. Default: the zone that the server returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The name of the key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// The algorithm of the key.
    #[serde(default)]
    pub algorithm: TsigAlgorithm,
    /// The key, in base64 as `tsig-keygen` prints it.
    #[schemars(length(min = 1, max = 1024))]
    pub secret: Confidential,
    /// TTL of the record in seconds.
    #[serde(default = "record_ttl")]
    #[schemars(range(min = 1, max = 86_400))]
    pub ttl: u32,
}

fn record_ttl() -> u32 {
    60
}

/// A program that adds and removes records. It is started without a shell, once for each record and action, with these
/// variables: `SIGMA_ACME_ACTION` (`present` or `cleanup`), `SIGMA_ACME_DOMAIN` (the name to prove, without `*.`),
/// `SIGMA_ACME_RECORD` (the name of the record, with a final dot) and `SIGMA_ACME_VALUE`. A status other than 0 is a
/// failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DnsHook {
    /// The absolute path of the program, and its arguments.
    #[schemars(length(min = 1, max = 64))]
    pub command: Vec<String>,
    /// Timeout in seconds; then the program and its child processes are killed.
    #[serde(default = "hook_timeout_s")]
    #[schemars(range(min = 1, max = 3_600))]
    pub timeout_s: u32,
}

fn hook_timeout_s() -> u32 {
    60
}

/// Zones at Cloudflare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cloudflare {
    /// A token with the permissions "Zone: Read" and "DNS: Edit".
    #[schemars(length(min = 1, max = 1024))]
    pub api_token: Confidential,
    /// The address of the API. Default: Cloudflare's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// TTL of the record in seconds.
    #[serde(default = "record_ttl")]
    #[schemars(range(min = 1, max = 86_400))]
    pub ttl: u32,
}

/// Zones at DigitalOcean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Digitalocean {
    /// A token that may read and write domains.
    #[schemars(length(min = 1, max = 1024))]
    pub api_token: Confidential,
    /// The address of the API. Default: DigitalOcean's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// TTL of the record in seconds.
    #[serde(default = "record_ttl")]
    #[schemars(range(min = 1, max = 86_400))]
    pub ttl: u32,
}

/// Zones at OVH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ovh {
    /// The key of the application.
    #[schemars(length(min = 1, max = 256))]
    pub application_key: String,
    /// The secret of the application.
    #[schemars(length(min = 1, max = 256))]
    pub application_secret: Confidential,
    /// A consumer key with GET, POST and DELETE on `/domain/zone/*`.
    #[schemars(length(min = 1, max = 256))]
    pub consumer_key: Confidential,
    /// The address of the API, for example `https://ca.api.ovh.com/1.0`. Default: the European one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// TTL of the record in seconds.
    #[serde(default = "record_ttl")]
    #[schemars(range(min = 1, max = 86_400))]
    pub ttl: u32,
}

/// Zones at Amazon Route 53.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route53 {
    /// The id of an access key that may list hosted zones, and list and change their record sets.
    #[schemars(length(min = 1, max = 256))]
    pub access_key_id: String,
    /// The secret of the access key.
    #[schemars(length(min = 1, max = 256))]
    pub secret_access_key: Confidential,
    /// The session token of temporary credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8192))]
    pub session_token: Option<Confidential>,
    /// The address of the API. Default: Amazon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// TTL of the record in seconds.
    #[serde(default = "record_ttl")]
    #[schemars(range(min = 1, max = 86_400))]
    pub ttl: u32,
}

/// How `dns-01` records are added to the DNS: set one of `update`, `hook`, `cloudflare`, `digitalocean`, `ovh` and
/// `route53`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcmeDns {
    /// Dynamic updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<DnsUpdate>,
    /// Your own program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<DnsHook>,
    /// The API of Cloudflare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloudflare: Option<Cloudflare>,
    /// The API of DigitalOcean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digitalocean: Option<Digitalocean>,
    /// The API of OVH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovh: Option<Ovh>,
    /// The API of Amazon Route 53.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route53: Option<Route53>,
    /// Name servers that are queried for the zone of a record, and for the record itself. Each is an IP address, with a
    /// port if it is not 53. Empty: the name servers of the record's zone, which are looked up by `dns.servers` or
    /// `/etc/resolv.conf`.
    #[schemars(with = "Vec<String>", length(max = 16))]
    pub servers: Vec<NameServer>,
    /// Seconds within which a record must be visible; otherwise the order fails.
    #[schemars(range(min = 1, max = 3_600))]
    pub propagation_timeout_s: u32,
}

impl Default for AcmeDns {
    fn default() -> Self {
        AcmeDns {
            update: None,
            hook: None,
            cloudflare: None,
            digitalocean: None,
            ovh: None,
            route53: None,
            servers: Vec::new(),
            propagation_timeout_s: PROPAGATION_TIMEOUT_S,
        }
    }
}

/// Maximum length of a name on demand, because its files have its name.
const ON_DEMAND_NAME_MAX: usize = 240;

/// Names whose certificate is ordered during the first handshake for them; the handshake waits. `names` must contain
/// the name, if it is set, and `ask` must permit it, if it is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnDemand {
    /// Host names, and wildcards such as `*.example.com` for names one label below.
    #[schemars(length(max = 1_000))]
    pub names: Vec<String>,
    /// URL of your own service, called as `GET URL?domain=NAME` before each order. Status 200 permits the name; any
    /// other result refuses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<String>,
    /// Timeout of a call of that service in milliseconds.
    #[schemars(range(min = 100, max = 60_000))]
    pub ask_timeout_ms: u32,
    /// Maximum number of names with a certificate on demand.
    #[schemars(range(min = 1, max = 10_000))]
    pub certificates: u32,
    /// Maximum number of new orders per hour. Let's Encrypt allows 300 orders in three hours.
    #[schemars(range(min = 1, max = 10_000))]
    pub orders_per_hour: u32,
    /// Maximum number of waiting handshakes; further ones are refused.
    #[schemars(range(min = 1, max = 10_000))]
    pub waiting: u32,
    /// Maximum wait of a handshake in milliseconds; then it is refused, and the order continues.
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
    /// Returns whether the list contains a lower-case name. Without a list every host name with a dot is allowed.
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

/// The authority that issues certificates, and the settings of orders. It serves ssls of `type: acme` and listeners
/// with `tls: auto`; see docs/certificates.md. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Acme {
    /// URL of the authority's directory; the default is Let's Encrypt.
    pub directory: String,
    /// You agree to the authority's terms of service. Orders need `true`.
    pub terms_agreed: bool,
    /// Address for messages of the authority about the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// An external account, for authorities that require one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_account: Option<ExternalAccount>,
    /// The type of certificate keys.
    pub key_type: CertificateKey,
    /// The challenge type that proves names.
    pub challenge: AcmeChallenge,
    /// How `dns-01` records are added to the DNS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<AcmeDns>,
    /// Names whose certificate is ordered at the first handshake for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<OnDemand>,
    /// Folder for the account, certificates, private keys and failed orders. It is created if missing and must not be
    /// readable by other users.
    pub storage: PathBuf,
    /// PEM file with CA certificates for the directory's own TLS; unset: the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Timeout of one call of the authority in milliseconds.
    #[schemars(range(min = 100, max = 300_000))]
    pub call_timeout_ms: u32,
    /// Maximum duration of an order in seconds; then it fails.
    #[schemars(range(min = 5, max = 3_600))]
    pub order_timeout_s: u32,
    /// With an etcd, one gateway orders certificates for all: seconds after its death until another one takes over. Not
    /// allowed without an etcd.
    #[schemars(range(min = 3, max = 300))]
    pub lease_s: u32,
    /// Seconds until a failed order is repeated; the pause doubles with each further failure. The default stays below
    /// the five failures per hour that Let's Encrypt allows.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_s: u32,
    /// Maximum pause in seconds between two attempts, unless the authority requires a longer one.
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
    /// Returns why no certificate can be ordered for a valid ssl of type acme, or None if it can.
    #[must_use]
    pub fn refusal(&self, ssl: &Ssl) -> Option<String> {
        let challenge = ssl.acme.as_ref().and_then(|own| own.challenge).unwrap_or(self.challenge);
        if challenge == AcmeChallenge::Dns01 {
            return self.dns.is_none().then(|| {
                "its names need the challenge `dns-01`, but `acme.dns` is not set: set it and restart"
                    .to_owned()
            });
        }
        if challenge == AcmeChallenge::DnsPersist01 {
            return None;
        }
        let wildcard = ssl.names().find(|name| name.starts_with("*."))?;
        Some(format!(
            "a certificate for `{wildcard}` cannot be ordered with the challenge `{}`: write `acme: {{challenge: dns-01}}`",
            challenge.as_str()
        ))
    }
}
