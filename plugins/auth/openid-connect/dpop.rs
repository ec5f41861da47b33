//! Proofs that the gateway holds the key to which the provider binds its tokens (RFC 9449).

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use sigma_plugin::system::{Host, System};

use super::put::put_with_fields;
use super::random::unguessable;
use crate::shared::tokens::{
    Address, Algorithm, Key, Provider, Reply, SigningKey, Token, WebRequest, object_of,
};

/// A key, and its public half as it is shown.
pub(super) struct Dpop {
    key: SigningKey,
    jwk: Value,
}

/// Checks the type of a public key (RFC 7517), in APISIX's words.
fn check_jwk(algorithm: Algorithm, jwk: &Value) -> Result<(), String> {
    let text = |member: &str| jwk.get(member).and_then(Value::as_str).unwrap_or_default();
    let kty = text("kty");
    let members: &[&str] = match kty {
        "EC" => &["crv", "x", "y"],
        "RSA" => &["e", "n"],
        _ => return Ok(()),
    };
    if members.iter().any(|member| text(member).is_empty()) {
        let members = members.join(", ");
        return Err(format!(
            "property \"dpop.public_jwk\" validation failed: kty \"{kty}\" requires {members}"
        ));
    }
    let (name, needed) = (algorithm.name(), algorithm.key_type());
    match kty == needed {
        true => Ok(()),
        false => {
            Err(format!("property \"dpop.signing_alg\" \"{name}\" requires an {needed} \"dpop.public_jwk\""))
        }
    }
}

/// The method and the address of a request, and the token that it brings.
#[derive(Clone, Copy)]
pub(super) struct Proven<'p> {
    pub(super) method: &'static str,
    pub(super) address: &'p Address,
    pub(super) access_token: Option<&'p str>,
}

impl Dpop {
    /// Pairs a private key (PEM) with its public half (RFC 7517).
    ///
    /// # Errors
    /// Returns an error if they are no pair for this algorithm; it names the field.
    pub(super) fn new(algorithm: Algorithm, private_key: &str, jwk: &Value) -> Result<Dpop, String> {
        let name = algorithm.name();
        check_jwk(algorithm, jwk)?;
        let key = SigningKey::of_pem(private_key, algorithm)
            .map_err(|fault| format!("property \"dpop.private_key\" is not a valid key ({fault})"))?;
        let public = jwk.as_object().and_then(|jwk| Key::of_jwk(jwk, algorithm));
        let public = public.ok_or_else(|| format!("dpop.public_jwk: it is not a public key for {name}"))?;
        let probe = key.token(json!({}), &json!({}))?;
        match Token::parse(probe.into_bytes()).and_then(|probe| public.verify(&probe)) {
            Ok(()) => Ok(Dpop { key, jwk: jwk.clone() }),
            Err(_) => Err("dpop.public_jwk: it is not the public half of `dpop.private_key`".to_owned()),
        }
    }

    /// The value of `DPoP` for a request (RFC 9449 §4.2).
    fn proof(&self, proven: Proven<'_>, nonce: Option<&str>) -> Result<String, String> {
        let now = Host.now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut claims = json!({
            "jti": unguessable(&Host)?, "htm": proven.method, "htu": proven.address.without_arguments(), "iat": now,
        });
        if let Some(token) = proven.access_token {
            claims["ath"] = json!(URL_SAFE_NO_PAD.encode(digest(&SHA256, token.as_bytes())));
        }
        if let Some(nonce) = nonce {
            claims["nonce"] = json!(nonce);
        }
        self.key.token(json!({"typ": "dpop+jwt", "jwk": self.jwk}), &claims)
    }

    /// Puts a question with a proof; once more where the provider wants its nonce in it (RFC 9449 §8, §9).
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no response.
    pub(super) async fn put(
        &self,
        provider: &Provider,
        proven: Proven<'_>,
        question: impl Fn() -> Result<WebRequest, String>,
    ) -> Result<Reply, String> {
        let proved = |nonce: Option<&str>| {
            let mut question = question()?;
            question.fields.push(("DPoP".to_owned(), self.proof(proven, nonce)?.into_bytes()));
            Ok::<_, String>(question)
        };
        let (reply, fields) = put_with_fields(provider, proven.address, proved(None)?).await?;
        match wanted_nonce(&reply, &fields) {
            Some(nonce) => {
                let again = put_with_fields(provider, proven.address, proved(Some(&nonce))?).await?;
                Ok(again.0)
            }
            None => Ok(reply),
        }
    }
}

/// The nonce that a provider wants to see before it does anything.
fn wanted_nonce(reply: &Reply, fields: &HeaderMap) -> Option<String> {
    let nonce = fields.get("dpop-nonce")?.to_str().ok()?.to_owned();
    let says_so =
        || object_of(&reply.body).is_some_and(|body| body.get("error") == Some(&json!("use_dpop_nonce")));
    (reply.status == 401 || reply.status == 400 && says_so()).then_some(nonce)
}
