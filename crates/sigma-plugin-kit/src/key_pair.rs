//! Keys and algorithms (RFC 9421 §3.3). A key has one algorithm, configured by its owner: the algorithm in a message
//! can only agree.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RSA_PSS_2048_8192_SHA512, RSA_PSS_SHA512, RsaEncoding,
    RsaKeyPair, VerificationAlgorithm,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::pem::section;

/// Algorithms of key pairs by their names in the registry of RFC 9421.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PairAlgorithm {
    /// RSASSA-PSS with SHA-512.
    RsaPssSha512,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    #[serde(rename = "rsa-v1_5-sha256")]
    RsaV15Sha256,
    /// ECDSA over P-256 with SHA-256.
    EcdsaP256Sha256,
    /// ECDSA over P-384 with SHA-384.
    EcdsaP384Sha384,
    /// Ed25519.
    Ed25519,
}

impl PairAlgorithm {
    fn name(self) -> &'static str {
        match self {
            PairAlgorithm::RsaPssSha512 => "rsa-pss-sha512",
            PairAlgorithm::RsaV15Sha256 => "rsa-v1_5-sha256",
            PairAlgorithm::EcdsaP256Sha256 => "ecdsa-p256-sha256",
            PairAlgorithm::EcdsaP384Sha384 => "ecdsa-p384-sha384",
            PairAlgorithm::Ed25519 => "ed25519",
        }
    }

    fn verification(self) -> &'static dyn VerificationAlgorithm {
        match self {
            PairAlgorithm::RsaPssSha512 => &RSA_PSS_2048_8192_SHA512,
            PairAlgorithm::RsaV15Sha256 => &RSA_PKCS1_2048_8192_SHA256,
            PairAlgorithm::EcdsaP256Sha256 => &ECDSA_P256_SHA256_FIXED,
            PairAlgorithm::EcdsaP384Sha384 => &ECDSA_P384_SHA384_FIXED,
            PairAlgorithm::Ed25519 => &ED25519,
        }
    }
}

/// The algorithm of shared secrets.
const HMAC_SHA256: &str = "hmac-sha256";

/// A public key, and the algorithm of the pair.
pub struct PublicKey {
    algorithm: PairAlgorithm,
    key: Box<ParsedPublicKey>,
}

impl PublicKey {
    /// Reads a PEM text.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it contains no public key of this algorithm.
    pub fn parse(pem: &str, algorithm: PairAlgorithm) -> Result<PublicKey, String> {
        let der = section(pem, &["PUBLIC KEY", "RSA PUBLIC KEY"]);
        let (_, der) = der.ok_or("public_key: it is not a PEM text with a public key")?;
        let key = ParsedPublicKey::new(algorithm.verification(), der)
            .map_err(|_| format!("public_key: it is no key for {}", algorithm.name()))?;
        Ok(PublicKey { algorithm, key: Box::new(key) })
    }
}

/// A key that verifies signatures.
pub enum Verifier<'k> {
    /// The secret of HMAC.
    Secret(&'k [u8]),
    /// The public key of a pair.
    Public(&'k PublicKey),
}

impl Verifier<'_> {
    /// Returns the name of the key's algorithm.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Verifier::Secret(_) => HMAC_SHA256,
            Verifier::Public(key) => key.algorithm.name(),
        }
    }

    /// Returns true if the key's owner signed this text.
    pub fn holds(&self, text: &[u8], signature: &[u8]) -> bool {
        match self {
            Verifier::Secret(secret) => {
                hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), text, signature).is_ok()
            }
            Verifier::Public(key) => key.key.verify_sig(text, signature).is_ok(),
        }
    }
}

/// A key that signs requests.
pub enum Signer {
    /// The secret of HMAC.
    Secret(Box<hmac::Key>),
    /// A private key of RSA, with its algorithm.
    Rsa(Box<RsaKeyPair>, PairAlgorithm),
    /// A private key of ECDSA, with its algorithm.
    Ecdsa(Box<EcdsaKeyPair>, PairAlgorithm),
    /// A private key of Ed25519.
    Ed25519(Box<Ed25519KeyPair>),
}

impl Signer {
    /// Returns the signer with a shared secret.
    pub fn secret(secret: &[u8]) -> Signer {
        Signer::Secret(Box::new(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// Reads a private key, PEM (PKCS #8).
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it contains no private key of this algorithm.
    pub fn parse(pem: &str, algorithm: PairAlgorithm) -> Result<Signer, String> {
        let der = section(pem, &["PRIVATE KEY"]);
        let (_, der) = der.ok_or("private_key: it is not a PEM text with a private key (PKCS #8)")?;
        let wrong = |_| format!("private_key: it is no key for {}", algorithm.name());
        Ok(match algorithm {
            PairAlgorithm::RsaPssSha512 | PairAlgorithm::RsaV15Sha256 => {
                let pair = RsaKeyPair::from_pkcs8(&der).map_err(wrong)?;
                if pair.public_modulus_len() < KeySize::Rsa2048.len() {
                    return Err("private_key: an RSA key has 2048 bits or more".to_owned());
                }
                Signer::Rsa(Box::new(pair), algorithm)
            }
            PairAlgorithm::EcdsaP256Sha256 => {
                let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der).map_err(wrong)?;
                Signer::Ecdsa(Box::new(pair), algorithm)
            }
            PairAlgorithm::EcdsaP384Sha384 => {
                let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &der).map_err(wrong)?;
                Signer::Ecdsa(Box::new(pair), algorithm)
            }
            PairAlgorithm::Ed25519 => {
                Signer::Ed25519(Box::new(Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map_err(wrong)?))
            }
        })
    }

    /// Returns the name of the key's algorithm.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Signer::Secret(_) => HMAC_SHA256,
            Signer::Rsa(_, algorithm) | Signer::Ecdsa(_, algorithm) => algorithm.name(),
            Signer::Ed25519(_) => PairAlgorithm::Ed25519.name(),
        }
    }

    /// Signs a text. None if the system has no random bytes for it.
    pub fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Signer::Secret(key) => Some(hmac::sign(key, text).as_ref().to_vec()),
            Signer::Rsa(pair, algorithm) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let encoding: &'static dyn RsaEncoding = match algorithm {
                    PairAlgorithm::RsaV15Sha256 => &RSA_PKCS1_SHA256,
                    _ => &RSA_PSS_SHA512,
                };
                pair.sign(encoding, &random, text, &mut signature).ok()?;
                Some(signature)
            }
            Signer::Ecdsa(pair, _) => Some(pair.sign(&random, text).ok()?.as_ref().to_vec()),
            Signer::Ed25519(pair) => Some(pair.sign(text).as_ref().to_vec()),
        }
    }
}
