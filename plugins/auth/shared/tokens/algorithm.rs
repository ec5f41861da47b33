//! Algorithms that tokens are signed with.

use aws_lc_rs::hmac;
use aws_lc_rs::rsa::RsaParameters;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, VerificationAlgorithm,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// Algorithms by their names (RFC 7518 §3.1, RFC 8037 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
    Es512,
    Ps256,
    Ps384,
    Ps512,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// A curve that keys are on.
pub(super) struct Curve {
    /// Its name in a key (RFC 7518 §6.2.1.1, RFC 8037 §2).
    pub(super) name: &'static str,
    /// Bytes of a coordinate.
    pub(super) bytes: usize,
}

impl Algorithm {
    /// The algorithms whose keys may be published.
    pub(crate) const PUBLIC: [Algorithm; 10] = [
        Algorithm::Rs256,
        Algorithm::Rs384,
        Algorithm::Rs512,
        Algorithm::Es256,
        Algorithm::Es384,
        Algorithm::Es512,
        Algorithm::Ps256,
        Algorithm::Ps384,
        Algorithm::Ps512,
        Algorithm::EdDsa,
    ];

    /// The algorithm with this name.
    pub(crate) fn of(name: &str) -> Option<Algorithm> {
        Algorithm::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name)).ok()
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Hs256 => "HS256",
            Algorithm::Hs384 => "HS384",
            Algorithm::Hs512 => "HS512",
            Algorithm::Rs256 => "RS256",
            Algorithm::Rs384 => "RS384",
            Algorithm::Rs512 => "RS512",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::Es512 => "ES512",
            Algorithm::Ps256 => "PS256",
            Algorithm::Ps384 => "PS384",
            Algorithm::Ps512 => "PS512",
            Algorithm::EdDsa => "EdDSA",
        }
    }

    /// How signatures with a shared secret are verified.
    pub(crate) fn shared(self) -> Option<hmac::Algorithm> {
        match self {
            Algorithm::Hs256 => Some(hmac::HMAC_SHA256),
            Algorithm::Hs384 => Some(hmac::HMAC_SHA384),
            Algorithm::Hs512 => Some(hmac::HMAC_SHA512),
            _ => None,
        }
    }

    /// The type of its keys (RFC 7518 §6.1).
    pub(crate) fn key_type(self) -> &'static str {
        match (self.shared().is_some(), self.rsa().is_some()) {
            (true, _) => "oct",
            (false, true) => "RSA",
            (false, false) => "EC",
        }
    }

    /// How signatures with an RSA key are verified.
    pub(super) fn rsa(self) -> Option<&'static RsaParameters> {
        match self {
            Algorithm::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
            Algorithm::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
            Algorithm::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
            _ => None,
        }
    }

    /// The curve of its keys.
    pub(super) fn curve(self) -> Option<Curve> {
        match self {
            Algorithm::Es256 => Some(Curve { name: "P-256", bytes: 32 }),
            Algorithm::Es384 => Some(Curve { name: "P-384", bytes: 48 }),
            Algorithm::Es512 => Some(Curve { name: "P-521", bytes: 66 }),
            Algorithm::EdDsa => Some(Curve { name: "Ed25519", bytes: 32 }),
            _ => None,
        }
    }

    /// How signatures with a public key are verified.
    pub(super) fn public(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self {
            Algorithm::Es256 => Some(&ECDSA_P256_SHA256_FIXED),
            Algorithm::Es384 => Some(&ECDSA_P384_SHA384_FIXED),
            Algorithm::Es512 => Some(&ECDSA_P521_SHA512_FIXED),
            Algorithm::EdDsa => Some(&ED25519),
            other => other.rsa().map(|parameters| parameters as &dyn VerificationAlgorithm),
        }
    }

    /// Shorter RSA keys are forgeable (NIST SP 800-131A), so they have to be allowed explicitly.
    pub(super) fn short_rsa(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self {
            Algorithm::Rs256 => Some(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY),
            Algorithm::Rs512 => Some(&RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY),
            _ => None,
        }
    }
}
