//! The operator's certificates and keys: PEM (RFC 7468).

use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use zeroize::Zeroize;

use super::encrypted_key::{self, KeyPassphrases, Locked};
use super::{Staple, Unusable};

/// A private key for signing. Its text is not kept.
#[derive(Debug, Clone)]
pub struct PrivateKey(Arc<dyn SigningKey>);

/// A certificate chain with the key of its first certificate.
#[derive(Debug, Clone)]
pub struct Pair {
    key: Arc<CertifiedKey>,
    /// The OCSP response of its authority, if it is fetched.
    staple: Option<Arc<Staple>>,
}

impl Pair {
    /// Parses a chain and its key from PEM, and checks that they match. `ocsp` is a stapled response about the
    /// certificate, in DER.
    ///
    /// # Errors
    /// Returns `failed to parse cert: …` or `failed to parse key: …`, or an error if the two do not match.
    pub fn parse(cert: &str, key: &str, ocsp: Option<Vec<u8>>) -> Result<Pair, Unusable> {
        Pair::unlock(cert, key, ocsp, &KeyPassphrases::default())
    }

    /// Does the same with a key that may be encrypted with one of these passphrases.
    ///
    /// # Errors
    /// Returns `failed to parse cert: …` or `failed to parse key: …`, or an error if the two do not match.
    pub fn unlock(
        cert: &str,
        key: &str,
        ocsp: Option<Vec<u8>>,
        passphrases: &KeyPassphrases,
    ) -> Result<Pair, Unusable> {
        let pair = CertifiedKey { cert: parse_chain(cert)?, key: parse_key(key, passphrases)?.0, ocsp };
        match pair.keys_match() {
            // The first handshake finds a mismatch of a key that cannot show its public half.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
                Ok(Pair { key: Arc::new(pair), staple: None })
            }
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(Unusable::new("the key does not belong to the certificate"))
            }
            Err(error) => Err(Unusable::new(format!("failed to parse cert: {error}"))),
        }
    }

    /// Returns a certificate that proves a name to an authority (RFC 8737), with its key in PEM. It is not checked:
    /// other readers do not understand the extension that makes it a proof.
    ///
    /// # Errors
    /// Returns `failed to parse key: …`.
    pub fn proof(cert: CertificateDer<'static>, key: &str) -> Result<Pair, Unusable> {
        let pair =
            CertifiedKey { cert: vec![cert], key: parse_key(key, &KeyPassphrases::default())?.0, ocsp: None };
        Ok(Pair { key: Arc::new(pair), staple: None })
    }

    /// Returns the certificates in sending order, the subject's own first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }

    /// Returns true if both are the same object, not merely equal.
    pub fn is(&self, other: &Pair) -> bool {
        Arc::ptr_eq(&self.key, &other.key)
    }

    /// Returns true if it came with an OCSP response.
    pub fn has_answer(&self) -> bool {
        self.key.ocsp.is_some()
    }

    /// Adds a staple, whose current response is sent with it.
    #[must_use]
    pub fn stapled(self, staple: Arc<Staple>) -> Pair {
        Pair { staple: Some(staple), ..self }
    }

    pub(super) fn key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }

    /// Returns its form at a moment in Unix seconds.
    pub(super) fn shown(&self, now: impl FnOnce() -> i64) -> Arc<CertifiedKey> {
        let answer = self.staple.as_ref().and_then(|staple| staple.at(now()));
        let Some(answer) = answer else { return Arc::clone(&self.key) };
        let CertifiedKey { cert, key, .. } = &*self.key;
        Arc::new(CertifiedKey { cert: cert.clone(), key: Arc::clone(key), ocsp: Some(answer.to_vec()) })
    }

    /// Returns true if the certificate has `name` among its names, compared literally: a wildcard matches only
    /// itself.
    pub fn is_for(&self, name: &str) -> bool {
        let own = self.chain().first().and_then(|own| webpki::EndEntityCert::try_from(own).ok());
        own.is_some_and(|own| own.valid_dns_names().any(|known| known.eq_ignore_ascii_case(name)))
    }
}

/// Parses one or more certificates; the first is the subject's own, the others lead to its authority.
///
/// # Errors
/// Returns `failed to parse cert: …` if the text has no certificate.
pub fn parse_chain(text: &str) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let failed = |reason: &str| Unusable::new(format!("failed to parse cert: {reason}"));
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let certificate = certificate.map_err(|error| failed(&reason(&error)))?;
        webpki::EndEntityCert::try_from(&certificate)
            .map_err(|error| failed(&format!("certificate {} {}", chain.len() + 1, unusable(&error))))?;
        chain.push(certificate);
    }
    if chain.is_empty() {
        return Err(failed("it contains no CERTIFICATE block"));
    }
    Ok(chain)
}

/// Parses a private key: PKCS #8, PKCS #1 (RSA) or SEC 1 (EC). PKCS #8 may be encrypted with one of the passphrases.
///
/// # Errors
/// Returns `failed to parse key: …` if the text has no key.
pub fn parse_key(text: &str, passphrases: &KeyPassphrases) -> Result<PrivateKey, Unusable> {
    let failed = |reason: &str| Unusable::new(format!("failed to parse key: {reason}"));
    if encrypted_key::is_pkcs8(text) {
        let use_key = |der: PrivatePkcs8KeyDer<'static>| signing_key(PrivateKeyDer::Pkcs8(der));
        let key = encrypted_key::unlock(text, passphrases, use_key);
        return key.map(PrivateKey).map_err(|locked| match locked {
            Locked::NoPassphrase => failed(ENCRYPTED_KEY),
            Locked::Unsupported(reason) => failed(&format!("the key is encrypted, and {reason}; {DECRYPT}")),
            Locked::Wrong(file) => {
                let file = file.map(|file| format!(" ({file})")).unwrap_or_default();
                failed(&format!(
                    "no passphrase of tls.key_passphrases or tls.key_passphrase_files decrypts the key{file}"
                ))
            }
        });
    }
    let der = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| match error {
        _ if is_encrypted(text) => failed(OLD_ENCRYPTION),
        pem::Error::NoItemsFound => failed("it contains no PRIVATE KEY block"),
        error => failed(&reason(&error)),
    })?;
    // The library's own text has no more information, and names its error types.
    signing_key(der)
        .map(PrivateKey)
        .ok_or_else(|| failed("not an RSA (2048 to 8192 bits), ECDSA (P-256, P-384, P-521) or Ed25519 key"))
}

/// Returns the key of plain bytes, which are overwritten.
fn signing_key(mut der: PrivateKeyDer<'static>) -> Option<Arc<dyn SigningKey>> {
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der);
    der.zeroize();
    key.ok()
}

/// The remedy for a key that cannot be decrypted.
const DECRYPT: &str = "decrypt it first: openssl pkey -in encrypted.key -out plain.key";

/// The error for a key with a passphrase that is not known.
const ENCRYPTED_KEY: &str = "the key is encrypted, and no passphrase is configured; set tls.key_passphrase_files, or decrypt the key: openssl pkey -in encrypted.key -out plain.key";

/// The error for a key in OpenSSL's older form, whose passphrase is hardly stretched.
const OLD_ENCRYPTION: &str =
    "the key is encrypted in OpenSSL's old form; convert it: openssl pkcs8 -topk8 -in old.key -out new.key";

/// Returns true if a text has a key in OpenSSL's older form of encryption, with headers.
fn is_encrypted(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"))
}

/// Returns the reason why a certificate cannot be used.
fn unusable(error: &webpki::Error) -> String {
    match error {
        webpki::Error::UnsupportedCertVersion => "has X.509 version 1, which lacks names and the CA flag; make one of version 3, for example with `openssl req -x509` or with `openssl x509 -req -extfile`".to_owned(),
        error => format!("is not an X.509 certificate: {error}"),
    }
}

/// Returns the library's reason; lines of the text are not repeated, since they may contain a key.
fn reason(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a block has no END line".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed".to_owned(),
        pem::Error::Base64Decode(_) => "a block is not base64".to_owned(),
        pem::Error::NoItemsFound => "it contains no PEM block".to_owned(),
        _ => "a block is too large".to_owned(),
    }
}
