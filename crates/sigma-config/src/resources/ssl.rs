//! Certificates with their keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::rare::Rare;
use super::shared::{Confidential, HOST_PATTERN, Labels, UnixTime, resource_schema, with};
use crate::forms::HostPattern;
use crate::id::Id;

/// The use of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SslType {
    /// Shown to clients.
    #[default]
    Server,
    /// Shown to the nodes of upstreams.
    Client,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// TLS 1.1, which no connection uses any more: it is accepted and passed over.
    #[serde(rename = "TLSv1.1")]
    V1_1,
    /// TLS 1.2.
    #[serde(rename = "TLSv1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "TLSv1.3")]
    V1_3,
}

/// The certificate that a client must show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SslClient {
    /// The authorities that may have issued it, in PEM.
    #[schemars(with = "String", length(min = 128, max = 65536))]
    pub ca: Box<str>,
    /// Longest chain up to an authority.
    #[serde(default = "default_depth")]
    pub depth: u32,
    /// Paths that are served without a certificate.
    #[serde(default, skip_serializing_if = "Rare::is_unset")]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub skip_mtls_uri_regex: Rare<Vec<String>>,
}

fn default_depth() -> u32 {
    1
}

/// A certificate with its key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["cert", "key"]))]
pub struct Ssl {
    /// Identity.
    #[serde(skip_serializing_if = "Id::is_empty")]
    pub id: Id,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 256))]
    pub desc: Option<Box<str>>,
    /// Labels.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    pub labels: Labels,
    /// When it was created, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_time: Option<UnixTime>,
    /// When it was changed last, in Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<UnixTime>,
    /// Its use.
    #[serde(rename = "type")]
    pub kind: SslType,
    /// The certificate and its chain, in PEM.
    #[schemars(with = "String", length(min = 128, max = 65536))]
    pub cert: Box<str>,
    /// Its private key, in PEM.
    #[schemars(with = "String", length(min = 64, max = 65536))]
    pub key: Confidential,
    /// The server name that it is shown for: exact, `*.example.com` or `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostPattern>")]
    pub sni: Option<Box<str>>,
    /// Several server names.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(with = "Vec<HostPattern>", length(min = 1))]
    pub snis: Rare<Vec<String>>,
    /// Further certificates for the same names, for example with another kind of key.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(inner(length(min = 128, max = 65536)))]
    pub certs: Rare<Vec<String>>,
    /// The private keys of `certs`, in the same order.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(inner(length(min = 64, max = 65536)))]
    pub keys: Rare<Vec<Confidential>>,
    /// The certificate that a client must show; unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<SslClient>>,
    /// 1 enabled, 0 disabled.
    #[schemars(range(min = 0, max = 1))]
    pub status: u8,
    /// Versions of TLS; unset: those of the listener.
    #[serde(skip_serializing_if = "Rare::is_unset")]
    #[schemars(length(max = 3), extend("uniqueItems" = true))]
    pub ssl_protocols: Rare<Vec<TlsVersion>>,
}

impl Default for Ssl {
    /// Nothing for no name, enabled.
    fn default() -> Self {
        Ssl {
            id: Default::default(),
            desc: Default::default(),
            labels: Default::default(),
            create_time: Default::default(),
            update_time: Default::default(),
            kind: Default::default(),
            cert: Default::default(),
            key: Default::default(),
            sni: Default::default(),
            snis: Default::default(),
            certs: Default::default(),
            keys: Default::default(),
            client: Default::default(),
            status: 1,
            ssl_protocols: Default::default(),
        }
    }
}

impl Ssl {
    /// Every pair of a certificate and its key, the first one first.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let further = self.certs.iter().map(String::as_str).zip(self.keys.iter().map(Confidential::reveal));
        std::iter::once((&*self.cert, self.key.reveal())).chain(further)
    }

    /// The server names as written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sni.as_deref().into_iter().chain(self.snis.iter().map(String::as_str))
    }
}

/// APISIX's schema of an ssl.
pub(super) fn schema() -> Value {
    let cert = json!({ "type": "string", "minLength": 128, "maxLength": 65536 });
    let key = json!({ "type": "string", "minLength": 64, "maxLength": 65536 });
    let name = json!({ "type": "string", "pattern": HOST_PATTERN });
    let properties = json!({
        "name": null,
        "type": { "type": "string", "enum": ["server", "client"], "default": "server" },
        "cert": cert,
        "key": key,
        "sni": name,
        "snis": { "type": "array", "items": name, "minItems": 1 },
        "certs": { "type": "array", "items": cert },
        "keys": { "type": "array", "items": key },
        "client": {
            "type": "object",
            "properties": {
                "ca": cert,
                "depth": { "type": "integer", "minimum": 0, "default": 1 },
                "skip_mtls_uri_regex": {
                    "type": "array",
                    "items": { "type": "string" },
                    "minItems": 1,
                    "uniqueItems": true,
                },
            },
            "required": ["ca"],
        },
        "status": { "type": "integer", "enum": [1, 0], "default": 1 },
        "ssl_protocols": {
            "type": "array",
            "maxItems": 3,
            "uniqueItems": true,
            "items": { "type": "string", "enum": ["TLSv1.1", "TLSv1.2", "TLSv1.3"] },
        },
    });
    let rules = json!({
        // Also what has no type at all is of type server.
        "if": { "properties": { "type": { "enum": ["server"] } } },
        "then": { "oneOf": [
            { "required": ["sni", "key", "cert"] },
            { "required": ["snis", "key", "cert"] },
        ] },
        "else": { "required": ["key", "cert"] },
    });
    with(resource_schema(properties), rules)
}
