//! Signatures on publications of authorities: revocation lists and OCSP responses.

use webpki::EndEntityCert;

use super::der::{BIT_STRING, SEQUENCE, element_of};
use super::{CertificateDer, PROVIDER};

/// `data || algorithm || signature`, the common form of certificates, lists and responses.
pub(super) struct Signed<'a> {
    /// The signed data, with its tag.
    data: &'a [u8],
    /// An AlgorithmIdentifier, without its tag.
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Signed<'a> {
    /// Splits the content of such a sequence; also returns the signed data without its tag, and the rest after the
    /// signature.
    pub(super) fn split(content: &'a [u8]) -> Option<(Signed<'a>, &'a [u8], &'a [u8])> {
        let (inner, rest) = element_of(content, SEQUENCE)?;
        let data = &content[..content.len() - rest.len()];
        let (algorithm, rest) = element_of(rest, SEQUENCE)?;
        let (bits, rest) = element_of(rest, BIT_STRING)?;
        // The first byte is the number of unused bits in the last one.
        let signature = bits.strip_prefix(&[0])?;
        Some((Signed { data, algorithm, signature }, inner, rest))
    }

    /// Returns true if the key of `issuer` has signed it, with a supported algorithm.
    pub(super) fn is_by(&self, issuer: &CertificateDer<'_>) -> bool {
        let Ok(issuer) = EndEntityCert::try_from(issuer) else { return false };
        let algorithms = PROVIDER.signature_verification_algorithms.all.iter();
        algorithms
            .filter(|algorithm| algorithm.signature_alg_id().as_ref() == self.algorithm)
            .any(|algorithm| issuer.verify_signature(*algorithm, self.data, self.signature).is_ok())
    }
}
