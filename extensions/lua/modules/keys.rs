//! Keys that sign and verify, for `resty.openssl.pkey`.

use std::rc::Rc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair as RsaKeyPair;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED,
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA384_ASN1_SIGNING,
    ECDSA_P384_SHA384_FIXED, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_ASN1,
    ECDSA_P521_SHA512_ASN1_SIGNING, ECDSA_P521_SHA512_FIXED, ECDSA_P521_SHA512_FIXED_SIGNING, ED25519,
    EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384,
    RSA_PKCS1_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaSignatureEncoding, UnparsedPublicKey,
    VerificationAlgorithm,
};
use mlua::{AnyUserData, Lua, Table, Value};
use sigma_plugin_kit::pem::section;

use crate::engine::arguments::{Arguments, failed, one, several};
use crate::engine::host::Host;
use crate::ngx::codec::bytes;

/// The largest modulus of a key that signs, in bytes: the work grows with its third power.
const MODULUS_BYTES: usize = 512;

/// Identifiers of algorithms and curves, as DER writes them.
const IDENTIFIERS: [(&[u8], Kind); 5] = [
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01], Kind::Rsa),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], Kind::P256),
    (&[0x2b, 0x81, 0x04, 0x00, 0x22], Kind::P384),
    (&[0x2b, 0x81, 0x04, 0x00, 0x23], Kind::P521),
    (&[0x06, 0x03, 0x2b, 0x65, 0x70], Kind::Ed25519),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    P521,
    Ed25519,
}

/// A key of a script.
struct Key {
    kind: Kind,
    private: Option<Private>,
    /// The public key, as its algorithms read it.
    public: Vec<u8>,
}

enum Private {
    Rsa(Box<RsaKeyPair>),
    /// DER; a pair of this library belongs to one algorithm.
    Curve(Vec<u8>),
    Edwards(Box<Ed25519KeyPair>),
}

/// How a signature is made of a text.
struct Scheme<'a> {
    digest: &'a str,
    is_pss: bool,
    /// Two numbers after each other instead of DER.
    is_raw: bool,
}

/// Registers `key`, `key_sign` and `key_verify`.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, native: &Table) -> mlua::Result<()> {
    host.function(lua, native, "key", |_, arguments| {
        let lua = arguments.lua();
        match Key::parse(&arguments.text(1)?.to_string_lossy()) {
            Ok(key) => {
                let (kind, is_private) = (key.kind, key.private.is_some());
                let key = lua.create_any_userdata(Rc::new(key)).map_err(|error| error.to_string())?;
                let kind = match kind {
                    Kind::Rsa => "rsa",
                    Kind::Ed25519 => "ed25519",
                    _ => "ec",
                };
                several(lua, (key, kind, is_private))
            }
            Err(reason) => failed(lua, reason),
        }
    })?;
    host.function(lua, native, "key_sign", |_, arguments| {
        let (key, text) = (key_of(&arguments)?, arguments.text(2)?);
        let digest = arguments.text(3)?.to_string_lossy();
        let scheme = scheme(&arguments, &digest, 4);
        match key.sign(&text.as_bytes(), &scheme) {
            Ok(signature) => bytes(arguments.lua(), &signature),
            Err(reason) => failed(arguments.lua(), reason),
        }
    })?;
    host.function(lua, native, "key_verify", |_, arguments| {
        let (key, text, signature) = (key_of(&arguments)?, arguments.text(2)?, arguments.text(3)?);
        let digest = arguments.text(4)?.to_string_lossy();
        let scheme = scheme(&arguments, &digest, 5);
        match key.verify(&text.as_bytes(), &signature.as_bytes(), &scheme) {
            Ok(is_valid) => one(arguments.lua(), is_valid),
            Err(reason) => failed(arguments.lua(), reason),
        }
    })
}

fn key_of(arguments: &Arguments<'_>) -> Result<Rc<Key>, String> {
    let Value::UserData(data) = arguments.value(1) else { return Err(arguments.wrong(1, "key")) };
    let data: AnyUserData = data;
    data.borrow::<Rc<Key>>().map(|key| Rc::clone(&key)).map_err(|_| arguments.wrong(1, "key"))
}

fn scheme<'a>(arguments: &Arguments<'_>, digest: &'a str, place: usize) -> Scheme<'a> {
    Scheme { digest, is_pss: arguments.is_true(place), is_raw: arguments.is_true(place + 1) }
}

/// The kind of a key in DER.
fn kind_of(der: &[u8]) -> Option<Kind> {
    let found = IDENTIFIERS.iter().find(|(identifier, _)| memchr::memmem::find(der, identifier).is_some());
    found.map(|(_, kind)| *kind)
}

impl Key {
    fn parse(text: &str) -> Result<Key, &'static str> {
        const LABELS: [&str; 5] =
            ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "PUBLIC KEY", "RSA PUBLIC KEY"];
        const WRONG: &str = "pkey.new: the text is no key in PEM that this gateway reads: RSA, EC (P-256, P-384, P-521) or Ed25519";
        let (label, der) = section(text, &LABELS).ok_or(WRONG)?;
        let kind = match label {
            "RSA PRIVATE KEY" | "RSA PUBLIC KEY" => Kind::Rsa,
            _ => kind_of(&der).ok_or(WRONG)?,
        };
        if label.ends_with("PUBLIC KEY") {
            return Ok(Key { kind, private: None, public: der });
        }
        let (private, public) = match kind {
            Kind::Rsa => {
                let pair = match label {
                    "PRIVATE KEY" => RsaKeyPair::from_pkcs8(&der),
                    _ => RsaKeyPair::from_der(&der),
                };
                let pair = pair.map_err(|_| WRONG)?;
                if pair.public_modulus_len() > MODULUS_BYTES {
                    return Err("pkey.new: an RSA key may have 4096 bits at most");
                }
                let public = pair.public_key().as_ref().to_vec();
                (Private::Rsa(Box::new(pair)), public)
            }
            Kind::Ed25519 => {
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map_err(|_| WRONG)?;
                let public = pair.public_key().as_ref().to_vec();
                (Private::Edwards(Box::new(pair)), public)
            }
            kind => {
                let algorithm = signing(kind, false).ok_or(WRONG)?;
                let pair = EcdsaKeyPair::from_private_key_der(algorithm, &der).map_err(|_| WRONG)?;
                let public = pair.public_key().as_ref().to_vec();
                (Private::Curve(der), public)
            }
        };
        Ok(Key { kind, private: Some(private), public })
    }

    fn sign(&self, text: &[u8], scheme: &Scheme<'_>) -> Result<Vec<u8>, &'static str> {
        const FAILED: &str = "pkey:sign: the key cannot sign";
        match self.private.as_ref().ok_or("pkey:sign: a public key cannot sign")? {
            Private::Edwards(pair) => Ok(pair.sign(text).as_ref().to_vec()),
            Private::Rsa(pair) => {
                let encoding = encoding(scheme).ok_or(UNSUPPORTED)?;
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &SystemRandom::new(), text, &mut signature).map_err(|_| FAILED)?;
                Ok(signature)
            }
            Private::Curve(der) => {
                check_digest(self.kind, scheme.digest)?;
                let algorithm = signing(self.kind, scheme.is_raw).ok_or(UNSUPPORTED)?;
                let pair = EcdsaKeyPair::from_private_key_der(algorithm, der).map_err(|_| FAILED)?;
                let signature = pair.sign(&SystemRandom::new(), text).map_err(|_| FAILED)?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }

    fn verify(&self, text: &[u8], signature: &[u8], scheme: &Scheme<'_>) -> Result<bool, &'static str> {
        let algorithm = verification(self.kind, scheme)?;
        Ok(UnparsedPublicKey::new(algorithm, &self.public).verify(text, signature).is_ok())
    }
}

/// The error of digests that a key does not take.
const UNSUPPORTED: &str = "the digest is not supported with this key: RSA supports sha256, sha384 and sha512; P-256 sha256; P-384 sha384; P-521 sha512";

fn check_digest(kind: Kind, digest: &str) -> Result<(), &'static str> {
    let wanted = match kind {
        Kind::P256 => "sha256",
        Kind::P384 => "sha384",
        _ => "sha512",
    };
    if digest == wanted { Ok(()) } else { Err(UNSUPPORTED) }
}

fn encoding(scheme: &Scheme<'_>) -> Option<&'static RsaSignatureEncoding> {
    Some(match (scheme.digest, scheme.is_pss) {
        ("sha256", false) => &RSA_PKCS1_SHA256,
        ("sha384", false) => &RSA_PKCS1_SHA384,
        ("sha512", false) => &RSA_PKCS1_SHA512,
        ("sha256", true) => &RSA_PSS_SHA256,
        ("sha384", true) => &RSA_PSS_SHA384,
        ("sha512", true) => &RSA_PSS_SHA512,
        _ => return None,
    })
}

fn signing(kind: Kind, is_raw: bool) -> Option<&'static EcdsaSigningAlgorithm> {
    Some(match (kind, is_raw) {
        (Kind::P256, false) => &ECDSA_P256_SHA256_ASN1_SIGNING,
        (Kind::P256, true) => &ECDSA_P256_SHA256_FIXED_SIGNING,
        (Kind::P384, false) => &ECDSA_P384_SHA384_ASN1_SIGNING,
        (Kind::P384, true) => &ECDSA_P384_SHA384_FIXED_SIGNING,
        (Kind::P521, false) => &ECDSA_P521_SHA512_ASN1_SIGNING,
        (Kind::P521, true) => &ECDSA_P521_SHA512_FIXED_SIGNING,
        (Kind::Rsa | Kind::Ed25519, _) => return None,
    })
}

fn verification(kind: Kind, scheme: &Scheme<'_>) -> Result<&'static dyn VerificationAlgorithm, &'static str> {
    Ok(match kind {
        Kind::Ed25519 => &ED25519,
        Kind::Rsa => match (scheme.digest, scheme.is_pss) {
            ("sha256", false) => &RSA_PKCS1_2048_8192_SHA256,
            ("sha384", false) => &RSA_PKCS1_2048_8192_SHA384,
            ("sha512", false) => &RSA_PKCS1_2048_8192_SHA512,
            ("sha256", true) => &RSA_PSS_2048_8192_SHA256,
            ("sha384", true) => &RSA_PSS_2048_8192_SHA384,
            ("sha512", true) => &RSA_PSS_2048_8192_SHA512,
            _ => return Err(UNSUPPORTED),
        },
        kind => {
            check_digest(kind, scheme.digest)?;
            match (kind, scheme.is_raw) {
                (Kind::P256, false) => &ECDSA_P256_SHA256_ASN1,
                (Kind::P256, true) => &ECDSA_P256_SHA256_FIXED,
                (Kind::P384, false) => &ECDSA_P384_SHA384_ASN1,
                (Kind::P384, true) => &ECDSA_P384_SHA384_FIXED,
                (_, false) => &ECDSA_P521_SHA512_ASN1,
                (_, true) => &ECDSA_P521_SHA512_FIXED,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use crate::snippets::output_of;

    #[test]
    fn keys_sign_and_verify() {
        let text = |key: &str| key.replace('\n', "\\n");
        for (algorithm, digest) in [
            (&PKCS_ECDSA_P256_SHA256, "sha256"),
            (&PKCS_ECDSA_P384_SHA384, "sha384"),
            (&PKCS_ED25519, "sha256"),
        ] {
            let pair = KeyPair::generate_for(algorithm).unwrap();
            let (private, public) = (text(&pair.serialize_pem()), text(&pair.public_key_pem()));
            for options in ["", ", nil, {ecdsa_use_raw = true}"] {
                let body = format!(
                    "local m, d = require('resty.openssl.pkey'), require('resty.openssl.digest').new('{digest}') d:update('te') d:update('xt') \
                     local key, public = assert(m.new('{private}')), assert(m.new('{public}')) \
                     local s = assert(key:sign(d, nil{options})) \
                     ngx.say(key:is_private(), public:is_private(), public:verify(s, 'text', '{digest}'{options}), \
                       key:verify(s, d, nil{options}), public:verify(s, 'other', '{digest}'{options})) \
                     ngx.say(public:sign('x'))"
                );
                let expected = "truefalsetruetruefalse\nnilpkey:sign: a public key cannot sign\n";
                assert_eq!(output_of(&body), expected, "{digest} {options}");
            }
        }
    }

    #[test]
    fn other_texts_are_no_keys() {
        for (value, expected) in [
            (
                "m.new('x')",
                "nilpkey.new: the text is no key in PEM that this gateway reads: RSA, EC (P-256, P-384, P-521) or Ed25519",
            ),
            (
                "m.new({type = 'RSA'})",
                "nilpkey.new: this gateway makes no keys for scripts; expect a key in PEM",
            ),
            ("#require('resty.openssl.rand').bytes(5)", "5"),
            (
                "(function() local c = require('resty.openssl.cipher').new('AES-128-CBC') local k = ('k'):rep(16) return c:decrypt(k, k, c:encrypt(k, k, 'text')), c:encrypt('k', k, 'x') end)()",
                "textnilcipher:init: incorrect key size, expect 16",
            ),
        ] {
            assert_eq!(
                output_of(&format!("local m = require('resty.openssl.pkey') ngx.print({value})")),
                expected,
                "{value}"
            );
        }
    }
}
