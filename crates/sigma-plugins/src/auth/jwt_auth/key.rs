//! What the tokens of a consumer are verified with.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, VerificationAlgorithm,
};
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_config::Problem;
use sigma_config::plugins::PluginScope;
use sigma_config::resources::Confidential;
use sigma_plugin::Configuration;

use super::token::Token;

/// Algorithms by their names (RFC 7518 §3.1, RFC 8037 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Algorithm {
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

/// The configuration of a consumer or credential.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Consumer {
    /// What the consumer's tokens have in their key claim; no two consumers have the same one.
    #[serde(rename = "key")]
    #[schemars(length(min = 1))]
    _key: String,
    /// The shared secret of the algorithms HS256, HS384 and HS512.
    #[schemars(length(min = 1))]
    secret: Option<Confidential>,
    /// The public key of all other algorithms, PEM.
    #[schemars(length(min = 1))]
    public_key: Option<String>,
    /// The algorithm that tokens are signed with.
    #[schemars(extend("default" = "HS256"))]
    algorithm: Algorithm,
    /// Without effect, as in APISIX: tokens are issued elsewhere, and end when their own `exp` says so.
    #[serde(rename = "exp")]
    #[schemars(range(min = 1), extend("default" = 86400))]
    _exp: u64,
    /// Whether `secret` is written in base64.
    #[schemars(extend("default" = false))]
    base64_secret: bool,
    /// Seconds by which clocks may differ when `exp` and `nbf` are looked at.
    #[schemars(extend("default" = 0))]
    lifetime_grace_period: u64,
    /// Whether `public_key` may be an RSA key of 1,024 to 2,047 bits, for RS256 and RS512. Such keys can be
    /// forged with effort; for the time until they are replaced.
    #[schemars(extend("default" = false))]
    allow_short_rsa_key: bool,
}

impl Configuration for Consumer {}

/// What is to be said of a consumer's or credential's configuration as it is written.
pub(super) fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    if scope != PluginScope::Consumer {
        return Vec::new();
    }
    let text = |field: &str| conf.get(field).and_then(Value::as_str).unwrap_or_default();
    let mut found = Vec::new();
    if conf.get("exp").is_some() {
        let message = "`exp` has no effect: a token ends when its own `exp` says so";
        found.push(Problem::new("exp", "no_effect", message).hint("remove it"));
    }
    if conf.get("allow_short_rsa_key") == Some(&Value::Bool(true)) {
        let parsed = decoded_pem(text("public_key"));
        let algorithm = conf.get("algorithm").and_then(|name| Algorithm::deserialize(name).ok());
        let key = parsed.zip(algorithm.and_then(Algorithm::short_rsa));
        let key = key.and_then(|(der, algorithm)| ParsedPublicKey::new(algorithm, der).ok());
        if let Some(bits @ ..2048) = key.and_then(|key| modulus_bits(&key)) {
            let message = format!("an RSA key of {bits} bits can be forged with effort");
            found.push(
                Problem::new("public_key", "weak_key", message)
                    .hint("replace it by one of 2048 bits or more"),
            );
        }
    }
    found
}

/// What a consumer's tokens are verified with.
pub(super) struct Verifier {
    algorithm: Algorithm,
    grace_s: f64,
    key: Key,
}

enum Key {
    /// As bytes: a prepared key is over a kilobyte, and there may be very many consumers.
    Secret(hmac::Algorithm, Box<[u8]>),
    Public(Box<ParsedPublicKey>),
}

impl Verifier {
    /// That of a consumer.
    ///
    /// # Errors
    /// Returns an error, worded as APISIX words it, if something is missing or wrong.
    pub(super) fn new(consumer: Consumer) -> Result<Verifier, String> {
        let key = match consumer.algorithm.shared() {
            Some(algorithm) => secret_key(&consumer, algorithm)?,
            None => public_key(&consumer)?,
        };
        // The schema has no upper bound; 2^52 seconds are longer than any clock runs.
        let grace_s = consumer.lifetime_grace_period as f64;
        Ok(Verifier { algorithm: consumer.algorithm, grace_s, key })
    }

    /// Seconds by which clocks may differ.
    pub(super) fn grace_s(&self) -> f64 {
        self.grace_s
    }

    /// Whether the consumer signed the token.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if the signature does not hold.
    pub(super) fn verify(&self, token: &Token) -> Result<(), &'static str> {
        // The token never chooses the algorithm (RFC 8725 §3.1).
        let named = token.header.get("alg").and_then(|name| Algorithm::deserialize(name).ok());
        if named != Some(self.algorithm) {
            return Err("failed to verify jwt: algorithm mismatch");
        }
        // What must be understood, and is not, makes a token invalid (RFC 7515 §4.1.11).
        if token.header.contains_key("crit") {
            return Err("failed to verify jwt: the header has critical members");
        }
        let signature =
            token.signature.as_deref().ok_or("failed to verify jwt: signature is no base64url")?;
        let holds = match &self.key {
            Key::Secret(algorithm, secret) => {
                let key = hmac::Key::new(*algorithm, secret);
                hmac::verify(&key, token.signed(), signature).is_ok()
            }
            Key::Public(key) => key.verify_sig(token.signed(), signature).is_ok(),
        };
        if holds { Ok(()) } else { Err("failed to verify jwt: signature mismatch") }
    }
}

impl Algorithm {
    fn shared(self) -> Option<hmac::Algorithm> {
        match self {
            Algorithm::Hs256 => Some(hmac::HMAC_SHA256),
            Algorithm::Hs384 => Some(hmac::HMAC_SHA384),
            Algorithm::Hs512 => Some(hmac::HMAC_SHA512),
            _ => None,
        }
    }

    /// How its signatures are verified, and whether its keys are those of RSA.
    fn public(self) -> Option<(&'static dyn VerificationAlgorithm, bool)> {
        Some(match self {
            Algorithm::Rs256 => (&RSA_PKCS1_2048_8192_SHA256, true),
            Algorithm::Rs384 => (&RSA_PKCS1_2048_8192_SHA384, true),
            Algorithm::Rs512 => (&RSA_PKCS1_2048_8192_SHA512, true),
            Algorithm::Ps256 => (&RSA_PSS_2048_8192_SHA256, true),
            Algorithm::Ps384 => (&RSA_PSS_2048_8192_SHA384, true),
            Algorithm::Ps512 => (&RSA_PSS_2048_8192_SHA512, true),
            Algorithm::Es256 => (&ECDSA_P256_SHA256_FIXED, false),
            Algorithm::Es384 => (&ECDSA_P384_SHA384_FIXED, false),
            Algorithm::Es512 => (&ECDSA_P521_SHA512_FIXED, false),
            Algorithm::EdDsa => (&ED25519, false),
            Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => return None,
        })
    }

    /// Shorter RSA keys are forgeable (NIST SP 800-131A), so somebody has to ask for them.
    fn short_rsa(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self {
            Algorithm::Rs256 => Some(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY),
            Algorithm::Rs512 => Some(&RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY),
            _ => None,
        }
    }
}

fn secret_key(consumer: &Consumer, algorithm: hmac::Algorithm) -> Result<Key, String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let secret = consumer.secret.as_ref().map(Confidential::reveal);
    let secret = secret.ok_or("property \"secret\" is required when using HS based algorithms")?;
    if !consumer.base64_secret {
        return Ok(Key::Secret(algorithm, secret.as_bytes().into()));
    }
    let secret = LENIENT
        .decode(secret)
        .map_err(|_| "base64_secret required but the secret is not in base64 format")?;
    if secret.is_empty() {
        return Err(
            "property \"secret\" validation failed: nothing is left of it once it is decoded".to_owned()
        );
    }
    Ok(Key::Secret(algorithm, secret.into()))
}

fn public_key(consumer: &Consumer) -> Result<Key, String> {
    const MISSING: &str = "missing valid public key";
    let pem = consumer.public_key.as_deref().ok_or(
        "failed to validate dependent schema for \"algorithm\": \
        value should match only one schema, but matches none",
    )?;
    let der = decoded_pem(pem).ok_or(MISSING)?;
    let (algorithm, is_rsa) = consumer.algorithm.public().ok_or(MISSING)?;
    let key = ParsedPublicKey::new(algorithm, &der).map_err(|_| MISSING)?;
    if !is_rsa {
        return Ok(Key::Public(Box::new(key)));
    }
    match modulus_bits(&key).ok_or(MISSING)? {
        2048..=8192 => Ok(Key::Public(Box::new(key))),
        bits @ 1024..2048 if consumer.allow_short_rsa_key => {
            let legacy = consumer.algorithm.short_rsa().ok_or_else(|| {
                format!("{MISSING}: an RSA key of {bits} bits can be used with RS256 and RS512 only")
            })?;
            Ok(Key::Public(Box::new(ParsedPublicKey::new(legacy, der).map_err(|_| MISSING)?)))
        }
        bits => Err(format!(
            "{MISSING}: an RSA key has 2048 to 8192 bits, this one {bits}; `allow_short_rsa_key` takes \
            1024 and more"
        )),
    }
}

/// How long the modulus of an RSA key is (RFC 8017 §A.1.1, RFC 5280 §4.1).
fn modulus_bits(key: &ParsedPublicKey) -> Option<usize> {
    const INTEGER: u8 = 0x02;
    const BIT_STRING: u8 = 0x03;
    const SEQUENCE: u8 = 0x30;
    let der: PublicKeyX509Der<'_> = key.as_der().ok()?;
    let (info, _) = element(der.as_ref(), SEQUENCE)?;
    let (_, bits) = element(info, SEQUENCE)?;
    let (bits, _) = element(bits, BIT_STRING)?;
    let (key, _) = element(bits.strip_prefix(&[0])?, SEQUENCE)?;
    let (modulus, _) = element(key, INTEGER)?;
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    let first = modulus.get(zeros)?;
    Some((modulus.len() - zeros) * 8 - first.leading_zeros() as usize)
}

/// The contents of the DER element of this type that `der` begins with, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = der.strip_prefix(&[tag])?.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // More bytes than four count no key.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// The first public key of a PEM text (RFC 7468), DER.
fn decoded_pem(text: &str) -> Option<Vec<u8>> {
    let section = |label: &str| {
        let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
        let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
        Some(body)
    };
    let body = section("PUBLIC KEY").or_else(|| section("RSA PUBLIC KEY"))?;
    let body: Vec<u8> = body.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    STANDARD.decode(body).ok()
}
