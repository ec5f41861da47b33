//! Status of single certificates (OCSP, RFC 6960): requests to a responder, and checked responses.

use std::time::Duration;

use aws_lc_rs::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use rustls::pki_types::UnixTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::certificate::{self, responder};
use super::der::{
    BIT_STRING, BOOLEAN, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, after_optional, element,
    element_of, encode, time,
};
use super::signed::Signed;
use super::{CertificateDer, PROVIDER, Unusable};

const ENUMERATED: u8 = 0x0a;
/// Tags of fields by their numbers: constructed, and primitive.
const FIELD_0: u8 = 0xa0;
const FIELD_1: u8 = 0xa1;
const PRIMITIVE_0: u8 = 0x80;
const PRIMITIVE_2: u8 = 0x82;

/// id-pkix-ocsp-basic
const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 48, 1, 1];
/// id-kp-OCSPSigning
const SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 9];
/// SHA-1, which every responder supports (RFC 5019 §2.1.1); it only identifies the certificate.
const SHA1: &[u8] = &[0x2b, 0x0e, 3, 2, 26];
const SHA1_ALGORITHM: &[u8] = &[SEQUENCE, 9, OBJECT_IDENTIFIER, 5, 0x2b, 0x0e, 3, 2, 26, 5, 0];

/// The limit of delegate certificates to check in one response.
const DELEGATES_MAX: usize = 8;

/// The tolerated clock difference of a responder, in seconds.
const AHEAD_S: i64 = 300;

/// An OCSP request for a certificate.
#[derive(Debug, Clone)]
pub struct OcspQuestion {
    issuer: CertificateDer<'static>,
    responder: Option<String>,
    /// The hashes of the issuer's name and key.
    hashes: [Vec<u8>; 2],
    serial: Vec<u8>,
    identity: [u8; 32],
}

/// The status of a certificate at its authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevocationStatus {
    /// Not revoked
    Good,
    /// Revoked
    Revoked,
    /// The responder does not know it
    Unknown,
}

/// A response about the requested certificate that was valid when it was read.
#[derive(Debug, Clone)]
pub struct OcspAnswer {
    /// Its status.
    pub status: RevocationStatus,
    /// The time of the status, in Unix seconds.
    pub this_update: i64,
    /// The time of the next status; None if unknown.
    pub next_update: Option<i64>,
}

/// The required signer of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// The issuer of the certificate, or a responder that it has named
    Verified,
    /// Any signer
    Anybody,
}

impl OcspQuestion {
    /// Returns the request for the first certificate of a chain.
    ///
    /// # Errors
    /// Returns an error if the second is not its issuer's, or one of them is malformed.
    pub fn about(chain: &[CertificateDer<'_>]) -> Result<OcspQuestion, Unusable> {
        let [own, issuer, ..] = chain else {
            return Err(Unusable::new("the certificate of its issuer is missing; append it to the chain"));
        };
        let malformed = |_| Unusable::new("a certificate of the chain is malformed");
        let (parsed, above) = (
            EndEntityCert::try_from(own).map_err(malformed)?,
            EndEntityCert::try_from(issuer).map_err(malformed)?,
        );
        if parsed.issuer() != above.subject() {
            return Err(Unusable::new("the next certificate of the chain is not its issuer"));
        }
        let key_info = above.subject_public_key_info();
        let key = public_key(&key_info).ok_or_else(|| Unusable::new("the key of its issuer is malformed"))?;
        let hash = |bytes: &[u8]| digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec();
        let mut identity = digest::Context::new(&SHA256);
        identity.update(&own.len().to_be_bytes());
        identity.update(own);
        identity.update(issuer);
        let mut name = [0; 32];
        name.copy_from_slice(identity.finish().as_ref());
        Ok(OcspQuestion {
            issuer: issuer.clone().into_owned(),
            responder: responder(own),
            hashes: [hash(&encode(SEQUENCE, &[above.subject()])), hash(key)],
            serial: parsed.serial().to_vec(),
            identity: name,
        })
    }

    /// Returns the responder's address in the certificate; None if it has no address.
    pub fn responder(&self) -> Option<&str> {
        self.responder.as_deref()
    }

    /// Returns an identifier of the certificate and its issuer.
    pub fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// Returns the encoded request.
    pub fn encoded(&self) -> Vec<u8> {
        let [name, key] = &self.hashes;
        let id = encode(
            SEQUENCE,
            &[
                SHA1_ALGORITHM,
                &encode(OCTET_STRING, &[name]),
                &encode(OCTET_STRING, &[key]),
                &encode(INTEGER, &[&self.serial]),
            ],
        );
        // Request, requestList, tbsRequest, OCSPRequest.
        (0..4).fold(id, |inner, _| encode(SEQUENCE, &[&inner]))
    }

    /// Parses a response at `now`, in Unix seconds.
    ///
    /// # Errors
    /// Returns an error if it is about another certificate, not signed by `signer`, from the future, or expired.
    pub fn verify(&self, der: &[u8], now: i64, signer: Signer) -> Result<OcspAnswer, Unusable> {
        let malformed = || Unusable::new("the OCSP response is malformed");
        let basic = basic(der)?;
        let (whole, rest) = element_of(basic, SEQUENCE).ok_or_else(malformed)?;
        let (signed, data, certificates) = Signed::split(whole).ok_or_else(malformed)?;
        if !rest.is_empty() {
            return Err(malformed());
        }
        if signer == Signer::Verified && !self.is_signed(&signed, certificates, now) {
            return Err(Unusable::new(
                "the OCSP response is not signed by the issuer of the certificate or its responder",
            ));
        }
        let answer = self.found(data).ok_or_else(malformed)?;
        let answer = answer.ok_or_else(|| Unusable::new("the OCSP response is for another certificate"))?;
        if answer.this_update > now.saturating_add(AHEAD_S) {
            return Err(Unusable::new("the OCSP response has a time in the future: check the clocks"));
        }
        if answer.next_update.is_some_and(|next| next <= now) {
            return Err(Unusable::new("the OCSP response has expired"));
        }
        Ok(answer)
    }

    fn is_signed(&self, signed: &Signed<'_>, certificates: &[u8], now: i64) -> bool {
        if signed.is_by(&self.issuer) {
            return true;
        }
        let Some((list, _)) = element_of(certificates, FIELD_0) else { return false };
        let Some((mut list, _)) = element_of(list, SEQUENCE) else { return false };
        for _ in 0..DELEGATES_MAX {
            let Some((_, rest)) = element_of(list, SEQUENCE) else { return false };
            let delegate = CertificateDer::from(&list[..list.len() - rest.len()]);
            if signed.is_by(&delegate) && self.has_named(&delegate, now) {
                return true;
            }
            list = rest;
        }
        false
    }

    /// Returns true if the issuer itself has certified `delegate` for responses (RFC 6960 §4.2.2.2).
    fn has_named(&self, delegate: &CertificateDer<'_>, now: i64) -> bool {
        let (Ok(anchor), Ok(certificate), Ok(now)) =
            (anchor_from_trusted_cert(&self.issuer), EndEntityCert::try_from(delegate), u64::try_from(now))
        else {
            return false;
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let algorithms = PROVIDER.signature_verification_algorithms.all;
        let usage = KeyUsage::required(SIGNING);
        certificate.verify_for_usage(algorithms, &[anchor], &[], now, usage, None, None).is_ok()
    }

    /// Returns the response about the certificate; the inner None without one.
    fn found(&self, data: &[u8]) -> Option<Option<OcspAnswer>> {
        let (_responder, rest) = {
            let (_, content, rest) = element(after_optional(data, FIELD_0))?;
            (content, rest)
        };
        let (_produced, rest) = time(rest)?;
        let (mut singles, _) = element_of(rest, SEQUENCE)?;
        while !singles.is_empty() {
            let (single, rest) = element_of(singles, SEQUENCE)?;
            let (id, said) = element_of(single, SEQUENCE)?;
            if self.is_meant(id) {
                return single_answer(said).map(Some);
            }
            singles = rest;
        }
        Some(None)
    }

    fn is_meant(&self, id: &[u8]) -> bool {
        let parts = || {
            let (algorithm, rest) = element_of(id, SEQUENCE)?;
            let (algorithm, _) = element_of(algorithm, OBJECT_IDENTIFIER)?;
            let (name, rest) = element_of(rest, OCTET_STRING)?;
            let (key, rest) = element_of(rest, OCTET_STRING)?;
            let (serial, _) = element_of(rest, INTEGER)?;
            Some((algorithm, [name, key], serial))
        };
        parts().is_some_and(|(algorithm, hashes, serial)| {
            algorithm == SHA1
                && self.hashes.each_ref().map(|hash| &hash[..]) == hashes
                && serial == self.serial
        })
    }
}

/// Returns true if a certificate names `issuer` as its issuer and has its signature.
pub(super) fn issued_by(own: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let is_named = || {
        let (own, issuer) = (EndEntityCert::try_from(own).ok()?, EndEntityCert::try_from(issuer).ok()?);
        Some(own.issuer() == issuer.subject())
    };
    let is_signed = || {
        let (content, _) = element_of(own, SEQUENCE)?;
        Some(Signed::split(content)?.0.is_by(issuer))
    };
    is_named() == Some(true) && is_signed() == Some(true)
}

/// Returns the bits of a key in a SubjectPublicKeyInfo.
fn public_key(info: &[u8]) -> Option<&[u8]> {
    let (content, _) = element_of(info, SEQUENCE)?;
    let (_algorithm, rest) = element_of(content, SEQUENCE)?;
    element_of(rest, BIT_STRING)?.0.strip_prefix(&[0])
}

/// Returns the BasicOCSPResponse of a responder's message.
fn basic(der: &[u8]) -> Result<&[u8], Unusable> {
    let malformed = || Unusable::new("the OCSP response is malformed");
    let (content, rest) = element_of(der, SEQUENCE).ok_or_else(malformed)?;
    let (status, bytes) = element_of(content, ENUMERATED).ok_or_else(malformed)?;
    match status {
        [0] if rest.is_empty() => {}
        [0] => return Err(malformed()),
        [1] => return Err(Unusable::new("the OCSP responder reports a malformed request")),
        [2] => return Err(Unusable::new("the OCSP responder reports an internal error")),
        [3] => return Err(Unusable::new("the OCSP responder is busy: try again later")),
        [6] => return Err(Unusable::new("the OCSP responder requires a signed request")),
        _ => return Err(Unusable::new("the OCSP responder refuses the request")),
    }
    let parts = || {
        let (bytes, _) = element_of(element_of(bytes, FIELD_0)?.0, SEQUENCE)?;
        let (kind, rest) = element_of(bytes, OBJECT_IDENTIFIER)?;
        let (basic, _) = element_of(rest, OCTET_STRING)?;
        (kind == BASIC).then_some(basic)
    };
    parts().ok_or_else(malformed)
}

/// Parses a SingleResponse after its certificate id.
fn single_answer(said: &[u8]) -> Option<OcspAnswer> {
    let (tag, _, rest) = element(said)?;
    let status = match tag {
        PRIMITIVE_0 => RevocationStatus::Good,
        FIELD_1 => RevocationStatus::Revoked,
        PRIMITIVE_2 => RevocationStatus::Unknown,
        _ => return None,
    };
    let (this_update, rest) = time(rest)?;
    let (next_update, rest) = match element_of(rest, FIELD_0) {
        Some((next, rest)) => (Some(time(next)?.0), rest),
        None => (None, rest),
    };
    if !rest.is_empty() && has_critical(element_of(rest, FIELD_1)?.0)? {
        return None;
    }
    Some(OcspAnswer { status, this_update, next_update })
}

/// Returns true if one of these extensions is critical: none is supported.
fn has_critical(extensions: &[u8]) -> Option<bool> {
    let (mut extensions, _) = element_of(extensions, SEQUENCE)?;
    while !extensions.is_empty() {
        let (extension, rest) = element_of(extensions, SEQUENCE)?;
        let (_, value) = element_of(extension, OBJECT_IDENTIFIER)?;
        if element_of(value, BOOLEAN).is_some_and(|(critical, _)| critical != [0]) {
            return Some(true);
        }
        extensions = rest;
    }
    Some(false)
}

/// Returns true if the certificate requires a stapled response (RFC 7633).
pub fn must_be_stapled(own: &CertificateDer<'_>) -> bool {
    /// id-pe-tlsfeature, and status_request among its features
    const FEATURES: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 24];
    const STATUS_REQUEST: &[u8] = &[5];
    let features =
        certificate::extension(own, FEATURES).and_then(|value| Some(element_of(value, SEQUENCE)?.0));
    let mut features = features.unwrap_or_default();
    while let Some((feature, rest)) = element_of(features, INTEGER) {
        if feature == STATUS_REQUEST {
            return true;
        }
        features = rest;
    }
    false
}

#[cfg(test)]
mod tests;
