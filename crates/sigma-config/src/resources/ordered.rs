//! Settings of ordered certificates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The type of a certificate's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CertificateKey {
    /// ECDSA on P-256: a handshake costs the gateway a tenth of one with RSA.
    #[default]
    EcdsaP256,
    /// ECDSA on P-384.
    EcdsaP384,
    /// RSA of 2048 bits, for clients that support nothing else.
    #[serde(rename = "rsa_2048")]
    Rsa2048,
    /// RSA of 4096 bits.
    #[serde(rename = "rsa_4096")]
    Rsa4096,
}

/// How the gateway proves the control of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum AcmeChallenge {
    /// The authority requests `/.well-known/acme-challenge/…` on port 80 of the name.
    #[default]
    #[serde(rename = "http-01")]
    Http01,
    /// The authority connects to port 443 of the name and gets a certificate for this proof (RFC 8737).
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// The authority looks up the record `_acme-challenge.` of the name, which the gateway has added as configured in
    /// `acme.dns`. This challenge also proves wildcards.
    #[serde(rename = "dns-01")]
    Dns01,
    /// The authority looks up the record `_validation-persist.` of the name, which you have added once: it names the
    /// authority and the account. This challenge also proves wildcards.
    #[serde(rename = "dns-persist-01")]
    DnsPersist01,
}

impl AcmeChallenge {
    /// Returns its name (RFC 8555 §8, RFC 8737).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AcmeChallenge::Http01 => "http-01",
            AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
            AcmeChallenge::Dns01 => "dns-01",
            AcmeChallenge::DnsPersist01 => "dns-persist-01",
        }
    }
}

/// Settings of one ssl's certificate order that differ from the setting `acme`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SslAcme {
    /// The type of the certificate's key; unset: the setting's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_type: Option<CertificateKey>,
    /// The challenge type that proves the certificate's names; unset: the setting's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<AcmeChallenge>,
}
