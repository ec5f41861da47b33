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

/// Private keys in the forms that programs write: RSA (PKCS #1), P-256 (SEC 1) and P-521 (PKCS #8).
pub(crate) const RSA: &str = "-----BEGIN RSA PRIVATE KEY-----
MIIEowIBAAKCAQEA10DTN+qhQjiC6YbPcUaZUCYlNY64RQodcbfj0Omw9LGPrrmd
h+cmTHTBRxch6lA1e5+GpglVT3uIy/D++PfDfMywohU+dH53I7HLMXwAMBfLlUbl
xZ+kijY69DM59pj36dYWJVMNeIAyEZth15UfLRzoRpY0eTQceV9eHHV95iJluyXc
DdSHq9tULVCxSb/UifiVgHlDQn91wuGoktGAOmJbGLWtSbujycv/WFPYOERSJszT
RAYg38RIp7tEgTESsnqi0f7RJnl8ncavFyqMt3jMwFaPEJyCN1p/I6VtplFOGJ6p
pDY4ouzQH1nDk6yXUHtzs6DV3fjPuf5vGK1avwIDAQABAoIBABQKQ3/ptsC5DSsb
s3V62qw1GPK/ClXXJr2fHrUlBKYLX/Km8k0kTpMArbvmIfC0Lf6H8BvGM6yWNjqy
gbKBMrCMSAeXDbz/xyzKET5WqpfPp1MLCjpXbhS2DtAMcuGMBUy+c0pfTJpC6SZt
fnL5PbFQByoHMvRzzxDXuaXRpHqH3o3SSarFowPy94e32cTQC31YJuAZH7OLGjsS
Ka/t0ldp56v/x65aUf36FFhul3s4kMv1+V6AHfRn5bMW2oQZg8akYtCgyNjXzB+3
lcSX5PtAZ7h9yBJwfUGObv8+vmQjWQS6abcfEl0DoSwU7ctnIyHJ4qmD2kAjuAq5
uBdq6OECgYEA8+XK1WVsUcljKMrTfXpwnn7CbHfxtTh+ZKeniqqLxC5ynOhCewrd
QsJtqmdCpdO0MqMv4vvA082vRhFn52ler8xLOazYOd3O/n8l35YSlWOhgUUsWhAW
eaIFdaCCXdXLCRcQ70M3+MPITxfSdMYywTQsfkL5WYNL7ekiG7Oaah8CgYEA4e8q
a19zx027oxR5qFaWFahgS/kRhHyjfc80oXA2XfLLQgA4+Th4XgmRdrdryRFhp7SA
n/T3Q1tNlaWNw2LMKTOsO/pZvMm4JqjuKKJbzqpG5r84B3gz+oaeSqnv3l+RBmHY
+ug6qwalMvBSd+KwIIuTz+SPPpgPPg94acCKO2ECgYEAn53Bksqfix7rICUtJ69b
yL5YazhMHTdtsF3wTdWzRp7HL1zpNTE1AJ3Ru3V8rp3QDlux2TC9T2AK1yZJA693
4kEm8gXmNGivMOrxVFQYsV/UsI8eqYphyxR30jVLXDGwgLBxysQI+2rVyr1iZD3Z
tYt5muAl46kDph2uzsZJxi0CgYBQzefe9QmEe3GjVrxYD3eoEUs3gMHaH3WdllDd
eDOJkD9PwKKfx6mNAGENE3ayN8w0XaMvEj6o0WvDHK3B9oDML5Xm8ZfMpFx/PyXG
VKL/G/k1p6gTS9NTQ3gzfemzH3zPyoj+27W32y2UNU1ZYTLawPDBhp4QpfO1n3TS
ZbFKoQKBgDJjue2IjhDbgnnIv8AqE4ahxknsqiIh089o1fJvsnRNqBizG7g9RrY8
mN5jI9U4d6FeEz0AFCsfJ5Fh3fHEPvLzIs2Kzw+VqV3P6BQwKMZZZMaqLrJzVCDl
N1FMmABxsWO0raEuc9IJCKS+awICShAdvDHGZUT+Fi2p930jlhBr
-----END RSA PRIVATE KEY-----";
pub(crate) const P256: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIJ7/YVjm4iW97XlIWrbxqT5fGjHCy64MvIpfGBHojQrNoAoGCCqGSM49
AwEHoUQDQgAEenIHgZPOi5oIiRoSIaJ7HcoM1CaG3PWMp6QtLIvfLKGBCbdcf4U9
nxCxlk9E1muXx5EHNy1tuzGIAb8V3XnxFg==
-----END EC PRIVATE KEY-----";
pub(crate) const P521: &str = "-----BEGIN PRIVATE KEY-----
MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIBmSUA1QF2DXv1Q6l2
KZ1mavehSy8WqFS50Ji5GRZSqQ7HpOa6A6dklwwD5CBAhplK06lEhX0NsHSyoqbs
fLB0fPWhgYkDgYYABADf48IbdztUAjgfZISAVOdIPcoW+EeATpofQtw91lSYL2qv
2Pd9zEWrZYCIW+HEpOmhlZdI1f0p/tSrfCinAoWH5wA4+UCv00H7yHwi/Qkm+Q6p
osTY4e1V1im6esfaxZWLhWWBuD2eC5ST2zJ2YWOPWSBwbzgd4t22jQCQofnPmg6g
/g==
-----END PRIVATE KEY-----";
/// Their public halves.
pub(crate) const RSA_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA10DTN+qhQjiC6YbPcUaZ
UCYlNY64RQodcbfj0Omw9LGPrrmdh+cmTHTBRxch6lA1e5+GpglVT3uIy/D++PfD
fMywohU+dH53I7HLMXwAMBfLlUblxZ+kijY69DM59pj36dYWJVMNeIAyEZth15Uf
LRzoRpY0eTQceV9eHHV95iJluyXcDdSHq9tULVCxSb/UifiVgHlDQn91wuGoktGA
OmJbGLWtSbujycv/WFPYOERSJszTRAYg38RIp7tEgTESsnqi0f7RJnl8ncavFyqM
t3jMwFaPEJyCN1p/I6VtplFOGJ6ppDY4ouzQH1nDk6yXUHtzs6DV3fjPuf5vGK1a
vwIDAQAB
-----END PUBLIC KEY-----";
pub(crate) const P256_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEenIHgZPOi5oIiRoSIaJ7HcoM1CaG
3PWMp6QtLIvfLKGBCbdcf4U9nxCxlk9E1muXx5EHNy1tuzGIAb8V3XnxFg==
-----END PUBLIC KEY-----";
pub(crate) const P521_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MIGbMBAGByqGSM49AgEGBSuBBAAjA4GGAAQA3+PCG3c7VAI4H2SEgFTnSD3KFvhH
gE6aH0LcPdZUmC9qr9j3fcxFq2WAiFvhxKTpoZWXSNX9Kf7Uq3wopwKFh+cAOPlA
r9NB+8h8Iv0JJvkOqaLE2OHtVdYpunrH2sWVi4Vlgbg9nguUk9sydmFjj1kgcG84
HeLdto0AkKH5z5oOoP4=
-----END PUBLIC KEY-----";

/// The public half of `P256` as an issuer publishes it.
pub(crate) fn p256_jwk() -> Value {
    json!({"kty": "EC", "crv": "P-256", "x": "enIHgZPOi5oIiRoSIaJ7HcoM1CaG3PWMp6QtLIvfLKE", "y": "gQm3XH-FPZ8QsZZPRNZrl8eRBzctbbsxiAG_Fd158RY"})
}

type Sign = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// A signer with a key.
pub(crate) struct Signer {
    /// The public half, with a name and without `alg`.
    pub(crate) jwk: Value,
    algorithm: &'static str,
    sign: Sign,
}

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub(crate) fn new(kid: &str, algorithm: &'static str) -> Signer {
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
            other => panic!("no signer for {other}"),
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
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm, "kid": self.jwk["kid"]}), claims)
    }

    /// Returns a token with this header, valid or not.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        signed(header, claims, &self.sign)
    }

    /// The public half with further members, or others.
    pub(crate) fn jwk_with(&self, more: &Value) -> Value {
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
pub(crate) fn hs256(secret: &[u8], header: &Value, claims: &Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    signed(header, claims, |text| hmac::sign(&key, text).as_ref().to_vec())
}

/// A set of these keys.
pub(crate) fn set_of(keys: &[&Value]) -> String {
    json!({"keys": keys}).to_string()
}
