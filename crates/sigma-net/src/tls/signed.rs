//! Signatures under what authorities publish: lists of revoked certificates and answers about single ones.

use webpki::EndEntityCert;

use super::der::{BIT_STRING, SEQUENCE, element_of};
use super::{CertificateDer, PROVIDER};

/// `data || algorithm || signature`, which certificates, lists and answers have in common.
pub(super) struct Signed<'a> {
    /// What is signed, with its tag.
    data: &'a [u8],
    /// An AlgorithmIdentifier, without its tag.
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Signed<'a> {
    /// Splits the content of such a sequence; what is signed without its tag, and what follows the signature.
    pub(super) fn split(content: &'a [u8]) -> Option<(Signed<'a>, &'a [u8], &'a [u8])> {
        let (inner, rest) = element_of(content, SEQUENCE)?;
        let data = &content[..content.len() - rest.len()];
        let (algorithm, rest) = element_of(rest, SEQUENCE)?;
        let (bits, rest) = element_of(rest, BIT_STRING)?;
        // The first byte counts the bits of the last one that are none.
        let signature = bits.strip_prefix(&[0])?;
        Some((Signed { data, algorithm, signature }, inner, rest))
    }

    /// Whether the key of `issuer` has signed it, by an algorithm that is fit for use.
    pub(super) fn is_by(&self, issuer: &CertificateDer<'_>) -> bool {
        let Ok(issuer) = EndEntityCert::try_from(issuer) else { return false };
        let algorithms = PROVIDER.signature_verification_algorithms.all.iter();
        algorithms
            .filter(|algorithm| algorithm.signature_alg_id().as_ref() == self.algorithm)
            .any(|algorithm| issuer.verify_signature(*algorithm, self.data, self.signature).is_ok())
    }
}
