//! An issuer for tests: keys, tokens and sets of keys.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::key::element;

type Sign = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// Somebody with a key.
pub(in crate::auth) struct Signer {
    /// The public half, with a name and without `alg`.
    pub(in crate::auth) jwk: Value,
    algorithm: &'static str,
    sign: Sign,
}

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub(in crate::auth) fn new(kid: &str, algorithm: &'static str) -> Signer {
        match algorithm {
            "ES256" => Signer::elliptic(kid, algorithm, "P-256", &ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => Signer::elliptic(kid, algorithm, "P-384", &ECDSA_P384_SHA384_FIXED_SIGNING),
            "ES512" => Signer::elliptic(kid, algorithm, "P-521", &ECDSA_P521_SHA512_FIXED_SIGNING),
            "RS256" | "PS256" => Signer::rsa(kid, algorithm),
            "EdDSA" => {
                let pair = Ed25519KeyPair::generate().unwrap();
                let x = encoded(pair.public_key().as_ref());
                let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x});
                Signer { jwk, algorithm, sign: Box::new(move |text| pair.sign(text).as_ref().to_vec()) }
            }
            other => panic!("nobody signs with {other}"),
        }
    }

    fn elliptic(
        kid: &str,
        algorithm: &'static str,
        curve: &str,
        signing: &'static EcdsaSigningAlgorithm,
    ) -> Signer {
        let pair = EcdsaKeyPair::generate(signing).unwrap();
        let (x, y) = {
            let point = &pair.public_key().as_ref()[1..];
            let (x, y) = point.split_at(point.len() / 2);
            (encoded(x), encoded(y))
        };
        let jwk = json!({"kty": "EC", "crv": curve, "kid": kid, "x": x, "y": y});
        let sign = move |text: &[u8]| pair.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec();
        Signer { jwk, algorithm, sign: Box::new(sign) }
    }

    fn rsa(kid: &str, algorithm: &'static str) -> Signer {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        // RSAPublicKey (RFC 8017 §A.1.1): two integers, the first with a zero before it.
        let (members, _) = element(pair.public_key().as_ref(), 0x30).unwrap();
        let (n, rest) = element(members, 0x02).unwrap();
        let (n, e) = (encoded(n.strip_prefix(&[0]).unwrap()), encoded(element(rest, 0x02).unwrap().0));
        let jwk = json!({"kty": "RSA", "kid": kid, "n": n, "e": e});
        let sign = move |text: &[u8]| {
            let mut signature = vec![0; pair.public_modulus_len()];
            let random = SystemRandom::new();
            match algorithm {
                "RS256" => pair.sign(&RSA_PKCS1_SHA256, &random, text, &mut signature).unwrap(),
                _ => pair.sign(&RSA_PSS_SHA256, &random, text, &mut signature).unwrap(),
            }
            signature
        };
        Signer { jwk, algorithm, sign: Box::new(sign) }
    }

    /// A token with these claims.
    pub(in crate::auth) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm, "kid": self.jwk["kid"]}), claims)
    }

    /// A token with this header, whatever it says.
    pub(in crate::auth) fn token_with(&self, header: &Value, claims: &Value) -> String {
        signed(header, claims, &self.sign)
    }

    /// The public half with further members, or others.
    pub(in crate::auth) fn jwk_with(&self, more: &Value) -> Value {
        let mut jwk = self.jwk.clone();
        jwk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        jwk
    }
}

fn signed(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let text =
        format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
    let signature = encoded(&sign(text.as_bytes()));
    format!("{text}.{signature}")
}

/// A token that is signed with a secret, which may be anything that an attacker knows.
pub(in crate::auth) fn hs256(secret: &[u8], header: &Value, claims: &Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    signed(header, claims, |text| hmac::sign(&key, text).as_ref().to_vec())
}

/// A set of these keys.
pub(in crate::auth) fn set_of(keys: &[&Value]) -> String {
    json!({"keys": keys}).to_string()
}
