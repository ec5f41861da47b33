//! A key that the gateway itself signs tokens with.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::algorithm::Algorithm;
use sigma_plugin_kit::pem::section;

/// A private key or a secret, for one algorithm.
pub(crate) struct SigningKey {
    algorithm: Algorithm,
    material: Material,
}

enum Material {
    Secret(Box<hmac::Key>),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Elliptic(Box<EcdsaKeyPair>),
}

/// PKCS #8, PKCS #1 and SEC 1.
const LABELS: [&str; 3] = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];

impl SigningKey {
    /// A secret that both sides know; None if the algorithm uses no secret.
    pub(crate) fn secret(algorithm: Algorithm, secret: &[u8]) -> Option<SigningKey> {
        let key = hmac::Key::new(algorithm.shared()?, secret);
        Some(SigningKey { algorithm, material: Material::Secret(Box::new(key)) })
    }

    /// Reads a private key, PEM, not encrypted.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it holds no private key for this algorithm.
    pub(crate) fn of_pem(pem: &str, algorithm: Algorithm) -> Result<SigningKey, String> {
        let found = section(pem, &LABELS);
        let (label, der) = found.ok_or("it is not a PEM text with a private key that is not encrypted")?;
        let name = algorithm.name();
        // The library takes no shorter ones.
        let size = if algorithm.rsa().is_some() { " of 2048 bits or more" } else { "" };
        let wrong = |_| format!("it is not a private key{size} for {name}");
        let elliptic = |signing: &'static EcdsaSigningAlgorithm| {
            let pair = match label {
                "EC PRIVATE KEY" => EcdsaKeyPair::from_private_key_der(signing, &der),
                _ => EcdsaKeyPair::from_pkcs8(signing, &der),
            };
            pair.map(|pair| Material::Elliptic(Box::new(pair))).map_err(wrong)
        };
        let rsa = |encoding: &'static dyn RsaEncoding| {
            let pair = match label {
                "RSA PRIVATE KEY" => RsaKeyPair::from_der(&der),
                _ => RsaKeyPair::from_pkcs8(&der),
            };
            pair.map(|pair| Material::Rsa(Box::new(pair), encoding)).map_err(wrong)
        };
        let material = match algorithm {
            Algorithm::Rs256 => rsa(&RSA_PKCS1_SHA256)?,
            Algorithm::Rs512 => rsa(&RSA_PKCS1_SHA512)?,
            Algorithm::Ps256 => rsa(&RSA_PSS_SHA256)?,
            Algorithm::Es256 => elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING)?,
            Algorithm::Es512 => elliptic(&ECDSA_P521_SHA512_FIXED_SIGNING)?,
            _ => return Err(format!("the algorithm {name} cannot sign")),
        };
        Ok(SigningKey { algorithm, material })
    }

    /// A token with these claims; `header` is all of its header but the algorithm.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it cannot be signed.
    pub(crate) fn token(&self, mut header: Value, claims: &Value) -> Result<String, String> {
        header["alg"] = json!(self.algorithm.name());
        let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encoded(&header), encoded(claims));
        let signature = self.sign(text.as_bytes()).ok_or("cannot sign a token")?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The signature of a text; None if it cannot be signed.
    pub(crate) fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &self.material {
            Material::Secret(key) => Some(hmac::sign(key, text).as_ref().to_vec()),
            Material::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(*encoding, &random, text, &mut signature).ok()?;
                Some(signature)
            }
            Material::Elliptic(pair) => Some(pair.sign(&random, text).ok()?.as_ref().to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tokens::signing::{P256, P256_PUBLIC, P521, P521_PUBLIC, RSA, RSA_PUBLIC};
    use crate::shared::tokens::{Key, Token};

    #[test]
    fn signatures_are_verified() {
        let check = |name: &str, private: &str, public: &str| {
            let algorithm = Algorithm::of(name).unwrap();
            let signed =
                SigningKey::of_pem(private, algorithm).unwrap().token(json!({"kid": "k"}), &json!({"a": 1}));
            let token = Token::parse(signed.unwrap().into_bytes()).unwrap();
            assert_eq!(Value::Object(token.header.clone()), json!({"kid": "k", "alg": name}));
            assert_eq!(Value::Object(token.claims.clone()), json!({"a": 1}));
            assert_eq!(Key::of_pem(public, algorithm, false).unwrap().verify(&token), Ok(()), "{name}");
        };
        for name in ["RS256", "RS512", "PS256"] {
            check(name, RSA, RSA_PUBLIC);
        }
        check("ES256", P256, P256_PUBLIC);
        check("ES512", P521, P521_PUBLIC);
    }

    #[test]
    fn keys_that_do_not_fit() {
        let check = |name: &str, pem: &str, expected: &str| {
            let told = SigningKey::of_pem(pem, Algorithm::of(name).unwrap()).err().unwrap_or_default();
            assert_eq!(told, expected, "{name}");
        };
        check("RS256", P256, "it is not a private key of 2048 bits or more for RS256");
        check("ES256", RSA, "it is not a private key for ES256");
        check("ES256", P521, "it is not a private key for ES256");
        check("ES512", P256, "it is not a private key for ES512");
        check("RS256", RSA_PUBLIC, "it is not a PEM text with a private key that is not encrypted");
        check("RS256", "", "it is not a PEM text with a private key that is not encrypted");
        check("EdDSA", P256, "the algorithm EdDSA cannot sign");
        check("RS256", SHORT, "it is not a private key of 2048 bits or more for RS256");
    }

    const SHORT: &str = "-----BEGIN RSA PRIVATE KEY-----
MIICXQIBAAKBgQDDpTAYn+p+kw3g+6aNm6SScPkoSh+hKNBAf94AdZpSYk9N3RS2
yp8ocj2VyDlxxiQJfFyWG0axPRMStthVZ2agH6lYNPuhRyv9/QklHV87ZwEQ20VD
4J+C+p7c02F3/iZmbwk0N2FmGwR1p+86fpdnDcd87l2i5pptfr0OsXQkDwIDAQAB
AoGATRFNGOYloSacWPvIaA/fjDAkddJ9EybYog+8i8HHwJwpUSq9diPq/ivCRrZQ
qpi6qWHrttWXy0mbscuE/F929Pwyg8SOS6dDr5vxMx6rwkbWbOYvCSfZg11P8gQp
p8Ir4f8sIqz0xclFABVGYW7MQ6xBMYtlRK+d3RgRAC0xTYECQQDgkUftmDlJy7wX
nWxbNwYf++SfV95YeYj0kZUatCPzZsPyn7dchP7txSoaaTxpRIc8XBqEXErJwAFL
8P8ulu8nAkEA3weQK0joXvWRoI3DjHYZ9kEwZJW+J7wycHsUl3r+aAFbxacb+zu7
NRLG+AAYXqXosquVsgybu7oq7glNK0S02QJBAM8CfZiy81Ron5nxPxqSjW3caPLO
MCPE3Q/+R8GW/3D3cXft7Tw3STzrvJUeH1c2mad1i+gpn7N88HUN0l4jOo8CQQCa
zBYNZPIbjpf/9sUmBYape7+J4MD1tVLQ7SxyoyRWrbKzsfPi4Sdjg9/jm7VOZBrp
f9xLkyK4HlPTmVMdV/epAkASuklnPYaTwONoQV8EmTDyQV6PoA2oFsa24m1h+M2n
aTgO0K1mHHKj6upWqvPEpEa62SmpRt6stcOdmo9KhPdn
-----END RSA PRIVATE KEY-----";
}
