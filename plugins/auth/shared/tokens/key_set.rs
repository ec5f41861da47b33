//! The keys of an issuer (JSON Web Key Set, RFC 7517 §5).

use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature::ParsedPublicKey;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::key::{Key, RSA_BITS, bits_of};
use super::token::Token;
use sigma_plugin_kit::web::object_of;

/// Most keys of a set. An issuer has two or three; each costs a signature that is verified in vain.
const MOST_KEYS: usize = 100;

/// Most keys that are tried where no name selects one: each costs a verified signature, for any token of a client.
const MOST_NAMELESS: usize = 4;

/// Members that only a private or a symmetric key has (RFC 7518 §6).
const PRIVATE: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// Public keys, each for the algorithms that it may be used with.
#[derive(Default)]
pub(crate) struct KeySet {
    keys: Vec<Named>,
    text: Vec<u8>,
}

/// A key, and its name.
struct Named {
    id: Option<Box<str>>,
    key: Key,
}

/// The keys of a set that may have signed a token.
pub(crate) enum MatchingKeys<'s> {
    /// One of these has signed it, or no published key has.
    Keys(Vec<&'s Key>),
    /// None of them. A newer set may have it.
    None,
}

impl KeySet {
    /// Reads a set. Keys that are for something else, that are insecure, or that this gateway cannot use are omitted,
    /// as RFC 7517 §5 asks: encryption keys, symmetric and private ones, RSA keys that are too short, unknown types
    /// and curves.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the text is no set, or if it has too many keys.
    pub(crate) fn parse(text: Vec<u8>) -> Result<KeySet, String> {
        let set = object_of(&text).ok_or("it is not a JSON object")?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("it has no list `keys`")?;
        if keys.len() > MOST_KEYS {
            return Err(format!("it has {} keys; the maximum is {MOST_KEYS}", keys.len()));
        }
        let keys = keys.iter().filter_map(Value::as_object).flat_map(named_keys).collect();
        Ok(KeySet { keys, text })
    }

    /// The text that it was read from.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether it has no key that can be used.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys that may have signed a token, by its `kid` and an algorithm of `allowed`. OpenID Connect Core §10.1
    /// requests names in a set with several keys. Providers without them exist, so a few keys are tried in turn: all
    /// for a token without a name, those without a name for a token whose name is unknown.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if no key may have signed it, with any later set of the
    /// issuer.
    pub(crate) fn find(
        &self,
        token: &Token,
        allowed: &[Algorithm],
    ) -> Result<MatchingKeys<'_>, &'static str> {
        let algorithm = token.algorithm(allowed)?;
        let fits = |named: &&Named| named.key.algorithm() == algorithm;
        let id = match token.header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.as_str()),
            Some(_) => return Err("'kid' is not a string"),
        };
        let keys_of = |known: &dyn Fn(&Named) -> bool| -> Vec<&Key> {
            self.keys.iter().filter(fits).filter(|named| known(named)).map(|named| &named.key).collect()
        };
        let named = id.map_or_else(Vec::new, |id| keys_of(&|named| named.id.as_deref() == Some(id)));
        if !named.is_empty() {
            return Ok(MatchingKeys::Keys(named));
        }
        let keys = keys_of(&|named| id.is_none() || named.id.is_none());
        match keys.len() {
            0 => Ok(MatchingKeys::None),
            1..=MOST_NAMELESS => Ok(MatchingKeys::Keys(keys)),
            _ => Err("the token has no 'kid', but the issuer has several keys"),
        }
    }
}

/// A key of a set for each algorithm that it may be used with.
fn named_keys(jwk: &Map<String, Value>) -> Vec<Named> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let id = text("kid").map(Box::from);
    let is_for_signatures = jwk.get("use").is_none_or(|purpose| purpose == "sig");
    let may_verify = match jwk.get("key_ops") {
        None => true,
        Some(operations) => operations.as_array().is_some_and(|all| all.iter().any(|name| name == "verify")),
    };
    // A published private key proves nothing about the signer.
    if !is_for_signatures || !may_verify || PRIVATE.iter().any(|member| jwk.contains_key(*member)) {
        return Vec::new();
    }
    let named = |algorithm: &Algorithm| match jwk.get("alg") {
        None => true,
        Some(name) => name.as_str().and_then(Algorithm::of) == Some(*algorithm),
    };
    let key = |algorithm: Algorithm| Some(Key::public(algorithm, parsed(jwk, algorithm)?));
    let keys = Algorithm::PUBLIC.into_iter().filter(named).filter_map(key);
    keys.map(|key| Named { id: Option::clone(&id), key }).collect()
}

impl Key {
    /// A public key as an issuer publishes it, for this algorithm; None if it is invalid, or holds more than
    /// that.
    pub(crate) fn of_jwk(jwk: &Map<String, Value>, algorithm: Algorithm) -> Option<Key> {
        let is_public = !PRIVATE.iter().any(|member| jwk.contains_key(*member));
        parsed(jwk, algorithm).filter(|_| is_public).map(|key| Key::public(algorithm, key))
    }
}

/// The key, if it is one of this algorithm.
fn parsed(jwk: &Map<String, Value>, algorithm: Algorithm) -> Option<ParsedPublicKey> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
    if let Some(parameters) = algorithm.rsa() {
        if text("kty") != Some("RSA") {
            return None;
        }
        let (n, e) = (bytes("n")?, bytes("e")?);
        if !RSA_BITS.contains(&bits_of(&n)?) {
            return None;
        }
        return PublicKeyComponents { n, e }.to_parsed_public_key(parameters).ok();
    }
    let curve = algorithm.curve()?;
    let is_edwards = algorithm == Algorithm::EdDsa;
    if text("kty") != Some(if is_edwards { "OKP" } else { "EC" }) || text("crv") != Some(curve.name) {
        return None;
    }
    let coordinate = |name: &str| bytes(name).filter(|bytes| bytes.len() == curve.bytes);
    let point = match is_edwards {
        true => coordinate("x")?,
        // Uncompressed (SEC 1 §2.3.3).
        false => [vec![4], coordinate("x")?, coordinate("y")?].concat(),
    };
    ParsedPublicKey::new(algorithm.public()?, point).ok()
}
