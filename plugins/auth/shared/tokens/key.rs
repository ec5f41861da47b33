//! A key that signatures are verified with.

use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::ParsedPublicKey;
use sigma_plugin::Env;

use super::algorithm::Algorithm;
use super::token::Token;
use super::verdicts::Verdicts;
use sigma_plugin_kit::pem::section;

/// A key, for one algorithm.
pub(crate) struct Key {
    algorithm: Algorithm,
    material: Material,
}

enum Material {
    /// As bytes: a prepared key is over a kilobyte, and there may be very many consumers.
    Secret(hmac::Algorithm, Box<[u8]>),
    Public(Box<ParsedPublicKey>),
}

/// A public key, for each of the algorithms that it may be used with.
pub(crate) struct KeyRing(Vec<Key>);

/// The message for a text without a public key for the algorithm.
const MISSING: &str = "missing valid public key";

/// Bits of the modulus of an RSA key that is neither forgeable nor a burden.
pub(super) const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

impl Key {
    /// A secret that both sides know; None if the algorithm uses no secret.
    pub(crate) fn secret(algorithm: Algorithm, secret: &[u8]) -> Option<Key> {
        let material = Material::Secret(algorithm.shared()?, secret.into());
        Some(Key { algorithm, material })
    }

    /// A public key that was made for this algorithm.
    pub(super) fn public(algorithm: Algorithm, key: ParsedPublicKey) -> Key {
        Key { algorithm, material: Material::Public(Box::new(key)) }
    }

    /// The first public key of a PEM text. Of RSA those that are too short are refused, unless
    /// `allow_short` takes them from 1,024 bits.
    ///
    /// # Errors
    /// Returns an error, worded as APISIX words it, if no key fits the algorithm.
    pub(crate) fn of_pem(pem: &str, algorithm: Algorithm, allow_short: bool) -> Result<Key, String> {
        let der = decoded_pem(pem).ok_or(MISSING)?;
        let verification = algorithm.public().ok_or(MISSING)?;
        let key = ParsedPublicKey::new(verification, &der).map_err(|_| MISSING)?;
        if algorithm.rsa().is_none() {
            return Ok(Key::public(algorithm, key));
        }
        match modulus_bits(&key).ok_or(MISSING)? {
            bits if RSA_BITS.contains(&bits) => Ok(Key::public(algorithm, key)),
            bits @ 1024..2048 if allow_short => {
                let legacy = algorithm.short_rsa().ok_or_else(|| {
                    format!("{MISSING}: an RSA key of {bits} bits can be used with RS256 and RS512 only")
                })?;
                Ok(Key::public(algorithm, ParsedPublicKey::new(legacy, der).map_err(|_| MISSING)?))
            }
            bits => Err(format!(
                "{MISSING}: an RSA key needs 2048 to 8192 bits, but this one has {bits}; `allow_short_rsa_key` allows 1024 or more"
            )),
        }
    }

    /// Its algorithm.
    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether the key has signed the token, with its algorithm and no other.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if the signature is invalid.
    pub(crate) fn verify(&self, token: &Token) -> Result<(), &'static str> {
        token.algorithm(&[self.algorithm])?;
        let signature = token.signature.as_deref().ok_or("signature is no base64url")?;
        let holds = match &self.material {
            Material::Secret(algorithm, secret) => {
                let key = hmac::Key::new(*algorithm, secret);
                hmac::verify(&key, token.signed(), signature).is_ok()
            }
            Material::Public(key) => key.verify_sig(token.signed(), signature).is_ok(),
        };
        if holds { Ok(()) } else { Err("signature mismatch") }
    }
}

impl From<Key> for KeyRing {
    fn from(key: Key) -> KeyRing {
        KeyRing(vec![key])
    }
}

impl KeyRing {
    /// The first public key of a PEM text.
    ///
    /// # Errors
    /// Returns an error, worded as APISIX words it, if no key fits one of the algorithms.
    pub(crate) fn of_pem(pem: &str, algorithms: &[Algorithm]) -> Result<KeyRing, String> {
        let mut fault = MISSING.to_owned();
        let mut keys = Vec::new();
        for algorithm in algorithms {
            match Key::of_pem(pem, *algorithm, false) {
                Ok(key) => keys.push(key),
                Err(reason) if reason.len() > fault.len() => fault = reason,
                Err(_) => {}
            }
        }
        if keys.is_empty() { Err(fault) } else { Ok(KeyRing(keys)) }
    }

    /// Whether the key has signed the token. A signature that this worker has verified before is not verified
    /// again.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if the signature is invalid.
    pub(crate) fn verify(self: &Arc<Self>, token: &Token, env: &Env<'_>) -> Result<(), &'static str> {
        let verdicts = env.local.part(Verdicts::<KeyRing>::default);
        if verdicts.holds(token, self, 0) {
            return Ok(());
        }
        let allowed: Vec<Algorithm> = self.0.iter().map(Key::algorithm).collect();
        let named = token.algorithm(&allowed)?;
        let key = self.0.iter().find(|key| key.algorithm == named);
        key.ok_or("algorithm mismatch")?.verify(token)?;
        verdicts.add(token, self, 0);
        Ok(())
    }
}

/// The bits of an RSA key of a PEM text that is shorter than it should be.
pub(crate) fn short_rsa_bits(pem: &str, algorithm: Algorithm) -> Option<usize> {
    let key = ParsedPublicKey::new(algorithm.short_rsa()?, decoded_pem(pem)?).ok()?;
    modulus_bits(&key).filter(|bits| bits < RSA_BITS.start())
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
    bits_of(modulus)
}

/// Returns the bits of a big-endian number; None for 0.
pub(super) fn bits_of(number: &[u8]) -> Option<usize> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let first = number.get(zeros)?;
    Some((number.len() - zeros) * 8 - first.leading_zeros() as usize)
}

/// Returns the contents of the DER element of this type that `der` begins with, and the rest.
pub(crate) fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
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
pub(crate) fn decoded_pem(text: &str) -> Option<Vec<u8>> {
    section(text, &["PUBLIC KEY", "RSA PUBLIC KEY"]).map(|(_, der)| der)
}
