//! A token in the compact serialisation of RFC 7515 §7.1.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A token that was read, and not verified yet.
pub(super) struct Token {
    /// Its members `alg`, `crit` …
    pub(super) header: Map<String, Value>,
    /// What it claims.
    pub(super) claims: Map<String, Value>,
    /// The signature, decoded. None if it is no base64url.
    pub(super) signature: Option<Vec<u8>>,
    text: Vec<u8>,
    signed: usize,
}

/// A claim about time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Claim {
    /// The token is good until this second.
    Exp,
    /// The token is not good before this second.
    Nbf,
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if the text is not a token.
    pub(super) fn parse(text: Vec<u8>) -> Result<Token, &'static str> {
        let parts: Vec<&[u8]> = text.split(|b| *b == b'.').collect();
        let [header, claims, signature] = parts[..] else {
            return Err("JWT token invalid: invalid jwt string");
        };
        Ok(Token {
            header: object(header).ok_or("JWT token invalid: invalid header")?,
            claims: object(claims).ok_or("JWT token invalid: invalid payload")?,
            signature: URL_SAFE_NO_PAD.decode(signature).ok(),
            signed: header.len() + 1 + claims.len(),
            text,
        })
    }

    /// What the signature is about.
    pub(super) fn signed(&self) -> &[u8] {
        &self.text[..self.signed]
    }

    /// Whether the claims about time hold at `now`, seconds since 1970, give or take `grace_s`.
    /// Claims of `required` must be present; without any, those that are present are looked at.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if a claim does not hold.
    pub(super) fn in_time(&self, required: &[Claim], now: f64, grace_s: f64) -> Result<(), &'static str> {
        if required.is_empty() {
            self.expires_after(now - grace_s, false)?;
            return self.starts_before(now + grace_s, false);
        }
        required.iter().try_for_each(|claim| match claim {
            Claim::Exp => self.expires_after(now - grace_s, true),
            Claim::Nbf => self.starts_before(now + grace_s, true),
        })
    }

    fn expires_after(&self, second: f64, required: bool) -> Result<(), &'static str> {
        match self.claims.get("exp").map(Value::as_f64) {
            None if required => Err("failed to verify jwt: 'exp' claim is missing"),
            None => Ok(()),
            Some(None) => Err("failed to verify jwt: 'exp' claim is no number"),
            Some(Some(exp)) if exp > second => Ok(()),
            Some(Some(_)) => Err("failed to verify jwt: 'exp' claim expired"),
        }
    }

    fn starts_before(&self, second: f64, required: bool) -> Result<(), &'static str> {
        match self.claims.get("nbf").map(Value::as_f64) {
            None if required => Err("failed to verify jwt: 'nbf' claim is missing"),
            None => Ok(()),
            Some(None) => Err("failed to verify jwt: 'nbf' claim is no number"),
            Some(Some(nbf)) if nbf < second => Ok(()),
            Some(Some(_)) => Err("failed to verify jwt: 'nbf' claim is not reached yet"),
        }
    }
}

fn object(part: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}
