//! `jwe-decrypt`: an encrypted token (RFC 7516) in a field, for the node in cleartext.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::credentials::Credential;
use sigma_plugin::descriptor::parsed;
use sigma_plugin::owned::texts;
use sigma_plugin::{
    Auth, Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Reply, Step,
};
use sigma_schema::Confidential;

use crate::shared::tokens::{after_bearer, object_of};
use sigma_plugin_kit::fields::{frames, is_name};

/// Decrypts tokens.
pub(crate) static JWE_DECRYPT: Descriptor = Descriptor {
    name: "jwe-decrypt",
    priority: 2509,
    example: include_str!("example.md"),
    credentials: Some(|conf| {
        let names = texts(conf, "header").chain(texts(conf, "forward_header"));
        names.map(Credential::field).collect()
    }),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    auth: Some(Auth {
        parse: |conf| Ok(Arc::new(Secret::new(&parsed(conf)?)?)),
        ..Auth::of::<Consumer>("key")
    }),
    owned_fields: Some(owned_fields),
    ..Descriptor::itself::<JweDecrypt>()
};

/// Decrypts an encrypted token (JWE) with the secret of a consumer, for the node.
///
/// The token names the consumer's key (`kid`). It is encrypted with AES-256-GCM under the consumer's secret itself
/// (`alg: dir`, `enc: A256GCM`). The request is not attached to the consumer: the token only proves that its author
/// has the secret.
#[derive(Deserialize, JsonSchema)]
struct JweDecrypt {
    /// The field with the token, with or without a `Bearer` prefix.
    #[schemars(extend("default" = "Authorization"))]
    header: String,
    /// The field in which the node gets the decrypted text. The node never gets this field from the client.
    #[schemars(extend("default" = "Authorization"))]
    forward_header: String,
    /// Whether requests without a token are refused.
    #[schemars(extend("default" = true))]
    strict: bool,
}

impl Configuration for JweDecrypt {
    fn check(&self) -> Result<(), String> {
        for (field, name) in [("header", &self.header), ("forward_header", &self.forward_header)] {
            if !is_name(name) {
                return Err(format!("{field}: `{name}` is not the name of a header field"));
            }
        }
        if frames(&self.forward_header) || self.forward_header.eq_ignore_ascii_case("host") {
            return Err(format!("forward_header: the gateway itself sets `{}`", self.forward_header));
        }
        Ok(())
    }
}

/// The field of the node's, which may be the token's as well.
fn owned_fields(conf: &Value) -> Vec<OwnedField> {
    let name = |member: &str| conf.get(member).and_then(Value::as_str).unwrap_or_default();
    let (header, forward) = (name("header"), name("forward_header"));
    match header.eq_ignore_ascii_case(forward) {
        true => vec![OwnedField::judged(forward)],
        false => vec![OwnedField::sole(forward)],
    }
}

/// The configuration of a consumer or credential.
#[derive(Deserialize, JsonSchema)]
struct Consumer {
    /// `kid` of the consumer's tokens; it must be unique among consumers.
    #[serde(rename = "key")]
    #[schemars(length(min = 1))]
    _key: Confidential,
    /// The secret: 32 bytes.
    secret: Confidential,
    /// Whether `secret` is written in base64url.
    is_base64_encoded: Option<bool>,
}

impl Configuration for Consumer {}

/// The key of a consumer.
pub(super) struct Secret(pub(super) Box<[u8]>);

impl Secret {
    fn new(consumer: &Consumer) -> Result<Secret, String> {
        let text = consumer.secret.reveal();
        if consumer.is_base64_encoded != Some(true) {
            return match text.len() {
                32 => Ok(Secret(text.as_bytes().into())),
                _ => Err("the secret length should be 32 chars".to_owned()),
            };
        }
        let decoded = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        let decoded = decoded.filter(|bytes| bytes.len() == 32);
        decoded
            .map(|bytes| Secret(bytes.into()))
            .ok_or_else(|| "the secret length after base64 decode should be 32 chars".to_owned())
    }

    /// What was encrypted.
    pub(super) fn open(&self, token: &Encrypted<'_>) -> Option<Vec<u8>> {
        let nonce: [u8; 12] = URL_SAFE_NO_PAD.decode(token.iv).ok()?.try_into().ok()?;
        let tag: [u8; 16] = URL_SAFE_NO_PAD.decode(token.tag).ok()?.try_into().ok()?;
        let mut text = URL_SAFE_NO_PAD.decode(token.text).ok()?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &self.0).ok()?);
        // RFC 7516 §5.1 has the header authenticated; tokens of APISIX leave it out.
        for aad in [token.header, b""] {
            let mut sealed = [&text[..], &tag[..]].concat();
            let opened = key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(aad), &mut sealed);
            if let Ok(opened) = opened {
                let length = opened.len();
                sealed.truncate(length);
                text = sealed;
                return Some(text);
            }
        }
        None
    }
}

/// The parts of a token (RFC 7516 §7.1).
pub(super) struct Encrypted<'t> {
    header: &'t [u8],
    iv: &'t [u8],
    text: &'t [u8],
    tag: &'t [u8],
}

impl<'t> Encrypted<'t> {
    /// Reads a token, with or without `Bearer` before it: the name of its key, and its parts.
    ///
    /// # Errors
    /// Returns an error, worded as APISIX words it, if the value is no token or names no key.
    pub(super) fn parse(value: &'t [u8]) -> Result<(String, Encrypted<'t>), &'static str> {
        const INVALID: &str = "JWE token invalid";
        let parts: Vec<&[u8]> = after_bearer(value).unwrap_or(value).splitn(6, |b| *b == b'.').collect();
        let [header, _, iv, text, tag] = parts[..] else { return Err(INVALID) };
        let members = URL_SAFE_NO_PAD.decode(header).ok().and_then(|text| object_of(&text)).ok_or(INVALID)?;
        let kid = match members.get("kid") {
            None | Some(Value::Null) => return Err("missing kid in JWE token"),
            Some(kid) => kid.as_str().unwrap_or_default().to_owned(),
        };
        Ok((kid, Encrypted { header, iv, text, tag }))
    }
}

impl JweDecrypt {
    fn decrypted(&self, value: &[u8], env: &Env<'_>) -> Result<Vec<u8>, &'static str> {
        let (kid, token) = Encrypted::parse(value)?;
        let identity = env.consumers.find("jwe-decrypt", &kid).filter(|_| !kid.is_empty());
        let secret = identity.and_then(|identity| identity.data::<Secret>());
        let secret = secret.ok_or("invalid kid in JWE token")?;
        let opened = secret.open(&token);
        // Bytes that no field can hold would be another request to the node.
        let opened = opened.filter(|text| !text.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
        opened.ok_or("failed to decrypt JWE token")
    }
}

impl Plugin for JweDecrypt {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let value = ctx.request.headers.find(self.header.as_bytes()).map(<[u8]>::to_vec);
        let Some(value) = value else {
            if self.strict {
                return refuse(403, "missing JWE token in request");
            }
            ctx.mark_unknown();
            return Step::Next;
        };
        match self.decrypted(&value, env) {
            Ok(text) => {
                ctx.mark_personal("jwe-decrypt", Some(digest(&SHA256, &text).as_ref()));
                let headers = &mut ctx.request.headers;
                headers.remove_name(self.forward_header.as_bytes());
                headers.append(&self.forward_header, &text);
                Step::Next
            }
            Err(message) => refuse(400, message),
        }
    }
}

fn refuse(status: u16, message: &'static str) -> Step {
    Reply::new(status).json(&json!({ "message": message })).because(message).into()
}

#[cfg(test)]
mod tests {
    use sigma_plugin::Phase as Hook;
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, entry, refusal, refusal_in, summary};

    const SECRET: &[u8; 32] = b"-secret-length-must-be-32-chars-";

    /// A token, with the header authenticated as RFC 7516 says, or without.
    fn token(secret: &[u8; 32], header: &Value, text: &[u8], is_bound: bool) -> String {
        let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let header = encoded(header.to_string().as_bytes());
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, secret).unwrap());
        let aad = if is_bound { header.as_bytes() } else { b"" };
        let mut sealed = text.to_vec();
        let tag = key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key([7; 12]), Aad::from(aad), &mut sealed)
            .unwrap();
        format!("{header}..{}.{}.{}", encoded(&[7; 12]), encoded(&sealed), encoded(tag.as_ref()))
    }

    fn header(kid: &str) -> Value {
        json!({"alg": "dir", "kid": kid, "enc": "A256GCM"})
    }

    fn case() -> Case {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        let secret = std::str::from_utf8(SECRET).unwrap();
        case.consumer("jack", "jwe-decrypt", &json!({"key": "jack", "secret": secret}));
        let encoded = URL_SAFE_NO_PAD.encode([9; 32]);
        case.consumer(
            "jill",
            "jwe-decrypt",
            &json!({"key": "jill", "secret": encoded, "is_base64_encoded": true}),
        );
        case
    }

    fn told(case: &mut Case, conf: &Value, fields: &str) -> String {
        case.request(&format!("GET / HTTP/1.1\nHost: h\nX-Consumer-Username: liar\n{fields}"));
        let reply = case.run(&entry("jwe-decrypt", conf.clone()).unwrap(), Hook::Rewrite);
        match reply {
            Some(reply) => summary(Some(&reply)),
            None => format!("passed {}", case.sent("x-plain").unwrap_or_default()),
        }
    }

    #[test]
    fn tokens_are_decrypted() {
        let (mut case, conf) = (case(), json!({"header": "X-Token", "forward_header": "X-Plain"}));
        let mut check = |token: &str, expected: &str| {
            assert_eq!(
                told(&mut case, &conf, &format!("X-Plain: lie\nX-Token: {token}")),
                expected,
                "{token}"
            );
        };
        for is_bound in [true, false] {
            let good = token(SECRET, &header("jack"), b"hello", is_bound);
            check(&good, "passed hello");
            check(&format!("Bearer {good}"), "passed hello");
            check(&format!("bearer {good}"), "passed hello");
            check(&format!("BEARER   {good}"), "passed hello");
            check(&format!("Basic {good}"), r#"400 {"message":"JWE token invalid"}"#);
        }
        check(&token(&[9; 32], &header("jill"), b"hello", true), "passed hello");
        let failed = r#"400 {"message":"failed to decrypt JWE token"}"#;
        check(&token(&[9; 32], &header("jack"), b"hello", true), failed);
        check(&token(SECRET, &header("jill"), b"hello", true), failed);
        check(&token(SECRET, &header("jack"), b"a\r\nX-Admin: 1", true), failed);
        let good = token(SECRET, &header("jack"), b"hello", true);
        let parts: Vec<&str> = good.split('.').collect();
        let with = |at: usize, part: &str| {
            let mut parts = parts.clone();
            parts[at] = part;
            parts.join(".")
        };
        for part in ["", "AAAA", "!", "BwcHBwcHBwcHBwcHBwcHBwcHBwc"] {
            for at in 2..5 {
                check(&with(at, part), failed);
            }
        }
        let invalid = r#"400 {"message":"JWE token invalid"}"#;
        for wrong in ["", "a.b.c", "a.b.c.d.e", "e30=....", &format!("{good}.x"), &with(0, "W10")] {
            check(wrong, invalid);
        }
        check(&with(0, "e30"), r#"400 {"message":"missing kid in JWE token"}"#);
        for kid in [json!("joe"), json!(""), json!(7)] {
            let header = json!({"alg": "dir", "kid": kid});
            check(&token(SECRET, &header, b"x", true), r#"400 {"message":"invalid kid in JWE token"}"#);
        }
    }

    #[test]
    fn requests_without_a_token_depend() {
        let mut case = case();
        let missing = r#"403 {"message":"missing JWE token in request"}"#;
        assert_eq!(told(&mut case, &json!({"header": "X-Token", "forward_header": "X-Plain"}), ""), missing);
        let lenient = json!({"header": "X-Token", "forward_header": "X-Plain", "strict": false});
        assert_eq!(told(&mut case, &lenient, "X-Plain: lie"), "passed ");
        // Nobody is attached.
        assert!(case.ctx.consumer().is_none());
        // Both are Authorization unless they are named.
        let value = token(SECRET, &header("jack"), b"Bearer inner", true);
        case.request(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: Bearer {value}"));
        assert!(case.run(&entry("jwe-decrypt", json!({})).unwrap(), Hook::Rewrite).is_none());
        assert_eq!(case.sent("authorization").as_deref(), Some("Bearer inner"));
    }

    #[test]
    fn bad_configurations_are_refused() {
        let consumer = |conf: Value| refusal_in("jwe-decrypt", PluginScope::Consumer, &conf);
        assert_eq!(consumer(json!({"secret": "a"})), "property \"key\" is required");
        assert_eq!(consumer(json!({"key": "a"})), "property \"secret\" is required");
        let short = "the secret length should be 32 chars";
        assert_eq!(consumer(json!({"key": "a", "secret": "short"})), short);
        let encoded = |bytes: usize| json!({"key": "a", "is_base64_encoded": true, "secret": URL_SAFE_NO_PAD.encode(vec![1; bytes])});
        assert_eq!(consumer(encoded(31)), "the secret length after base64 decode should be 32 chars");
        assert_eq!(consumer(encoded(32)), "");
        assert_eq!(consumer(json!({"key": "a", "secret": "$env://SECRET"})), "");
        let route = |conf: Value| refusal("jwe-decrypt", &conf);
        assert_eq!(route(json!({"header": "a b"})), "header: `a b` is not the name of a header field");
        assert_eq!(
            route(json!({"forward_header": "Host"})),
            "forward_header: the gateway itself sets `Host`"
        );
        assert_eq!(route(json!({})), "");
    }
}
