//! How a certificate is ordered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of the key of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CertificateKey {
    /// ECDSA on P-256: a handshake costs the gateway a tenth of one with RSA.
    #[default]
    EcdsaP256,
    /// ECDSA on P-384.
    EcdsaP384,
    /// RSA of 2048 bits, for clients that know nothing else.
    #[serde(rename = "rsa_2048")]
    Rsa2048,
    /// RSA of 4096 bits.
    #[serde(rename = "rsa_4096")]
    Rsa4096,
}

/// How the gateway proves that a name is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum AcmeChallenge {
    /// The authority asks for `/.well-known/acme-challenge/…` on port 80 of the name.
    #[default]
    #[serde(rename = "http-01")]
    Http01,
    /// The authority shakes hands on port 443 of the name, and sees a certificate made for that (RFC 8737).
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// The authority asks for a record of `_acme-challenge.` and the name, which the gateway has placed as the
    /// setting `acme.dns` says. It proves wildcards too.
    #[serde(rename = "dns-01")]
    Dns01,
}

impl AcmeChallenge {
    /// Its name (RFC 8555 §8, RFC 8737).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AcmeChallenge::Http01 => "http-01",
            AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
            AcmeChallenge::Dns01 => "dns-01",
        }
    }
}

/// How the certificate of one ssl is ordered, where that differs from the setting `acme`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SslAcme {
    /// The kind of its key; unset: that of the setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_type: Option<CertificateKey>,
    /// How its names are proved; unset: as the setting says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<AcmeChallenge>,
}
