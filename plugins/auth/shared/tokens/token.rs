//! A token in the compact serialisation of RFC 7515 §7.1.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use sigma_plugin_kit::web::object_of;

/// A token that was read, and not verified yet.
pub(crate) struct Token {
    /// Its members `alg`, `crit` …
    pub(crate) header: Map<String, Value>,
    /// What it claims.
    pub(crate) claims: Map<String, Value>,
    /// The signature, decoded. None if it is no base64url.
    pub(super) signature: Option<Vec<u8>>,
    text: Vec<u8>,
    signed: usize,
}

/// A claim about time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Claim {
    /// The token is valid until this second.
    Exp,
    /// The token is not valid before this second.
    Nbf,
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if the text is not a token.
    pub(crate) fn parse(text: Vec<u8>) -> Result<Token, &'static str> {
        let mut parts = text.split(|b| *b == b'.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("invalid jwt string");
        };
        Ok(Token {
            header: object(header).ok_or("invalid header")?,
            claims: object(claims).ok_or("invalid payload")?,
            signature: URL_SAFE_NO_PAD.decode(signature).ok(),
            signed: header.len() + 1 + claims.len(),
            text,
        })
    }

    /// Its text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns the signed part.
    pub(super) fn signed(&self) -> &[u8] {
        &self.text[..self.signed]
    }

    /// The algorithm that it says it is signed with. That is never reason enough to use it (RFC 8725 §3.1).
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if that is not one of `allowed`, or if the header has
    /// members that must be understood and are not (RFC 7515 §4.1.11).
    pub(super) fn algorithm(&self, allowed: &[Algorithm]) -> Result<Algorithm, &'static str> {
        let named = self.header.get("alg").and_then(Value::as_str).and_then(Algorithm::of);
        let named = named.filter(|named| allowed.contains(named)).ok_or("algorithm mismatch")?;
        if self.header.contains_key("crit") {
            return Err("the header has critical members");
        }
        Ok(named)
    }

    /// A claim as text.
    pub(crate) fn text_claim(&self, name: &str) -> Option<&str> {
        self.claims.get(name).and_then(Value::as_str)
    }

    /// Whether the claims about time hold at `now`, seconds since 1970, give or take `grace_s`.
    /// Claims of `required` must be present; without any, those that are present are looked at.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if a claim does not hold.
    pub(crate) fn in_time(&self, required: &[Claim], now: f64, grace_s: f64) -> Result<(), &'static str> {
        if required.is_empty() {
            self.expires_after(now - grace_s, false)?;
            return self.starts_before(now + grace_s, false);
        }
        required.iter().try_for_each(|claim| match claim {
            Claim::Exp => self.expires_after(now - grace_s, true),
            Claim::Nbf => self.starts_before(now + grace_s, true),
        })
    }

    /// Whether a token of an issuer may be used at `now`, seconds since 1970, give or take `slack_s`: it says when
    /// it ends, and was not made in the future.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if it may not.
    pub(crate) fn in_time_of_issuer(&self, now: f64, slack_s: f64) -> Result<(), &'static str> {
        self.in_time(&[Claim::Exp], now, slack_s)?;
        self.starts_before(now + slack_s + 1.0, false)?;
        match self.claims.get("iat").map(Value::as_f64) {
            None => Ok(()),
            Some(Some(iat)) if iat <= now + slack_s => Ok(()),
            Some(Some(_)) => Err("'iat' claim is in the future"),
            Some(None) => Err("'iat' claim is not a number"),
        }
    }

    fn expires_after(&self, second: f64, required: bool) -> Result<(), &'static str> {
        match self.claims.get("exp").map(Value::as_f64) {
            None if required => Err("'exp' claim is missing"),
            None => Ok(()),
            Some(None) => Err("'exp' claim is not a number"),
            Some(Some(exp)) if exp > second => Ok(()),
            Some(Some(_)) => Err("'exp' claim expired"),
        }
    }

    fn starts_before(&self, second: f64, required: bool) -> Result<(), &'static str> {
        match self.claims.get("nbf").map(Value::as_f64) {
            None if required => Err("'nbf' claim is missing"),
            None => Ok(()),
            Some(None) => Err("'nbf' claim is not a number"),
            Some(Some(nbf)) if nbf < second => Ok(()),
            Some(Some(_)) => Err("'nbf' claim is not reached yet"),
        }
    }
}

fn object(part: &[u8]) -> Option<Map<String, Value>> {
    object_of(&URL_SAFE_NO_PAD.decode(part).ok()?)
}
