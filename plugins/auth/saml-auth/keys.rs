//! The keys of both sides: the provider's come from the configuration only; keys in messages are ignored.

use aws_lc_rs::digest::{Algorithm as Digest, SHA256, SHA384, SHA512, digest};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, VerificationAlgorithm,
};

use crate::shared::tokens::{Algorithm, SigningKey, element};
use sigma_plugin_kit::pem::sections;

/// How requests are signed.
pub(super) const RSA_SHA512: &str = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha512";

/// The algorithms of signatures that are taken (RFC 9231 §2.3), each with the keys that it is for. SHA-1, secrets that
/// both sides know and `none` are not among them.
static ALGORITHMS: [(&str, &dyn VerificationAlgorithm); 5] = [
    ("http://www.w3.org/2001/04/xmldsig-more#rsa-sha256", &RSA_PKCS1_2048_8192_SHA256),
    ("http://www.w3.org/2001/04/xmldsig-more#rsa-sha384", &RSA_PKCS1_2048_8192_SHA384),
    (RSA_SHA512, &RSA_PKCS1_2048_8192_SHA512),
    ("http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha256", &ECDSA_P256_SHA256_FIXED),
    ("http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384", &ECDSA_P384_SHA384_FIXED),
];

/// The algorithms of digests that are taken.
static DIGESTS: [(&str, &Digest); 3] = [
    ("http://www.w3.org/2001/04/xmlenc#sha256", &SHA256),
    ("http://www.w3.org/2001/04/xmldsig-more#sha384", &SHA384),
    ("http://www.w3.org/2001/04/xmlenc#sha512", &SHA512),
];

/// The digest of a text; None for an algorithm that is not taken.
pub(super) fn digest_of(algorithm: &str, text: &[u8]) -> Option<Vec<u8>> {
    let (_, known) = DIGESTS.iter().find(|(name, _)| *name == algorithm)?;
    Some(digest(known, text).as_ref().to_vec())
}

/// The provider's verification keys.
pub(super) struct ProviderKeys(Vec<(&'static str, ParsedPublicKey)>);

impl ProviderKeys {
    /// Returns the keys of all certificates in a PEM text: one, or two while the provider changes its key.
    /// The certificates are only containers of keys: the configuration alone vouches for them.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if there is no certificate, or one of them cannot be parsed.
    pub(super) fn of_pem(pem: &str) -> Result<ProviderKeys, String> {
        let certificates = sections(pem, "CERTIFICATE").filter(|certificates| !certificates.is_empty());
        let certificates = certificates.ok_or("it contains no PEM certificate")?;
        let mut keys = Vec::new();
        for certificate in certificates {
            let key = public_key(&certificate).ok_or("it contains an invalid certificate")?;
            let fitting = ALGORITHMS
                .iter()
                .filter_map(|(name, algorithm)| Some((*name, ParsedPublicKey::new(*algorithm, key).ok()?)));
            let before = keys.len();
            keys.extend(fitting);
            if keys.len() == before {
                return Err("its key must be RSA of 2048 to 8192 bits, P-256 or P-384".to_owned());
            }
        }
        Ok(ProviderKeys(keys))
    }

    /// Whether one of the keys has signed the text with this algorithm.
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if none has.
    pub(super) fn verify(&self, algorithm: &str, text: &[u8], signature: &[u8]) -> Result<(), &'static str> {
        let mut fitting = self.0.iter().filter(|(name, _)| *name == algorithm).peekable();
        if fitting.peek().is_none() {
            return Err("the signature algorithm is not supported, or does not match the key");
        }
        let holds = fitting.any(|(_, key)| key.verify_sig(text, signature).is_ok());
        if holds { Ok(()) } else { Err("the signature is invalid") }
    }
}

/// The gateway's signing key.
pub(super) struct OwnKey(SigningKey);

impl OwnKey {
    /// A private key, and the certificate that the provider has of it.
    ///
    /// # Errors
    /// Returns an error, which names the field, if one of them cannot be used, or they are not of each other.
    pub(super) fn of_pem(private: &str, certificate: &str) -> Result<OwnKey, String> {
        let key = SigningKey::of_pem(private, Algorithm::Rs512)
            .map_err(|fault| format!("sp_private_key: {fault}"))?;
        let known = ProviderKeys::of_pem(certificate).map_err(|fault| format!("sp_cert: {fault}"))?;
        let own = OwnKey(key);
        let signature = own.sign(b"").map_err(|fault| format!("sp_private_key: {fault}"))?;
        known
            .verify(RSA_SHA512, b"", &signature)
            .map_err(|_| "sp_cert: it does not belong to `sp_private_key`")?;
        Ok(own)
    }

    /// The signature of a text, with [`RSA_SHA512`].
    ///
    /// # Errors
    /// Returns an error, which is a text for the log, if it cannot be signed.
    pub(super) fn sign(&self, text: &[u8]) -> Result<Vec<u8>, &'static str> {
        self.0.sign(text).ok_or("cannot sign a message")
    }
}

/// The SubjectPublicKeyInfo of a certificate (RFC 5280 §4.1), DER.
fn public_key(certificate: &[u8]) -> Option<&[u8]> {
    const INTEGER: u8 = 0x02;
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if let Some((_, behind)) = element(rest, VERSION) {
        rest = behind;
    }
    // Number, algorithm, issuer, validity, subject.
    for tag in [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE] {
        rest = element(rest, tag)?.1;
    }
    let (_, behind) = element(rest, SEQUENCE)?;
    Some(&rest[..rest.len() - behind.len()])
}
