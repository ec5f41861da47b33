//! Signatures of tokens, for `resty.jwt`.

use std::rc::Rc;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, VerificationAlgorithm,
};
use mlua::{Lua, Table};
use sigma_plugin_kit::pem::section;
use webpki::EndEntityCert;

use crate::engine::arguments::{failed, one};
use crate::engine::host::Host;

/// Registers `verify`: algorithm, key, text and signature. Returns true, or nil and the reason.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, native: &Table) -> mlua::Result<()> {
    host.function(lua, native, "verify", |_, arguments| {
        let (name, key) = (arguments.text(1)?, arguments.text(2)?);
        let (text, signature) = (arguments.text(3)?, arguments.text(4)?);
        let Some(algorithm) = algorithm(&name.as_bytes()) else {
            return failed(arguments.lua(), format!("Unsupported algorithm {}", name.to_string_lossy()));
        };
        let key = match public_key(&key.to_string_lossy(), algorithm) {
            Ok(key) => key,
            Err(reason) => return failed(arguments.lua(), reason),
        };
        match key.verify_sig(&text.as_bytes(), &signature.as_bytes()) {
            Ok(()) => one(arguments.lua(), true),
            Err(_) => failed(arguments.lua(), "Verification failed"),
        }
    })
}

/// An algorithm by its name (RFC 7518 §3.1, RFC 8037 §3.1).
fn algorithm(name: &[u8]) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match name {
        b"RS256" => &RSA_PKCS1_2048_8192_SHA256,
        b"RS384" => &RSA_PKCS1_2048_8192_SHA384,
        b"RS512" => &RSA_PKCS1_2048_8192_SHA512,
        b"PS256" => &RSA_PSS_2048_8192_SHA256,
        b"PS384" => &RSA_PSS_2048_8192_SHA384,
        b"PS512" => &RSA_PSS_2048_8192_SHA512,
        b"ES256" => &ECDSA_P256_SHA256_FIXED,
        b"ES384" => &ECDSA_P384_SHA384_FIXED,
        b"ES512" => &ECDSA_P521_SHA512_FIXED,
        b"EdDSA" => &ED25519,
        _ => return None,
    })
}

/// The key of a PEM text with a public key or a certificate.
fn public_key(
    text: &str,
    algorithm: &'static dyn VerificationAlgorithm,
) -> Result<ParsedPublicKey, &'static str> {
    const WRONG: &str = "Decode secret is not a valid cert/public key";
    let found = section(text, &["PUBLIC KEY", "RSA PUBLIC KEY", "CERTIFICATE"]);
    let (label, der) = found.ok_or(WRONG)?;
    let der = if label == "CERTIFICATE" {
        let certificate = rustls_pki_types::CertificateDer::from(der);
        let certificate = EndEntityCert::try_from(&certificate).map_err(|_| WRONG)?;
        certificate.subject_public_key_info().as_ref().to_vec()
    } else {
        der
    };
    ParsedPublicKey::new(algorithm, der).map_err(|_| "the key is not for the algorithm of the token")
}
