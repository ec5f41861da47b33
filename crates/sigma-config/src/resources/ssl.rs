//! Certificates with their keys.

use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::client_auth::SslClient;
use super::optional::Optional;
use super::ordered::SslAcme;
use super::shared::{Labels, Status, UnixTime};
use super::stapling::SslStapling;
use sigma_schema::Confidential;
use sigma_schema::described::without_defaults;
use sigma_schema::forms::HostPattern;
use sigma_schema::id::Id;

/// The use of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SslType {
    /// Sent to clients.
    #[default]
    Server,
    /// Sent to the nodes of upstreams.
    Client,
    /// Sent to clients, and ordered by the gateway (`acme`). An optional `cert` with its `key` is used until the order
    /// is complete.
    Acme,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// TLS 1.1, which is accepted here but never used.
    #[serde(rename = "TLSv1.1")]
    V1_1,
    /// TLS 1.2.
    #[serde(rename = "TLSv1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "TLSv1.3")]
    V1_3,
}

resource! {
    /// A certificate with its key.
    #[schemars(transform = without_defaults("cert key"), transform = conditions)]
    pub struct Ssl [id about times] {
        /// Its use.
        #[serde(rename = "type")]
        pub kind: SslType,
        /// The certificate and its chain, in PEM; required without `cert_file`.
        #[schemars(with = "String", length(min = 128, max = 65536))]
        pub cert: Box<str>,
        /// Its private key, in PEM; required with `cert`.
        #[schemars(with = "String", length(min = 64, max = 65536))]
        pub key: Confidential,
        /// The server name of the certificate: exact, `*.example.com` or `*`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<HostPattern>")]
        pub sni: Option<Box<str>>,
        /// Several server names.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(with = "Vec<HostPattern>", length(min = 1))]
        pub snis: Optional<Vec<String>>,
        /// Additional certificates for the same names, for example with another type of key.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(inner(length(min = 128, max = 65536)))]
        pub certs: Optional<Vec<String>>,
        /// The private keys of `certs`, in the same order.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(inner(length(min = 64, max = 65536)))]
        pub keys: Optional<Vec<Confidential>>,
        /// The certificate that a client must present; unset: no client certificate.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub client: Option<Box<SslClient>>,
        /// 1 enabled, 0 disabled.
        pub status: Status,
        /// TLS versions; unset: the listener's.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(length(max = 3), extend("uniqueItems" = true))]
        pub ssl_protocols: Optional<Vec<TlsVersion>>,
        /// With `type: acme`: settings of the order; unset: the setting `acme`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub acme: Option<SslAcme>,
        /// Whether an OCSP response is fetched and stapled; unset: as in `tls.ocsp_stapling`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ocsp_stapling: Option<Box<SslStapling>>,
        /// Ciphers, as in `ciphers` of a listener; unset: the listener's, or all ciphers towards nodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        pub ssl_ciphers: Option<Box<str>>,
        /// Groups for the key exchange, as in `curves` of a listener; unset: the listener's, or all groups towards
        /// nodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        pub ssl_curves: Option<Box<str>>,
        /// Instead of `cert` and `key`: the PEM file of the certificate and its chain, read again when it changes. Only
        /// in a configuration file; a store or the Admin API cannot name files.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>", length(min = 1))]
        pub cert_file: Option<PathBuf>,
        /// The PEM file of the private key; unset: the key is also in `cert_file`.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>", length(min = 1))]
        pub key_file: Option<PathBuf>,
    }
}

impl Ssl {
    /// Returns every pair of certificate and key in the resource, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let further = self.certs.iter().map(String::as_str).zip(self.keys.iter().map(Confidential::reveal));
        let is_elsewhere = self.kind == SslType::Acme || self.cert_file.is_some();
        let own = (!is_elsewhere || !self.cert.is_empty()).then(|| (&*self.cert, self.key.reveal()));
        own.into_iter().chain(further)
    }

    /// Returns the file of its certificate, and the file of its key if that is another one.
    pub fn files(&self) -> Option<(&Path, Option<&Path>)> {
        Some((self.cert_file.as_deref()?, self.key_file.as_deref()))
    }

    /// Returns whether the certificate is enabled and for clients.
    pub fn is_for_clients(&self) -> bool {
        self.kind != SslType::Client && self.status.is_on()
    }

    /// Returns the server names as written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sni.as_deref().into_iter().chain(self.snis.iter().map(String::as_str))
    }
}

/// Adds the required fields: a pair or its file, and a name for the default type, servers. An ordered certificate needs
/// only the name.
fn conditions(ssl: &mut Schema) {
    let pairs = [&["key", "cert"][..], &["cert_file"]];
    let named = |name: &str, fields: &[&str]| {
        let required = [&[name], fields].concat();
        json!({ "required": required })
    };
    let names: Vec<_> = pairs.iter().flat_map(|pair| ["sni", "snis"].map(|name| named(name, pair))).collect();
    ssl.insert("if".to_owned(), json!({ "properties": { "type": { "enum": ["server"] } } }));
    ssl.insert("then".to_owned(), json!({ "oneOf": names }));
    let one = ["sni", "snis"].map(|name| json!({ "required": [name] }));
    let other = json!({
        "if": { "properties": { "type": { "enum": ["acme"] } } },
        "then": { "oneOf": one },
        "else": { "oneOf": pairs.map(|pair| json!({ "required": pair })) },
    });
    ssl.insert("else".to_owned(), other);
}
